"""The runner against real processes: forked arms that hang, die by a signal, write nonsense, or leave children."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gemma4_repro import runner
from gemma4_repro.engine.outcome import Ending
from gemma4_repro.engine.supervisor import Supervisor
from gemma4_repro.errors import EnvironmentLacks, OutputUnwritable, PreforkFailed
from gemma4_repro.expect_ending import Completes
from gemma4_repro.parity.load import Load
from gemma4_repro.parity.pictures import FOLDER_NAME
from gemma4_repro.run_engines import ENGINE_PEAK_BYTES, room_side_by_side
from gemma4_repro.runner import Options, run_scenario
from gemma4_repro.scenario import Arm, Scenario
from gemma4_repro.workloads import Workload

# The real prefork process, with arms that run no engine. An arm does what its name says.
FAKE = """
import json, os, signal, subprocess, sys, time
from gemma4_repro.engine import prefork

def run(request):
    folder = request.folder
    print("hello from", request.arm, flush=True)
    (folder / "seen.json").write_text(json.dumps({"environment": dict(os.environ), "argv": sys.argv}))
    (folder / "phase.txt").write_text("serving the load")
    child = subprocess.Popen(["sleep", "300"])
    (folder / "child.pid").write_text(str(child.pid))
    if request.arm.startswith("hangs"):
        time.sleep(300)
    if request.arm.startswith("meets"):
        # Ends only if an arm whose name differs in the last letter runs at the same time.
        other = folder.parent / (request.arm[:-1] + "ba"[request.arm.endswith("b")]) / "child.pid"
        while not other.exists():
            time.sleep(0.02)
        time.sleep(0.1 if request.arm.endswith("b") else 1.0)
    if request.arm == "segfaults":
        os.kill(os.getpid(), signal.SIGSEGV)
    if request.arm == "raises":
        raise RuntimeError("no space in the inn")
    if request.arm == "fills-disk":
        raise OSError(28, "No space left on device")
    if request.arm == "exits":
        raise SystemExit(3)
    text = "{]" if request.arm == "garbage" else json.dumps({
        "arm": request.arm, "sglang_version": "0", "start_s": 0, "load_s": 0, "answers": [],
        "idle": {"leak_checker_ran": True, "flush_succeeded": True, "used_tokens_after_flush": 0,
                 "used_share_after_flush": 0}})
    (folder / "result.json").write_text(text)

prefork.main(lambda: {"cuda": False, "import_s": 0.1}, run)
"""


class Silent:
    """A listener that remembers what was said to it."""

    def __init__(self):
        self.said = []

    def importing(self, sglang_version, folder):
        self.said.append("importing")

    def arm_started(self, arm, limit_s):
        self.said.append(f"start {arm.id}")

    def waiting(self, phases, elapsed_s):
        self.phases = phases

    def arm_ended(self, arm, outcome):
        self.said.append(f"end {arm.id}")


def fake_command(code: str = FAKE) -> list[str]:
    return [sys.executable, "-c", code, str(os.getpid())]


def scenario(*names: str) -> Scenario:
    """Return an arm whose name begins with `sees` has prompts with pictures."""
    text = Workload(prompt_count=1, prompt_tokens=2, shortest_new_tokens=1, longest_new_tokens=1)
    loads = [None if name.startswith("sees") else text for name in names]
    arms = tuple(
        Arm(name, name, {"GEMMA4_TRIAGE_DEVICE_MODEL": "sm90"}, {}, load, 20.0, (Completes(),))
        for name, load in zip(names, loads, strict=True)
    )
    return Scenario(id="fake", symptom="s", hardware="CPU", expected_s=1, toys=("a", "b"), arms=arms)


def is_running(pid: int) -> bool:
    try:
        # A zombie waits for its parent only.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def assert_gone(pid: int) -> None:
    limit = time.monotonic() + 10
    while is_running(pid):
        assert time.monotonic() < limit, f"process {pid} is still running"
        time.sleep(0.05)


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr("gemma4_repro.run_engines.check_sglang", lambda: "0.0")
    monkeypatch.setattr(runner, "model_arguments", lambda scenario: {})

    def run_arms(*names, **options):
        listener = Silent()
        finished = run_scenario(scenario(*names), Options(output=tmp_path / "run", **options), listener, fake_command())
        for name in names:
            assert_gone(int((tmp_path / "run" / name / "child.pid").read_text()))
        return {verdict.arm.id: verdict for verdict in finished.verdicts}, listener

    return run_arms


@pytest.mark.parametrize("side_by_side", [1, 2])
def test_every_kind_of_end_is_told_apart_and_leaves_no_process(run, tmp_path, side_by_side):
    names = ("works", "segfaults", "raises", "garbage", "exits")
    verdicts, listener = run(*names, side_by_side=side_by_side)
    assert tuple(verdicts) == names
    endings = {name: verdict.outcome.ending for name, verdict in verdicts.items()}
    assert endings == {
        "works": Ending.COMPLETED,
        "segfaults": Ending.CRASHED,
        "raises": Ending.CRASHED,
        "garbage": Ending.NO_RESULT,
        "exits": Ending.CRASHED,
    }
    assert verdicts["segfaults"].outcome.signal_name == "SIGSEGV"
    assert verdicts["exits"].outcome.exit_code == 3
    assert [r.type_name for r in verdicts["raises"].outcome.raised] == ["RuntimeError"]
    assert "no space in the inn" in (tmp_path / "run" / "raises" / "log.txt").read_text()
    assert {name for name, verdict in verdicts.items() if not verdict.surprised} == {"works"}
    assert [said for said in listener.said if said.startswith("start ")] == [f"start {name}" for name in names]
    assert [said for said in listener.said if said.startswith("end ")] == [f"end {name}" for name in names]
    if side_by_side == 1:
        assert listener.said == ["importing", *(f"{what} {name}" for name in names for what in ("start", "end"))]


def test_two_arms_run_at_once_and_the_one_that_ends_first_leaves_the_other_alone(run):
    """`meets-b` ends a second before `meets-a`, whose process and child must not be touched by that."""
    verdicts, listener = run("meets-a", "meets-b", side_by_side=2)
    assert {verdict.outcome.ending for verdict in verdicts.values()} == {Ending.COMPLETED}
    assert listener.said == ["importing", "start meets-a", "start meets-b", "end meets-a", "end meets-b"]
    assert verdicts["meets-a"].outcome.duration_s > verdicts["meets-b"].outcome.duration_s


@pytest.mark.slow
def test_arms_that_may_not_run_at_once_do_not(run):
    verdicts, _ = run("meets-a", "meets-b", side_by_side=1, time_limit_s=2.0)
    assert verdicts["meets-a"].outcome.ending is Ending.TIMED_OUT


@pytest.mark.slow
def test_of_two_that_hang_each_is_killed_at_its_own_limit(run):
    verdicts, listener = run("hangs-a", "works", "hangs-b", "exits", side_by_side=2, time_limit_s=2.0)
    endings = [verdict.outcome.ending for verdict in verdicts.values()]
    assert endings == [Ending.TIMED_OUT, Ending.COMPLETED, Ending.TIMED_OUT, Ending.CRASHED]
    assert 2.0 <= verdicts["hangs-b"].outcome.duration_s < 20
    assert [said for said in listener.said if said.startswith("end")] == [
        "end hangs-a",
        "end works",
        "end hangs-b",
        "end exits",
    ]


def test_an_engine_needs_a_core_and_memory_of_its_own():
    assert room_side_by_side(cores=1, available_bytes=2**40) == 1
    assert room_side_by_side(cores=64, available_bytes=2**40) == 2
    assert room_side_by_side(cores=2, available_bytes=2 * ENGINE_PEAK_BYTES - 1) == 1
    assert room_side_by_side(cores=2, available_bytes=0) == 1


@pytest.mark.slow
def test_an_arm_that_hangs_is_killed_at_its_limit_and_the_next_one_runs(run):
    began = time.monotonic()
    verdicts, _ = run("hangs", "works", time_limit_s=2.0)
    assert time.monotonic() - began < 30
    hung = verdicts["hangs"].outcome
    assert hung.ending is Ending.TIMED_OUT
    assert hung.problem == "killed after 2 s while serving the load"
    assert verdicts["works"].outcome.ending is Ending.COMPLETED


def test_arms_are_hermetic(run, tmp_path, monkeypatch):
    monkeypatch.setenv("SGLANG_TRTLLM_MHA_DEBUG", "log")
    monkeypatch.setenv("GEMMA4_TRIAGE_FAULTS", "swa-alloc-oob")
    monkeypatch.setenv("SGLANG_TEST_RETRACT", "1")
    run("works", keep_traces=True)
    seen = json.loads((tmp_path / "run" / "works" / "seen.json").read_text())
    environment = seen["environment"]
    assert not {"SGLANG_TRTLLM_MHA_DEBUG", "GEMMA4_TRIAGE_FAULTS", "SGLANG_TEST_RETRACT"} & environment.keys()
    assert environment["GEMMA4_TRIAGE_DEVICE_MODEL"] == "sm90"
    assert environment["GEMMA4_TRIAGE_HOST_ENGINE"] == environment["TRITON_INTERPRET"] == "1"
    assert environment["SGLANG_TRTLLM_MHA_DEBUG_DIR"] == str(tmp_path / "run" / "works" / "dumps")
    assert not Path(environment["TMPDIR"]).exists()
    assert seen["argv"] == ["gemma4-triage", "repro", "fake", "--arm", "works"]


def test_traces_go_and_logs_stay(run, tmp_path):
    run("works")
    left = {path.name for path in (tmp_path / "run" / "works").iterdir()}
    assert left >= {"log.txt", "result.json", "dumps"}
    assert not left & {"request.json", "phase.txt", "drafts.jsonl"}
    assert (tmp_path / "run").stat().st_mode & 0o077 == 0


def test_a_disk_that_became_full_is_not_a_verdict(run):
    with pytest.raises(OutputUnwritable, match="disk became full while arm fills-disk"):
        run("fills-disk")


def test_a_prefork_process_that_dies_says_why(tmp_path):
    command = fake_command("raise SystemExit('no such library')")
    with Supervisor(tmp_path / "log", dict(os.environ), command) as supervisor, pytest.raises(PreforkFailed) as failed:
        supervisor.wait_ready()
    assert "no such library" in str(failed.value)


def test_a_prefork_process_that_hangs_is_given_up_and_killed(tmp_path):
    with Supervisor(tmp_path / "log", dict(os.environ), fake_command("import time; time.sleep(300)")) as supervisor:
        pid = supervisor._process.pid
        with pytest.raises(PreforkFailed, match="not imported within 1 s"):
            supervisor.wait_ready(1.0)
    assert_gone(pid)


def test_cuda_is_refused_unless_forced(tmp_path, monkeypatch):
    monkeypatch.setattr("gemma4_repro.run_engines.check_sglang", lambda: "0.0")
    monkeypatch.setattr(runner, "model_arguments", lambda scenario: {})
    command = fake_command(FAKE.replace('"cuda": False', '"cuda": True'))
    with pytest.raises(EnvironmentLacks, match="has CUDA"):
        run_scenario(scenario("works"), Options(output=tmp_path / "a"), Silent(), command)
    monkeypatch.setenv("GEMMA4_TRIAGE_HOST_ENGINE", "force")
    run_scenario(scenario("works"), Options(output=tmp_path / "b"), Silent(), command)
    seen = json.loads((tmp_path / "b" / "works" / "seen.json").read_text())
    assert seen["environment"]["GEMMA4_TRIAGE_HOST_ENGINE"] == "force"


# A shell that starts a job in the background leaves SIGINT ignored in it, and Python then leaves it so.
RUNNER = """
import signal
import sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from pathlib import Path
sys.path.insert(0, {here!r})
import test_repro_supervision as t
from gemma4_repro import run_engines, runner
run_engines.check_sglang = lambda: "0.0"
runner.model_arguments = lambda scenario: {{}}
options = t.Options(side_by_side=2, output=Path({output!r}))
t.run_scenario(t.scenario("hangs", "hangs-too"), options, t.Silent(), t.fake_command())
"""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda s: s.name)
def test_nothing_outlives_a_runner_that_is_interrupted_or_killed(tmp_path, signal_number):
    code = RUNNER.format(here=str(Path(__file__).parent), output=str(tmp_path / "run"))
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE)
    pid_files = [tmp_path / "run" / name / "child.pid" for name in ("hangs", "hangs-too")]
    limit = time.monotonic() + 60
    while not all(pid_file.exists() and pid_file.read_text() for pid_file in pid_files):
        assert process.poll() is None, process.stderr.read().decode()
        assert time.monotonic() < limit
        time.sleep(0.05)
    grandchildren = [int(pid_file.read_text()) for pid_file in pid_files]
    arms = [os.getpgid(grandchild) for grandchild in grandchildren]
    assert all(is_running(grandchild) for grandchild in grandchildren)
    process.send_signal(signal_number)
    process.communicate(timeout=30)
    assert process.returncode != 0
    for pid in (*arms, *grandchildren):
        assert_gone(pid)


@pytest.fixture
def made(monkeypatch):
    """Pictures and their toy in no time; the real ones are of the live tests."""

    def make(folder, environment, tick):
        (folder / FOLDER_NAME).mkdir()
        return folder / FOLDER_NAME / "toy", Load([[2, 4, 4]], [4], ["a <|image|>"], [["0.png"]])

    monkeypatch.setattr(runner, "make_pictures", make)


def test_pictures_and_their_toy_go_to_the_arms_that_ask_for_them(run, made, tmp_path):
    run("reads", "sees", keep_traces=True)
    requests = {name: json.loads((tmp_path / "run" / name / "request.json").read_text()) for name in ("reads", "sees")}
    assert (requests["reads"]["texts"], requests["reads"]["pictures"]) == ([], [])
    assert requests["reads"]["engine_arguments"] == {}
    assert (requests["sees"]["texts"], requests["sees"]["pictures"]) == (["a <|image|>"], [["0.png"]])
    assert (requests["sees"]["prompts"], requests["sees"]["new_tokens"]) == ([[2, 4, 4]], [4])
    assert requests["sees"]["engine_arguments"] == {"model_path": str(tmp_path / "run" / FOLDER_NAME / "toy")}


def test_pictures_are_removed_and_a_run_without_them_removes_nothing(run, made, tmp_path):
    folder = tmp_path / "run" / FOLDER_NAME
    run("sees")
    assert not folder.exists()
    folder.mkdir()
    run("reads", overwrite=True)
    assert folder.exists()
