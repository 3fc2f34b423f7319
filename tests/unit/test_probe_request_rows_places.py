"""Probe request-rows over a forward's places: slots that it writes, positions of its tokens, and lengths."""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from gemma4_dumps.reader import read_dump
from gemma4_dumps.store import DumpStore
from gemma4_runtime.errors import TrappedViolation
from gemma4_runtime.probes import request_rows
from gemma4_runtime.release.requests import held
from gemma4_runtime.rows.counts import check_lengths
from gemma4_runtime.rows.drafts import check_draft_lengths
from gemma4_runtime.rows.row_numbers import left_with_row
from gemma4_runtime.rows.seen import seen_of
from gemma4_triage.diagnose.conclude import conclude
from gemma4_triage.diagnose.grouping import group
from request_rows_server import MODES, Server, trapped, trapped_by

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")


@pytest.fixture
def server(attach, monkeypatch):
    return Server(monkeypatch, attach("trap", "request-rows", "host-alloc-kernels"))


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_a_write_that_goes_to_another_request(server, mode):
    def change(made):
        made.out_cache_loc[0] = made.out_cache_loc[-1]

    said = trapped(server, change, mode)
    assert (said.verdict, said.scalars["structure"], said.scalars["defect"]) == (
        "write_misplaced",
        "write locations",
        "foreign",
    )
    assert (said.role, said.forward_mode) == ("target", mode.name)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_a_token_that_stands_at_another_place(server, mode):
    def change(made):
        made.positions = made.positions.clone()
        made.positions[1] += 1

    said = trapped(server, change, mode)
    assert (said.verdict, said.site, said.role) == ("position_wrong", "ForwardBatch.init_new", "target")
    assert (said.scalars["structure"], said.scalars["defect"]) == ("positions", "off by one")


def test_a_tree_of_drafts_may_have_several_tokens_at_one_place(server):
    def change(made):
        made.spec_info, made.positions = SimpleNamespace(topk=2), made.positions - 1

    server.forward(change, ForwardMode.TARGET_VERIFY)
    assert list(DumpStore(server.dumps).list()) == []


@pytest.mark.parametrize("topk", [1, 2])
def test_a_drafts_positions_are_those_of_the_last_tokens_with_keys(server, topk):
    server.draft(topk=topk)
    assert list(DumpStore(server.dumps).list()) == []
    with pytest.raises(TrappedViolation):
        server.draft(lambda made: made.positions.sub_(1), topk)
    (entry,) = DumpStore(server.dumps).list()
    said = read_dump(entry.path).manifest
    assert (said.verdict, said.role, said.site) == ("position_wrong", "draft", "set_frozen_kv_positions")
    assert (said.offence_count, said.scalars["defect"]) == (topk * len(server.world.requests), "off by one")


@pytest.mark.parametrize(
    ("place", "defect"), [(lambda server: server.free_slot(), "stale"), (lambda server: 0, "zero")], ids=["free", "0"]
)
def test_a_write_into_what_nobody_holds(server, place, defect):
    def change(made):
        made.out_cache_loc[0] = place(server)

    assert trapped(server, change).scalars["defect"] == defect


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize(
    ("change", "structure", "site"),
    [
        (lambda made: made.seq_lens.add_(1), "batch lengths", "ForwardBatch.init_new"),
        (lambda made: made.given.sub_(1), "kernel lengths", "TRTLLMHAAttnBackend.init_forward_metadata"),
    ],
    ids=["batch", "kernel"],
)
def test_a_length_that_is_off_by_one(server, mode, change, structure, site):
    said = trapped(server, change, mode)
    assert (said.verdict, said.site) == ("length_differs", site)
    assert (said.scalars["structure"], said.scalars["defect"]) == (structure, "off by one")


@pytest.mark.parametrize("ledger", [True, False], ids=["ledger", "no ledger"])
def test_a_write_into_anothers_page_names_whose_it_is(attach, monkeypatch, ledger):
    probes = ("request-rows", *(["leak-ledger"] if ledger else []), "host-alloc-kernels")
    server = Server(monkeypatch, attach("trap", *probes))
    server.forward()
    victim = held(server.world.requests[1])

    def change(made):
        made.out_cache_loc[0] = server.world.rows.req_to_token[victim.req_pool_idx, victim.kv_committed_len - 1]

    said = trapped(server, change)
    assert (said.verdict, said.scalars["structure"]) == ("write_misplaced", "write locations")
    assert said.scalars["request_slot"] == held(server.world.requests[0]).req_pool_idx
    assert said.scalars.get("page_owner") == (victim.req_pool_idx if ledger else None)
    (incident,) = group(read_dump(entry.path) for entry in DumpStore(server.dumps).list())
    first = conclude(incident)[0]
    assert (f"of a page of the request in slot {victim.req_pool_idx}" in first.cause) is ledger


def test_writes_of_the_step_before_are_stale_and_not_one_off(server):
    kept = []
    for _ in range(2):
        server.forward(lambda made: kept.append(made.out_cache_loc.clone()))
    said = trapped(server, lambda made: made.out_cache_loc.copy_(kept[-1]))
    assert (said.verdict, said.scalars["defect"]) == ("write_misplaced", "stale")


@pytest.mark.parametrize(
    ("change", "defect"),
    [(lambda lengths, before: before, "stale"), (lambda lengths, before: lengths.roll(1), "swapped")],
    ids=["before", "rolled"],
)
def test_a_drafts_metadata_is_made_with_the_lengths_of_its_positions(server, monkeypatch, change, defect):
    monkeypatch.setattr(request_rows, "role_of", lambda backend: "draft")
    drafts = []
    for _ in range(2):
        server.forward()
        server.draft(drafts.append)
    before, made = drafts[-2:]
    made.seq_lens, right = torch.arange(40, 40 + made.seq_lens.numel()), made.seq_lens
    seen = seen_of(server.scheduler)
    rows = made.req_pool_indices.tolist()
    seen.draft_lengths = dict(zip(rows, made.seq_lens.tolist(), strict=True))
    seen.drafted = dict(zip(rows, (made.seq_lens - 4).tolist(), strict=True))
    check_draft_lengths(seen, made, "here")
    made.seq_lens = change(made.seq_lens, made.seq_lens - 4)
    said = trapped_by(server, lambda: check_draft_lengths(seen, made, "here"))
    assert (said.scalars["structure"], said.scalars["defect"], said.role) == ("kernel lengths", defect, "draft")
    assert (before is not made, right.numel()) == (True, made.seq_lens.numel())


def test_new_slots_at_the_rows_begin_are_told_with_where_they_belong(server):
    request = server.world.requests[-1]
    slot, rows = held(request).req_pool_idx, server.world.rows.req_to_token
    begin, end = held(request).cache_protected_len, held(request).kv_committed_len
    assert 0 < begin < end - 1

    def change(made):
        rows[slot, : end - begin] = made.out_cache_loc[begin - end :]
        rows[slot, begin:end] = 0

    said = trapped(server, change, ForwardMode.EXTEND).scalars
    assert (said["request_slot"], said["new_slots_at"], said["new_slots_belong"]) == (slot, 0, begin)


def test_new_slots_of_another_request_in_a_row_are_told_with_whose_they_are(server):
    first, second = server.world.requests[:2]
    rows, slot = server.world.rows.req_to_token, held(second).req_pool_idx
    begin, end = held(second).cache_protected_len, held(second).kv_committed_len
    apart = held(first).kv_committed_len - held(first).cache_protected_len

    def change(made):
        rows[slot, begin:end] = made.out_cache_loc[: end - begin]

    said = trapped(server, change, ForwardMode.EXTEND).scalars
    assert (said["request_slot"], said["new_slots_of"]) == (slot, held(first).req_pool_idx)
    assert said["new_slots_apart"] == -apart


def test_slots_that_are_read_from_other_rows_say_from_which(server):
    def change(made):
        made.out_cache_loc = made.out_cache_loc.view(len(made.seq_lens), -1).flip(0).flatten()

    said = trapped(server, change, ForwardMode.TARGET_VERIFY)
    slots = [held(request).req_pool_idx for request in server.world.requests]
    assert said.scalars["rows_in_order"] == ",".join(map(str, slots))
    assert said.scalars["rows_read"] == ",".join(map(str, reversed(slots)))


def test_the_lengths_of_the_forwards_before_stand_beside_a_drafts(server):
    server.forward(mode=ForwardMode.TARGET_VERIFY)
    launched = [known[1] for known in seen_of(server.scheduler).launched.values()]

    def change(made):
        made.seq_lens = made.seq_lens + 5
        made.positions = made.positions + 5

    said = trapped_by(server, lambda: server.draft(change))
    assert said.scalars["launched"] == ",".join(map(str, launched))
    assert said.scalars["relayed"] is False


def test_the_one_that_left_a_batch_with_its_row_is_told(server):
    server.forward()
    first, *rest = server.world.requests
    assert left_with_row(server.scheduler, rest) == {"left_with_row": held(first).req_pool_idx}
    assert left_with_row(server.scheduler, server.world.requests) == {}


@pytest.mark.parametrize("behind", [0, 2])
def test_a_hosts_length_that_is_not_the_devices(server, behind):
    server.forward()
    requests = server.world.requests
    for request in requests:
        request.output_ids.append(7)
    server.next_batch()
    lengths = torch.tensor([held(request).kv_committed_len for request in requests])
    made = SimpleNamespace(forward_mode=ForwardMode.TARGET_VERIFY, seq_lens=lengths)
    batch = SimpleNamespace(reqs=requests, seq_lens_cpu=lengths - behind)
    if not behind:
        check_lengths(server.scheduler, batch, made)
        return
    said = trapped_by(server, lambda: check_lengths(server.scheduler, batch, made)).scalars
    assert (said["why"], said["expected"] - said["value"]) == ("host", behind)
