"""How a cell's run stops, and that nothing of it is left: small processes stand where server and client would be."""

import json
import time
from pathlib import Path

import pytest

from gemma4_repro.crash.outcome import Answered, Dies, LeavesDump, LeavesNoDump
from gemma4_repro.crash.runner import Limits, run_cell
from gemma4_repro.engine.outcome import Ending
from gemma4_repro.expectation import Status
from small_server import DONE, LOAD, PATIENT, SERVER, small_plan


@pytest.fixture
def run(tmp_path):
    """Return a function of (client source, server source) to the outcome."""

    def start(client, server=SERVER, limits=PATIENT):
        plan = small_plan(tmp_path, client, server, limits)
        try:
            return run_cell(plan)
        finally:
            assert not [pid for pid in Path("/proc").glob("[0-9]*") if str(tmp_path) in _command_line(pid)]

    return start


def _command_line(process):
    try:
        return (process / "cmdline").read_text(errors="replace")
    except OSError:
        return ""


def status(expectation, served):
    return expectation.check(served, None).status


def test_every_request_answered(run):
    served = run(DONE % LOAD.toy.requests)
    assert (served.ending, served.stop) == (Ending.COMPLETED, "every load was answered")
    assert [(load.id, load.answered) for load in served.loads] == [(LOAD.id, LOAD.toy.requests)]
    assert status(Answered(), served) is Status.OK
    assert status(LeavesNoDump(), served) is Status.OK
    assert status(Dies(("IllegalAddress",)), served) is Status.FAILED
    assert status(LeavesDump("page-table-bounds"), served) is Status.FAILED


@pytest.mark.slow
def test_an_answer_too_few_is_not_as_expected(run):
    assert status(Answered(), run(DONE % (LOAD.toy.requests - 1))) is Status.FAILED


def test_a_client_that_says_nothing_is_not_as_expected(run):
    served = run("")
    assert served.loads[0].answered is None
    assert status(Answered(), served) is Status.FAILED


def test_the_server_dies_in_a_load(run):
    dying = (
        "import sys, urllib.request as u\ntry: u.urlopen(sys.argv[2] + '/die', b'x')\n"
        "except OSError: sys.exit('connection lost')"
    )
    served = run(dying)
    assert (served.ending, served.exit_code) == (Ending.CRASHED, 1)
    assert served.stop == f"the server ended in load {LOAD.id}"
    assert [raised.type_name for raised in served.raised] == ["IllegalAddress"]
    assert status(Dies(("IllegalAddress", "AcceleratorError")), served) is Status.OK
    assert status(Dies(("IndexError",)), served) is Status.FAILED
    assert status(Dies(("IllegalAddress",), at_start=True), served) is Status.FAILED
    assert status(Answered(), served) is Status.FAILED


def test_the_server_dies_at_its_start(run):
    served = run("", server="import sys; print('gemma4-triage: TrappedViolation: geometry: no'); sys.exit(3)")
    assert (served.ending, served.exit_code, served.loads) == (Ending.DIED_AT_START, 3, ())
    assert status(Dies(("TrappedViolation",), at_start=True), served) is Status.OK
    assert status(Answered(), served) is Status.FAILED


def test_the_client_fails_and_the_server_lives(run, monkeypatch):
    monkeypatch.setattr("gemma4_repro.crash.runner._DEATH_S", 0.5)
    served = run("import sys; sys.exit(7)")
    assert served.ending is Ending.NO_RESULT
    assert "the client ended with exit code 7" in str(served.problem)


SLEEP = "import time; time.sleep(60)"
CHATTER = "import time\nwhile True: print('.', flush=True); time.sleep(0.05)"


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("client", "server", "limits", "why"),
    [
        (SLEEP, SERVER, Limits(20, 20, 1), "no log grew for 1 s in load"),
        (CHATTER, SERVER, Limits(20, 1, 20), "was not done in 1 s"),
        ("", SLEEP, Limits(20, 20, 1), "no log grew for 1 s while the server started"),
        ("", CHATTER, Limits(1, 20, 20), "did not answer within 1 s"),
    ],
)
def test_a_run_that_gets_nowhere_is_stopped(run, client, server, limits, why):
    began = time.monotonic()
    served = run(client, server, limits)
    assert served.ending is Ending.TIMED_OUT
    assert why in served.stop
    assert served.problem == served.stop
    assert time.monotonic() - began < 15


@pytest.mark.slow
def test_a_second_run_does_not_read_the_first_ones_result(run, tmp_path):
    (tmp_path / "bench.jsonl").write_text(json.dumps({"completed": 99}) + "\n")
    assert run("").loads[0].answered is None


def test_interrupted_it_leaves_nothing(run, monkeypatch):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("gemma4_repro.crash.runner._wait_for_death", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run("import sys; sys.exit(1)")
