"""Where nobody looked at calls as they were made, nothing that may have come out of one is accused."""

import json
import shutil

import pytest

from diagnose_examples import changed
from gemma4_dumps.reader import Dump, read_dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.finding import Confidence
from mutation_dumps import COLUMNS, KEPT, dumps_of, named_of

S, D, C = Structure, Defect, Confidence


def audited_every(kept, steps):
    """Change what the dumps of a server with probes in contain say of its leak audit: 0 is at idle alone."""
    for path in kept.rglob("manifest.json"):
        manifest = json.loads(path.read_text())
        settings = manifest["guards"].setdefault("settings", {})
        settings["leak_every"], settings["mode"] = steps, "contain"
        for patch in manifest["guards"].get("patches", []):
            patch["attached"] &= patch["id"] not in ("swa-allocator", "request-rows")
        path.write_text(json.dumps(manifest))
    return named_of(*(read_dump(path) for path in sorted(kept.iterdir())))[0]


@pytest.mark.parametrize(("steps", "told"), [(0, None), (1, S.FREE_CALL)])
def test_without_the_calls_of_its_group_a_page_that_was_asked_back_was_lost_by_a_free(tmp_path, steps, told):
    """Or by its group, where nobody looked at the calls of the free."""
    kept = tmp_path / "kept"
    shutil.copytree(KEPT / "group-freed-the-neighbour", kept)
    for events in kept.rglob("events.jsonl"):
        last = [line for line in events.read_text().splitlines() if json.loads(line)["step"] >= 35]
        events.write_text("\n".join(last) + "\n")
    first = audited_every(kept, steps)
    assert (first.rule, first.structure, first.confidence) == ("free-that-loses", told, C.POSSIBLE)


@pytest.mark.parametrize(("steps", "told"), [(0, (None, C.POSSIBLE)), (1, (S.SWA_MAPPING, C.CERTAIN))])
def test_a_page_that_stayed_behind_accuses_the_mapping_only_where_somebody_looked_at_its_free(tmp_path, steps, told):
    kept = tmp_path / "kept"
    shutil.copytree(KEPT.parent / "corpus_dumps" / "deferred-free-after-replacement", kept)
    first = audited_every(kept, steps)
    assert (first.rule, first.structure, first.confidence) == ("swa-page-replaced-before-free", *told)


@pytest.mark.parametrize(("audited", "told"), [(0, C.LIKELY), (1, C.CERTAIN)])
def test_where_nobody_looked_at_calls_as_they_were_made_what_follows_them_is_likely_at_most(tmp_path, audited, told):
    kept = tmp_path / "kept"
    shutil.copytree(KEPT / "group-freed-the-neighbour", kept)
    first = audited_every(kept, audited)
    assert (first.rule, first.confidence) == ("free-that-loses", told)
    assert bool(first.ruled_out_if) == (told is C.LIKELY)


def test_a_hand_out_behind_an_audit_of_its_step_follows_from_what_that_saw():
    """The list that had page 0 is not accused either: an audit had found it there, and a free had put it there."""
    first, *others = named_of(*dumps_of("freed-neighbour-and-page-0"))
    assert (first.rule, first.structure) == ("page-freed-twice", S.FREE_CALL)
    hand_out = next(finding for finding in others if finding.rule == "allocator-past-pool-end")
    assert (hand_out.structure, hand_out.confidence) == (None, C.POSSIBLE)
    assert any("leak-audit" in piece.source and piece.value == 0 for piece in hand_out.evidence)


@pytest.mark.parametrize(
    ("name", "steps", "told"),
    [
        ("listed-twice-after-a-hand-out", 0, (None, C.POSSIBLE)),
        ("listed-twice-after-a-hand-out", 1, (S.SWA_FREE_LIST, C.CERTAIN)),
        # The page was handed out eight steps before the audit.
        ("listed-twice-after-a-hand-out", 7, (S.SWA_FREE_LIST, C.CERTAIN)),
        ("listed-twice-after-a-hand-out", 8, (None, C.POSSIBLE)),
        ("held-twice-after-a-hand-out", 1, (S.FULL_FREE_LIST, C.LIKELY)),
        ("group-freed-another-swa-page", 1, (S.FREE_CALL, C.LIKELY)),
        ("page-0-freed-for-a-lost-page", 1, (S.FREE_CALL, C.LIKELY)),
        ("prompt-page-lost-by-a-length", 1, (S.TREE_NODE, C.LIKELY)),
        ("eviction-twice-seen-at-idle", 1, (S.FREE_CALL, C.CERTAIN)),
        ("mapping-foreign-seen-at-idle", 1, (S.FREE_CALL, C.CERTAIN)),
        ("freed-in-a-later-life", 1, (S.FREE_CALL, C.LIKELY)),
    ],
)
def test_what_may_have_come_out_of_a_call_since_the_audit_before_is_not_accused(tmp_path, name, steps, told):
    kept = tmp_path / "kept"
    shutil.copytree(KEPT / name, kept)
    first = audited_every(kept, steps)
    assert (first.structure, first.confidence) == told


def test_a_row_that_the_table_has_nothing_of_was_read_for_another_batch(tmp_path):
    """Where the row agrees with the table, two requests of one slot are what is wrong."""
    dumps = dumps_of("rows-of-the-next-batch")
    made = []
    for dump in dumps:
        rows = dump.tensor("request_rows").copy()
        rows[0, :6] = dump.tensor("page_table")[0, :6]
        made.append(changed(tmp_path, dump, request_rows=rows))
    assert (named_of(*dumps)[0].structure, named_of(*made)[0].structure) == (None, S.ROW_INDICES)


def test_what_swa_allocator_would_have_seen_handed_out_is_an_entry_of_the_map(tmp_path):
    dump = dumps_of("mapping-of-a-bad-hand-out")[0]
    guards = dict(dump.manifest.guards)
    guards["patches"] = [*guards["patches"], {"id": "swa-allocator", "kind": "probe", "attached": True}]
    watched = Dump(dump.path, dump.manifest.model_copy(update={"guards": guards}))
    assert (named_of(dump)[0].structure, named_of(watched)[0].structure) == (None, S.SWA_MAPPING)


def test_a_page_that_was_another_requests_is_one_freed_early_where_a_probe_looks_at_rows():
    (dump,) = dumps_of("row-of-another-request")
    guards = dict(dump.manifest.guards)
    ids = ("swa-allocator", "request-rows")
    guards["patches"] = [*guards["patches"], *({"id": one, "kind": "probe", "attached": True} for one in ids)]
    watched = Dump(dump.path, dump.manifest.model_copy(update={"guards": guards}))
    first = named_of(watched)[0]
    assert (first.structure, first.defect) == (S.FREE_CALL, D.EARLY)


@pytest.mark.parametrize(
    ("rows", "told"), [(9, (S.ROW_INDICES, D.PAST_END, C.LIKELY)), (10, (None, D.ZERO, C.POSSIBLE))]
)
def test_a_request_slot_past_the_rows_that_there_are_is_what_is_wrong(tmp_path, rows, told):
    (dump,) = dumps_of("page-0-of-a-hand-out")[:1]
    slots = dump.tensor("request_slots").copy()
    slots[dump.manifest.offences[0].row] = 9
    extents = {**dump.manifest.extents, "rows_of_requests": rows}
    dump = Dump(dump.path, dump.manifest.model_copy(update={"extents": extents}))
    first = named_of(changed(tmp_path, dump, request_slots=slots))[0]
    assert (first.structure, first.defect, first.confidence) == told


@pytest.mark.parametrize("page", [None, 77])
def test_what_an_audit_says_again_of_other_pages_is_no_repetition(tmp_path, page):
    dumps = dumps_of("free-lost")
    leak = next(dump for dump in dumps if dump.manifest.verdict == "pool_leak")
    later = {"dump_id": f"{leak.manifest.dump_id}9", "step": leak.manifest.step + 9}
    table = leak.tensor("suspects").copy()
    table[:, COLUMNS.index("page")] = table[:, COLUMNS.index("page")] if page is None else page
    again = changed(tmp_path, Dump(leak.path, leak.manifest.model_copy(update=later)), suspects=table)
    first, *others = named_of(*dumps, again)
    assert not others
    told = [piece.value for piece in first.evidence if piece.source == later["dump_id"]]
    assert told == ([] if page is None else [page])


@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize("name", ["page-0-of-a-hand-out", "mapping-of-a-bad-hand-out", "freed-in-a-later-life"])
def test_who_only_meets_what_a_call_left_is_no_owner(tmp_path, name, steps):
    kept = tmp_path / "kept"
    shutil.copytree(KEPT / name, kept)
    named = [piece.field for piece in audited_every(kept, steps).evidence if piece.field.endswith(".request_slot")]
    assert bool(named) is bool(steps)
