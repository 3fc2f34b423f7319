"""Causes that were put into the live engine, one entry at a time: what was wrong is named first."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import save_file

from diagnose_examples import ROOT, changed, rewritten, start_up
from gemma4_dumps.reader import Dump, read_dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose.catalog import RULES
from gemma4_triage.diagnose.conclude import conclude, hold_against_each_other
from gemma4_triage.diagnose.grouping import group
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.finding import Confidence

KEPT = ROOT / "tests" / "data" / "mutation_dumps"
COLUMNS = (
    *("page", "pool", "fault", "places", "owner_slot", "owner_generation"),
    *("alloc_site", "alloc_step", "free_site", "free_step", "peer", "last_event"),
)
S, D, C = Structure, Defect, Confidence
CASES = {
    "mapping-zero": ("mapping-entry-wrong", S.SWA_MAPPING, D.ZERO, C.CERTAIN),
    "mapping-foreign": ("mapping-entry-wrong", S.SWA_MAPPING, D.FOREIGN, C.CERTAIN),
    "tree-node-negative": ("holder-entry-wrong", S.TREE_NODE, D.NEGATIVE, C.CERTAIN),
    "full-list-zero": ("free-list-entry-wrong", S.FULL_FREE_LIST, D.ZERO, C.CERTAIN),
    "swa-list-duplicate": ("free-list-entry-wrong", S.SWA_FREE_LIST, D.DUPLICATE, C.CERTAIN),
    "free-of-the-neighbour": ("free-that-loses", S.FREE_CALL, D.OFF_BY_ONE, C.CERTAIN),
    "freed-neighbour-and-page-0": ("page-freed-twice", S.FREE_CALL, D.OFF_BY_ONE, C.CERTAIN),
    "list-entry-past-the-end-handed-out": ("free-list-entry-wrong", S.SWA_FREE_LIST, D.PAST_END, C.CERTAIN),
    "free-lost": ("free-that-loses", S.FREE_CALL, D.LOST, C.CERTAIN),
    "group-freed-the-neighbour": ("free-that-loses", S.FREE_GROUP, D.OFF_BY_ONE, C.LIKELY),
    "group-freed-one-twice": ("free-that-loses", S.FREE_GROUP, D.DUPLICATE, C.LIKELY),
    "group-lost-a-swa-page": ("free-that-loses", S.FREE_GROUP, D.LOST, C.LIKELY),
    "two-of-one-hand-out": ("mapping-differs", None, D.STALE, C.POSSIBLE),
    "row-of-a-bad-hand-out": ("unassigned-page", None, D.NEGATIVE, C.POSSIBLE),
    "row-index-past-the-table": ("index-outside-buffer", None, D.NEGATIVE, C.POSSIBLE),
    "row-of-another-request": ("null-page-in-live-column", None, D.ZERO, C.POSSIBLE),
    "row-index-and-the-next-batch": ("null-page-in-live-column", None, D.ZERO, C.POSSIBLE),
    "rows-of-the-next-batch": ("unassigned-page", None, D.NEGATIVE, C.POSSIBLE),
    "page-0-of-a-hand-out": ("null-page-in-live-column", None, D.ZERO, C.POSSIBLE),
    "mapping-of-a-bad-hand-out": ("unassigned-page", None, D.NEGATIVE, C.POSSIBLE),
    "kernel-lengths-past-the-row": ("index-outside-buffer", S.KERNEL_LENGTHS, D.FOREIGN, C.LIKELY),
    "batch-lengths-swapped": ("null-page-in-live-column", None, D.ZERO, C.POSSIBLE),
    "listed-twice-after-a-hand-out": ("free-list-entry-wrong", None, D.OFF_BY_ONE, C.POSSIBLE),
    "held-twice-after-a-hand-out": ("free-list-entry-wrong", None, D.FOREIGN, C.POSSIBLE),
    "group-freed-another-swa-page": ("freed-while-held", None, None, C.POSSIBLE),
    "page-0-freed-for-a-lost-page": ("pages-leaked", None, D.LOST, C.POSSIBLE),
    "row-index-negative-and-the-next-batch": ("index-outside-buffer", None, D.PAST_END, C.POSSIBLE),
    "prompt-page-lost-by-a-length": ("pages-leaked", None, D.LOST, C.POSSIBLE),
    "eviction-twice-seen-at-idle": ("page-freed-twice", None, D.DUPLICATE, C.POSSIBLE),
    "mapping-foreign-seen-at-idle": ("page-freed-twice", None, D.DUPLICATE, C.POSSIBLE),
    "length-shorter-than-its-row": ("null-page-in-live-column", None, D.ZERO, C.POSSIBLE),
    "freed-in-a-later-life": ("freed-while-held", None, None, C.POSSIBLE),
    "goes-on-in-a-page-of-a-stale-mapping": ("mapping-differs", S.SWA_MAPPING, D.STALE, C.CERTAIN),
    "goes-on-in-a-page-of-another-entry": ("free-list-entry-wrong", S.SWA_FREE_LIST, D.FOREIGN, C.CERTAIN),
    "listed-twice-by-an-old-hand-out": ("free-list-entry-wrong", None, D.FOREIGN, C.POSSIBLE),
    "swa-table-and-the-next-batch": ("page-past-pool-end", S.SWA_TABLE, D.PAST_END, C.LIKELY),
    "row-of-another-prefill": ("null-page-in-live-column", None, D.ZERO, C.POSSIBLE),
    "write-of-a-bad-hand-out": ("write-past-buffer", None, D.NEGATIVE, C.POSSIBLE),
    "pages-of-counters-past-the-end": ("pages-leaked", None, D.LOST, C.POSSIBLE),
    "a-length-one-too-many": ("null-page-in-live-column", None, None, C.POSSIBLE),
    "lock-left-over": ("lock-left-over", S.TREE_LOCK, D.OFF_BY_ONE, C.LIKELY),
    "protected-zero": ("counters-overlap", S.REQUEST_COUNTERS, None, C.LIKELY),
    "evicted-too-far": ("evicted-not-freed", S.REQUEST_COUNTERS, None, C.LIKELY),
    "node-lost": ("pages-leaked", S.TREE_NODE, D.LOST, C.LIKELY),
    "full-table-zero": ("null-page-in-live-column", S.FULL_TABLE, D.ZERO, C.CERTAIN),
    "write-zero": ("null-page-in-live-column", S.WRITE_LOCATIONS, D.ZERO, C.CERTAIN),
    "row-index-negative": ("null-page-in-live-column", S.ROW_INDICES, D.NEGATIVE, C.LIKELY),
    "node-behind-a-row": ("request-state-differs", S.TREE_NODE, None, C.LIKELY),
    "nodes-swapped": ("request-state-differs", None, None, C.POSSIBLE),
    "hand-out-twice": ("page-given-twice", S.ALLOCATION, D.DUPLICATE, C.CERTAIN),
    "row-of-a-request": ("holder-entry-wrong", S.REQUEST_ROW, D.DUPLICATE, C.LIKELY),
    "hand-out-of-the-neighbour": ("page-given-twice", S.ALLOCATION, D.OFF_BY_ONE, C.CERTAIN),
    "hand-out-of-another": ("swa-page-shared", S.ALLOCATION, D.FOREIGN, C.CERTAIN),
    "row-past-the-end": ("slot-beyond-the-map", S.REQUEST_ROW, D.PAST_END, C.CERTAIN),
    "window-and-layer-swapped": ("parts-disagree", S.DRAFT_BINDING, D.SWAPPED, C.CERTAIN),
    "batch-length-negative": ("batch-length-wrong", S.BATCH_LENGTHS, D.NEGATIVE, C.LIKELY),
    "asked-for-length-zero": ("allocator-past-pool-end", S.BATCH_LENGTHS, D.ZERO, C.LIKELY),
    "kernel-lengths-swapped": ("null-page-in-live-column", S.KERNEL_LENGTHS, D.SWAPPED, C.CERTAIN),
    "row-behind-a-node": ("request-state-differs", S.REQUEST_ROW, D.SWAPPED, C.CERTAIN),
    "node-stale-behind-a-row": ("request-state-differs", S.TREE_NODE, D.STALE, C.LIKELY),
    "full-table-duplicate": ("request-state-differs", S.FULL_TABLE, D.DUPLICATE, C.CERTAIN),
    "node-page-twice": ("holder-entry-wrong", S.TREE_NODE, D.DUPLICATE, C.LIKELY),
    "protected-of-another": ("request-state-differs", S.REQUEST_COUNTERS, D.FOREIGN, C.CERTAIN),
    "list-has-a-page-in-use": ("free-list-entry-wrong", S.SWA_FREE_LIST, D.FOREIGN, C.LIKELY),
    "continued-in-the-neighbour": ("page-given-twice", S.ALLOCATION, D.OFF_BY_ONE, C.CERTAIN),
    "continued-in-a-new-page": ("page-given-twice", S.ALLOCATION, D.DUPLICATE, C.CERTAIN),
    "mappings-of-a-row-swapped": ("mapping-differs", S.SWA_MAPPING, D.SWAPPED, C.CERTAIN),
    "pages-of-nodes-swapped": ("cached-pages-moved", S.TREE_NODE, D.SWAPPED, C.CERTAIN),
    "hand-out-or-list": ("free-list-entry-wrong", None, D.OFF_BY_ONE, C.POSSIBLE),
    "committed-before-the-forward": ("request-state-differs", S.REQUEST_COUNTERS, D.OFF_BY_ONE, C.CERTAIN),
    "mapping-not-written": ("allocator-past-pool-end", S.SWA_MAPPING, D.ZERO, C.CERTAIN),
    "first-token-not-kept": ("request-state-differs", S.REQUEST_COUNTERS, D.OFF_BY_ONE, C.LIKELY),
    "length-on-the-host": ("batch-length-wrong", S.BATCH_LENGTHS, D.OFF_BY_ONE, C.CERTAIN),
    "hand-out-past-the-map": ("allocator-past-pool-end", S.ALLOCATION, D.PAST_END, C.CERTAIN),
    "segment-not-freed": ("pages-lost-between-calls", S.FREE_CALL, D.LOST, C.CERTAIN),
    "released-and-running": ("request-state-differs", S.ROW_INDICES, D.STALE, C.LIKELY),
    "accepted-too-many": ("request-state-differs", S.REQUEST_COUNTERS, None, C.CERTAIN),
    "length-past-the-table": ("table-too-narrow", S.KERNEL_LENGTHS, D.PAST_END, C.LIKELY),
    "mapping-changed-since-the-hand-out": ("mapping-differs", S.SWA_MAPPING, D.OTHER_SPACE, C.CERTAIN),
    "eviction-not-freed": ("evicted-not-freed", S.WINDOW_EVICTION, D.LOST, C.LIKELY),
    "eviction-of-anothers-page": ("evicted-not-freed", S.WINDOW_EVICTION, D.FOREIGN, C.LIKELY),
    "eviction-too-early": ("null-page-in-live-column", S.WINDOW_EVICTION, D.EARLY, C.LIKELY),
    "eviction-negative": ("eviction-names-no-page", S.WINDOW_EVICTION, D.NEGATIVE, C.LIKELY),
    "eviction-of-page-zero": ("eviction-names-no-page", S.WINDOW_EVICTION, D.ZERO, C.LIKELY),
    "eviction-twice": ("page-freed-twice", S.WINDOW_EVICTION, D.DUPLICATE, C.LIKELY),
    "eviction-of-the-neighbour": ("eviction-names-no-page", S.WINDOW_EVICTION, None, C.LIKELY),
    "eviction-not-freed-as-it-ended": ("pages-leaked", None, D.LOST, C.POSSIBLE),
    # Not drawn: what a fault did that is none of the grid's.
    "free-list-has-a-page-of-the-cache": ("freed-while-held", None, None, C.POSSIBLE),
    "eviction-that-did-not-free": ("mapping-entry-wrong", S.SWA_MAPPING, D.STALE, C.LIKELY),
    "window-page-freed-in-a-decode": ("evicted-page-counted", None, None, C.POSSIBLE),
    "allocated-count-zero": ("request-state-differs", S.REQUEST_COUNTERS, None, C.CERTAIN),
    "mapping-to-a-page-that-is-free": ("mapping-differs", S.SWA_MAPPING, D.OFF_BY_ONE, C.CERTAIN),
    "mapping-to-a-page-that-was-freed": ("mapping-differs", S.SWA_MAPPING, D.STALE, C.CERTAIN),
    "list-has-a-freed-page-twice": ("free-list-entry-wrong", None, D.DUPLICATE, C.POSSIBLE),
    "free-past-the-map": ("slot-beyond-the-map", S.FREE_CALL, D.PAST_END, C.LIKELY),
    "free-of-a-free-neighbour": ("page-freed-twice", S.FREE_CALL, D.OFF_BY_ONE, C.CERTAIN),
    "free-of-a-running-requests-page": ("request-state-differs", None, None, C.POSSIBLE),
    "window-freed-early": ("null-page-in-live-column", S.FREE_CALL, D.EARLY, C.LIKELY),
    "swa-writes-not-translated": ("write-past-buffer", S.WRITE_LOCATIONS, D.OTHER_SPACE, C.LIKELY),
    "evicted-and-not-counted": ("evicted-page-counted", S.REQUEST_COUNTERS, None, C.LIKELY),
    "node-in-another-order": ("request-state-differs", S.TREE_NODE, D.DUPLICATE, C.LIKELY),
    "goes-on-in-a-free-page": ("mapping-outlives-page", None, None, C.POSSIBLE),
    "mapping-left-in-a-group": ("mapping-outlives-page", S.SWA_MAPPING, D.STALE, C.CERTAIN),
    "evicted-and-not-freed": ("pages-leaked", None, D.LOST, C.POSSIBLE),
    "swa-list-foreign": ("free-list-entry-wrong", S.SWA_FREE_LIST, D.FOREIGN, C.CERTAIN),
    "list-made-too-long": ("free-list-entry-wrong", S.SWA_FREE_LIST, D.PAST_END, C.CERTAIN),
    "hand-out-begins-on-the-last-slot": ("swa-page-shared", S.ALLOCATION, D.OFF_BY_ONE, C.CERTAIN),
    "freed-past-the-window": ("evicted-page-counted", S.WINDOW_EVICTION, D.EARLY, C.CERTAIN),
    "handed-out-while-held": ("swa-page-shared", None, D.DUPLICATE, C.POSSIBLE),
    "cached-from-a-wrong-row": ("holder-entry-wrong", None, D.DUPLICATE, C.POSSIBLE),
    "page-twice-in-a-row": ("null-page-in-live-column", S.REQUEST_ROW, D.DUPLICATE, C.LIKELY),
    "freed-while-it-grows": ("allocator-past-pool-end", S.FREE_CALL, D.EARLY, C.CERTAIN),
    "null-page-then-a-stale-mapping": ("null-page-in-live-column", None, D.ZERO, C.POSSIBLE),
    "node-kept-after-its-eviction": ("evicted-page-counted", S.TREE_NODE, D.STALE, C.CERTAIN),
    "window-freed-and-not-counted": ("evicted-page-counted", None, None, C.POSSIBLE),
    "request-slot-freed-twice": ("page-freed-twice", None, D.DUPLICATE, C.LIKELY),
    "freed-while-cached": ("freed-while-held", S.FREE_CALL, D.EARLY, C.LIKELY),
}
"""By folder: the rule, what was corrupted, how, and how sure the dumps allow to be."""


def dumps_of(name):
    return [read_dump(path) for path in sorted((KEPT / name).iterdir())]


def named_of(*dumps):
    (incident,) = group(dumps)
    return conclude(incident)


@pytest.mark.parametrize("name", CASES)
def test_the_structure_that_was_corrupted_is_named_first(name):
    first = named_of(*dumps_of(name))[0]
    assert (first.rule, first.structure, first.defect, first.confidence) == CASES[name]


def test_every_kept_case_is_told():
    assert {path.name for path in KEPT.iterdir() if path.is_dir()} == set(CASES)


@pytest.mark.parametrize("name", [name for name, told in CASES.items() if told[3] is C.CERTAIN])
def test_no_other_rule_is_certain_of_the_same_dumps(name):
    sure = [finding for finding in named_of(*dumps_of(name)) if finding.confidence is C.CERTAIN]
    assert [finding.rule for finding in sure] == [CASES[name][0]]


@pytest.mark.parametrize("name", ["mapping-not-written"])
def test_without_what_the_pool_gave_the_hand_out_may_be_right(tmp_path, name):
    first = named_of(*(changed(tmp_path, dump, swa_given=None) for dump in dumps_of(name)))[0]
    assert first.confidence is not C.CERTAIN


@pytest.mark.parametrize("name", ["mapping-zero", "tree-node-negative", "protected-zero"])
def test_without_the_holders_nothing_is_said_of_them(tmp_path, name):
    dumps = [changed(tmp_path, dump, holders=None) for dump in dumps_of(name)]
    assert CASES[name][0] not in [finding.rule for finding in named_of(*dumps)]


@pytest.mark.parametrize(
    ("calls", "says"),
    [
        ("of the page", None),
        ("of more pages than are named", C.LIKELY),
        ("none that is old enough", C.LIKELY),
        ("as they were", C.CERTAIN),
    ],
)
def test_a_mapping_is_accused_unless_its_full_page_may_have_been_handed_out_anew(tmp_path, calls, says):
    made = []
    for dump in dumps_of("mapping-zero"):
        folder = tmp_path / dump.path.name
        shutil.copytree(dump.path, folder)
        path = folder / "events.jsonl"
        events = path.read_text().splitlines()
        anew = {"kind": "handed_out", "pool": "full", "site": "alloc_for_extend", "step": 4, "pages": 1}
        if calls == "of the page":
            events.append(json.dumps(anew | {"first_pages": [84]}))
        elif calls == "of more pages than are named":
            events.append(json.dumps(anew | {"first_pages": [5], "pages": 9}))
        elif calls == "none that is old enough":
            events = [json.dumps(anew | {"first_pages": [5]})]
        path.write_text("".join(f"{line}\n" for line in events))
        made.append(rewritten(folder, dump))
    said = {finding.rule: finding.confidence for finding in named_of(*made)}
    assert said.get("mapping-entry-wrong") == says


def test_pages_that_their_owners_count_does_not_reach_are_no_leak():
    assert "pages-leaked" not in [finding.rule for finding in named_of(*dumps_of("allocated-count-zero"))]


def test_without_the_calls_before_a_free_the_mapping_is_not_accused(tmp_path):
    (dump,) = dumps_of("mapping-changed-since-the-hand-out")
    shutil.copytree(dump.path, tmp_path / "dump")
    events = (tmp_path / "dump" / "events.jsonl").read_text().splitlines()
    (tmp_path / "dump" / "events.jsonl").write_text(events[-1] + "\n")
    first = named_of(rewritten(tmp_path / "dump", dump))[0]
    assert (first.rule, first.structure, first.confidence) == ("swa-page-shared", None, C.POSSIBLE)


@pytest.mark.parametrize(("page", "defect"), [(36, D.OFF_BY_ONE), (4, D.OTHER_SPACE), (53, D.STALE), (65, D.PAST_END)])
def test_the_way_in_which_a_mapping_was_changed_is_told_from_where_it_leads(tmp_path, page, defect):
    (dump,) = dumps_of("mapping-changed-since-the-hand-out")
    slots = dump.tensor("slots").copy()
    slots[:16, 1] = page * 16 + np.arange(16)
    bad = dump.manifest.offences[0].model_copy(update={"value": page * 16})
    dump = Dump(dump.path, dump.manifest.model_copy(update={"offences": (bad,)}))
    first = named_of(changed(tmp_path, dump, slots=slots))[0]
    assert (first.rule, first.defect) == ("mapping-differs", defect)


def test_a_length_that_the_batch_has_otherwise_is_what_is_wrong_and_not_the_table(tmp_path):
    (dump,) = dumps_of("length-past-the-table")
    lengths, layout = dump.tensor("cache_seqlens"), dump.manifest.tensors["cache_seqlens"]
    save_file({"cache_seqlens": lengths, "believed_lengths": lengths.clip(0, 78)}, tmp_path / "tensors.safetensors")
    made = rewritten(tmp_path, dump, tensors={"cache_seqlens": layout, "believed_lengths": layout})
    first = named_of(made)[0]
    assert (first.rule, first.confidence) == ("table-too-narrow", C.CERTAIN)


def test_a_length_of_a_kernel_beyond_its_table_is_past_the_end(tmp_path):
    (dump,) = dumps_of("kernel-lengths-swapped")
    given = dump.tensor("cache_seqlens").copy()
    given[2] = 5 * 16 + 1
    first = named_of(changed(tmp_path, dump, cache_seqlens=given))[0]
    assert (first.structure, first.defect) == (S.KERNEL_LENGTHS, D.PAST_END)


@pytest.mark.parametrize(
    ("event", "told"),
    [
        ("freed", (S.FREE_CALL, D.EARLY, C.LIKELY)),
        ("free_asked", (S.FREE_CALL, D.EARLY, C.LIKELY)),
        ("owned", (None, None, C.POSSIBLE)),
    ],
)
def test_a_page_of_a_row_that_is_as_it_was_was_given_back_unless_somebody_else_has_it(event, told):
    (dump,) = dumps_of("free-of-a-running-requests-page")
    scalars = dump.manifest.scalars | {"page_event": event}
    first = named_of(Dump(dump.path, dump.manifest.model_copy(update={"scalars": scalars})))[0]
    assert (first.structure, first.defect, first.confidence) == told


def test_a_request_without_a_lock_is_named_and_a_sum_that_is_too_small_may_be_counted_wrongly():
    (dump,) = dumps_of("free-of-a-running-requests-page")
    told = {"why": "unlocked", "structure": "radix tree lock", "defect": "lost", "as_before": None, "page_event": None}
    told |= {"value": 0, "expected": 96, "token": 0}
    place = {"table": "radix tree lock", "row": 0, "column": 0, "value": 0, "lower": 96, "upper": 97}

    def first(slot):
        bad = dump.manifest.offences[0].model_copy(update=place | {"request_slot": slot})
        update = {"scalars": dump.manifest.scalars | told | {"request_slot": slot}, "offences": (bad,)}
        return named_of(Dump(dump.path, dump.manifest.model_copy(update=update | {"offence_count": 1})))[0]

    assert (first(7).structure, first(7).defect, first(7).confidence) == (S.TREE_LOCK, D.LOST, C.CERTAIN)
    assert "slot 7 runs without a lock" in first(7).cause
    assert first(None).confidence is C.LIKELY


def test_a_row_that_nobody_has_looked_at_before_was_written_wrong():
    (dump,) = dumps_of("nodes-swapped")
    scalars = dump.manifest.scalars | {"why": "prefix", "row_had": None, "as_before": None}

    def first(**more):
        return named_of(Dump(dump.path, dump.manifest.model_copy(update={"scalars": scalars | more})))[0]

    assert (first().structure, first().confidence) == (None, C.POSSIBLE)
    assert (first(first_look=True).structure, first(first_look=True).confidence) == (S.REQUEST_ROW, C.LIKELY)


@pytest.mark.parametrize(
    ("counts", "last_freed", "told"),
    [
        (32, 2, (S.WINDOW_EVICTION, D.EARLY)),
        (32, 1, (S.REQUEST_COUNTERS, None)),
        (32, -1, (None, None)),
        (0, 2, (S.REQUEST_COUNTERS, None)),
        (48, 2, (S.TREE_NODE, D.STALE)),
    ],
    ids=["more than it counts", "count not moved", "nobody saw when", "counts nothing", "within what it counts"],
)
def test_of_a_page_without_an_swa_slot_its_place_and_the_steps_of_frees_tell_what_is_wrong(
    tmp_path, counts, last_freed, told
):
    (dump,) = dumps_of("freed-past-the-window")
    slot = dump.manifest.offences[0].request_slot
    edges = dump.tensor("edges").copy()
    edges[(edges[:, 0] == slot) & (edges[:, 1] < 2), 3] = last_freed
    made = changed(tmp_path, dump, edges=edges)
    scalars = dump.manifest.scalars | {"evicted": f"{slot}:{counts}"}
    first = named_of(Dump(made.path, made.manifest.model_copy(update={"scalars": scalars})))[0]
    assert (first.structure, first.defect) == told


@pytest.mark.parametrize(
    ("left", "told"),
    [
        (None, (S.REQUEST_COUNTERS, None, C.LIKELY)),
        (10, (S.REQUEST_COUNTERS, None, C.CERTAIN)),
        (1000, (S.WINDOW_EVICTION, D.LOST, C.LIKELY)),
    ],
    ids=["nobody says", "the count reaches into the window", "all that is counted has left it"],
)
def test_a_count_that_reaches_into_the_window_is_told_from_an_eviction_that_freed_nothing(left, told):
    made = []
    for dump in dumps_of("eviction-not-freed"):
        slot = dump.manifest.offences[0].request_slot
        scalars = dump.manifest.scalars | {"left_window": "" if left is None else f"{slot}:{left}"}
        made.append(Dump(dump.path, dump.manifest.model_copy(update={"scalars": scalars})))
    first = named_of(*made)[0]
    assert (first.structure, first.defect, first.confidence) == told


def test_the_live_ledger_named_the_eviction_and_its_request():
    (audit, *_) = dumps_of("eviction-of-anothers-page")
    evicted = [one for one in audit.events() if one["site"] == "evict_swa"]
    assert {(one["kind"], one["pool"]) for one in evicted} == {("free_asked", "swa")}
    assert all(one["by_request_slot"] > 0 for one in evicted)


def test_an_eviction_whose_call_site_nobody_knows_is_a_free():
    made = []
    for dump in dumps_of("eviction-twice"):
        scalars = {name: value for name, value in dump.manifest.scalars.items() if name != "call_site"}
        made.append(Dump(dump.path, dump.manifest.model_copy(update={"scalars": scalars})))
    assert named_of(*made)[0].structure is S.FREE_CALL


def test_a_page_that_another_requests_eviction_gave_back_was_not_its_own_to_give():
    (dump,) = dumps_of("eviction-too-early")
    assert dump.manifest.scalars["peer_freed_by"] == dump.manifest.offences[0].request_slot
    scalars = dump.manifest.scalars | {"peer_freed_by": 99}
    first = named_of(Dump(dump.path, dump.manifest.model_copy(update={"scalars": scalars})))[0]
    assert (first.structure, first.defect) == (S.WINDOW_EVICTION, None)


@pytest.mark.parametrize(("whose", "told"), [(0, None), (1, S.WINDOW_EVICTION)], ids=["own", "another's"])
def test_an_own_page_without_an_swa_side_may_be_a_count_that_is_too_small(tmp_path, whose, told):
    (dump,) = dumps_of("eviction-of-the-neighbour")
    made = changed(tmp_path, dump, page_states=np.ones_like(dump.tensor("page_states")))
    by = dump.manifest.scalars["by_request_slot"] + whose
    offences = tuple(one.model_copy(update={"request_slot": by}) for one in dump.manifest.offences)
    found = named_of(Dump(made.path, made.manifest.model_copy(update={"offences": offences})))
    assert {one.structure for one in found if one.rule == "eviction-names-no-page"} == {told}
    assert C.CERTAIN not in {one.confidence for one in found}


def test_a_list_that_calls_have_changed_since_is_not_accused_of_how_it_was_made():
    (dump,) = dumps_of("list-made-too-long")
    scalars = dump.manifest.scalars | {"events_seen": 1}
    found = named_of(Dump(dump.path, dump.manifest.model_copy(update={"scalars": scalars})))
    assert "free-list-entry-wrong" not in {one.rule for one in found}


def test_a_page_that_the_caches_own_eviction_freed_was_not_freed_early(tmp_path):
    twice = next(dump for dump in dumps_of("freed-while-cached") if dump.manifest.verdict == "pool_alias")
    columns = str(twice.manifest.scalars["lives_columns"]).split(",")
    evicted = twice.tensor("lives").copy()
    sites = str(twice.manifest.scalars["sites"]).split(",")
    evicted[evicted[:, columns.index("free_site")] >= 0, columns.index("free_site")] = sites.index("evict_tree")
    found = named_of(changed(tmp_path, twice, lives=evicted))
    assert "freed-while-held" not in {one.rule for one in found}


def test_a_null_page_that_the_pool_gave_accuses_no_entry_of_the_map():
    (dump,) = dumps_of("window-freed-early")
    kept = {name: value for name, value in dump.manifest.scalars.items() if not name.startswith("peer")}
    scalars = kept | {"null_page_given": True}
    first = named_of(Dump(dump.path, dump.manifest.model_copy(update={"scalars": scalars})))[0]
    assert (first.rule, first.structure, first.confidence) == ("null-page-in-live-column", None, C.POSSIBLE)


@pytest.mark.parametrize(("found", "defect"), [(30, D.OFF_BY_ONE), (15, D.OFF_BY_ONE), (7, None)])
def test_a_window_is_off_by_one_token_or_one_page(found, defect):
    dump = dumps_of("list-made-too-long")[0]
    said = f"draft window_left, layers 4: found {found}, expected 31"
    facts = {"severity": "fatal", "what": "window_left", "found": found, "expected": "31", "layers": "4"}
    told = {"rule": "geometry", "verdict": "geometry_mismatch", "summary": said, "page_size": 16, "scalars": facts}
    first = named_of(Dump(dump.path, dump.manifest.model_copy(update=told)))[0]
    assert (first.rule, first.structure, first.defect) == ("parts-disagree", S.DRAFT_BINDING, defect)


def test_a_window_of_the_targets_own_layers_is_told_as_such():
    said = "target window_left, layers 2: found 47, expected 31"
    found = conclude(start_up("window_width", said, found=47, expected="31", what="window_left", layers="2"))[0]
    assert (found.rule, found.structure, found.defect, found.confidence) == ("parts-disagree", None, None, C.CERTAIN)
    assert found.cause.startswith("Layers of the target show another number of keys")


def test_a_draft_layers_scale_is_of_its_binding():
    dump = dumps_of("list-made-too-long")[0]
    said = "draft scaling, layers 4: found 0.5, expected 1"
    facts = {"severity": "fatal", "what": "scaling", "found": "0.5", "expected": "1", "layers": "4"}
    told = {"rule": "geometry", "verdict": "geometry_mismatch", "summary": said, "scalars": facts}
    first = named_of(Dump(dump.path, dump.manifest.model_copy(update=told)))[0]
    assert (first.rule, first.structure) == ("parts-disagree", S.DRAFT_BINDING)


def test_a_page_that_is_freed_twice_with_none_lost_beside_it_names_no_neighbour(tmp_path):
    dumps = [dump for dump in dumps_of("free-of-a-free-neighbour") if dump.manifest.verdict != "pool_leak"]
    first = named_of(*dumps)[0]
    assert (first.rule, first.defect) == ("page-freed-twice", D.DUPLICATE)


@pytest.mark.parametrize("name", ["node-lost"])
def test_a_leak_is_not_a_sessions_where_the_audit_counted_none(name):
    (dump,) = dumps_of(name)
    with_one = dump.manifest.model_copy(update={"scalars": dump.manifest.scalars | {"full_session_held": 16}})
    assert not any("session" in sentence for sentence in named_of(dump)[0].ruled_out_if)
    assert "session" in named_of(Dump(dump.path, with_one))[0].ruled_out_if[0]


def test_where_no_probe_looked_at_what_was_handed_out_a_row_may_have_it_from_there():
    (dump,) = dumps_of("row-past-the-end")
    rows = [row for row in dump.manifest.guards["patches"] if row["id"] != "swa-allocator"]
    guards = dump.manifest.guards | {"patches": rows}
    first = named_of(Dump(dump.path, dump.manifest.model_copy(update={"guards": guards})))[0]
    assert first.confidence is C.LIKELY
    assert [sentence.partition(",")[0] for sentence in first.ruled_out_if] == ["an allocator gave the slot out"]


@pytest.mark.parametrize("name", ["full-table-zero"])
def test_without_the_requests_rows_the_table_is_not_accused(tmp_path, name):
    (dump,) = dumps_of(name)
    first = named_of(changed(tmp_path, dump, request_rows=None))[0]
    assert (first.structure, first.confidence) == (None, C.POSSIBLE)


def test_a_row_that_says_so_too_is_what_is_wrong(tmp_path):
    (dump,) = dumps_of("full-table-zero")
    bad, rows = dump.manifest.offences[0], dump.tensor("request_rows").copy()
    rows[bad.row, bad.column] = 0
    first = named_of(changed(tmp_path, dump, request_rows=rows))[0]
    behind = rows[bad.row, bad.column + 1 : -(-int(dump.tensor("cache_seqlens")[bad.row]) // 16)]
    # At a row's end a length that reaches too far looks alike.
    assert first.structure is (S.REQUEST_ROW if behind.any() else None)
    assert first.confidence is not C.CERTAIN


def test_a_page_of_this_very_step_accuses_no_place(tmp_path):
    dumps = dumps_of("tree-node-negative")
    young = []
    for dump in dumps:
        table = dump.tensor("suspects").copy()
        table[:, COLUMNS.index("alloc_step")] = dump.manifest.step
        young.append(changed(tmp_path, dump, suspects=table))
    assert "holder-entry-wrong" not in [finding.rule for finding in named_of(*young)]


@pytest.mark.parametrize(
    ("site", "structure", "confidence"),
    [("prepare_for_verify", S.REQUEST_ROW, C.LIKELY), ("alloc_for_extend", None, C.POSSIBLE)],
)
def test_who_lost_a_page_is_told_by_where_it_was_handed_out(tmp_path, site, structure, confidence):
    # A prompt's page is the cache's to lose, or its row's before the cache took it.
    dumps = []
    for dump in dumps_of("row-of-a-request"):
        table = dump.tensor("suspects").copy()
        table[:, COLUMNS.index("alloc_site")] = dump.manifest.scalars["sites"].split(",").index(site)
        table[:, COLUMNS.index("alloc_step")], table[:, COLUMNS.index("free_step")] = 3, -1
        dumps.append(changed(tmp_path, dump, suspects=table))
    first = named_of(*dumps)[0]
    assert (first.structure, first.confidence) == (structure, confidence)


def test_a_page_that_somebody_took_accuses_no_free_list(tmp_path):
    taken = []
    for dump in dumps_of("swa-list-duplicate"):
        table = dump.tensor("suspects").copy()
        table[:, COLUMNS.index("last_event")] = dump.manifest.scalars["last_events"].split(",").index("owned")
        taken.append(changed(tmp_path, dump, suspects=table))
    assert "free-list-entry-wrong" not in [finding.rule for finding in named_of(*taken)]


@pytest.mark.parametrize("name", ["hand-out-of-the-neighbour", "hand-out-of-another"])
def test_without_the_lists_before_the_call_no_structure_is_accused(tmp_path, name):
    (dump,) = dumps_of(name)
    first = named_of(changed(tmp_path, dump, free_before_full=None, free_before_swa=None))[0]
    assert first.structure is None
    assert first.confidence is not C.CERTAIN


@pytest.mark.parametrize(
    ("continues", "told"), [(False, (S.FULL_FREE_LIST, C.LIKELY)), (True, (S.ALLOCATION, C.CERTAIN))]
)
def test_a_page_that_the_call_took_off_accuses_the_list_where_it_continues_no_request(tmp_path, continues, told):
    (dump,) = dumps_of("hand-out-of-the-neighbour")
    page = dump.manifest.offences[0].value // 16
    after = dump.tensor("free_pages_full").copy()
    after[after == page] = after[after != page][0]
    made = changed(tmp_path, dump, free_pages_full=after)
    if not continues:
        *earlier, call = (json.loads(line) for line in (made.path / "events.jsonl").read_text().splitlines())
        call["last_loc"] = [-1] * len(call["last_loc"])
        (made.path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in (*earlier, call)))
        made = rewritten(made.path, made)
    first = named_of(made)[0]
    assert (first.structure, first.confidence) == told


def test_where_the_lengths_grew_the_row_is_what_named_the_slot(tmp_path):
    (dump,) = dumps_of("asked-for-length-zero")
    folder = tmp_path / dump.path.name
    shutil.copytree(dump.path, folder)
    *earlier, call = (json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines())
    call["seq_lens"] = [max(call["seq_lens"])] * len(call["seq_lens"])
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in (*earlier, call)))
    (folder / "manifest.json").unlink()
    first = named_of(rewritten(folder, Dump(folder, dump.manifest)))[0]
    assert (first.structure, first.defect, first.confidence) == (S.REQUEST_ROW, D.ZERO, C.LIKELY)


def test_a_row_without_the_slot_accuses_no_row(tmp_path):
    (dump,) = dumps_of("row-past-the-end")
    first = named_of(changed(tmp_path, dump, req_to_token=np.ones_like(dump.tensor("req_to_token"))))[0]
    assert (first.rule, first.structure) == ("scheduler-exception", None)


@pytest.mark.parametrize(
    ("said", "defect"),
    [
        ("dec_lock_ref on node with node.swa_lock_ref=0, node.id=8", D.ZERO),
        ("dec_lock_ref on node with node.full_lock_ref=-1, node.id=8", D.NEGATIVE),
        ("FULL segment release hit lock_ref=0 on node 70", D.ZERO),
        ("SWA window release hit lock_ref=0 on node 8", D.ZERO),
        ("SWA segment release hit host_lock_ref=0 on node 8", D.ZERO),
    ],
)
def test_a_count_of_locks_is_read_from_the_assertion(said, defect):
    (dump,) = dumps_of("row-past-the-end")
    scalars = dump.manifest.scalars | {"exception": "AssertionError", "message": said}
    first = named_of(Dump(dump.path, dump.manifest.model_copy(update={"scalars": scalars})))[0]
    assert (first.rule, first.structure, first.defect) == ("lock-released-twice", S.TREE_LOCK, defect)


@pytest.mark.parametrize(
    ("length", "mode", "structure", "defect"),
    [
        (0, "DECODE", S.BATCH_LENGTHS, D.ZERO),
        (-1, "DECODE", S.BATCH_LENGTHS, D.NEGATIVE),
        (4000, "DECODE", S.BATCH_LENGTHS, D.PAST_END),
        (0, "EXTEND", S.REQUEST_ROW, D.PAST_END),
        (None, "DECODE", S.REQUEST_ROW, D.PAST_END),
    ],
)
def test_a_length_is_held_against_the_tokens_of_its_request(tmp_path, length, mode, structure, defect):
    (dump,) = dumps_of("row-past-the-end")
    dump = Dump(dump.path, dump.manifest.model_copy(update={"forward_mode": mode}))
    tokens = dump.tensor("requests")[:, 1].copy()
    lengths = tokens if length is None else np.array([length, *tokens[1:]])
    first = named_of(changed(tmp_path, dump, seq_lens=lengths))[0]
    assert (first.structure, first.defect) == (structure, defect)


def test_an_earlier_step_comes_first_whatever_the_certainty():
    """The dump of a table that follows from a list is certain, and of a later step."""
    later = dumps_of("full-table-zero")[0]
    first = dumps_of("lock-left-over")[0]
    host, guards = first.manifest.host, first.manifest.guards
    of_one = [
        Dump(later.path, later.manifest.model_copy(update={"host": host, "guards": guards, "step": 99})),
        Dump(first.path, first.manifest.model_copy(update={"step": 3})),
    ]
    assert [finding.rule for finding in named_of(*of_one)][:2] == ["lock-left-over", "null-page-in-live-column"]


@pytest.mark.parametrize(("step", "confidence"), [(3, C.LIKELY), (4, C.CERTAIN)])
def test_of_one_step_no_two_structures_are_certain(step, confidence):
    one, other = dumps_of("full-table-zero")[0], dumps_of("write-zero")[0]
    host, guards = one.manifest.host, one.manifest.guards
    of_one = [
        Dump(one.path, one.manifest.model_copy(update={"step": 3})),
        Dump(other.path, other.manifest.model_copy(update={"host": host, "guards": guards, "step": step})),
    ]
    found = conclude(Incident(dumps=(of_one[0],))) + conclude(Incident(dumps=(of_one[1],)))
    assert [one.confidence for one in found] == [C.CERTAIN, C.CERTAIN]
    (incident,) = group(of_one)
    judged = hold_against_each_other(list(found), incident)
    assert [one.confidence for one in judged] == [confidence, confidence]


def test_a_rule_that_explains_names_rules_that_exist():
    known = {rule.id for rule in RULES}
    assert not {name for rule in RULES for name in rule.explains} - known


def test_without_the_batchs_lengths_a_kernels_is_not_accused(tmp_path):
    (dump,) = dumps_of("kernel-lengths-swapped")
    first = named_of(changed(tmp_path, dump, believed_lengths=None))[0]
    assert (first.structure, first.confidence) == (None, C.POSSIBLE)


def test_a_row_without_pages_is_no_row_that_was_never_translated():
    """Both tables have 0 there, whatever the row index was."""
    rules = {finding.rule: finding for finding in named_of(*dumps_of("row-index-past-the-table"))}
    assert "row-not-translated" not in rules
    assert not any(finding.structure for finding in rules.values())


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
