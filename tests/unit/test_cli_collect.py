"""The verb `collect`: servers that answer, never answer, trickle or are gone, and processes of all kinds."""

import bz2
import contextlib
import gzip
import http.server
import json
import lzma
import socket
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest

from collected import diagnosed, opened, own_store  # noqa: F401 - every test's fixture
from diagnose_examples import CORPUS, ROOT
from gemma4_triage.collect import processes
from small_server import closing_port

LOGS = ROOT / "tests" / "data" / "logs"
INFO = {
    "version": "0.5.13.post1",
    "page_size": 16,
    "api_key": "topsecret",
    "model_path": "m",
    "hf_token": "hf_" + "x" * 30,
}


class _Server:
    """A server of HTTP on loopback; `answer` is called for each GET and may do as it likes with the handler."""

    def __init__(self, answer):
        self.seen: list[tuple[str, str | None]] = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(handler):
                self.seen.append((handler.path, handler.headers.get("Authorization")))
                answer(handler)

            def log_message(handler, *_):
                pass

        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, daemon=True)
        self._thread.start()

    def close(self):
        self._http.shutdown()
        self._http.server_close()


def reply(handler, status: int, body: bytes) -> None:
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def healthy(handler) -> None:
    body = {"/server_info": json.dumps(INFO), "/model_info": '{"model_path": "m"}', "/metrics": "a 1\n"}
    reply(handler, 200, body.get(handler.path, "").encode())


@pytest.fixture
def serve():
    """Starts servers, and ends them."""
    servers: list[_Server] = []

    def start(answer) -> _Server:
        servers.append(_Server(answer))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def without_logs(path: Path) -> Path:
    """Leave out logs: the process that serves here is this one, whose children are engines of other tests."""
    kept = path.with_name(f"kept_{path.name}")
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(kept, "w") as written:
        for name in archive.namelist():
            if not name.startswith("logs/"):
                written.writestr(name, archive.read(name))
    return kept


class TestServers:
    def test_one_that_answers(self, cli, serve, tmp_path, monkeypatch):
        monkeypatch.setenv("GEMMA4_TRIAGE_API_KEY", "key-of-the-server")
        server, out = serve(healthy), tmp_path / "a.zip"
        code, said, err = cli("collect", server.url, "-o", out)
        assert (code, err) == (0, f"Wrote {out}\n")
        assert f"next: gemma4-triage diagnose {out}" in said
        files = opened(out)
        assert sorted(path for path, _ in server.seen) == [
            *("/health", "/metrics", "/model_info", "/server_info", "/v1/models")
        ]
        assert {key for _, key in server.seen} == {"Bearer key-of-the-server"}
        assert b"key-of-the-server" not in b"".join(files.values())
        assert b"topsecret" not in files["http/server_info.json"]
        assert out.stat().st_mode & 0o777 == 0o600
        assert diagnosed(cli, without_logs(out)) == (0, [])
        code, document, _ = cli("report", without_logs(out), "--json")
        assert (code, json.loads(document)["exit_code"]) == (0, 0)
        (incident,) = json.loads(document)["incidents"]
        assert incident["title"].startswith(f"a bundle of {server.url}")
        assert incident["readings"][0].startswith(f"{without_logs(out)}/collect.json: a bundle of")

    def test_one_whose_scheduler_hangs(self, cli, serve, tmp_path):
        let_go = threading.Event()

        def hanging(handler):
            if handler.path in ("/health", "/server_info"):
                let_go.wait(20)
            else:
                healthy(handler)

        begin = time.monotonic()
        assert cli("collect", serve(hanging).url, "-o", tmp_path / "a.zip", "--timeout", "0.5")[0] == 0
        assert time.monotonic() - begin < 8
        let_go.set()
        assert diagnosed(cli, without_logs(tmp_path / "a.zip")) == (1, ["server-not-answering"])

    @pytest.mark.parametrize("status", [None, 503])
    def test_one_whose_health_alone_is_not_well(self, cli, serve, tmp_path, status):
        def answer(handler):
            if handler.path != "/health":
                healthy(handler)
            elif status is None:
                time.sleep(3)
            else:
                reply(handler, status, b"")

        url = serve(answer).url
        assert cli("collect", url, "-o", tmp_path / "a.zip", "--timeout", "1s")[0] == 0
        code, out, _ = cli("diagnose", without_logs(tmp_path / "a.zip"))
        assert (code, "does not pass its own check" in out, "nothing wrong" in out) == (1, True, False)

    def test_one_that_trickles_for_ever(self, cli, serve, tmp_path):
        stop = threading.Event()

        def trickling(handler):
            handler.send_response(200)
            handler.end_headers()
            while not stop.wait(0.1):
                handler.wfile.write(b"x")

        begin = time.monotonic()
        code, _, err = cli("collect", serve(trickling).url, "-o", tmp_path / "a.zip", "--timeout", "0.5")
        stop.set()
        assert time.monotonic() - begin < 8
        # The process that listens is this one, so there is something to pack.
        assert (code, "Wrote" in err) == (0, True)
        assert diagnosed(cli, tmp_path / "a.zip")[0] == 1

    def test_a_redirect_gets_no_key(self, cli, serve, tmp_path, monkeypatch):
        monkeypatch.setenv("GEMMA4_TRIAGE_API_KEY", "key-of-the-server")
        other = serve(healthy)

        def elsewhere(handler):
            handler.send_response(302)
            handler.send_header("Location", other.url + handler.path)
            handler.end_headers()

        code, out, err = cli("collect", url := serve(elsewhere).url, "-o", tmp_path / "a.zip")
        assert (code, out, (tmp_path / "a.zip").exists(), other.seen) == (2, "", False, [])
        said = f"what answers at {url} is no server of SGLang: it sends every request on to {other.url}/model_info"
        assert err.splitlines()[0] == f"error: {said}"
        # With the log of a server that is gone there is something to pack, and the address is told for what it is.
        words = ("collect", url, "-o", tmp_path / "a.zip", "--log", LOGS / "healthy.log")
        assert cli(*words)[0] == 0
        assert not any(name.startswith("process/") for name in opened(tmp_path / "a.zip"))
        code, out, _ = cli("diagnose", tmp_path / "a.zip")
        assert (code, "What answered at that address was no server of SGLang: it sends every" in out) == (1, True)

    def test_a_redirect_within_the_server_is_followed_with_its_key(self, cli, serve, tmp_path, monkeypatch):
        monkeypatch.setenv("GEMMA4_TRIAGE_API_KEY", "key-of-the-server")

        def below_a_prefix(handler):
            if handler.path.startswith("/v/"):
                handler.path = handler.path.removeprefix("/v")
                healthy(handler)
            else:
                handler.send_response(307)
                handler.send_header("Location", f"/v{handler.path}")
                handler.end_headers()

        server = serve(below_a_prefix)
        assert cli("collect", server.url, "-o", tmp_path / "a.zip")[0] == 0
        assert ("/v/server_info", "Bearer key-of-the-server") in server.seen
        assert b"0.5.13.post1" in opened(tmp_path / "a.zip")["http/server_info.json"]

    @pytest.mark.parametrize(
        ("status", "body", "code"),
        [(404, b'{"detail": "Not Found"}', 2), (200, b"<html>sign in</html>", 2), (401, b"", 0), (503, b"", 0)],
    )
    def test_another_programs_answers_are_no_servers(self, cli, serve, tmp_path, status, body, code):
        url = serve(lambda handler: reply(handler, status, body)).url
        found, _, err = cli("collect", url, "-o", tmp_path / "a.zip")
        assert found == code
        assert ("is no server of SGLang: none of its pages is one of SGLang's: /model_info gave HTTP" in err) == bool(
            code
        )

    def test_noise_is_no_server(self, cli, tmp_path):
        with socket.create_server(("127.0.0.1", 0)) as noisy:

            def answer():
                with contextlib.suppress(OSError):
                    while True:
                        connection, _ = noisy.accept()
                        connection.recv(4096)
                        connection.sendall(b"\x15\x03\x01\x00\x02\x02\x46" * 40)
                        connection.close()

            threading.Thread(target=answer, daemon=True).start()
            url = f"http://127.0.0.1:{noisy.getsockname()[1]}"
            code, _, err = cli("collect", url, "-o", tmp_path / "a.zip")
        assert (code, (tmp_path / "a.zip").exists()) == (2, False)
        assert "is no server of SGLang: its answers are no HTTP" in err

    @pytest.mark.parametrize("reads_first", [False, True])
    @pytest.mark.parametrize("resets", [False, True])
    def test_a_port_that_closes_without_a_byte_is_told_so_and_its_process_left_alone(
        self, cli, tmp_path, resets, reads_first
    ):
        with closing_port(b"", resets, reads_first) as url:
            code, out, err = cli("collect", url, "-o", tmp_path / "a.zip")
            assert (code, out, (tmp_path / "a.zip").exists()) == (5, "", False)
            said = f"error: nothing is left of {url}: the connection was closed without a byte of an answer, as a proxy"
            assert err.splitlines()[0].startswith(said)
            assert cli("collect", url, "-o", tmp_path / "a.zip", "--log", LOGS / "healthy.log")[0] == 0
        assert not any(name.startswith("process/") for name in opened(tmp_path / "a.zip"))
        assert diagnosed(cli, tmp_path / "a.zip") == (1, ["server-not-answering"])

    def test_an_answer_that_breaks_off_is_none(self, cli, tmp_path):
        with closing_port(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc", resets=False) as url:
            code, out, _ = cli("collect", url, "-o", tmp_path / "a.zip")
        assert (code, "health.txt: the answer broke off after 3 bytes" in out) == (0, True)

    def test_of_an_error_that_breaks_off_the_status_counts(self, cli, tmp_path):
        with closing_port(b"HTTP/1.1 503 No\r\nContent-Length: 100\r\n\r\nabc", resets=True) as url:
            code, out, err = cli("collect", url, "-o", tmp_path / "a.zip")
        assert (code, "not in it: http/" in out, "Traceback" in err) == (0, False, False)

    def test_one_that_accepts_and_is_silent_is_said_to_though_no_process_is_ours(self, cli, tmp_path, monkeypatch):
        monkeypatch.setattr(processes, "listening_on", lambda port: None)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"http://127.0.0.1:{silent.getsockname()[1]}"
            code, out, _ = cli("collect", url, "-o", tmp_path / "a.zip", "--timeout", "0.5s")
        assert code == 0
        assert "health.txt: no answer within 0.5 s, though the connection was accepted" in out
        assert diagnosed(cli, tmp_path / "a.zip") == (1, ["server-not-answering"])

    def test_its_key_is_in_no_line_of_the_zip(self, cli, serve, tmp_path, monkeypatch):
        log = tmp_path / "server.log"
        for key in ("correct-horse-battery", "k7"):
            monkeypatch.setenv("GEMMA4_TRIAGE_API_KEY", key)
            log.write_text(f"[2026-11-26 01:00:00] a client sent {key}, not xk7x\n")
            url = serve(lambda handler, key=key: reply(handler, 200, json.dumps({**INFO, "x": key}).encode())).url
            assert cli("collect", url, "-o", tmp_path / "a.zip", "--log", log, "--force")[0] == 0
            (named,) = [data for name, data in opened(tmp_path / "a.zip").items() if name.endswith("server.log")]
            assert b"a client sent [redacted], not xk7x" in named
            assert json.loads(opened(tmp_path / "a.zip")["http/server_info.json"])["x"] == "[redacted]"

    def test_an_address_where_nobody_listens(self, cli, tmp_path):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        code, out, err = cli("collect", f"http://127.0.0.1:{port}", "-o", tmp_path / "a.zip")
        assert (code, out, (tmp_path / "a.zip").exists()) == (5, "", False)
        assert "Connection refused" in err
        # With its log and the folder of its dumps there is something.
        words = ("--log", LOGS / "pool-leak.log", "--dir", CORPUS / "swa-state-stale")
        assert cli("collect", f"http://127.0.0.1:{port}", "-o", tmp_path / "a.zip", *words)[0] == 0
        names = opened(tmp_path / "a.zip")
        assert sum(name.startswith("dumps/guards/") for name in names) == 3
        code, rules = diagnosed(cli, tmp_path / "a.zip")
        assert code == 1
        assert {"draft-swa-state-stale", "pool-leak", "server-not-answering"} <= set(rules)

    @pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
    def test_a_log_of_powershells_is_looked_through_too(self, cli, tmp_path, encoding):
        text = "Prefill batch, api_key=abcdefgh\n" + (LOGS / "pool-leak.log").read_text()
        (tmp_path / "a.log").write_bytes(text.encode(encoding))
        words = ("collect", "http://127.0.0.1:9", "--log", tmp_path / "a.log", "-o", tmp_path / "a.zip")
        assert cli(*words)[0] == 0
        kept = opened(tmp_path / "a.zip")["logs/0_a.log"].decode().lstrip("\ufeff")
        assert kept.startswith("Prefill batch, api_key=[redacted]\n")
        assert "pool-leak" in diagnosed(cli, tmp_path / "a.zip")[1]

    @pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
    def test_a_packed_log_is_looked_through_for_secrets_too(self, cli, tmp_path, pack):
        text = b"Prefill batch, api_key=abcdefgh\n" + (LOGS / "pool-leak.log").read_bytes()
        (tmp_path / "server.log.1").write_bytes(pack(text))
        words = ("collect", "http://127.0.0.1:9", "--log", tmp_path / "server.log.1", "-o", tmp_path / "a.zip")
        assert cli(*words)[0] == 0
        packed = opened(tmp_path / "a.zip")["logs/0_server.log.1"]
        assert packed.startswith(b"Prefill batch, api_key=[redacted]\n")
        assert "pool-leak" in diagnosed(cli, tmp_path / "a.zip")[1]

    @pytest.mark.parametrize(
        "content", [b"\x28\xb5\x2f\xfd" + bytes(200), b"PK\x03\x04" + bytes(200), bytes(range(32)) * 9]
    )
    def test_what_cannot_be_looked_through_stays_out(self, cli, tmp_path, content):
        (tmp_path / "a.log").write_bytes(content)
        words = ("--log", tmp_path / "a.log", "--log", LOGS / "healthy.log")
        code, out, _ = cli("collect", "http://127.0.0.1:9", "-o", tmp_path / "a.zip", *words)
        assert (code, f"not in it: logs/0_a.log: {tmp_path}/a.log is " in out) == (0, True)
        assert "logs/0_a.log" not in opened(tmp_path / "a.zip")


class TestBadInput:
    @pytest.mark.parametrize("odd", ["\xff", "\udcff", " ", "\n", "\x7f"])
    def test_an_address_that_is_not_ascii(self, cli, tmp_path, odd, monkeypatch):
        monkeypatch.chdir(tmp_path)
        for url in (f"http://127.0.0.1:9/{odd}", f"http://a{odd}b:9", f"http://u:hunter2{odd}@x"):
            code, out, err = cli("collect", url)
            assert (code, out, list(tmp_path.iterdir())) == (2, "", [])
            assert f"error: the address has {odd!r} in it" in err
            assert "hunter2" not in err

    @pytest.mark.parametrize(
        "target",
        ["", "localhost", "ftp://x", "http://", "http://x:99999999", "0", "-1", "http://u:p@x", "http://x/?k=1"],
    )
    def test_what_is_no_target(self, cli, tmp_path, target):
        code, out, err = cli("collect", "-o", tmp_path / "a.zip", "--", target)
        assert (code, out, (tmp_path / "a.zip").exists()) == (2, "", False)
        assert len(err.splitlines()) <= 2
        assert "u:p" not in err

    def test_a_process_that_is_no_server(self, cli, tmp_path):
        log = tmp_path / "server.log"
        log.write_text("Prefill batch")
        words = [sys.executable, "-c", "import time; time.sleep(60)", "--api-key", "hunter2", "-x", f"hf_{'z' * 30}"]
        with subprocess.Popen(["-", *words[1:]], executable=words[0]) as child:
            # Popen may return before the kernel shows the new command.
            while not Path(f"/proc/{child.pid}/cmdline").read_bytes():
                time.sleep(0.01)
            try:
                code, out, err = cli("collect", child.pid, "-o", tmp_path / "a.zip")
                # The id of a server that is gone may be another process's by now.
                assert cli("collect", child.pid, "-o", tmp_path / "b.zip", "--log", log)[0] == 0
            finally:
                child.kill()
        assert (code, out, (tmp_path / "a.zip").exists()) == (2, "", False)
        shown = "- -c import time; time.sleep(60) --api-key [redacted] -x"
        assert err.startswith(f"error: process {child.pid} is no server of SGLang: {shown}")
        assert "hunter2" not in err
        assert "hf_z" not in err

    def test_a_file_that_exists_or_cannot_be_written(self, cli, tmp_path, serve):
        out = tmp_path / "a.zip"
        out.write_text("mine")
        url = serve(healthy).url
        assert cli("collect", url, "-o", out)[0] == 2
        assert out.read_text() == "mine"
        assert cli("collect", url, "-o", out, "--force")[0] == 0
        assert cli("collect", url, "-o", tmp_path / "none" / "a.zip")[0] == 2
        assert cli("collect", url, "-o", tmp_path / "b.zip", "--log", tmp_path / "none")[0] == 2
