"""Each kind of expectation is met, failed, and not compared."""

import json
import shutil
from pathlib import Path

import pytest

from dump_examples import seed_bug_draft
from gemma4_dumps.schema import Provenance
from gemma4_dumps.store import DumpStore
from gemma4_repro.draft_comparison import compare_drafts, read_drafts
from gemma4_repro.engine.collect import collect
from gemma4_repro.engine.outcome import Ending
from gemma4_repro.engine.supervisor import ArmExit
from gemma4_repro.expect_comparison import AcceptLengthFalls, DraftsDiffer, SameOutputs
from gemma4_repro.expect_ending import Completes, Crashes, TrapsBefore
from gemma4_repro.expect_evidence import IdleClean, WritesDump, WritesNoDump
from gemma4_repro.expect_leak import LeakNamed, LeakReported
from gemma4_repro.expectation import Status

DIES = "Scheduler hit an exception: Traceback (most recent call last):\n  File\nm.{}\n"
ILLEGAL, TRAPPED = "IllegalAddress: page 65 of 65", "TrappedViolation: page 65 [dump: x]"


@pytest.fixture
def arm(tmp_path):
    """Real files as an arm leaves them, read back by the collector."""

    def make(name, log="", rounds=10, outputs=((1, 2, 3, 4),), drafts=None, result=True, idle=None, **end):
        folder = tmp_path / name
        (folder / "dumps").mkdir(parents=True)
        (folder / "log.txt").write_text(log)
        (folder / "phase.txt").write_text(end.pop("phase", "serving the load"))
        if drafts is not None:
            (folder / "drafts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in drafts))
        if result:
            document = {
                "schema_version": "1.0",
                "arm": name,
                "sglang_version": "0",
                "start_s": 1.0,
                "load_s": 2.0,
                "answers": [{"prompt": i, "output_ids": ids, "verify_rounds": rounds} for i, ids in enumerate(outputs)],
                "idle": {
                    "leak_checker_ran": True,
                    "flush_succeeded": True,
                    "used_tokens_after_flush": 0,
                    "used_share_after_flush": 0.0,
                }
                | (idle or {}),
            }
            (folder / "result.json").write_text(json.dumps(document))
        exit_ = ArmExit(**({"exit_code": 0, "signal_name": None, "timed_out": False, "duration_s": 1.0} | end))
        return collect(name, folder, exit_, 9.0)

    return make


def crashed(arm, name, what, phase="serving the load"):
    return arm(name, DIES.format(what), result=False, exit_code=None, signal_name="SIGKILL", phase=phase)


def test_a_crash_must_be_the_expected_one_and_happen_while_serving(arm):
    good = Crashes("IllegalAddress").check(crashed(arm, "a", ILLEGAL), None)
    assert good.status is Status.OK
    assert good.observed == "crashed (SIGKILL): IllegalAddress: page 65 of 65"
    assert Crashes("IllegalAddress").check(crashed(arm, "b", "IndexError: 1"), None).status is Status.FAILED
    at_start = crashed(arm, "c", ILLEGAL, phase="starting the engine")
    assert at_start.ending is Ending.DIED_AT_START
    assert Crashes("IllegalAddress").check(at_start, None).status is Status.FAILED
    assert Crashes("IllegalAddress").check(arm("d"), None).status is Status.FAILED


def test_a_trap_must_come_before_the_fault(arm):
    expected = TrapsBefore("TrappedViolation", "IllegalAddress")
    assert expected.check(crashed(arm, "a", TRAPPED), None).status is Status.OK
    assert expected.check(crashed(arm, "b", ILLEGAL), None).status is Status.FAILED
    both = arm(
        "c", DIES.format(TRAPPED) + "\n" + DIES.format(ILLEGAL), result=False, exit_code=None, signal_name="SIGKILL"
    )
    assert expected.check(both, None).status is Status.FAILED


def test_completion_means_that_nothing_was_raised(arm):
    assert Completes().check(arm("a"), None).status is Status.OK
    assert Completes().check(arm("b", DIES.format("ValueError: x")), None).status is Status.FAILED
    timed_out = arm("c", result=False, timed_out=True, exit_code=None, signal_name="SIGKILL")
    check = Completes().check(timed_out, None)
    assert check.status is Status.FAILED
    assert "killed after 9 s while serving the load" in check.observed


def test_accept_length_is_compared_with_the_reference(arm):
    slow, fast = arm("slow", rounds=4), arm("fast", rounds=1)
    falls = AcceptLengthFalls("fast", at_most_ratio=0.9)
    check = falls.check(slow, fast)
    assert check.status is Status.OK
    assert check.numbers == {"accept_length": 1.0, "accept_length_fast": 4.0}
    assert falls.check(fast, slow).status is Status.FAILED
    assert falls.check(arm("none", rounds=0), fast).status is Status.FAILED


@pytest.mark.parametrize(
    "expected", [AcceptLengthFalls("fixed", 0.9), SameOutputs("fixed"), DraftsDiffer("fixed", 0.05)]
)
def test_a_comparison_without_its_reference_is_not_made_and_says_so(arm, expected):
    ours = arm("a", drafts=[[0, 1, [5]]])
    check = expected.check(ours, None)
    assert check.status is Status.NOT_CHECKED
    assert check.observed == "the comparison was not made: arm fixed did not run"
    broken = expected.check(ours, crashed(arm, "fixed", ILLEGAL))
    assert broken.status is Status.NOT_CHECKED
    assert "crashed" in broken.observed


def test_outputs_must_be_equal_prompt_by_prompt(arm):
    same = SameOutputs("b")
    a = arm("a", outputs=((1, 2), (3, 4)))
    assert same.check(a, arm("b", outputs=((1, 2), (3, 4)))).status is Status.OK
    other = same.check(a, arm("c", outputs=((1, 2), (3, 5))))
    assert other.status is Status.FAILED
    assert "[1]" in other.observed


def test_drafts_are_compared_at_equal_prompt_and_position(arm):
    a = arm("a", drafts=[[0, 1, [7, 8, 9]], [0, 3, [1, 1, 1]], [1, 1, [4, 4, 4]]])
    b = arm("b", drafts=[[0, 1, [7, 8, 0]], [0, 4, [9, 9, 9]], [1, 1, [4, 4, 4]]])
    check = DraftsDiffer("b", at_least_share=0.1).check(a, b)
    assert check.status is Status.OK
    assert check.numbers["draft_rounds_compared"] == 2
    assert (check.numbers["draft_tokens_differing"], check.numbers["draft_tokens_compared"]) == (1, 6)
    assert DraftsDiffer("b", at_least_share=0.5).check(a, b).status is Status.FAILED
    assert DraftsDiffer("b", at_least_share=0.0).check(a, arm("c", drafts=[[5, 5, [1]]])).status is Status.FAILED
    assert DraftsDiffer("b", at_least_share=0.0).check(a, arm("d")).status is Status.FAILED


def test_a_cut_last_line_of_drafts_is_dropped_and_the_first_draft_of_a_place_counts(tmp_path):
    path = tmp_path / "drafts.jsonl"
    path.write_text("[0, 1, [1, 2]]\n[0, 1, [8, 8]]\n[0, 5, [3")
    assert read_drafts(path) == {(0, 1): (1, 2)}
    path.write_text("what\n")
    with pytest.raises(ValueError, match="Expecting value"):
        read_drafts(path)
    assert compare_drafts({}, {}).share == 0.0


def test_a_dump_is_judged_by_what_it_says(arm):
    expected = WritesDump("page-table-bounds", "out_of_range", table_space="full", buffer_space="swa")
    outcome = crashed(arm, "a", TRAPPED)
    assert expected.check(outcome, None).status is Status.FAILED
    assert WritesNoDump().check(arm("clean"), None).status is Status.OK
    store = DumpStore(outcome.dumps)
    path = store.write(seed_bug_draft()).path
    check = expected.check(outcome, None)
    assert check.status is Status.OK
    assert check.numbers == {"dump": path.name, "offences": 1, "page": 70, "pages_in_buffer": 65}
    assert WritesNoDump().check(outcome, None).status is Status.FAILED
    store.write(seed_bug_draft(provenance=Provenance(table_space="swa", buffer_space="swa")))
    assert expected.check(outcome, None).status is Status.FAILED


def test_a_torn_dump_is_no_dump_and_is_named(arm):
    outcome = crashed(arm, "a", TRAPPED)
    path = DumpStore(outcome.dumps).write(seed_bug_draft()).path
    (path / "manifest.json").write_text("{")
    check = WritesDump("page-table-bounds", "out_of_range", table_space="full", buffer_space="swa").check(outcome, None)
    assert check.status is Status.FAILED
    assert path.name in check.observed


@pytest.mark.parametrize(
    "idle", [{"leak_checker_ran": False}, {"flush_succeeded": False}, {"used_tokens_after_flush": 16}]
)
def test_idle_is_clean_only_if_everything_is(arm, idle):
    assert IdleClean().check(arm("clean"), None).status is Status.OK
    assert IdleClean().check(arm("dirty", idle=idle), None).status is Status.FAILED


@pytest.mark.parametrize("text", ["", "not json", "[]", '{"schema_version": "9.0"}', '{"schema_version": "1.0"}'])
def test_a_result_that_cannot_be_read_is_an_outcome_and_not_an_error(arm, text, tmp_path: Path):
    arm("a", result=False)
    (tmp_path / "a" / "result.json").write_text(text)
    outcome = collect("a", tmp_path / "a", ArmExit(0, None, False, 1.0), 9.0)
    assert outcome.ending is Ending.NO_RESULT
    assert outcome.result is None
    assert "result.json is not a result" in (outcome.problem or "")


LEAK = (
    "ValueError: pool memory leak detected! [full] total=512, available=482, evictable=0, protected=6, "
    "session_held=0, uncached=0"
)
AUDIT = next((Path(__file__).parents[2] / "dumps" / "samples").glob("*_leak-audit_*"))


def test_the_tokens_that_the_own_check_misses_are_counted(arm):
    assert LeakReported(24).check(crashed(arm, "a", LEAK), None).status is Status.OK
    other = LeakReported(18).check(crashed(arm, "b", LEAK), None)
    assert (other.status, other.numbers["tokens_missing"]) == (Status.FAILED, 24)
    assert LeakReported(24).check(crashed(arm, "c", "IndexError: 1"), None).observed == "it reported no leak"


def test_the_audits_owner_and_sites_must_be_those(arm):
    outcome = crashed(arm, "a", TRAPPED)
    assert LeakNamed({"alloc_for_extend": 1}).check(outcome, None).observed == "no readable dump of the leak audit"
    shutil.copytree(AUDIT, outcome.dumps / AUDIT.name)
    assert LeakNamed({"alloc_for_extend": 1}).check(outcome, None).status is Status.OK
    for other in ({"alloc_for_extend": 2}, {"spec_v2_decode": 1}, {"alloc_for_extend": 1, "spec_v2_decode": 1}):
        assert LeakNamed(other).check(outcome, None).status is Status.FAILED
    (outcome.dumps / AUDIT.name / "tensors.safetensors").write_bytes(b"torn")
    assert LeakNamed({"alloc_for_extend": 1}).check(outcome, None).observed.startswith("the dump cannot be read")
