"""The verb `collect`: servers that answer, never answer, trickle or are gone, and processes of all kinds."""

import bz2
import contextlib
import gzip
import http.server
import json
import lzma
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest

from diagnose_examples import CORPUS, ROOT
from gemma4_triage.collect import gather_bundle, processes
from gemma4_triage.collect.gather_bundle import output_of
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


@pytest.fixture(autouse=True)
def own_store(tmp_path, monkeypatch):
    """Keep dumps of this machine's user out of a test's zip."""
    monkeypatch.setenv("SGLANG_TRTLLM_MHA_DEBUG_DIR", str(tmp_path / "store"))


def opened(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def without_logs(path: Path) -> Path:
    """Leave out logs: the process that serves here is this one, whose children are engines of other tests."""
    kept = path.with_name(f"kept_{path.name}")
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(kept, "w") as written:
        for name in archive.namelist():
            if not name.startswith("logs/"):
                written.writestr(name, archive.read(name))
    return kept


def diagnosed(cli, path) -> tuple[int, list[str]]:
    code, out, _ = cli("diagnose", path, "--json")
    return code, [one["rule"] for each in json.loads(out).get("incidents", []) for one in each["findings"]]


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


class TestProcesses:
    def test_one_that_is_gone_leaves_its_manifests(self, cli, tmp_path, monkeypatch):
        monkeypatch.setattr(socket, "gethostname", lambda: "vm")
        store = shutil.copytree(CORPUS / "swa-state-stale", tmp_path / "store")
        gone = next(json.loads(path.read_text())["pid"] for path in (store / "guards").iterdir())
        assert processes.process(gone) is None
        assert cli("collect", gone, "-o", tmp_path / "a.zip")[0] == 0
        names = opened(tmp_path / "a.zip")
        assert sum(name.endswith("/manifest.json") for name in names) == 4
        code, rules = diagnosed(cli, tmp_path / "a.zip")
        assert (code, set(rules)) == (1, {"draft-swa-state-stale", "server-not-answering"})

    def test_one_that_is_gone_without_a_trace(self, cli, tmp_path):
        dead = subprocess.Popen([sys.executable, "-c", ""])
        dead.wait()
        for gone in (dead.pid, 999999999):
            code, out, err = cli("collect", gone, "-o", tmp_path / "a.zip")
            assert (code, out) == (5, "")
            assert err.startswith(f"error: nothing is left of {gone}: there is no such process on this machine\n")

    def test_a_dump_that_is_removed_meanwhile_is_named_and_the_others_are_packed(self, cli, tmp_path, monkeypatch):
        monkeypatch.setattr(socket, "gethostname", lambda: "vm")
        store = shutil.copytree(CORPUS / "swa-state-stale", tmp_path / "store")
        gone = next(json.loads(path.read_text())["pid"] for path in (store / "guards").iterdir())
        removed = []

        def then_prune(*given):
            found = launch_of(*given)
            removed.append(found[0].dumps[0].path)
            shutil.rmtree(removed[0])
            return found

        launch_of = gather_bundle._launch_of
        monkeypatch.setattr(gather_bundle, "_launch_of", then_prune)
        code, out, _ = cli("collect", gone, "-o", tmp_path / "a.zip")
        assert code == 0
        assert f"not in it: dumps/{removed[0].name}: it was removed while this bundle was made" in out
        assert sum(name.endswith("/manifest.json") for name in opened(tmp_path / "a.zip")) == 3

    def test_command_variables_and_log_of_one_that_runs(self, cli, tmp_path):
        log = tmp_path / "server.log"
        environment = {
            "HF_TOKEN": "hf_" + "y" * 30,
            "SGLANG_X": "1",
            "SGLANG_TRTLLM_MHA_DEBUG_DIR": "its dumps",
            "MY_DIARY": "dear diary",
            "PATH": os.environ["PATH"],
        }
        code = "import sys, time; print('Prefill batch, api_key=abcdefgh', flush=True); time.sleep(60)"
        with log.open("w") as file:
            child = subprocess.Popen(
                [sys.executable, "-c", code, "launch_server", "--any", f"sk-{'z' * 30}", "--api-key", "abcdefgh"],
                stdout=file,
                env=environment,
                cwd=tmp_path,
            )
        try:
            while not log.read_text():
                time.sleep(0.02)
            (tmp_path / "link.log").symlink_to(log)
            assert cli("collect", child.pid, "-o", tmp_path / "a.zip", "--log", tmp_path / "link.log")[0] == 0
        finally:
            child.kill()
            child.wait()
        files = opened(tmp_path / "a.zip")
        assert [name for name in files if name.startswith("logs/")] == ["logs/0_server.log"]
        fields = json.loads(files[f"process/{child.pid}.json"])
        assert fields["command"][-2:] == ["--api-key", "[redacted]"]
        dumps = {"SGLANG_TRTLLM_MHA_DEBUG_DIR": "its dumps"}
        assert fields["environment"] == {"HF_TOKEN": "[redacted]", "SGLANG_X": "1"} | dumps
        lacks = {item["name"]: item["problem"] for item in json.loads(files["collect.json"])["items"] if not item["ok"]}
        assert lacks["dumps/"].startswith(f"{tmp_path / 'its dumps'} holds no dump")
        assert files["logs/0_server.log"].startswith(b"Prefill batch, api_key=[redacted]")
        everything = b"".join(files.values())
        assert not any(secret in everything for secret in (b"abcdefgh", b"yyyy", b"zzzz", b"dear diary"))

    def test_a_containers_first_process_stands_for_the_server_below_it_and_for_nothing_else(self, cli, tmp_path):
        code = (
            "import subprocess, sys\n"
            "sleep = [sys.executable, '-c', 'import time; time.sleep(60)']\n"
            "below = [subprocess.Popen([*sleep, word]) for word in ('launch_' + 'server', 'other')]\n"
            "print(*(one.pid for one in below), flush=True)\nsys.stdin.read()\n[one.kill() for one in below]\n"
        )
        words = [sys.executable, "-c", code]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
            server, other = map(int, first.stdout.readline().split())
            assert cli("collect", first.pid, "-o", tmp_path / "a.zip", "--timeout", "0.2")[0] == 0
            first.stdin.close()
        names = opened(tmp_path / "a.zip")
        assert f"process/{server}.json" in names
        assert not {f"process/{other}.json", f"process/{first.pid}.json"} & set(names)

    def test_one_that_a_signal_stopped(self, cli, tmp_path):
        code = (
            "import http.server, sys\n"
            "server = http.server.HTTPServer(('127.0.0.1', 0), http.server.BaseHTTPRequestHandler)\n"
            "print(server.server_address[1], flush=True)\nserver.serve_forever()\n"
        )
        child = subprocess.Popen([sys.executable, "-c", code, "launch_server"], stdout=subprocess.PIPE, text=True)
        try:
            url = f"http://127.0.0.1:{child.stdout.readline().strip()}"
            os.kill(child.pid, signal.SIGSTOP)
            assert os.WIFSTOPPED(os.waitpid(child.pid, os.WUNTRACED)[1])
            assert cli("collect", url, "-o", tmp_path / "a.zip", "--timeout", "0.3")[0] == 0
        finally:
            child.kill()
            child.wait()
            child.stdout.close()
        code, out, _ = cli("diagnose", tmp_path / "a.zip", "--json")
        (finding,) = json.loads(out)["incidents"][0]["findings"]
        assert (code, finding["rule"], finding["confidence"]) == (1, "server-not-answering", "likely")
        assert finding["cause"].startswith(f"Process {child.pid}, ")
        assert finding["cause"].endswith("is stopped by a signal and computes nothing until it goes on.")
        assert finding["advice"][0] == f"kill -CONT {child.pid} on its machine lets it go on"
        assert ("status.State", "T (stopped)") in [(one["field"], one["value"]) for one in finding["evidence"]]
        assert finding["next_commands"] == [f"gemma4-triage collect {url}"]

    def test_one_that_has_ended_and_that_its_parent_has_not_noticed_is_not_healthy(self, cli, tmp_path):
        child = subprocess.Popen([sys.executable, "-c", "", "launch_server"])
        try:
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
            words = ("collect", child.pid, "-o", tmp_path / "a.zip", "--log", LOGS / "healthy.log")
            code, said, _ = cli(*words)
        finally:
            child.wait()
        assert code == 0
        lacks = [line for line in said.splitlines() if line.startswith("  not in it: ")]
        assert f"  not in it: process/{child.pid}.json: environment: the process has ended" in lacks
        ended = "the process has ended, and where its output went can no longer be seen; name the log with --log"
        assert f"  not in it: logs/: {ended}" in lacks
        code, out, _ = cli("diagnose", tmp_path / "a.zip")
        assert (code, "LIKELY  server-not-answering" in out) == (1, True)
        assert "has ended, and its parent has not noticed" in out

    def test_one_that_has_ended_and_left_nothing_says_so(self, cli, tmp_path):
        child = subprocess.Popen([sys.executable, "-c", ""])
        try:
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
            code, out, err = cli("collect", child.pid, "-o", tmp_path / "a.zip")
        finally:
            child.wait()
        assert (code, out, (tmp_path / "a.zip").exists()) == (5, "", False)
        ended = f"process {child.pid} has ended, and its parent, process {os.getpid()}, has not noticed"
        assert err.startswith(f"error: nothing is left of {child.pid}: {ended}: its command can no longer be read")

    @pytest.mark.parametrize(
        ("state", "said"),
        [
            ("t (tracing stop)", "is held by a debugger"),
            ("D (disk sleep)", "waits inside the kernel"),
            ("Z (zombie)", "has ended, and its parent has not noticed"),
            ("S (sleeping)", "The HTTP process answers and the scheduler does not"),
        ],
    )
    def test_the_state_of_a_process_says_why_nothing_answers(self, cli, tmp_path, state, said):
        bundle = shutil.copytree(ROOT / "tests" / "data" / "evidence" / "hanging", tmp_path / "a")
        (bundle / "process").mkdir()
        for pid, its in ((31344, state), (31345, "S (sleeping)"), (31426, "T (stopped)")):
            fields = {"pid": pid, "status": {"State": its, "wchan": "rpc_wait_bit_killable"}}
            (bundle / "process" / f"{pid}.json").write_text(json.dumps(fields))
        code, out, _ = cli("diagnose", bundle)
        assert (code, said in out) == (1, True)
        assert ("in rpc_wait_bit_killable" in out) == (state[0] == "D")

    def test_a_state_of_one_that_answers_is_no_finding(self, cli, tmp_path):
        bundle = shutil.copytree(ROOT / "tests" / "data" / "evidence" / "hanging", tmp_path / "a")
        fields = json.loads((bundle / "collect.json").read_text())
        fields["http"] = [one | {"status": 200, "problem": None} for one in fields["http"]]
        fields["processes"].append({"pid": [], "title": {}})
        (bundle / "collect.json").write_text(json.dumps(fields))
        (bundle / "process").mkdir()
        (bundle / "process" / "31344.json").write_text('{"pid": 31344, "status": {"State": "T (stopped)"}}')
        (bundle / "process" / "1.json").write_text('{"pid": [], "status": []}')
        (bundle / "process" / "2.json").write_text("[")
        code, out, _ = cli("diagnose", bundle)
        assert (code, "process 31344: T (stopped)" in out) == (0, True)

    @pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
    def test_one_of_another_user_says_so(self, tmp_path):
        child = os.fork()
        if child == 0:
            os.setgid(65534)
            os.setuid(65534)
            try:
                processes.environment_of(os.getppid())
            except PermissionError:
                files, others = processes.logs_of(os.getppid())
                os._exit(0 if not files and others == ["Permission denied"] else 2)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    @pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
    def test_the_zip_says_what_a_process_of_another_user_hides(self, cli, tmp_path):
        words = [sys.executable, "-c", "import time; time.sleep(60)", "launch_server"]
        with subprocess.Popen(words, env={"SGLANG_X": "hidden"}) as server:
            # What a stranger may not read of this installation is loaded before it becomes one.
            assert cli("collect", server.pid, "-o", tmp_path / "mine.zip", "--timeout", "0.2")[0] == 0
            for folder in (tmp_path, *tmp_path.parents[:-2]):
                folder.chmod(0o777 if folder == tmp_path else 0o755)
            child = os.fork()
            if child == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
                os._exit(cli("collect", server.pid, "-o", tmp_path / "a.zip", "--timeout", "0.2")[0])
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            server.kill()
        assert code == 0
        files = opened(tmp_path / "a.zip")
        problems = {one["name"]: one["problem"] for one in json.loads(files["collect.json"])["items"] if not one["ok"]}
        assert problems[f"process/{server.pid}.json: environment"] == "Permission denied: of another user, or gone"
        assert problems["logs/"] == "stdout: Permission denied; name the log with --log"
        assert b"hidden" not in b"".join(files.values())


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


@pytest.mark.parametrize(("tries", "ended"), [(2, 1), (3, 0), (10, 0)])
def test_a_stack_that_changes_is_looked_at_again(tmp_path, tries, ended):
    looks = tmp_path / "looks"
    script = f"echo x >> {looks}; [ $(wc -l < {looks}) -ge 3 ]"
    assert output_of(["sh", "-c", script], tries).returncode == ended
    assert len(looks.read_text().split()) == min(tries, 3)
