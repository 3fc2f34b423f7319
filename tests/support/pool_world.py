"""SGLang's own pools, prefix cache, batches and requests on the CPU, driven as its scheduler does, without a model."""

from array import array
from types import SimpleNamespace

import torch
from sglang.srt.managers import schedule_batch
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.mem_cache import common
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.chunk_cache import ChunkCache, SWAChunkCache
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixCache
from sglang.srt.mem_cache.swa_radix_cache import SWARadixCache
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.sampling.sampling_params import SamplingParams

from gemma4_runtime.leak.audit import Audit, audit
from swa_pools import make_swa_allocator

FULL_TOKENS, SWA_TOKENS, WINDOW, REQUEST_SLOTS = 640, 320, 32, 6


def server_arguments(page_size):
    """Return the few fields that the functions under test read of SGLang's global arguments."""
    return SimpleNamespace(
        attention_backend="torch_native",
        page_size=page_size,
        speculative_algorithm=None,
        strip_thinking_cache=False,
    )


class PoolWorld:
    """The pools of one server, and the `requests` that are running: hybrid or plain, with a prefix cache or none."""

    def __init__(self, monkeypatch, page_size=16, hybrid=True, cached=True):
        arguments = server_arguments(page_size)
        for module in (common, schedule_batch):
            monkeypatch.setattr(module, "get_global_server_args", lambda: arguments)
        self.page = page_size
        self.rows = ReqToTokenPool(REQUEST_SLOTS, 512, "cpu", enable_memory_saver=False)
        pair = (FULL_TOKENS, SWA_TOKENS, page_size)
        self.allocator = make_swa_allocator(*pair) if hybrid else _plain_allocator(page_size)
        kinds = {(True, True): SWARadixCache, (False, True): RadixCache, (True, False): SWAChunkCache}
        parameters = CacheInitParams(
            disable=False,
            req_to_token_pool=self.rows,
            token_to_kv_pool_allocator=self.allocator,
            page_size=page_size,
            sliding_window_size=WINDOW,
        )
        self.tree = kinds.get((hybrid, cached), ChunkCache)(parameters)
        self.requests: list[Req] = []
        self.count = 0

    def start(self, tokens):
        """Prefill a request with these token ids and return it, or None if there is no room."""
        request = Req(f"request-{self.count}", "", array("q", tokens), SamplingParams(max_new_tokens=64))
        self.count += 1
        if not self.rows.available_size() or self.allocator.available_size() < len(tokens) + self.page:
            return None
        request.init_next_round_input(self.tree)
        if request.last_node is not None:
            request.swa_uuid_for_lock = getattr(self.tree.inc_lock_ref(request.last_node), "swa_uuid_for_lock", None)
        request.cache_protected_len = len(request.prefix_indices) if self.tree.is_tree_cache() else 0
        request.set_extend_input_len(len(tokens) - len(request.prefix_indices))
        request.fill_len = len(tokens)
        batch = self._batch([request], ForwardMode.EXTEND)
        batch.prefix_lens, batch.extend_lens = [len(request.prefix_indices)], [request.extend_input_len]
        batch.extend_num_tokens = request.extend_input_len
        batch.seq_lens = batch.seq_lens_cpu = torch.tensor([len(tokens)])
        common.alloc_for_extend(batch)
        request.kv_committed_len = request.kv_allocated_len = len(tokens)
        self.tree.cache_unfinished_req(request)
        self.requests.append(request)
        return request

    def decode(self):
        """Give every running request a token; do nothing if there is no room."""
        if not self.requests or self.allocator.available_size() < len(self.requests) * self.page:
            return
        batch = self._batch(self.requests, ForwardMode.DECODE)
        batch.seq_lens = batch.seq_lens_cpu = torch.tensor([r.kv_committed_len for r in self.requests])
        batch.req_pool_indices = torch.tensor([request.req_pool_idx for request in self.requests])
        common.alloc_for_decode(batch, token_per_req=1)
        for request in self.requests:
            request.output_ids.append(len(request.output_ids) % 7)
            request.decode_batch_idx += 1
            request.kv_committed_len += 1
            request.kv_allocated_len += 1

    def finish(self, request):
        """Do what the scheduler does with a request that has ended."""
        self.requests.remove(request)
        common.release_kv_cache(request, self.tree)

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
