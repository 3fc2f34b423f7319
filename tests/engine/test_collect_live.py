"""`gemma4-triage collect` of a server that serves, one whose scheduler hangs, and one that was killed."""

import contextlib
import json
import os
import signal
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest

from gemma4_repro.engine.host_environment import REQUIRED
from gemma4_runtime.releases import BASE, installed_or_base
from server_process import flags, free_port, running_server, session_members

pytestmark = [pytest.mark.engine, pytest.mark.releases("0.5.13.post1", "0.5.23")]

# The window that is a key too wide; later releases have the right one.
NOTES = ["note"] if installed_or_base() == BASE else []

COMMAND = Path(sys.executable).with_name("gemma4-triage")
KEY = "a-key-of-this-test-0123456789"


def cpu_seconds(pids: list[int]) -> float:
    """Return what these processes have computed so far, in seconds of one core."""
    spent = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        spent += int(fields[11]) + int(fields[12])
    return spent / os.sysconf("SC_CLK_TCK")


def states_during(pids: list[int], work) -> set[str]:
    """Return the states that the kernel shows of these processes while `work` runs."""
    seen: set[str] = set()
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            seen.update(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in pids)
            time.sleep(0.001)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        work()
    finally:
        done.set()
        thread.join()
    return seen


def scheduler_of(server: int) -> int:
    named = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in session_members(server)}
    return next(pid for pid, command in named.items() if b"sglang::scheduler" in command)


def test_live_hanging_and_killed(mtp_arguments, tmp_path, cli, monkeypatch):
    environment = {name: value for name, value in os.environ.items() if name not in REQUIRED}
    environment |= {"CUDA_VISIBLE_DEVICES": "", "HF_TOKEN": "hf_abcdefghijklmnopqrstuvwxyz012345"}
    monkeypatch.setenv("GEMMA4_TRIAGE_API_KEY", KEY)
    port, log, dumps = free_port(), tmp_path / "server.log", tmp_path / "dumps"
    words = [*flags(mtp_arguments), "--host", "127.0.0.1", "--port", str(port), "--api-key", KEY, "--enable-metrics"]
    # A scheduler that does not turn while it has nothing to do: what it computes is then what it was asked for.
    words.append("--sleep-on-idle")
    command = [COMMAND, "serve", "--host-engine", "--debug", "1", "--dump-dir", str(dumps), "--", *words]
    url = f"http://127.0.0.1:{port}"

    def collected(target, name: str, *options) -> tuple[dict, list[str], bytes, float]:
        out = tmp_path / f"{name}.zip"
        begin = time.monotonic()
        code, _, err = cli("collect", target, "-o", out, "--timeout", "4", *options)
        took_s = time.monotonic() - begin
        assert (code, err) == (0, f"Wrote {out}\n")
        with zipfile.ZipFile(out) as archive:
            everything = b"".join(map(archive.read, archive.namelist()))
            return json.loads(archive.read("collect.json")), archive.namelist(), everything, took_s

    def diagnosed(name: str) -> tuple[int, dict]:
        code, out, _ = cli("diagnose", tmp_path / f"{name}.zip", "--json")
        return code, json.loads(out)

    with running_server(command, port, environment, log) as server:
        # The first time a thing is asked for is not what it costs.
        collected(url, "first")
        members = session_members(server.pid)
        before, begin = cpu_seconds(members), time.monotonic()
        seen = states_during(members, lambda: collected(url, "cost"))
        after, took_s = cpu_seconds(members), time.monotonic() - begin
        told = f"collect took {took_s:.1f} s, in which the server's processes computed {after - before:.2f} s"
        print(told, file=sys.__stderr__)
        assert after - before < 1.0
        # Neither stopped nor traced for a moment.
        assert not seen & {"T", "t"}

        document, names, everything, _ = collected(url, "live")
        assert [(one["path"], one["status"]) for one in document["http"]] == [
            *(("/model_info", 200), ("/v1/models", 200), ("/metrics", 200), ("/server_info", 200), ("/health", 200))
        ]
        assert document["pid"] in {one["pid"] for one in document["processes"]}
        assert {"http/metrics.txt", f"process/{server.pid}.json", "logs/0_server.log"} <= set(names)
        assert sum(name.startswith("dumps/guards/") for name in names) >= 3
        assert sum(name.startswith("stacks/") for name in names) >= 3
        for secret in (KEY, "hf_abcdefghij"):
            assert secret.encode() not in everything
        code, found = diagnosed("live")
        (incident,) = found["incidents"]
        assert (code, [finding["kind"] for finding in incident["findings"]]) == (0, NOTES)
        assert [one["relation"] for one in incident["logs"]] == ["names"]
        assert {one["kind"]: one["relation"] for one in incident["readings"]} == {
            "collection": "names",
            "py-spy": "names",
        }

        hung = scheduler_of(server.pid)
        os.kill(hung, signal.SIGSTOP)
        try:
            document, _, _, took_s = collected(hung, "hanging")
        finally:
            os.kill(hung, signal.SIGCONT)
        assert took_s < 25
        assert {one["path"]: one["status"] for one in document["http"]}["/model_info"] == 200
        assert {one["path"]: one["status"] for one in document["http"]}["/server_info"] is None
        code, found = diagnosed("hanging")
        (incident,) = found["incidents"]
        finding = incident["findings"][0]
        assert (code, finding["rule"], finding["confidence"]) == (1, "server-not-answering", "likely")
        assert finding["cause"].startswith(f"Process {hung}, sglang::scheduler")
        assert "is stopped by a signal" in finding["cause"]
        assert f"kill -CONT {hung} on its machine lets it go on" in finding["advice"]
        assert any(f"process {hung} stood in" in piece["meaning"] for piece in finding["evidence"])

        for member in session_members(server.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(member, signal.SIGKILL)
        server.wait()
        document, names, _, _ = collected(server.pid, "killed", "--dir", dumps, "--log", log)
        assert document["was_running"] is False
        assert sum(name.startswith("dumps/guards/") for name in names) >= 3
        code, found = diagnosed("killed")
        (incident,) = found["incidents"]
        assert (code, incident["findings"][0]["rule"]) == (1, "server-not-answering")
        assert [one["relation"] for one in incident["logs"]] == ["names"]
