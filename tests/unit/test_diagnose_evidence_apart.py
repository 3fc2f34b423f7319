"""What tells one cause from another in a dump: with that changed or left out, another is named, or none."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import save_file

from diagnose_examples import changed, rewritten, start_up
from gemma4_dumps.reader import Dump
from gemma4_dumps.schema import Provenance
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose.conclude import conclude
from gemma4_triage.finding import Confidence
from gemma4_triage.inspection.provenance_sentence import provenance_sentence
from mutation_dumps import COLUMNS, dumps_of, named_of

S, D, C = Structure, Defect, Confidence


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
        update |= {"verdict": "lock_missing", "provenance": Provenance(table_origin="radix tree lock")}
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


def test_without_the_batchs_lengths_a_kernels_is_not_accused(tmp_path):
    (dump,) = dumps_of("kernel-lengths-swapped")
    first = named_of(changed(tmp_path, dump, believed_lengths=None))[0]
    assert (first.structure, first.confidence) == (None, C.POSSIBLE)


def test_a_row_without_pages_is_no_row_that_was_never_translated():
    """Both tables have 0 there, whatever the row index was."""
    rules = {finding.rule: finding for finding in named_of(*dumps_of("row-index-past-the-table"))}
    assert "row-not-translated" not in rules
    assert not any(finding.structure for finding in rules.values())


@pytest.mark.parametrize("tensor", ["cache_seqlens", "request_rows", "write_slots"])
@pytest.mark.parametrize("shape", [(-1, 1, 1), (-1,)])
def test_a_tensor_of_other_dimensions_tells_nothing_and_stops_nothing(tmp_path, tensor, shape):
    for name in ("kernel-lengths-past-the-row", "length-shorter-than-its-row", "row-index-past-the-table"):
        for dump in dumps_of(name):
            if tensor in dump.manifest.tensors:
                made = changed(tmp_path / name, dump, **{tensor: dump.tensor(tensor).reshape(shape)})
                assert named_of(made)


def test_without_the_other_place_of_a_page_who_had_the_lost_one_last_is_believed(tmp_path):
    _, leak = dumps_of("cache-given-a-page-twice")
    once = changed(tmp_path, leak, holders=leak.tensor("holders")[:1])
    assert (named_of(leak)[0].structure, named_of(once)[0].structure) == (None, S.FREE_CALL)


def test_where_the_ledger_was_asked_whose_page_a_row_shares_it_is_named():
    (dump,) = dumps_of("row-shared-with-the-ledger-off")
    asked = dump.manifest.model_copy(update={"scalars": dump.manifest.scalars | {"owners": "checked"}})
    assert named_of(Dump(dump.path, asked))[0].structure is S.REQUEST_ROW


def test_a_value_that_is_only_another_than_it_should_be_is_not_called_out_of_range():
    manifest = next(one.manifest for one in dumps_of("row-behind-a-node") if one.manifest.rule == "request-rows")
    first = manifest.offences[0]
    assert first.upper == first.lower + 1
    assert f"where {first.lower} belongs" in provenance_sentence(manifest)
    assert "out of range" not in provenance_sentence(manifest)
