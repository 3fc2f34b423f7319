"""Rules that look at their premises before they speak: each of these was said with certainty, and was wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from diagnose_examples import OTHERS, ROOT, allocator, altered, changed, corpus_dump, of, offence, rewritten, start_up
from gemma4_dumps.reader import Dump, read_dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose.conclude import conclude
from gemma4_triage.finding import Confidence, Finding

KEPT = ROOT / "tests" / "data" / "mutation_dumps"
_FAULT, _ALLOC_STEP, _FREE_STEP = 2, 7, 9
_FREE_AND_HELD = 3


def held_page(
    folder: Path,
    pool: int,
    alloc_step: int,
    free_step: int,
    running: str | None = None,
    beside: tuple[Dump, ...] = (),
) -> tuple[Finding, ...]:
    """Return the findings of an audit that saw a page free and held, last handed out and freed at these steps.

    Request slot 2 holds it, and `running` are those that still run; None: the dump does not say who holds it.
    """
    dump = corpus_dump("double-bookkeeping", "pool_leak")
    table = np.array(dump.tensor("suspects"))[:1]
    table[0, 1], table[0, _FAULT] = pool, _FREE_AND_HELD
    table[0, _ALLOC_STEP], table[0, _FREE_STEP] = alloc_step, free_step
    tensors = {"suspects": table, "holders": np.array([[table[0, 0], 2, 1]])}
    if running is None:
        del tensors["holders"]
    save_file(tensors, folder / "tensors.safetensors")
    layout = dump.manifest.tensors["suspects"]
    records = {name: layout.model_copy(update={"shape": one.shape}) for name, one in tensors.items()}
    scalars = dump.manifest.scalars | ({} if running is None else {"running": running})
    listed = {"offences": dump.manifest.offences[:1], "offence_count": 1, "scalars": scalars}
    return conclude(of(rewritten(folder, dump, verdict="freed_in_use", tensors=records, **listed), *beside))


def test_a_page_that_was_freed_since_its_hand_out_was_freed_too_early(tmp_path: Path) -> None:
    finding = held_page(tmp_path, pool=0, alloc_step=1, free_step=13, running="1,2")[0]
    assert (finding.rule, finding.confidence) == ("freed-while-held", Confidence.CERTAIN)
    assert (finding.structure, finding.defect) == (Structure.FREE_CALL, Defect.EARLY)
    assert finding.ruled_out_if == ()


@pytest.mark.parametrize(("free_step", "first"), [(13, "freed-while-held"), (21, "page-past-pool-end")])
def test_a_free_that_an_audit_saw_at_the_next_idle_is_of_the_step_at_which_it_was_made(tmp_path, free_step, first):
    table = altered(corpus_dump("page-past-the-end", "out_of_range"), step=20)
    found = held_page(tmp_path, 0, alloc_step=1, free_step=free_step, running="1,2", beside=(table,))
    assert next(one.rule for one in found if one.rule != "guards-incomplete") == first
    assert {one.rule for one in found} >= {"freed-while-held", "page-past-pool-end"}


def test_where_nothing_says_who_holds_a_freed_page_its_holder_may_have_ended(tmp_path: Path) -> None:
    finding = held_page(tmp_path, pool=0, alloc_step=1, free_step=13)[0]
    assert (finding.rule, finding.confidence) == ("freed-while-held", Confidence.LIKELY)
    assert [sentence.partition(":")[0] for sentence in finding.ruled_out_if] == [
        "the holder is a request that has ended"
    ]


def test_a_page_whose_holder_has_ended_was_not_freed_too_early(tmp_path: Path) -> None:
    found = held_page(tmp_path, pool=0, alloc_step=1, free_step=13, running="1,3")
    assert "freed-while-held" not in [finding.rule for finding in found]


@pytest.mark.parametrize("free_step", [-1, 5])
@pytest.mark.parametrize(("pool", "structure"), [(0, Structure.FULL_FREE_LIST), (1, Structure.SWA_FREE_LIST)])
def test_a_page_that_nobody_freed_since_accuses_the_list(
    tmp_path: Path, free_step: int, pool: int, structure: Structure
) -> None:
    finding = held_page(tmp_path, pool=pool, alloc_step=62, free_step=free_step)[0]
    assert (finding.rule, finding.confidence) == ("freed-while-held", Confidence.LIKELY)
    assert finding.structure is structure
    assert "nobody gave them back" in finding.cause


def of_slots(folder: Path, verdict: str, fault: str, running: str = "") -> Finding:
    """Return the first finding of an audit that saw a request slot so."""
    dump = read_dump(next(path for path in (KEPT / "request-slot-freed-twice").iterdir() if "0001" in path.name))
    table = dump.tensor("suspects").copy()
    table[0, _FAULT] = str(dump.manifest.scalars["faults"]).split(",").index(fault)
    made = changed(folder, dump, suspects=table)
    scalars = dump.manifest.scalars | {"running": running}
    return conclude(of(altered(made, verdict=verdict, scalars=scalars)))[0]


@pytest.mark.parametrize(
    ("verdict", "fault", "running", "rule", "begins", "confidence"),
    [
        ("pool_leak", "nowhere", "", "pages-leaked", "Request slots belong to no request", Confidence.POSSIBLE),
        ("double_free", "free_twice", "", "page-freed-twice", "A request slot stands twice", Confidence.LIKELY),
        ("freed_in_use", "free_and_held", "7", "freed-while-held", "A request slot is on the list", Confidence.LIKELY),
    ],
)
def test_of_request_slots_no_page_is_spoken(tmp_path, verdict, fault, running, rule, begins, confidence):
    first = of_slots(tmp_path, verdict, fault, running)
    assert (first.rule, first.structure, first.confidence) == (rule, None, confidence)
    assert first.cause.startswith(begins)
    assert not any("page" in piece.meaning for piece in first.evidence)
    assert any(piece.value == 7 for piece in first.evidence)


def test_a_slot_that_is_listed_twice_is_why_it_is_free_while_it_is_in_use():
    (finding,) = conclude(of(*(read_dump(path) for path in sorted((KEPT / "request-slot-freed-twice").iterdir()))))
    assert finding.rule == "page-freed-twice"
    assert "freed_in_use" in {piece.value for piece in finding.evidence if piece.meaning == "a consequence"}


def test_what_the_ledger_has_no_history_of_is_not_ruled_out_by_it(tmp_path):
    twice = of_slots(tmp_path / "1", "double_free", "free_twice")
    assert any("the ledger" in sentence for sentence in twice.ruled_out_if)
    held = of_slots(tmp_path / "2", "freed_in_use", "free_and_held", running="7")
    assert any("the audit's table" in sentence for sentence in held.ruled_out_if)
    assert not any("has ended" in sentence for sentence in held.ruled_out_if)


def with_events(folder: Path, dump: Dump, *events: dict[str, object], **fields: object) -> Dump:
    made = folder / dump.path.name
    shutil.copytree(dump.path, made)
    (made / "manifest.json").unlink()
    (made / "events.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in events))
    return rewritten(made, dump, **fields)


def a_slot_in_use() -> Dump:
    (dump,) = OTHERS["page-given-twice"].dumps
    bad = dump.manifest.offences[0].model_copy(update={"row": 0, "column": 0, "value": 148})
    return altered(dump, offences=(bad,), step=9)


ASKS = {"call": "alloc_decode", "seq_lens": [2], "last_loc": [147], "full": [[148, 1]], "swa": [[33, 1]]}
GAVE = {"call": "alloc_decode", "seq_lens": [1], "last_loc": [146], "full": [[147, 1]], "swa": [[32, 1]]}
FREES = {"call": "free", "full": [[144, 16]], "swa": [[32, 16]], "site": "cache_unfinished_req"}
RELEASES = FREES | {"site": "release_kv_cache"}
ENDS = FREES | {"call": "free_group_end", "site": None}


@pytest.mark.parametrize(
    ("calls", "rule", "told"),
    [
        ((GAVE, FREES, ASKS), "freed-while-held", (Structure.FREE_CALL, Defect.EARLY, Confidence.CERTAIN)),
        ((FREES, ASKS), "freed-while-held", (None, None, Confidence.POSSIBLE)),
        ((GAVE, RELEASES, ASKS), "freed-while-held", (None, None, Confidence.POSSIBLE)),
        ((GAVE, RELEASES, ENDS, ASKS), "freed-while-held", (None, None, Confidence.POSSIBLE)),
        ((GAVE, FREES | {"call": "free_swa"}, ASKS), "page-given-twice", (None, None, Confidence.POSSIBLE)),
        ((FREES, GAVE, ASKS), "page-given-twice", (None, None, Confidence.POSSIBLE)),
    ],
    ids=["its newest", "some slot", "of a release", "of a release in a group", "the other pool's", "given since"],
)
def test_a_page_that_was_freed_before_it_is_handed_out_was_not_given_twice(tmp_path, calls, rule, told):
    (first,) = conclude(of(with_events(tmp_path, a_slot_in_use(), *calls)))
    assert (first.rule, (first.structure, first.defect, first.confidence)) == (rule, told)


@pytest.mark.parametrize(
    ("steps", "rule"),
    [((3, 6, 9), "freed-while-held"), ((3, 9, 10), "page-given-twice"), ((3, 6), "page-given-twice")],
)
def test_the_ledgers_events_show_that_a_page_was_freed_before_it_is_handed_out(tmp_path, steps, rule):
    of_page = {"pool": "full", "pages": 1, "first_pages": [9], "site": "release_kv_cache"}
    kinds = ("handed_out", "freed", "handed_out")
    events = [of_page | {"kind": kind, "step": step} for kind, step in zip(kinds, steps, strict=False)]
    audit = altered(corpus_dump("double-bookkeeping", "pool_leak"), step=22)
    found = conclude(of(with_events(tmp_path, a_slot_in_use()), with_events(tmp_path, audit, *events)))
    assert rule in {one.rule for one in found}
    assert len({"freed-while-held", "page-given-twice"} & {one.rule for one in found}) == 1


def handed_out(table: str, value: int) -> Finding:
    bad = offence(table, value, lower=16, upper=2576)
    return conclude(
        allocator("swa-alloc-oob", "alloc_out_of_range", "swa-alloc-range", "alloc_out_of_range", offences=(bad,))
    )[0]


@pytest.mark.parametrize(
    ("table", "value", "words"),
    [
        ("slots", 2576, "beyond its pool"),
        ("slots", -16, "below the first"),
        ("slots", 3, "below the first"),
        ("last_loc", 0, "asked to continue"),
    ],
)
def test_a_slot_is_beyond_below_or_was_never_handed_out(table: str, value: int, words: str) -> None:
    finding = handed_out(table, value)
    assert finding.rule == "allocator-past-pool-end"
    assert words in finding.cause
    assert finding.defect is (Defect.PAST_END if value == 2576 else None)
    assert finding.structure is None, "the list and the call look alike once the slot has been handed out"


@pytest.mark.parametrize(
    ("what", "found", "expected", "defect"),
    [
        ("window_left", 4096, "31", Defect.PAST_END),
        ("window_left", 32, "31, as the other layers have it", Defect.OFF_BY_ONE),
        ("window_left", 0, "31", Defect.ZERO),
        ("bound_layer", 0, "4, whose KV the target's last sliding layer reads", Defect.ZERO),
        ("bound_layer", 3, "4, whose KV the target's last sliding layer reads", Defect.OFF_BY_ONE),
        ("bound_layer", 2, "4, whose KV the target's last sliding layer reads", Defect.FOREIGN),
        ("bound_layer", -1, "4, whose KV the target's last sliding layer reads", Defect.NEGATIVE),
    ],
)
def test_how_a_draft_layer_is_bound_wrongly(what, found, expected, defect):
    verdict = "window_width" if what == "window_left" else "geometry_mismatch"
    incident = start_up(verdict, f"draft {what}, layers 4: found {found}, expected {expected}")
    (dump,) = incident.dumps
    scalars = {"severity": "fatal", "found": found, "expected": expected, "what": what}
    incident = of(altered(dump, scalars=scalars, extents={"context_length": 4096}))
    finding = conclude(incident)[0]
    assert (finding.structure, finding.defect) == (Structure.DRAFT_BINDING, defect)


@pytest.mark.parametrize(("rows", "confidence"), [((0,), Confidence.LIKELY), ((0, 2), Confidence.CERTAIN)])
def test_the_first_page_past_the_end_in_several_rows_is_no_chance(
    rows: tuple[int, ...], confidence: Confidence
) -> None:
    bad = tuple(offence("page_table", 65, row=row) for row in rows)
    dump = altered(corpus_dump("page-past-the-end", "out_of_range"), offences=bad, offence_count=len(bad))
    finding = conclude(of(dump))[0]
    assert (finding.rule, finding.confidence) == ("page-past-pool-end", confidence)


@pytest.mark.parametrize("held", [0, 7])
def test_a_place_behind_all_that_a_row_has_was_never_filled(tmp_path: Path, held: int) -> None:
    dump = corpus_dump("negative-page", "negative")
    bad, lengths = dump.manifest.offences[0], dump.tensor("cache_seqlens")
    rows = np.zeros((len(lengths), bad.column + 2), np.int32)
    rows[:, : bad.column] = 3
    rows[bad.row, bad.column] = held
    layout = dump.manifest.tensors["page_table"].model_copy(update={"shape": rows.shape})
    tensors = {"request_rows": rows, "cache_seqlens": lengths}
    save_file(tensors, tmp_path / "tensors.safetensors")
    records = {"request_rows": layout, "cache_seqlens": dump.manifest.tensors["cache_seqlens"]}
    finding = conclude(of(rewritten(tmp_path, dump, tensors=records, offences=(bad,))))[0]
    assert finding.rule == "unassigned-page"
    assert finding.confidence is (Confidence.LIKELY if held else Confidence.CERTAIN)


@pytest.mark.parametrize("counts", [{"full_protected": 0, "swa_protected": 0}, {"requests_available": 8}])
def test_requests_that_by_the_audits_own_counts_hold_nothing_are_not_certain(counts):
    dump = corpus_dump("double-bookkeeping", "pool_leak")
    (first, *_) = conclude(of(altered(dump, scalars=dump.manifest.scalars | counts)))
    assert first.confidence is not Confidence.CERTAIN
    assert conclude(of(dump))[0].confidence is Confidence.CERTAIN
