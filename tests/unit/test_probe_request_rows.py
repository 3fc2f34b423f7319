"""Probe request-rows on SGLang's own pools, prefix cache and batches: silent as they are, right where one is wrong."""

from array import array
from contextvars import copy_context
from types import SimpleNamespace

import pytest
import torch
from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from gemma4_dumps.reader import read_dump
from gemma4_dumps.store import DumpStore
from gemma4_dumps.structures import Defect, Structure
from gemma4_runtime.checks.page_events import FULL
from gemma4_runtime.checks.page_ledger import Site
from gemma4_runtime.checks.violation import BadIndex
from gemma4_runtime.indices.included import peer_history
from gemma4_runtime.leak.ledger import BY, SITE, ledger_of
from gemma4_runtime.probes import request_rows
from gemma4_runtime.release.requests import held
from gemma4_runtime.rows.entries import check_row_entries
from gemma4_runtime.rows.owner import given_up
from gemma4_runtime.rows.report import INIT
from gemma4_runtime.rows.seen import note_counts, seen_of
from gemma4_triage.diagnose.conclude import conclude
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.finding import Confidence
from request_rows_server import MODES, PROMPT, Server, trapped, trapped_by

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")


@pytest.fixture
def server(attach, monkeypatch):
    return Server(monkeypatch, attach("trap", "request-rows", "host-alloc-kernels"))


def test_silent_over_steps_prefixes_and_ends(server):
    for _ in range(20):
        server.forward()
    server.world.finish(server.world.requests[0])
    server.world.start(PROMPT)
    for _ in range(20):
        server.forward()
    assert list(DumpStore(server.dumps).list()) == []


def test_an_entry_that_changed_in_range_is_named_with_what_it_was(server):
    server.forward()
    first, second = (held(request).req_pool_idx for request in server.world.requests[:2])
    rows, page = server.world.rows.req_to_token, server.world.page
    was = int(rows[first, page])
    rows[first, page : 2 * page] = rows[second, page : 2 * page]
    said = trapped(server)
    assert (said.verdict, said.site) == ("row_entry", "Scheduler.get_next_batch_to_run")
    assert (said.scalars["why"], said.scalars["defect"]) == ("changed", "foreign")
    assert (said.scalars["expected"], said.scalars["request_slot"]) == (was, first)


@pytest.mark.parametrize("retracted", [True, False])
def test_a_request_that_was_retracted_may_hold_other_pages_at_its_slot(server, retracted):
    """SGLang gives it the same slot again, and the nodes of the prefix cache may be the same too."""
    server.forward()
    request, page = server.world.requests[0], server.world.page
    begin, rows = held(request).cache_protected_len, server.world.rows.req_to_token
    other = int(server.world.allocator.full_attn_allocator.free_pages[-1]) * page
    count = held(request).kv_committed_len - begin
    rows[held(request).req_pool_idx, begin : begin + count] = torch.arange(other, other + count, dtype=rows.dtype)
    request.retraction_count += int(retracted)
    if retracted:
        server.next_batch()
    else:
        assert trapped(server).scalars["why"] == "changed"


def test_an_entry_past_the_end_is_found_before_sglang_translates_it(server):
    server.forward()
    server.world.rows.req_to_token[held(server.world.requests[0]).req_pool_idx, 0] = 1 << 20
    assert trapped(server).scalars["defect"] == "past the end"


def test_two_rows_that_were_exchanged(server):
    server.forward()
    first, second = (held(request).req_pool_idx for request in server.world.requests[:2])
    rows, page = server.world.rows.req_to_token, server.world.page
    rows[first, :page], rows[second, :page] = rows[second, :page].clone(), rows[first, :page].clone()
    assert trapped(server).scalars["defect"] == "swapped"


def test_with_the_ledger_a_row_of_this_step_is_held_against_what_its_request_was_given(attach, monkeypatch):
    server = Server(monkeypatch, attach("trap", "request-rows", "leak-ledger", "host-alloc-kernels"))
    server.forward()
    request = server.world.start(range(200, 240))
    slot, page, rows = held(request).req_pool_idx, server.world.page, server.world.rows.req_to_token
    begin, was = held(request).cache_protected_len, int(rows[slot, held(request).cache_protected_len])
    stranger = server.free_slot() // page * page
    rows[slot, begin : begin + page] = torch.arange(stranger, stranger + page, dtype=rows.dtype)
    said = trapped_by(server, server.next_batch)
    assert (said.scalars["why"], said.scalars["expected"], said.scalars["defect"]) == ("owner", was, "stale")
    assert (said.scalars["page_event"], said.scalars["page_was_own"]) == ("cleared", False)


def test_a_page_of_a_prefix_that_the_cache_evicted_says_so(attach, monkeypatch):
    server = Server(monkeypatch, attach("trap", "request-rows", "leak-ledger", "host-alloc-kernels"))
    server.forward()
    world = server.world
    request, taker = world.start(range(200, 240)), world.requests[0]
    slot, page, rows = held(request).req_pool_idx, world.page, world.rows.req_to_token
    assert held(request).cache_protected_len >= page
    server.next_batch()
    first, ledger = int(rows[slot, 0]), ledger_of(world.allocator)
    # What the cache gave back is handed out to another.
    token = SITE.set(Site.EVICT_TREE)
    ledger.freed(FULL, rows[slot, :page].to(torch.int64))
    SITE.reset(token)
    ledger.handed_out(FULL, rows[slot, :page].to(torch.int64))
    ledger.owned(rows[slot, :page].to(torch.int64), [held(taker).req_pool_idx], [1], [page])
    ledger.log.drain()
    assert given_up(server.scheduler, first // page, nodes_are_gone=True) == {
        "page_free_site": "evict_tree",
        "page_free_step": ledger.step,
        "nodes_are_gone": True,
    }
    assert given_up(server.scheduler, int(rows[held(taker).req_pool_idx, 0]) // page, nodes_are_gone=True) == {}


def test_a_count_that_does_not_reach_the_nodes_is_told_and_not_the_row(attach, monkeypatch):
    server = Server(monkeypatch, attach("trap", "request-rows", "leak-ledger", "host-alloc-kernels"))
    server.forward()
    request = server.world.start(range(200, 240))
    nodes, held(request).cache_protected_len = held(request).cache_protected_len, 0
    said = trapped_by(server, lambda: check_row_entries(server.scheduler, [request], INIT))
    assert (said.verdict, said.scalars["structure"]) == ("counter_wrong", "request counters")
    assert (said.scalars["value"], said.scalars["expected"]) == (0, nodes)
    (finding,) = conclude(Incident((read_dump(next(server.dumps.glob("*request-rows*"))),)))
    assert finding.structure is Structure.REQUEST_COUNTERS


@pytest.mark.parametrize("by", ["nobody that is known", "its request", "another request"])
def test_a_page_that_was_given_back_before_its_row_was_looked_at_accuses_the_free(attach, monkeypatch, by):
    server = Server(monkeypatch, attach("trap", "request-rows", "leak-ledger", "host-alloc-kernels"))
    server.forward()
    request = server.world.start(range(200, 240))
    slot, begin = held(request).req_pool_idx, held(request).cache_protected_len
    other = held(server.world.requests[0]).req_pool_idx
    giver = {"its request": slot, "another request": other}.get(by)
    context = copy_context()
    context.run(BY.set, None if giver is None else (giver, 1))
    slots = server.world.rows.req_to_token[slot, begin : held(request).kv_committed_len].long()
    context.run(server.world.allocator.free, slots)
    said = trapped_by(server, server.next_batch)
    assert said.scalars["by_request_slot"] == giver
    assert (said.scalars["why"], said.scalars["as_before"]) == ("owner", None)
    assert (said.scalars["page_event"], said.scalars["page_was_own"]) == ("freed", True)
    (finding,) = conclude(Incident((read_dump(next(server.dumps.glob("*request-rows*"))),)))
    of_other = by == "another request"
    assert (finding.structure, finding.defect) == (Structure.FREE_CALL, Defect.FOREIGN if of_other else Defect.EARLY)
    assert finding.confidence is Confidence.LIKELY
    beside = f" with those of the request in slot {other}" if of_other else ""
    assert f"slot {slot} was given back{beside}, by the ledger; its row has it still" in finding.cause
    # Who is named first is who gave it back, if that is known.
    named = [piece.value for piece in finding.evidence if piece.field.endswith("request_slot")]
    assert named == [slot] if giver is None else [giver, slot]


def lost_by_the_map(server):
    """Return the slots of a full page, its SWA page, and a build whose sliding table has the null page there."""
    world, slot = server.world, held(server.world.requests[0]).req_pool_idx
    slots = world.rows.req_to_token[slot, : world.page].long()
    peer = int(world.allocator.full_to_swa_index_mapping[slots[0]]) // world.page
    runner = SimpleNamespace(token_to_kv_pool_allocator=world.allocator)
    table = SimpleNamespace(name="page_table", values=slots[None, :1] // world.page)
    build = SimpleNamespace(
        backend=SimpleNamespace(_gemma4_runner=lambda: runner),
        arrays=[table],
        array=lambda name: table,
        page_size=world.page,
        request_slots=torch.tensor([slot]),
    )
    return slots, peer, (build, SimpleNamespace(array="swa_page_table"))


def test_of_a_page_that_the_map_lost_the_ledger_says_whether_it_was_given_back(attach, monkeypatch):
    server = Server(monkeypatch, attach("trap", "request-rows", "leak-ledger", "host-alloc-kernels"))
    slots, peer, place = lost_by_the_map(server)
    bad = (BadIndex(0, 0, 0, 1, 9),)
    said = [peer_history(*place, "null_page_live", bad)]
    server.world.allocator.free_swa(slots)
    said.append(peer_history(*place, "null_page_live", bad))
    assert [(one["peer"], one["peer_given_back"]) for one in said] == [(peer, False), (peer, True)]
    # WHEN the request takes the full page from the cache after that THEN it is said when
    assert "page_taken_step" not in said[1]
    ledger = ledger_of(server.world.allocator)
    ledger.step = said[1]["peer_free_step"] + 3
    ledger.shared(slots, (int(place[0].request_slots[0]), 1))
    assert peer_history(*place, "null_page_live", bad)["page_taken_step"] == said[1]["peer_free_step"] + 3
    assert peer_history(*place, "out_of_range", bad) == {}
    # WHEN the pool hands its null page out THEN the map is right to have it
    swa = server.world.allocator.swa_attn_allocator
    swa.free_pages = torch.cat((torch.zeros(1, dtype=torch.int64), swa.free_pages))
    assert swa.alloc(server.world.page) is not None
    assert peer_history(*place, "null_page_live", bad) == {"owners": "checked", "null_page_given": True}


def wrong_row(server):
    """Return what the dump says of a row that names another's page."""
    server.forward()
    first, second = (held(request).req_pool_idx for request in server.world.requests[:2])
    rows, page = server.world.rows.req_to_token, server.world.page
    rows[first, page : 2 * page] = rows[second, page : 2 * page]
    return trapped(server).scalars


def null_page(server):
    """Return what the dump says of a sliding table's null page."""
    return peer_history(*lost_by_the_map(server)[2], "null_page_live", (BadIndex(0, 0, 0, 1, 9),))


def second_free(server):
    """Return what the dump says of a page that was given back twice."""
    slots, _, _ = lost_by_the_map(server)
    server.world.allocator.free(slots)
    return trapped_by(server, lambda: server.world.allocator.free(slots)).scalars


@pytest.mark.parametrize("ledger", [True, False], ids=["on", "off"])
@pytest.mark.parametrize("check", [wrong_row, null_page, second_free])
def test_each_cross_check_that_needs_the_ledger_says_whether_it_was_asked(attach, monkeypatch, check, ledger):
    more = ("leak-ledger",) if ledger else ()
    server = Server(monkeypatch, attach("trap", "request-rows", "swa-allocator", "host-alloc-kernels", *more))
    assert check(server)["owners"] == ("checked" if ledger else "not checked: ledger off")


def test_rows_that_are_exchanged_after_a_draft_was_begun_are_found_before_it_looks_pages_up(server):
    server.forward()
    slots = [held(request).req_pool_idx for request in server.world.requests[:2]]
    rows, page = server.world.rows.req_to_token, server.world.page

    def exchange(made):
        rows[slots[0], :page], rows[slots[1], :page] = rows[slots[1], :page].clone(), rows[slots[0], :page].clone()

    said = trapped_by(server, lambda: server.draft(exchange))
    assert (said.verdict, said.role, said.scalars["defect"]) == ("row_entry", "draft", "swapped")
    assert said.scalars["request_slot"] in slots


def test_a_draft_that_follows_the_rows_of_others(server):
    server.forward()
    slots = [held(request).req_pool_idx for request in server.world.requests]
    made = SimpleNamespace(forward_mode=ForwardMode.DECODE, req_pool_indices=torch.tensor(slots))
    server.draft()
    backend = SimpleNamespace(_gemma4_role="draft")
    request_rows.before_trtllm_metadata(backend, made)
    made.req_pool_indices = made.req_pool_indices.repeat_interleave(2)
    request_rows.before_triton_metadata(backend, made)
    made.req_pool_indices = torch.tensor(slots).flip(0)
    said = trapped_by(server, lambda: request_rows.before_trtllm_metadata(backend, made))
    assert (said.role, said.scalars["structure"], said.scalars["defect"]) == ("draft", "row indices", "swapped")


def test_of_a_row_that_is_new_and_its_nodes_the_row_is_wrong(server):
    server.forward()
    world, page = server.world, server.world.page
    request = world.start(PROMPT)
    assert held(request).cache_protected_len
    other = server.free_slot() // page * page
    world.rows.req_to_token[held(request).req_pool_idx, :page] = torch.arange(other, other + page)
    said = trapped(server)
    assert (said.scalars["why"], said.scalars["row_had"], said.scalars["first_look"]) == ("prefix", None, True)


def test_a_batch_that_names_another_row(server):
    def change(made):
        made.req_pool_indices[0] = made.req_pool_indices[1]

    said = trapped(server, change)
    assert (said.verdict, said.scalars["structure"]) == ("row_index", "row indices")
    # The rows of a world lie side by side: one beside the right one, and another request's.
    assert said.scalars["defect"] is None


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_silent_in_prefills_and_verifications_too(server, mode):
    for _ in range(3):
        server.forward(mode=mode)
        server.begin_anew()
    assert list(DumpStore(server.dumps).list()) == []


def test_of_the_draft_model_and_of_a_step_without_requests_nothing_is_checked(server):
    def change(made):
        made.out_cache_loc[0], made.req_pool_indices[0] = 0, 0
        made.seq_lens.add_(1)

    server.forward(change, draft=True)
    server.forward(lambda made: (change(made), setattr(made, "forward_mode", ForwardMode.IDLE)))
    assert list(DumpStore(server.dumps).list()) == []


def test_what_has_left_the_window_does_not_come_back(server):
    request = server.world.requests[0]
    server.world.left_the_window(request, 32)
    server.forward()
    server.world.left_the_window(request, 16)
    said = trapped(server)
    assert (said.scalars["why"], said.scalars["defect"], said.scalars["expected"]) == ("fell", "off by one", 32)


def test_with_overlap_a_page_too_many_is_found_after_a_decode_whose_forward_before_was_no_prefill(server):
    server.scheduler.enable_overlap = True
    request = server.world.requests[0]
    server.world.left_the_window(request, 32)
    server.forward()
    server.next_batch()
    server.forward()
    server.world.left_the_window(request, 48)
    said = trapped_by(server, server.next_batch)
    assert (said.scalars["why"], said.scalars["defect"], said.scalars["expected"]) == ("changed", "off by one", 32)
    assert said.scalars["structure"] == "request counters"


@pytest.mark.parametrize("in_the_forward", [True, False])
def test_a_page_too_many_that_counts_as_gone_from_the_window_after_a_forward(server, in_the_forward):
    request, other = server.world.requests[:2]
    server.world.left_the_window(request, 32)
    server.forward()
    server.next_batch()
    note_counts(seen_of(server.scheduler), [request if in_the_forward else other])
    server.world.left_the_window(request, 48)
    said = trapped_by(server, server.next_batch)
    assert (said.scalars["why"], said.scalars["defect"], said.scalars["expected"]) == ("changed", "off by one", 32)
    assert said.scalars["structure"] == "request counters"


@pytest.mark.parametrize("when", ["prepared", "prefilled", "overlap"])
def test_what_leaves_the_window_while_a_decode_is_prepared_or_a_prefill_cached_is_no_fault(server, when):
    server.scheduler.enable_overlap = when == "overlap"
    server.forward(mode=ForwardMode.DECODE if when == "prepared" else ForwardMode.EXTEND)
    if when == "overlap":
        # The prefill's results are looked at, and its tokens cached, after the decode behind it was launched.
        server.next_batch()
        server.forward()
    if when == "prepared":
        server.next_batch()
    server.world.left_the_window(server.world.requests[0], 16)
    server.forward()


@pytest.mark.parametrize("of_row", [True, False])
def test_of_a_row_and_a_node_that_differ_the_one_that_changed_is_wrong(server, of_row):
    """The request has given tokens to the cache since the check before, where both may change."""
    world, page = server.world, server.world.page
    while len(world.requests) > 1:
        world.finish(world.requests[-1])
    server.forward()
    (request,) = world.requests
    row = world.rows.req_to_token[held(request).req_pool_idx]
    was, stranger = int(row[0]), server.free_slot() // page * page + torch.arange(page)
    held(request).cache_protected_len, request.last_node = page, _node_of_the_first_page(world)
    if of_row:
        row[:page] = stranger.to(row.dtype)
    else:
        world.value_of(request.last_node)[:] = stranger
    said = trapped(server)
    assert (said.scalars["why"], said.scalars["row_had"]) == ("prefix", was)
    assert said.scalars["as_before"] is not of_row
    assert said.scalars["defect"] == "stale"


def _node_of_the_first_page(world):
    """Return a node that holds the first page of a prompt alone: another prompt goes on otherwise from there."""
    branch = [*PROMPT[: world.page], *range(900, 900 + world.page)]
    world.finish(world.start(branch))
    matched = world.tree.match_prefix(MatchPrefixParams(key=RadixKey(array("q", PROMPT[: world.page]), None)))
    return matched.last_device_node


@pytest.mark.parametrize("alone", [True, False])
def test_a_page_that_no_pool_has_is_left_to_the_probe_of_page_tables(attach, monkeypatch, alone):
    probes = ("request-rows",) if alone else ("request-rows", "page-table")
    server = Server(monkeypatch, attach("trap", *probes, "host-alloc-kernels"))
    if alone:
        said = trapped(server, spoil=lambda metadata: metadata.page_table[0, 0].fill_(1 << 20))
        assert said.scalars["defect"] == "past the end"
    else:
        server.forward(spoil=lambda metadata: metadata.page_table[0, 0].fill_(1 << 20))
        assert list(DumpStore(server.dumps).list()) == []


@pytest.mark.parametrize("overlap", [True, False])
def test_a_retracted_request_in_a_batch_is_told_before_its_row_is_read(server, overlap):
    server.forward()
    server.scheduler.enable_overlap = overlap
    request = server.world.requests[0]
    rows = torch.tensor([held(one).req_pool_idx for one in server.world.requests])
    request.is_retracted, held(request).req_pool_idx = True, None
    batch = SimpleNamespace(reqs=server.world.requests, req_pool_indices=rows)
    if overlap:
        request_rows.after_batch_changes(None, batch)
        return
    said = trapped_by(server, lambda: request_rows.after_batch_changes(None, batch))
    assert (said.verdict, said.scalars["why"], said.scalars["defect"]) == ("row_index", "released", "stale")
    # Nobody gave the row back here, so it is not said to be free.
    assert said.scalars["row_is_free"] is False
    (finding,) = conclude(Incident((read_dump(next(server.dumps.glob("*request-rows*"))),)))
    assert "a filter kept the wrong ones" in finding.cause


@pytest.mark.parametrize("told", [True, False])
def test_a_request_that_has_ended_is_not_left_in_a_batch_that_was_filtered(server, monkeypatch, told):
    server.forward()
    request = server.world.requests[0]
    rows = torch.tensor([held(one).req_pool_idx for one in server.world.requests])
    held(request).req_pool_idx = None
    monkeypatch.setattr(request, "finished", lambda: True)
    batch = SimpleNamespace(reqs=server.world.requests, req_pool_indices=rows)
    request_rows.after_batch_changes(None, batch)
    if told:
        request_rows.after_filter(None, batch, keep_indices=[0, 1, 2])
        return
    said = trapped_by(server, lambda: request_rows.after_filter(None, batch))
    assert (said.scalars["structure"], said.scalars["why"], said.scalars["defect"]) == (
        "row indices",
        "released",
        "stale",
    )


@pytest.mark.parametrize(("of", "told"), [("rows", "rows"), ("requests", "requests"), ("neither", None)])
def test_what_the_lengths_of_a_batch_go_with_says_which_order_is_another(server, of, told):
    server.forward()
    batch = SimpleNamespace(reqs=server.world.requests)
    for more, request in enumerate(batch.reqs):
        held(request).kv_committed_len += more
    slots, counts = ([getattr(held(r), name) for r in batch.reqs] for name in ("req_pool_idx", "kv_committed_len"))
    batch.req_pool_indices = torch.tensor([*slots[1:], slots[0]])
    batch.seq_lens = torch.tensor({"rows": [*counts[1:], counts[0]], "requests": counts, "neither": counts[::-1]}[of])
    said = trapped_by(server, lambda: request_rows.after_batch_changes(None, batch))
    assert (said.scalars["defect"], said.scalars["lengths_of"]) == ("swapped", told)


@pytest.mark.parametrize("as_then", [True, False])
@pytest.mark.parametrize("made_since", [True, False])
def test_a_draft_that_goes_by_what_was_made_for_an_earlier_one(server, as_then, made_since):
    server.forward()
    lengths = [held(request).kv_committed_len - (not as_then) for request in server.world.requests]
    metadata = object()
    seen_of(server.scheduler).planned = (object(), None if made_since else metadata, lengths, 4)
    worker = SimpleNamespace(draft_attn_backend=SimpleNamespace(forward_metadata=metadata))
    if as_then or made_since:
        server.draft(worker=worker)
        return
    said = trapped_by(server, lambda: server.draft(worker=worker))
    assert (said.verdict, said.scalars["defect"], said.scalars["made_in_step"]) == ("length_differs", "stale", 4)
    (finding,) = conclude(Incident((read_dump(next(server.dumps.glob("*request-rows*"))),)))
    assert "made for an earlier one, in step 4" in finding.cause


def test_a_request_may_have_the_id_of_one_that_has_ended(server):
    """A client that retries gives it again, and it may get the very row of the first."""
    server.forward()
    first = server.world.requests[1]
    slot = held(first).req_pool_idx
    server.world.finish(first)
    server.world.rows.free_slots = [slot]
    again = server.world.start([(token * 7) % 89 for token in PROMPT])
    assert held(again).req_pool_idx == slot
    again.rid = first.rid
    server.forward()
