"""What an engine's `before` changes in SGLang, so that it goes wrong, or its way, where a test wants it to."""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gemma4_runtime.release.requests import held
from gemma4_runtime.releases import BASE, installed_or_base
from gemma4_runtime.targets import dotted_path

AT_STEP = 6
FAR_AWAY = 1 << 20
SOUND_DRAFTS = 20
LOST = "lost"
POOL_BYTES = "POOL_BYTES"
"""The variable that `fix_pool_bytes` reads."""


def fix_pool_bytes() -> None:
    """Let SGLang find as many bytes for its pools as the variable POOL_BYTES says."""
    from sglang.srt.model_executor.model_runner_kv_cache_mixin import ModelRunnerKVCacheMixin

    ModelRunnerKVCacheMixin._profile_available_bytes = lambda *_: int(os.environ[POOL_BYTES])


def silence_triton() -> None:
    """Let Triton's attention say zeros: interpreted, its kernels take seconds a step. What it says changes no pool."""
    from sglang.srt.layers.attention.triton_backend import TritonAttnBackend

    def attend(backend, q, k, v, layer, forward_batch, **kwargs):
        return q.new_zeros(q.shape[0], layer.tp_q_head_num * layer.v_head_dim)

    TritonAttnBackend.forward_extend = TritonAttnBackend.forward_decode = attend


def halve_draft_pool() -> None:
    """Make a draft's own KV pool half as large as the target's, as in SGLang issue 17630."""
    from sglang.srt.model_executor.model_runner import ModelRunner

    original = ModelRunner.init_memory_pool

    def init_memory_pool(self, *args):
        config = self.memory_pool_config
        if self.is_draft_worker and config.full_max_total_num_tokens:
            self.memory_pool_config = replace(
                config,
                max_total_num_tokens=config.max_total_num_tokens // 2,
                full_max_total_num_tokens=config.full_max_total_num_tokens // 2,
            )
        original(self, *args)

    ModelRunner.init_memory_pool = init_memory_pool


def bind_draft_a_layer_before() -> None:
    """Bind the draft's first sliding layer to the target's sliding layer before the right one."""
    _after_binding(lambda attention: setattr(attention, "layer_id", attention.layer_id - 1))


def widen_draft_window() -> None:
    """Show the draft's first sliding layer one key more than all others."""
    _after_binding(lambda attention: setattr(attention, "sliding_window_size", attention.sliding_window_size + 1))


def _after_binding(spoil) -> None:
    from sglang import __version__
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    def after(result, worker, *args, **kwargs) -> None:
        spoil(worker.draft_model_runner.model.model.layers[0].self_attn.attn)

    HookRegistry.register(dotted_path(__version__, "mtp.bind_context"), after, HookType.AFTER)


def bind_draft_to_first_layer_later() -> None:
    """Bind the draft's sliding layers to the target's first one in the middle of the load, as a stray write would."""
    from sglang import __version__
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    forwards = 0

    def before(worker, *args, **kwargs) -> None:
        nonlocal forwards
        forwards += 1
        for layer in worker.draft_model_runner.model.model.layers if forwards == SOUND_DRAFTS else ():
            attention = layer.self_attn.attn
            attention.layer_id = 0 if attention.sliding_window_size > 0 else attention.layer_id

    HookRegistry.register(dotted_path(__version__, "mtp.draft"), before, HookType.BEFORE)


def overwrite_row() -> None:
    """Put slots that no pool has into the first page of a running request's row, while it decodes."""

    def spoil(scheduler: Any, batch: Any) -> None:
        table = scheduler.req_to_token_pool.req_to_token
        table[held(batch.reqs[0]).req_pool_idx, : scheduler.page_size] = FAR_AWAY

    _before_a_step(spoil)


def lose_lengths() -> None:
    """Take a running batch's lengths away."""

    def spoil(scheduler: Any, batch: Any) -> None:
        batch.seq_lens = None

    _before_a_step(spoil)


def _before_a_step(spoil: Any) -> None:
    from sglang.srt.managers.scheduler import Scheduler

    original = Scheduler.run_batch

    def run_batch(scheduler, batch, *args, **kwargs):
        if scheduler.forward_ct == AT_STEP:
            spoil(scheduler, batch)
        return original(scheduler, batch, *args, **kwargs)

    setattr(Scheduler, "run_batch", run_batch)  # noqa: B010


def take_own_page() -> None:
    """Give a row a page of another that the other has for itself, once two requests have decoded for a while."""
    _mix_rows(_decoded, lambda request: held(request).cache_protected_len)


def take_cached_page() -> None:
    """Give a row the first page of another, which the prefix cache holds, before the row was looked at with it."""
    _mix_rows(lambda request: held(request).cache_protected_len > 0, lambda request: 0)


def overwrite_keys() -> None:
    """Clear the keys of one token of a request's prompt in one layer, once two requests have decoded for a while."""

    def clear(scheduler: Any, batch: Any, running: Sequence[Any]) -> None:
        slot = int(scheduler.req_to_token_pool.req_to_token[held(running[0]).req_pool_idx, 3])
        pool = scheduler.token_to_kv_pool_allocator.get_kvcache()
        getattr(pool, "full_kv_pool", pool).k_buffer[0][slot] = 0

    _once(_decoded, clear)


def heat_sampling() -> None:
    """Give one row of a batch a temperature that no request asked for, once two have decoded for a while."""

    def heat(scheduler: Any, batch: Any, running: Sequence[Any]) -> None:
        scheduler.running_batch.sampling_info.temperatures[0] = 32.0

    _once(_decoded, heat)


def _decoded(request: Any) -> bool:
    return len(request.output_ids) >= 4


def _mix_rows(ready: Any, column: Any) -> None:
    """Give one request's row a page of another, all of it in range, as stale or torn writes would."""

    def mix(scheduler: Any, batch: Any, running: Sequence[Any]) -> None:
        page, table = scheduler.page_size, scheduler.req_to_token_pool.req_to_token
        mine, others = (held(request).req_pool_idx for request in running[:2])
        at = column(running[0])
        table[mine, at : at + page] = table[others, at : at + page]

    _once(ready, mix)


def _once(ready: Any, change: Any) -> None:
    """Change something behind the first step after which two of its requests run on and are ready."""
    from sglang.srt.managers.scheduler import Scheduler

    original = Scheduler.process_batch_result
    done = []

    def process_batch_result(scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(scheduler, batch, *args, **kwargs)
        running: Sequence[Any] = [request for request in batch.reqs if not request.finished() and ready(request)]
        if len(running) > 1 and not done:
            done.append(True)
            change(scheduler, batch, running)
        return result

    Scheduler.process_batch_result = process_batch_result


def retract_often() -> None:
    """Retract a request every few steps. SGLang reads its own variables for that when it is imported."""
    from sglang.srt.managers import scheduler

    scheduler.TEST_RETRACT = True
    scheduler.TEST_RETRACT_INTERVAL = 7


def retract_while_decodes_are_clamped() -> None:
    """Retract a request every few steps, and let all decodes of all requests read a page that is not there."""
    retract_often()
    from sglang.srt.layers.attention.trtllm_mha_backend import TRTLLMHAAttnBackend

    original = TRTLLMHAAttnBackend.init_forward_metadata

    def point_past_the_end(backend: Any, forward_batch: Any) -> None:
        original(backend, forward_batch)
        if not forward_batch.forward_mode.is_decode():
            return
        metadata, page_size = backend.forward_metadata, backend.page_size
        pages_in_buffer = backend.token_to_kv_pool.swa_kv_pool.k_buffer[0].shape[0] // page_size
        last = (metadata.cache_seqlens_int32.long() - 1) // page_size
        metadata.swa_page_table.scatter_(1, last[:, None], pages_in_buffer)

    TRTLLMHAAttnBackend.init_forward_metadata = point_past_the_end  # pyright: ignore[reportAttributeAccessIssue]


def lose_what_requests_ask() -> None:
    """Run a step of requests with the custom parameter `lost` without what that names, and then give it back.

    `orchestrator`: on the copy that SGLang isolates forwards with, whose penalties are summed up, this round's bonus
    tokens counted. `sampling_info`: without any.
    """
    from sglang.srt.speculative.frozen_kv_mtp_worker import FrozenKVMTPWorker

    original = FrozenKVMTPWorker.forward_batch_generation

    def generate(worker: Any, batch: Any) -> Any:
        whole = batch.sampling_info
        lost = {(request.sampling_params.custom_params or {}).get(LOST) for request in batch.reqs}
        if not batch.forward_mode.is_decode() or lost == {None}:
            return original(worker, batch)
        (lost,) = lost
        if lost == "orchestrator":
            whole.penalizer_orchestrator.cumulate_output_tokens(batch.spec_info.bonus_tokens)
        batch.sampling_info = whole.copy_for_forward() if lost == "orchestrator" else None
        try:
            return original(worker, batch)
        finally:
            batch.sampling_info = whole

    FrozenKVMTPWorker.forward_batch_generation = generate  # pyright: ignore[reportAttributeAccessIssue]


def plant_leak() -> None:
    """Let the second request that ends free nothing of what it holds beyond the prefix cache."""
    if installed_or_base() != BASE:
        plant_leak_in_unified_cache()
        return
    from sglang.srt.mem_cache.swa_radix_cache import SWARadixCache

    original = SWARadixCache.cache_finished_req
    ended = []

    def lose_tail(cache, req, is_insert=True):
        ended.append(req.rid)
        if len(ended) != 2:
            original(cache, req, is_insert=is_insert)
            return
        allocator = cache.token_to_kv_pool_allocator
        allocator.free = lambda slots: None
        try:
            original(cache, req, is_insert=is_insert)
        finally:
            del allocator.free

    SWARadixCache.cache_finished_req = lose_tail


def plant_leak_in_unified_cache() -> None:
    """Do as `plant_leak` where a release hands the rest of a row to the cache's `free_kv_row`."""
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

    original = UnifiedRadixCache.free_kv_row
    ended = []

    def lose_tail(cache, record, ranges, *args, **kwargs):
        ended.append(record.req_pool_idx)
        if len(ended) != 2:
            original(cache, record, ranges, *args, **kwargs)

    UnifiedRadixCache.free_kv_row = lose_tail
