"""Probe request-rows on the page tables of trtllm_mha and the lists of Triton attention."""

from types import SimpleNamespace

import pytest
import torch

from gemma4_dumps.store import DumpStore
from gemma4_dumps.structures import Structure
from gemma4_runtime.probes import request_rows
from gemma4_runtime.release.requests import held
from gemma4_runtime.rows import places
from gemma4_triage.finding import Confidence
from request_rows_server import MODES, Server, named, trapped, trapped_by

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")


@pytest.fixture
def server(attach, monkeypatch):
    return Server(monkeypatch, attach("trap", "request-rows", "host-alloc-kernels"))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize(
    ("name", "structure"), [("page_table", "full page table"), ("swa_page_table", "swa page table")]
)
@pytest.mark.parametrize(
    ("change", "defect"),
    [
        (lambda table: table[0, -1].copy_(table[1, 1]), "foreign"),
        (lambda table: table[:2, 1].copy_(table[:2, 1].flip(0)), "swapped"),
        (lambda table: table[0, :3].copy_(table[0, [1, 2, 0]]), "swapped"),
        (lambda table: table[:2, :3].copy_(table[:2, [1, 2, 0]]), "swapped"),
        (lambda table: table[0, -1].copy_(table[0, 0]), "duplicate"),
    ],
    ids=["foreign", "swapped", "turned", "turned in two rows", "its own"],
)
def test_a_table_that_names_another_page_in_range(server, mode, name, structure, change, defect):
    # The last of three requests has the first one's prompt, and with that its pages.
    server.world.finish(server.world.requests[-1])
    said = trapped(server, mode=mode, spoil=lambda metadata: change(getattr(metadata, name)))
    assert (said.verdict, said.scalars["structure"], said.scalars["defect"]) == ("table_entry", structure, defect)
    assert said.site == "TRTLLMHAAttnBackend.init_forward_metadata"


@pytest.mark.parametrize("name", ["page_table", "swa_page_table"])
def test_a_table_of_the_step_before_is_old_and_not_zero(server, name):
    """A table of the step before ends where a new page begins: it has nothing there, and nobody emptied it."""
    kept = {}

    def keep(metadata):
        kept[name] = getattr(metadata, name).clone()

    server.forward(spoil=keep)
    size = server.world.allocator.page_size
    opens = lambda: sum(held(one).kv_committed_len % size == 0 for one in server.world.requests)  # noqa: E731
    while not opens():
        server.forward(spoil=keep)
    count = opens()

    def spoil(metadata):
        table = getattr(metadata, name)
        table.zero_()
        width = min(table.shape[1], kept[name].shape[1])
        table[:, :width] = kept[name][:, :width]

    said = trapped(server, spoil=spoil)
    # Of one place alone it cannot be told whether it was emptied.
    assert said.scalars["defect"] in ({"stale"} if count > 1 else {None, "stale"})
    assert (said.scalars["table_as_before"], said.scalars["as_before"]) == (True, None)


@pytest.mark.parametrize("strict", [True, False], ids=["plain", "overlap"])
def test_a_null_page_where_the_map_has_one_is_told_where_page_table_lets_it_pass(attach, monkeypatch, strict):
    server = Server(monkeypatch, attach("trap", "request-rows", "page-table", "host-alloc-kernels"))
    monkeypatch.setattr(places, "window_is_strict", lambda backend: strict)

    def spoil(metadata):
        metadata.swa_page_table[0, 1] = 0

    if strict:
        # That probe, which is not asked here, traps it.
        server.forward(spoil=spoil)
        return
    said = trapped(server, spoil=spoil)
    assert (said.verdict, said.scalars["structure"], said.scalars["defect"]) == (
        "table_entry",
        "swa page table",
        "zero",
    )


@pytest.mark.parametrize("pages", [True, False], ids=["with-page-table", "alone"])
@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "plain"])
def test_sliding_layers_that_write_where_the_step_before_did(attach, monkeypatch, overlap, pages):
    probes = ("request-rows", *(["page-table"] if pages else []), "host-alloc-kernels")
    server, kept = Server(monkeypatch, attach("trap", *probes)), []
    server.scheduler.enable_overlap = overlap
    for _ in range(3):
        server.forward(spoil=lambda metadata: kept.append(metadata.swa_out_cache_loc))
    assert list(DumpStore(server.dumps).list()) == []
    said = trapped(server, spoil=lambda metadata: setattr(metadata, "swa_out_cache_loc", kept[-1]))
    assert (said.verdict, said.scalars["structure"], said.scalars["defect"]) == (
        "write_misplaced",
        "write locations",
        "stale",
    )
    assert (said.scalars["pool"], said.offence_count) == ("swa", len(server.world.requests))
    assert said.scalars["request_slot"] == held(server.world.requests[0]).req_pool_idx


@pytest.mark.sampled(3)
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize(
    ("change", "defect"),
    [
        (lambda slots: slots[0].add_(1), "off by one"),
        (lambda slots: slots.__setitem__([0, -1], slots[[-1, 0]]), "swapped"),
        (lambda slots: slots[0].zero_(), "zero"),
    ],
    ids=["off-by-one", "swapped", "zero"],
)
def test_sliding_layers_that_write_elsewhere_than_the_map_says(server, mode, change, defect):
    # The last of three requests has the first one's prompt, and with that its pages.
    server.world.finish(server.world.requests[-1])
    said = trapped(server, mode=mode, spoil=lambda metadata: change(metadata.swa_out_cache_loc))
    assert (said.verdict, said.scalars["pool"], said.scalars["defect"]) == ("write_misplaced", "swa", defect)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_a_map_that_leads_to_other_places_of_the_right_page(server, mode):
    request, mapping = server.world.requests[0], server.world.allocator.full_to_swa_index_mapping
    server.world.finish(server.world.requests[-1])
    end = held(request).kv_committed_len

    def exchange(made):
        slots = server.world.rows.req_to_token[held(request).req_pool_idx, end - 2 : end + 1].long()
        slots = slots[mapping[slots] > 0][-2:]
        mapping[slots] = mapping[slots.flip(0)]

    said = trapped(server, exchange, mode=mode)
    assert (said.verdict, said.scalars["structure"]) == ("write_misplaced", "full-to-swa mapping")
    assert said.scalars["request_slot"] == held(request).req_pool_idx
    finding = named(server)
    assert (finding.structure, finding.confidence) == (Structure.SWA_MAPPING, Confidence.CERTAIN)


def test_a_map_that_leads_beyond_the_pool_is_left_to_the_hand_out_that_gave_it(server):
    mapping, swa = server.world.allocator.full_to_swa_index_mapping, server.world.allocator.swa_attn_allocator

    def beyond(made):
        mapping[made.out_cache_loc[0].long()] = swa.size + swa.page_size

    server.forward(beyond)


def test_page_0_is_no_place_for_a_token_whose_page_the_map_knows(attach, monkeypatch):
    """`page-table` lets it pass: padding is written there."""
    server = Server(monkeypatch, attach("trap", "request-rows", "page-table", "host-alloc-kernels"))
    said = trapped(server, spoil=lambda metadata: metadata.swa_out_cache_loc.zero_())
    assert (said.verdict, said.scalars["pool"], said.scalars["defect"]) == ("write_misplaced", "swa", "zero")


def test_of_one_request_the_slot_before_may_be_stale_or_one_off(server):
    while len(server.world.requests) > 1:
        server.world.finish(server.world.requests[-1])
    for _ in range(3):
        server.forward()
    said = trapped(server, spoil=lambda metadata: metadata.swa_out_cache_loc.sub_(1))
    assert (said.scalars["structure"], said.scalars["defect"]) == ("write locations", None)


def test_where_the_map_has_nothing_any_more_a_sliding_write_is_not_held_against_it(server):
    """A request may have ended since its step was prepared, with overlap."""

    def give_back(metadata):
        slot = server.world.rows.req_to_token[held(server.world.requests[0]).req_pool_idx, :64].long()
        server.world.allocator.full_to_swa_index_mapping[slot] = 0
        metadata.swa_page_table[0] = 0

    server.forward(spoil=give_back)
    assert list(DumpStore(server.dumps).list()) == []


def lists_of(server, mode):
    """Return Triton's lists of all requests as its backend makes them, and the batch that they are of."""
    world, rows = server.world, [held(request).req_pool_idx for request in server.world.requests]
    lengths = torch.tensor([held(request).kv_committed_len for request in server.world.requests])
    table, mapping = world.rows.req_to_token.long(), world.allocator.full_to_swa_index_mapping
    windows = lengths.clamp(max=24)
    made = SimpleNamespace(
        kv_indptr=torch.nn.functional.pad(lengths.cumsum(0), (1, 0)),
        kv_indices=torch.cat([table[row, :length] for row, length in zip(rows, lengths, strict=True)]),
        window_kv_indptr=torch.nn.functional.pad(windows.cumsum(0), (1, 0)),
        window_kv_indices=torch.cat(
            [
                mapping[table[row, length - count : length]]
                for row, length, count in zip(rows, lengths, windows, strict=True)
            ]
        ),
    )
    backend = SimpleNamespace(
        forward_metadata=made, enable_deterministic=False, req_to_token=world.rows.req_to_token, is_draft_worker=False
    )
    batch = SimpleNamespace(
        forward_mode=mode,
        spec_info=None,
        req_pool_indices=torch.tensor(rows),
        seq_lens=lengths,
        extend_prefix_lens=lengths,
    )
    return backend, batch


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("name", "change", "structure", "defect"),
    [
        ("kv_indices", lambda slots: slots.__setitem__(0, slots[-1]), "full page table", "foreign"),
        ("kv_indices", lambda slots: slots.__setitem__(3, slots[4]), "full page table", "off by one"),
        ("window_kv_indices", lambda slots: slots.__setitem__(0, slots[-1]), "swa page table", "foreign"),
        ("kv_indptr", lambda ends: ends.__setitem__(1, ends[1] - 1), "kernel lengths", "off by one"),
        ("kv_indptr", lambda ends: None, None, None),
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_a_list_of_triton_is_what_rows_and_map_make_of_it(server, mode, name, change, structure, defect):
    server.forward()
    backend, batch = lists_of(server, mode)
    change(getattr(backend.forward_metadata, name))
    if structure is None:
        request_rows.after_triton_metadata(None, backend, batch)
        return
    said = trapped_by(server, lambda: request_rows.after_triton_metadata(None, backend, batch))
    assert (said.scalars["structure"], said.scalars["defect"]) == (structure, defect)


def test_behind_a_request_and_where_the_window_has_passed_tables_may_hold_anything(server):
    def spoil(metadata):
        behind = torch.arange(metadata.page_table.shape[1]) * server.world.page >= metadata.cache_seqlens_int32[:, None]
        metadata.page_table[behind] = 7

    server.world.start(list(range(200, 330)))
    for _ in range(3):
        server.forward(spoil=spoil)
    assert list(DumpStore(server.dumps).list()) == []


@pytest.mark.parametrize("swapped", [True, False])
def test_where_sliding_layers_write_on_triton_is_what_the_map_says(server, swapped):
    server.forward()
    backend, batch = lists_of(server, MODES[0])
    table, last = server.world.rows.req_to_token.long(), batch.seq_lens - 1
    batch.out_cache_loc = table[batch.req_pool_indices, last]
    right = server.world.allocator.full_to_swa_index_mapping[batch.out_cache_loc]
    backend.forward_metadata.swa_out_cache_loc = right.flip(0) if swapped else right
    if not swapped:
        request_rows.after_triton_metadata(None, backend, batch)
        return
    said = trapped_by(server, lambda: request_rows.after_triton_metadata(None, backend, batch))
    assert (said.verdict, said.site) == ("write_misplaced", "TritonAttnBackend.init_forward_metadata")
    assert (said.scalars["structure"], said.scalars["defect"]) == ("write locations", "swapped")
