"""A server of SGLang's own pools, prefix cache and batches under the probe request-rows."""

from array import array
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative.frozen_kv_mtp_utils import set_frozen_kv_positions
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from gemma4_dumps.reader import read_dump
from gemma4_dumps.store import DumpStore
from gemma4_runtime.errors import TrappedViolation
from gemma4_runtime.probes import request_rows
from gemma4_runtime.release.requests import held
from gemma4_triage.diagnose.conclude import conclude
from gemma4_triage.diagnose.incident import Incident
from pool_world import PoolWorld

PROMPT = list(range(1, 41))
DRAFTS = 3
"""Tokens of a verification, its root included."""
MODES = [ForwardMode.DECODE, ForwardMode.EXTEND, ForwardMode.TARGET_VERIFY]


class Server:
    """A scheduler without a model around the pools, which prepares forwards as SGLang does."""

    def __init__(self, monkeypatch, dumps):
        self.world, self.dumps = PoolWorld(monkeypatch), dumps
        self.scheduler: Any = Scheduler.__new__(Scheduler)
        world, scheduler = self.world, self.scheduler
        scheduler.req_to_token_pool, scheduler.token_to_kv_pool_allocator = world.rows, world.allocator
        scheduler.forward_ct, scheduler.page_size, scheduler.enable_overlap = 5, world.page, False
        scheduler.last_batch, scheduler.tree_cache = None, world.tree
        scheduler.cur_batch_for_debug = scheduler.cur_batch = scheduler.chunked_req = None
        scheduler.running_batch, scheduler.waiting_queue = SimpleNamespace(reqs=world.requests), []
        scheduler.spec_algorithm = SpeculativeAlgorithm.NONE
        for seed in (0, 3):
            world.start([(token * (seed + 1)) % 97 for token in PROMPT])
        world.start(PROMPT)

    def next_batch(self):
        """Do what SGLang does before it chooses a batch; between steps the last token sampled has no KV."""
        for request in self.world.requests:
            known = held(request).kv_committed_len + bool(request.output_ids) - len(request.output_ids)
            request.origin_input_ids = array("q", range(known))
        self.check_between_steps()

    def begin_anew(self):
        """Let what is prefilled next be read as that of retracted requests is: nobody else's is read twice."""
        for request in self.world.requests:
            request.retraction_count += 1

    def check_between_steps(self, lengths=None):
        """Check with the lengths of the running batch, [requests], if it has any."""
        batch = self.scheduler.running_batch = SimpleNamespace(reqs=self.world.requests)
        if lengths is not None:
            batch.seq_lens = lengths
        request_rows.before_next_batch(self.scheduler)

    def _backend(self, made):
        """Make tables as TRTLLMHAAttnBackend.init_forward_metadata does, of rows as they are."""
        world = self.world
        slots = world.rows.req_to_token[made.req_pool_indices, : int(made.given.max()) : world.page]
        mapping = world.allocator.full_to_swa_index_mapping
        metadata = SimpleNamespace(
            cache_seqlens_int32=made.given,
            page_table=slots // world.page,
            swa_page_table=mapping[slots.long()] // world.page,
            swa_out_cache_loc=mapping[made.out_cache_loc.long()],
        )
        return SimpleNamespace(
            forward_metadata=metadata, speculative_step_id=0, page_size=world.page, req_to_token_pool=world.rows
        )

    def forward(self, change=lambda made: None, mode=ForwardMode.DECODE, draft=False, spoil=lambda metadata: None):
        """Run a step of all requests up to the metadata, the draft model's or not.

        `change` alters its batch, `spoil` what kernels are to follow.
        """
        self.next_batch()
        if mode.is_decode():
            self.world.decode()
        requests = self.world.requests
        made = {
            ForwardMode.DECODE: self._decode,
            ForwardMode.EXTEND: self._prefill,
            ForwardMode.TARGET_VERIFY: self._verification,
        }[mode](requests)
        made.forward_mode, made.spec_info = mode, None
        made.req_pool_indices = torch.tensor([held(request).req_pool_idx for request in requests])
        made.given = made.seq_lens + (DRAFTS if mode.is_target_verify() else 0)
        made.positions = self._positions(made)
        change(made)
        batch = SimpleNamespace(reqs=requests)
        request_rows.before_run_batch(self.scheduler, batch)
        request_rows.after_init_new(made, object, batch, SimpleNamespace(is_draft_worker=draft))
        backend = self._backend(made)
        spoil(backend.forward_metadata)
        if not draft:
            request_rows.after_trtllm_metadata(None, backend, made)

    def _positions(self, made):
        """Return where tokens stand as `ForwardBatch.init_new` and the tree of drafts have them."""
        if made.forward_mode.is_target_verify():
            return (made.seq_lens[:, None] + torch.arange(DRAFTS)).flatten()
        if made.forward_mode.is_decode():
            return made.seq_lens - 1
        spans = zip(made.extend_prefix_lens_cpu, made.extend_seq_lens_cpu, strict=True)
        return torch.cat([torch.arange(start, start + more) for start, more in spans])

    def draft(self, change=lambda made: None, topk=1, worker=None):
        """Give a frozen draft's batch of all requests the positions that SGLang gives it, altered by `change`."""
        self.next_batch()
        requests = self.world.requests
        lengths = self._lengths(requests, beyond=1)
        slots = torch.tensor([held(request).req_pool_idx for request in requests])
        made = SimpleNamespace(forward_mode=ForwardMode.DECODE, seq_lens=lengths, req_pool_indices=slots)
        made.positions = None if topk == 1 else torch.zeros(lengths.numel() * topk, dtype=torch.int64)
        set_frozen_kv_positions(made, topk)
        change(made)
        request_rows.before_run_batch(self.scheduler, SimpleNamespace(reqs=requests))
        request_rows.after_set_positions(None, worker, made)
        request_rows.after_set_positions(None, worker, made)

    def free_slot(self):
        """Return a slot of a page that the full pool may hand out next, at its token's place."""
        pages = self.world.allocator.full_attn_allocator.free_pages
        return int(pages[-1]) * self.world.page + 1

    def _lengths(self, requests, beyond=0):
        """Return how many tokens each has committed, of which `beyond` more are known."""
        for request in requests:
            known = held(request).kv_committed_len + beyond - len(request.output_ids)
            request.origin_input_ids = array("q", range(known))
        return torch.tensor([held(request).kv_committed_len for request in requests])

    def _decode(self, requests):
        lengths, rows = self._lengths(requests), self.world.rows.req_to_token
        slots = [held(request).req_pool_idx for request in requests]
        written = rows[slots, lengths - 1].clone()
        return SimpleNamespace(seq_lens=lengths, out_cache_loc=written, input_ids=self._latest(requests))

    def _latest(self, requests):
        """Return the token of each that a step goes on from, as a result of the step before gave it."""
        return torch.tensor([request.output_ids[-1] if request.output_ids else 0 for request in requests])

    def _prefill(self, requests):
        lengths = self._lengths(requests)
        starts = [held(request).cache_protected_len for request in requests]
        return SimpleNamespace(
            seq_lens=lengths,
            extend_prefix_lens_cpu=list(starts),
            extend_seq_lens_cpu=[
                held(request).kv_committed_len - held(request).cache_protected_len for request in requests
            ],
            out_cache_loc=self._written((r, held(r).cache_protected_len, held(r).kv_committed_len) for r in requests),
            # Prompts are counted up from 0 on.
            input_ids=torch.cat([torch.arange(a, b) for a, b in zip(starts, lengths.tolist(), strict=True)]),
        )

    def _verification(self, requests):
        """Verify drafts behind a root that has been sampled and is in no pool: it and they are written."""
        lengths, rows = self._lengths(requests, beyond=1), self.world.rows.req_to_token
        for request, length in zip(requests, lengths.tolist(), strict=True):
            # The prompts end in mid-page, where there is room.
            last = int(rows[held(request).req_pool_idx, length - 1])
            more = torch.arange(last + 1, last + 1 + DRAFTS, dtype=rows.dtype)
            rows[held(request).req_pool_idx, length : length + DRAFTS] = more
            mapping = self.world.allocator.full_to_swa_index_mapping
            mapping[more.long()] = mapping[last] + torch.arange(1, 1 + DRAFTS)
            held(request).kv_allocated_len = max(held(request).kv_allocated_len, length + DRAFTS)
        spans = ((r, held(r).kv_committed_len, held(r).kv_committed_len + DRAFTS) for r in requests)
        tokens = self._latest(requests).repeat_interleave(DRAFTS)
        return SimpleNamespace(seq_lens=lengths, out_cache_loc=self._written(spans), input_ids=tokens)

    def _written(self, spans):
        rows = self.world.rows.req_to_token
        return torch.cat([rows[held(request).req_pool_idx, start:stop] for request, start, stop in spans])


def named(server):
    """Return what is named of the one dump that a server's `request-rows` wrote."""
    return conclude(Incident((read_dump(next(server.dumps.glob("*request-rows*"))),)))[0]


def trapped(server, change=lambda made: None, mode=ForwardMode.DECODE, **more):
    return trapped_by(server, lambda: server.forward(change, mode, **more))


def trapped_by(server, call):
    with pytest.raises(TrappedViolation):
        call()
    (entry,) = DumpStore(server.dumps).list()
    return read_dump(entry.path).manifest


def with_buffers(server, monkeypatch, filled):
    """Give the server's pools keys and values: two layers of the full pool, layer 0 of the sliding-window pool."""
    pools = {
        f"{name}_kv_pool": SimpleNamespace(
            **{f"{side}_buffer": [filled(2000, 1, 4) for _ in range(count)] for side in "kv"}
        )
        for name, count in (("full", 2), ("swa", 1))
    }
    made = SimpleNamespace(**pools, layers_mapping={1: (0, False), 2: (1, False), 0: (0, True)})
    monkeypatch.setattr(server.world.allocator, "get_kvcache", lambda: made)
    return made


def used(cache):
    """Return the buffers that `decoded` stores in: pool, k or v, and the buffer."""
    pools = ("full", cache.full_kv_pool), ("swa", cache.swa_kv_pool)
    return [(pool, what, getattr(of, f"{what}_buffer")[0]) for pool, of in pools for what in "kv"]


def decoded(server, cache, leaves_out=lambda pool, what, row: False):
    """Run a decode of all requests that stores all but what it leaves out, up to where it is sampled."""
    made = []
    server.forward(made.append)
    slots = made[0].out_cache_loc.long()
    mapping = server.world.allocator.full_to_swa_index_mapping
    for pool, what, buffer in used(cache):
        for row, slot in enumerate(mapping[slots] if pool == "swa" else slots):
            if not leaves_out(pool, what, row):
                buffer[slot] = torch.randn(1, 4)
    output = SimpleNamespace(next_token_logits=torch.zeros(3, 12))
    request_rows.before_sample(SimpleNamespace(is_draft_worker=False), output, *made)
    return slots
