"""The verb `collect` on processes: stacks, what ended, and what may not be read."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

from collected import diagnosed, opened, own_store  # noqa: F401 - every test's fixture
from diagnose_examples import CORPUS, ROOT
from gemma4_triage.collect import gather_bundle, processes
from gemma4_triage.collect.gather_bundle import output_of

LOGS = ROOT / "tests" / "data" / "logs"


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


@pytest.mark.parametrize(("tries", "ended"), [(2, 1), (3, 0), (10, 0)])
def test_a_stack_that_changes_is_looked_at_again(tmp_path, tries, ended):
    looks = tmp_path / "looks"
    script = f"echo x >> {looks}; [ $(wc -l < {looks}) -ge 3 ]"
    assert output_of(["sh", "-c", script], tries).returncode == ended
    assert len(looks.read_text().split()) == min(tries, 3)
