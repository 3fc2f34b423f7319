"""What the leak ledger takes of the scheduler's thread in a decode step, without a model.

    .venv-0.5.13.post1/bin/python tests/tools/bench_leak_ledger.py --requests 1 16 64 --mtp off

Each step runs SGLang's own code on its own hybrid pools, with the probe's hooks attached and clocked as under
GEMMA4_TRIAGE_COST=1. Without MTP that is sliding-window eviction and `alloc_for_decode`; with MTP eviction,
`prepare_for_verify` with its allocations, and the release of the pages that rejected drafts opened. Of `verify` only
that release is run. Prints microseconds per step of each hook, mean over the steps after a warm-up, and the longest
single `before_next_batch`. The clock is the thread's CPU time, so that what else runs on the machine does not count.
Exit codes: 0 measured, 2 usage.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import tempfile
import time
from array import array
from contextlib import ExitStack
from types import SimpleNamespace
from unittest import mock

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
if not os.path.exists("/dev/nvidiactl"):
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    os.environ.setdefault("TRITON_INTERPRET", "1")

import torch
from sglang.srt.managers import schedule_batch
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.mem_cache import common
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.chunk_cache import SWAChunkCache
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.plugins.hook_registry import HookRegistry
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.speculative import eagle_info
from sglang.srt.speculative.eagle_info import EagleVerifyInput

from gemma4_runtime import cost
from gemma4_runtime.catalog import CATALOG
from gemma4_runtime.cost import LEDGER, timed
from gemma4_runtime.patch import ATTACH_ORDER, How
from gemma4_runtime.probes.leak_audit import before_next_batch, before_run_batch
from gemma4_runtime.session import Session
from gemma4_runtime.settings import read_settings

DRAFT_TOKENS, PROMPT, WINDOW = 4, 1000, 512
ROW = 16384


class Load:
    """`count` requests that decode, each with its prompt of PROMPT tokens prefilled."""

    def __init__(self, count: int, page_size: int, device: str, mtp: bool) -> None:
        self.page, self.device, self.mtp = page_size, device, mtp
        self.rows = ReqToTokenPool(count, ROW, device, enable_memory_saver=False)
        self.allocator = _allocator(count * ROW, count * (PROMPT + 2 * ROW // 4), page_size, device)
        self.tree = SWAChunkCache(
            CacheInitParams(
                disable=True,
                req_to_token_pool=self.rows,
                token_to_kv_pool_allocator=self.allocator,
                page_size=page_size,
                sliding_window_size=WINDOW,
            )
        )
        self.requests = [Req(f"{i}", "", array("q", range(PROMPT)), SamplingParams()) for i in range(count)]
        self.batch = self._batch(ForwardMode.EXTEND)
        self._prefill()
        self.batch = self._batch(ForwardMode.DECODE)
        self.batch.req_pool_indices = torch.tensor([r.req_pool_idx for r in self.requests], device=device)
        self._lengths([PROMPT] * count)
        self.random = random.Random(5)
        self.scheduler = SimpleNamespace(token_to_kv_pool_allocator=self.allocator)
        self.next_batch = timed("leak-ledger", How.BEFORE, before_next_batch)
        self.run_batch = timed("leak-ledger", How.BEFORE, before_run_batch)

    def step(self) -> None:
        """Run one decode step: with MTP every request gets DRAFT_TOKENS slots, and keeps 1 to DRAFT_TOKENS of them."""
        self.next_batch(self.scheduler)
        for request in self.requests:
            request.decode_batch_idx += 1
        if self.mtp:
            self._draft_and_verify()
        else:
            common.alloc_for_decode(self.batch, token_per_req=1)
            self.run_batch(self.scheduler)
            self._lengths([had + 1 for had in self.batch.seq_lens_cpu.tolist()])

    def _draft_and_verify(self) -> None:
        self.batch.maybe_evict_swa()
        self.run_batch(self.scheduler)
        draft = torch.zeros(len(self.requests) * DRAFT_TOKENS, dtype=torch.int64, device=self.device)
        verify_input = SimpleNamespace(draft_token=draft, draft_token_num=DRAFT_TOKENS)
        EagleVerifyInput.prepare_for_verify(verify_input, self.batch, self.page)
        kept = [self.random.randint(1, DRAFT_TOKENS) for _ in self.requests]
        EagleVerifyInput.verify(verify_input, self.batch, self.page, kept)
        self._lengths([had + n for had, n in zip(self.batch.seq_lens_cpu.tolist(), kept, strict=True)])

    def _prefill(self) -> None:
        count = len(self.requests)
        for request in self.requests:
            request.prefix_indices = torch.empty(0, dtype=torch.int64, device=self.device)
            request.set_extend_input_len(PROMPT)
        self._lengths([PROMPT] * count)
        self.batch.prefix_lens, self.batch.extend_lens = [0] * count, [PROMPT] * count
        self.batch.extend_num_tokens = PROMPT * count
        common.alloc_for_extend(self.batch)

    def _lengths(self, lengths: list[int]) -> None:
        self.batch.seq_lens_cpu = torch.tensor(lengths)
        self.batch.seq_lens = self.batch.seq_lens_cpu.to(self.device)
        for request, length in zip(self.requests, lengths, strict=True):
            request.kv_committed_len = request.kv_allocated_len = length
            # `_evict_swa` asks for the sequence length, which is that of the token ids.
            request.output_ids = range(length - PROMPT)

    def _batch(self, mode: ForwardMode) -> ScheduleBatch:
        return ScheduleBatch(
            reqs=list(self.requests),
            req_to_token_pool=self.rows,
            token_to_kv_pool_allocator=self.allocator,
            tree_cache=self.tree,
            forward_mode=mode,
            device=self.device,
            model_config=SimpleNamespace(is_encoder_decoder=False, vocab_size=100),
            enable_overlap=False,
        )


def release_rejected(verify_input, batch, page_size: int, kept: list[int]) -> None:
    """Do what `EagleVerifyInput.verify` does to the pools: whole pages beyond the kept tokens are freed."""
    position = batch.seq_lens_cpu[:, None] + torch.arange(DRAFT_TOKENS)
    end = batch.seq_lens_cpu + torch.tensor(kept)
    rejected = position >= ((end + page_size - 1) // page_size * page_size)[:, None]
    batch.token_to_kv_pool_allocator.free(batch.out_cache_loc[rejected.reshape(-1).to(batch.device)])


def measure(count: int, page_size: int, steps: int, warm_up: int, device: str, mtp: bool) -> dict[str, float]:
    """{hook: microseconds per step}, with `all`, and `longest before_next_batch`."""
    load = Load(count, page_size, device, mtp)
    for _ in range(warm_up):
        load.step()
    LEDGER.calls.clear()
    LEDGER.own_ns.clear()
    longest = 0
    for _ in range(steps):
        before = LEDGER.own_ns[LEDGER.kind, "leak-ledger", "before_next_batch"]
        load.step()
        longest = max(longest, LEDGER.own_ns[LEDGER.kind, "leak-ledger", "before_next_batch"] - before)
    found = {hook: own / 1000 / steps for (_, _, hook), own in LEDGER.own_ns.items()}
    return found | {"all": sum(found.values()), "longest before_next_batch": longest / 1000}


def write_rows(request_slots, table, start, end, slots, count: int) -> None:
    """`assign_req_to_token_pool_func` in torch, for a CPU, where Triton's interpreter takes most of a step."""
    columns = start[:, None] + torch.arange(DRAFT_TOKENS)
    table[request_slots[:, None], columns] = slots.view(count, DRAFT_TOKENS).to(table.dtype)


def attach(device: str) -> Session:
    wanted = {"leak-ledger"} | ({"host-alloc-kernels"} if device == "cpu" else set())
    chosen = sorted((p for p in CATALOG if p.id in wanted), key=lambda patch: ATTACH_ORDER.index(patch.kind))
    session = Session(read_settings(), tuple(chosen))
    session.start()
    HookRegistry.apply_hooks()
    return session


def _allocator(full: int, swa: int, page_size: int, device: str) -> SWATokenToKVPoolAllocator:
    full, swa = full // page_size * page_size, swa // page_size * page_size
    pool = SWAKVPool(
        size=full,
        size_swa=swa,
        page_size=page_size,
        dtype=torch.uint8,
        head_num=1,
        head_dim=1,
        swa_attention_layer_ids=[0],
        full_attention_layer_ids=[1],
        enable_kvcache_transpose=False,
        device=device,
    )
    return SWATokenToKVPoolAllocator(full, swa, page_size, torch.uint8, device, pool, need_sort=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--page-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--warm-up", type=int, default=150)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--mtp", choices=("on", "off"), default="on")
    arguments = parser.parse_args()
    if (arguments.steps + arguments.warm_up) * DRAFT_TOKENS + PROMPT + DRAFT_TOKENS > ROW:
        parser.error(f"a row holds {ROW} tokens: at most {(ROW - PROMPT) // DRAFT_TOKENS - 1} steps")
    torch.set_num_threads(1)
    served = SimpleNamespace(
        attention_backend="torch_native",
        page_size=arguments.page_size,
        speculative_algorithm=None,
        enable_mamba_extra_buffer=lambda: False,
    )
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"GEMMA4_TRIAGE_LEAK": "dump", "GEMMA4_TRIAGE_COST": "1", "SGLANG_TRTLLM_MHA_DEBUG_DIR": folder}
        with (
            ExitStack() as patches,
            mock.patch.object(cost, "perf_counter_ns", time.thread_time_ns),
            mock.patch.object(cost, "CLOCK_NS", cost.reading_ns(time.thread_time_ns)),
            mock.patch.object(EagleVerifyInput, "verify", release_rejected),
            mock.patch.object(common, "get_global_server_args", return_value=served),
            mock.patch.object(schedule_batch, "get_global_server_args", return_value=served),
            mock.patch.object(eagle_info, "get_global_server_args", return_value=served),
        ):
            if arguments.device == "cpu":
                patches.enter_context(mock.patch.object(eagle_info, "assign_req_to_token_pool_func", write_rows))
            session = attach(arguments.device)
            rows = {
                count: measure(
                    count,
                    arguments.page_size,
                    arguments.steps,
                    arguments.warm_up,
                    arguments.device,
                    arguments.mtp == "on",
                )
                for count in arguments.requests
            }
            session.stop()
    hooks = sorted({hook for row in rows.values() for hook in row}, key=lambda hook: (" " in hook, hook == "all", hook))
    print(json.dumps({"cpu": platform.processor() or platform.machine(), "device": arguments.device}))
    print(f"{'microseconds per step':28}" + "".join(f"{count:>6} req" for count in rows))
    for hook in hooks:
        print(f"{hook:28}" + "".join(f"{row.get(hook, 0):10.1f}" for row in rows.values()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
