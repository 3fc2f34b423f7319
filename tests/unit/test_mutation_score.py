"""A diagnosis held against the truth, the matrix of a draw, and the file that an interrupted run leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemma4_dumps.errors import ExitCode
from gemma4_dumps.structures import Defect, Structure
from gemma4_repro.engine.outcome import Answer, ArmResult, Ending, IdleCheck, Outcome, Raised
from gemma4_repro.errors import OutputRefused
from gemma4_repro.mutations.draw import Mutation
from gemma4_repro.mutations.grid import Phase
from gemma4_repro.mutations.load import Probes, settings
from gemma4_repro.mutations.matrix import matrix
from gemma4_repro.mutations.rows_file import ROWS_NAME, RowsFile
from gemma4_repro.mutations.runner import Options, run_mutations
from gemma4_repro.mutations.score import (
    Cause,
    Clean,
    Effect,
    Named,
    Noticed,
    Owner,
    Row,
    Sight,
    State,
    effect_of,
    score,
)
from gemma4_repro.mutations.truth import Moment, Truth, read_truth
from gemma4_triage.report.mutations_view import matrix_text

ACTED = Moment(site="scheduler.run_batch", step=7)


def mutation(number: int = 1) -> Mutation:
    return Mutation(
        number=number,
        structure=Structure.REQUEST_ROW,
        defect=Defect.ZERO,
        phase=Phase.PREFILL,
        mtp=True,
        skipped=0,
        entry_seed=1,
    )


def named(
    structure: Structure | None = Structure.REQUEST_ROW,
    defect: Defect | None = Defect.ZERO,
    confidence: str = "certain",
    owner: int | None = None,
) -> Named:
    return Named(rule="r", cause="c.", structure=structure, defect=defect, confidence=confidence, owner=owner)


def scored(*causes: Named, truth: Truth | None = None, effect: Effect | None = None, number: int = 1) -> Row:
    sight = Sight(named=causes, dumps=len(causes), first_step=9 if causes else None)
    return score(mutation(number), truth or Truth(acted=ACTED, row=3), sight, effect, 10.0)


@pytest.mark.parametrize(
    ("first", "cause"),
    [
        (named(), Cause.RIGHT),
        (named(defect=Defect.STALE), Cause.PARTLY),
        (named(defect=None), Cause.PARTLY),
        (named(structure=None), Cause.UNKNOWN),
        (named(structure=Structure.SWA_MAPPING), Cause.WRONG),
    ],
)
def test_the_first_cause_counts(first: Named, cause: Cause) -> None:
    assert scored(first, named(), named(Structure.TREE_LOCK)).cause is cause


def test_nothing_named_is_unseen() -> None:
    row = scored()
    assert (row.cause, row.seen, row.confidence, row.steps_late) == (Cause.UNSEEN, False, None, None)


def test_how_late_it_is_counts_in_steps() -> None:
    assert scored(named()).steps_late == 2


@pytest.mark.parametrize(
    ("owner", "row", "said"),
    [(3, 3, Owner.RIGHT), (4, 3, Owner.WRONG), (None, 3, Owner.NOT_NAMED), (4, None, Owner.UNJUDGED)],
)
def test_the_owner_is_judged_where_there_is_one(owner: int | None, row: int | None, said: Owner) -> None:
    assert scored(named(owner=owner), truth=Truth(acted=ACTED, row=row)).owner is said


@pytest.mark.parametrize(
    ("truth", "state"),
    [
        (Truth(), State.NEVER_ACTED),
        (Truth(problem="KeyError: 1"), State.HARNESS),
        (Truth(acted=ACTED), State.ACTED),
        (Truth(acted=ACTED, overwritten=ACTED), State.INERT),
        (Truth(acted=ACTED, overwritten=ACTED, read=ACTED), State.ACTED),
    ],
)
def test_inert_is_only_what_nobody_can_have_read(truth: Truth, state: State) -> None:
    assert scored(truth=truth).state is state


def test_what_had_an_effect_was_not_inert() -> None:
    overwritten = Truth(acted=ACTED, overwritten=ACTED)
    for effect, state in (
        (Effect(noticed=Noticed.NOTHING, ending="completed", tokens_changed=False), State.INERT),
        (Effect(noticed=Noticed.NOTHING, ending="completed", tokens_changed=True), State.ACTED),
        (Effect(noticed=Noticed.CHECKER, ending="crashed"), State.ACTED),
    ):
        assert scored(truth=overwritten, effect=effect).state is state


def clean(mtp: bool = True, **more) -> Clean:
    return Clean(
        mtp=mtp, **{"answers": {0: (1, 2)}, "accept_length": 2.0, "named": (), "dumps": 0, "ending": ""} | more
    )


def outcome(ending: Ending, tokens: tuple[int, ...] = (), *raised: Raised) -> Outcome:
    result = None
    if tokens:
        idle = IdleCheck(
            leak_checker_ran=True, flush_succeeded=True, used_tokens_after_flush=0, used_share_after_flush=0
        )
        answer = Answer(prompt=0, output_ids=tokens, verify_rounds=1)
        result = ArmResult(arm="a", sglang_version="x", start_s=1, load_s=1, answers=(answer,), idle=idle)
    return Outcome("a", ending, Path("run"), 5.0, 0, None, raised, result)


@pytest.mark.parametrize(
    ("run", "noticed", "changed"),
    [
        (outcome(Ending.COMPLETED, (1, 2)), Noticed.NOTHING, False),
        (outcome(Ending.COMPLETED, (1, 3)), Noticed.NOTHING, True),
        (outcome(Ending.CRASHED, (), Raised("ValueError", "pool memory leak detected!")), Noticed.CHECKER, None),
        (outcome(Ending.CRASHED, (), Raised("IndexError", "index 9 is out of bounds")), Noticed.CRASH, None),
        (outcome(Ending.TIMED_OUT), Noticed.HANG, None),
    ],
)
def test_what_a_run_without_probes_shows(run: Outcome, noticed: Noticed, changed: bool | None) -> None:
    effect = effect_of(run, clean())
    assert (effect.noticed, effect.tokens_changed) == (noticed, changed)


def test_no_path_of_a_dump_goes_into_a_row() -> None:
    raised = Raised("TrappedViolation", "page 70 of 65 [dump: /home/somebody/dumps/x]")
    assert "somebody" not in effect_of(outcome(Ending.CRASHED, (), raised), clean()).ending


def test_totals_leave_out_what_is_inert_and_what_never_acted() -> None:
    rows = [
        scored(named(), number=1),
        scored(named(Structure.TREE_LOCK), number=2),
        scored(named(Structure.TREE_LOCK, confidence="likely"), number=3),
        scored(truth=Truth(acted=ACTED, overwritten=ACTED), number=4),
        scored(truth=Truth(), number=5),
    ]
    total = matrix(1, 5, rows, [clean()]).total
    assert (total.drawn, total.judged, total.inert, total.never_acted) == (5, 3, 1, 1)
    assert (total.seen, total.right, total.wrong, total.certain_and_wrong) == (3, 1, 2, 1)


def test_a_draw_without_a_fault_meets_every_aim_and_ends_with_0() -> None:
    whole = matrix(1, 2, [scored(named(owner=3), number=1), scored(named(owner=3), number=2)], [clean()])
    assert whole.exit_code == ExitCode.OK
    assert {aim.met for aim in whole.aims} == {True, None}


@pytest.mark.parametrize(
    ("rows", "loads", "code"),
    [
        ([scored(named(Structure.TREE_LOCK))], [clean()], ExitCode.VIOLATION),
        ([scored()], [clean()], ExitCode.VIOLATION),
        ([scored(named())], [clean(dumps=1)], ExitCode.VIOLATION),
        ([scored(named())], [clean(answers={})], ExitCode.VIOLATION),
        ([scored(truth=Truth())], [clean()], ExitCode.NOTHING_CHECKED),
    ],
)
def test_a_missed_aim_ends_with_1_and_nothing_to_judge_with_5(rows: list, loads: list, code: ExitCode) -> None:
    assert matrix(1, 1, rows, loads).exit_code == code


def test_the_matrix_says_why_cells_are_left_out_and_that_it_is_unfinished() -> None:
    part = matrix(1, 9, [scored(named())], [clean()])
    assert part.left_out[Structure.FREE_CALL]["stale"] == "a page that was given back before is DUPLICATE"
    assert not part.complete
    assert "unfinished" in matrix_text(part)


def test_an_interrupted_run_is_read_again_without_its_torn_line(tmp_path: Path) -> None:
    file = RowsFile(tmp_path, 5)
    file.begin("0.5.13.post1")
    file.add_clean(clean())
    file.add(scored(named(), number=3))
    with (tmp_path / ROWS_NAME).open("a") as torn:
        torn.write('{"row": {"mut')
    again = RowsFile(tmp_path, 5)
    again.read()
    assert (again.rows, again.clean, again.sglang_version) == (file.rows, file.clean, "0.5.13.post1")
    again.add(scored(number=4))
    third = RowsFile(tmp_path, 5)
    third.read()
    assert set(third.rows) == {3, 4}


@pytest.mark.parametrize("text", ['{"seed": 6}\n', '{"row": {}}\n', "no JSON\n"])
def test_rows_of_another_seed_or_of_no_run_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / ROWS_NAME).write_text(text)
    with pytest.raises(OutputRefused):
        RowsFile(tmp_path, 5).read()


def test_rows_of_other_probes_are_refused(tmp_path: Path) -> None:
    RowsFile(tmp_path, 5, Probes.CONTAIN).begin("0.5.23")
    with pytest.raises(OutputRefused, match="--probes contain, not trap"):
        RowsFile(tmp_path, 5, Probes.TRAP).read()
    file = RowsFile(tmp_path, 5)
    file.read()
    assert file.probes is Probes.CONTAIN


def test_the_audit_runs_after_every_step_beside_traps_and_at_idle_beside_contained_probes() -> None:
    every = "GEMMA4_TRIAGE_LEAK_EVERY"
    assert [settings(probes).get(every) for probes in (Probes.TRAP, Probes.CONTAIN, None)] == ["1", None, None]
    assert [settings(probes)["SGLANG_TRTLLM_MHA_DEBUG"] for probes in (Probes.TRAP, Probes.CONTAIN, None)] == [
        "trap",
        "contain",
        "off",
    ]


def test_reading_a_whole_file_of_rows_leaves_it_alone(tmp_path: Path) -> None:
    RowsFile(tmp_path, 5).begin("0.5.23")
    path = tmp_path / ROWS_NAME
    path.chmod(0o444)
    before = path.stat()
    RowsFile(tmp_path, 5).read()
    after = path.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_run_that_cannot_be_resumed_is_refused_before_anything_starts(tmp_path: Path) -> None:
    for output in (None, tmp_path):
        with pytest.raises(OutputRefused):
            run_mutations(Options(seed=5, count=1, output=output, resume=True), lambda dumps, log: (), None)  # pyright: ignore[reportArgumentType]


def test_truth_that_is_torn_is_a_problem_of_the_harness(tmp_path: Path) -> None:
    assert read_truth(tmp_path) == Truth()
    Truth(acted=ACTED, before=4).write(tmp_path)
    assert read_truth(tmp_path).before == 4
    (tmp_path / "truth.json").write_text("{")
    assert read_truth(tmp_path).problem
