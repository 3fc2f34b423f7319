"""SGLang's own pools, prefix cache, batches and requests on the CPU, driven as its scheduler does, without a model."""

from array import array
from types import SimpleNamespace

import torch
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.sampling.sampling_params import SamplingParams

from gemma4_runtime.leak.audit import Audit, audit
from gemma4_runtime.release.requests import held
from gemma4_runtime.releases import at_least, installed_or_base
from swa_pools import make_swa_allocator

if at_least(installed_or_base(), "0.5.23"):
    import pool_world_unified as scheduler
else:
    import pool_world_radix as scheduler

FULL_TOKENS, SWA_TOKENS, WINDOW, REQUEST_SLOTS = 640, 320, 32, 6


class PoolWorld:
    """The pools of one server, and the `requests` that are running: hybrid or plain, with a prefix cache or none."""

    def __init__(self, monkeypatch, page_size=16, hybrid=True, cached=True):
        scheduler.publish(monkeypatch, page_size)
        self.page, self.cached = page_size, cached
        self.rows = ReqToTokenPool(REQUEST_SLOTS, 512, "cpu", enable_memory_saver=False)
        pair = (FULL_TOKENS, SWA_TOKENS, page_size)
        self.allocator = make_swa_allocator(*pair) if hybrid else _plain_allocator(page_size)
        parameters = CacheInitParams(
            disable=False,
            req_to_token_pool=self.rows,
            token_to_kv_pool_allocator=self.allocator,
            page_size=page_size,
            sliding_window_size=WINDOW,
        )
        self.tree = scheduler.make_cache(parameters, hybrid, cached)
        self.requests: list[Req] = []
        self.count = 0

    def start(self, tokens):
        """Prefill a request with these token ids and return it, or None if there is no room."""
        request = Req(f"request-{self.count}", "", array("q", tokens), SamplingParams(max_new_tokens=64))
        self.count += 1
        if not self.rows.available_size() or self.allocator.available_size() < len(tokens) + self.page:
            return None
        prefix = scheduler.admit(request, self.tree, len(tokens))
        batch = self._batch([request], ForwardMode.EXTEND)
        batch.prefix_lens, batch.extend_lens = [prefix], [len(tokens) - prefix]
        batch.extend_num_tokens = len(tokens) - prefix
        batch.seq_lens = batch.seq_lens_cpu = torch.tensor([len(tokens)])
        scheduler.alloc_for_extend(batch)
        scheduler.prefilled(request, self.tree, len(tokens))
        self.requests.append(request)
        return request

    def decode(self):
        """Give every running request a token; do nothing if there is no room."""
        if not self.requests or self.allocator.available_size() < len(self.requests) * self.page:
            return
        batch = self._batch(self.requests, ForwardMode.DECODE)
        batch.seq_lens = batch.seq_lens_cpu = torch.tensor([held(r).kv_committed_len for r in self.requests])
        batch.req_pool_indices = batch.req_pool_indices_cpu = torch.tensor(
            [held(request).req_pool_idx for request in self.requests]
        )
        scheduler.alloc_for_decode(batch, token_per_req=1)
        for request in self.requests:
            request.output_ids.append(len(request.output_ids) % 7)
            request.decode_batch_idx += 1
            scheduler.after_decode(request)

    def finish(self, request):
        """Do what the scheduler does with a request that has ended."""
        self.requests.remove(request)
        scheduler.release(request, self.tree)

    def value_of(self, node):
        """Return the slots of a request's last node as they lie in the prefix cache: writing to them changes it."""
        return scheduler.value_of(self.tree, node)

    def miscount(self, node, tokens):
        """Let the prefix cache count `tokens` of the full pool that it does not have."""
        scheduler.miscount(self.tree, node, tokens)

    def left_the_window(self, request, tokens):
        """Let a request say that so many of its first tokens have given up their slots of the sliding window."""
        scheduler.left_the_window(request, tokens)

    def flush(self):
        self.tree.reset()
        self.rows.clear()
        self.allocator.clear()
        self.requests.clear()

    def audit(self) -> Audit:
        return audit(self.allocator, self.rows, self.tree, self.requests, idle=not self.requests)

    def faults(self):
        """Return {(fault, pool): pages} of an audit."""
        return {(finding.fault.name, finding.pool): finding.pages.tolist() for finding in self.audit().findings}

    def _batch(self, requests, mode):
        return ScheduleBatch(
            reqs=list(requests),
            req_to_token_pool=self.rows,
            token_to_kv_pool_allocator=self.allocator,
            tree_cache=self.tree,
            forward_mode=mode,
            device="cpu",
            model_config=SimpleNamespace(is_encoder_decoder=False),
            enable_overlap=False,
        )


def _plain_allocator(page_size):
    pool = MHATokenToKVPool(
        size=FULL_TOKENS,
        page_size=page_size,
        dtype=torch.float32,
        head_num=1,
        head_dim=8,
        layer_num=1,
        device="cpu",
        enable_memory_saver=False,
    )
    if page_size == 1:
        return TokenToKVPoolAllocator(FULL_TOKENS, torch.float32, "cpu", pool, need_sort=False)
    return PagedTokenToKVPoolAllocator(FULL_TOKENS, page_size, torch.float32, "cpu", pool, need_sort=False)
