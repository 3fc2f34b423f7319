"""Probe request-rows on SGLang's own pools, prefix cache and batches: silent as they are, right where one is wrong."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pool_world import PoolWorld
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from gemma4_dumps.reader import read_dump
from gemma4_dumps.store import DumpStore
from gemma4_runtime.errors import TrappedViolation
from gemma4_runtime.probes import request_rows

PROMPT = list(range(1, 41))


class Server:
    """A scheduler without a model around the pools, which prepares forwards as SGLang does."""

    def __init__(self, monkeypatch, dumps):
        self.world, self.dumps = PoolWorld(monkeypatch), dumps
        self.scheduler: Any = Scheduler.__new__(Scheduler)
        world, scheduler = self.world, self.scheduler
        scheduler.req_to_token_pool, scheduler.token_to_kv_pool_allocator = world.rows, world.allocator
        scheduler.forward_ct, scheduler.page_size, scheduler.enable_overlap = 5, world.page, False
        scheduler.last_batch, scheduler.tree_cache = None, world.tree
        for seed in (0, 3):
            world.start([(token * (seed + 1)) % 97 for token in PROMPT])
        world.start(PROMPT)

    def next_batch(self):
        """Do what SGLang does before it chooses a batch."""
        self.scheduler.running_batch = SimpleNamespace(reqs=self.world.requests)
        request_rows.before_next_batch(self.scheduler)

    def forward(self, change=lambda made: None):
        """Run a decode step of all requests up to the metadata; `change` alters its forward batch."""
        self.next_batch()
        self.world.decode()
        requests = self.world.requests
        lengths = torch.tensor([request.kv_committed_len for request in requests])
        for request in requests:
            request.origin_input_ids = request.origin_input_ids[: request.kv_committed_len - len(request.output_ids)]
        rows = torch.tensor([request.req_pool_idx for request in requests])
        made = SimpleNamespace(
            forward_mode=ForwardMode.DECODE,
            req_pool_indices=rows,
            seq_lens=lengths,
            out_cache_loc=self.world.rows.req_to_token[rows, lengths - 1].clone(),
            spec_info=None,
            input_ids=torch.zeros(len(requests)),
        )
        change(made)
        batch = SimpleNamespace(reqs=requests)
        request_rows.before_run_batch(self.scheduler, batch)
        request_rows.after_init_new(made, object, batch, SimpleNamespace(is_draft_worker=False))
        given = SimpleNamespace(cache_seqlens_int32=getattr(made, "given", made.seq_lens))
        backend = SimpleNamespace(forward_metadata=given, speculative_step_id=0)
        request_rows.after_trtllm_metadata(None, backend, made)


@pytest.fixture
def server(attach, monkeypatch):
    return Server(monkeypatch, attach("trap", "request-rows", "host-alloc-kernels"))


def trapped(server, change=lambda made: None):
    with pytest.raises(TrappedViolation):
        server.forward(change)
    (entry,) = DumpStore(server.dumps).list()
    return read_dump(entry.path).manifest


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
    first, second = (request.req_pool_idx for request in server.world.requests[:2])
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
    begin, rows = request.cache_protected_len, server.world.rows.req_to_token
    other = int(server.world.allocator.full_attn_allocator.free_pages[-1]) * page
    count = request.kv_committed_len - begin
    rows[request.req_pool_idx, begin : begin + count] = torch.arange(other, other + count, dtype=rows.dtype)
    request.retraction_count += int(retracted)
    if retracted:
        server.next_batch()
    else:
        assert trapped(server).scalars["why"] == "changed"


def test_an_entry_past_the_end_is_found_before_sglang_translates_it(server):
    server.forward()
    server.world.rows.req_to_token[server.world.requests[0].req_pool_idx, 0] = 1 << 20
    assert trapped(server).scalars["defect"] == "past the end"


def test_two_rows_that_were_exchanged(server):
    server.forward()
    first, second = (request.req_pool_idx for request in server.world.requests[:2])
    rows, page = server.world.rows.req_to_token, server.world.page
    rows[first, :page], rows[second, :page] = rows[second, :page].clone(), rows[first, :page].clone()
    assert trapped(server).scalars["defect"] == "swapped"


def test_a_batch_that_names_another_row(server):
    def change(made):
        made.req_pool_indices[0] = made.req_pool_indices[1]

    said = trapped(server, change)
    assert (said.verdict, said.scalars["structure"]) == ("row_index", "row indices")
    # The rows of a world lie side by side.
    assert said.scalars["defect"] == "off by one"


def test_a_write_that_goes_to_another_request(server):
    def change(made):
        made.out_cache_loc[0] = made.out_cache_loc[1]

    said = trapped(server, change)
    assert (said.verdict, said.scalars["structure"], said.scalars["defect"]) == (
        "write_misplaced",
        "write locations",
        "foreign",
    )


@pytest.mark.parametrize(
    ("change", "structure", "site"),
    [
        (lambda made: made.seq_lens.add_(1), "batch lengths", "ForwardBatch.init_new"),
        (
            lambda made: setattr(made, "given", made.seq_lens + 1),
            "kernel lengths",
            "TRTLLMHAAttnBackend.init_forward_metadata",
        ),
    ],
    ids=["batch", "kernel"],
)
def test_a_length_that_is_one_too_long(server, change, structure, site):
    said = trapped(server, change)
    assert (said.verdict, said.site) == ("length_differs", site)
    assert (said.scalars["structure"], said.scalars["defect"]) == (structure, "off by one")


def test_a_request_that_counts_wrongly_is_told_from_its_batch(server):
    def change(made):
        server.world.requests[0].kv_committed_len -= 2

    said = trapped(server, change)
    assert said.scalars["structure"] == "request counters"
