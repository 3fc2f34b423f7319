"""What a child's `before` changes in SGLang's engine, so that it goes wrong where a test wants it to."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gemma4_runtime.release.requests import held
from lifecycle_child import retract_often

AT_STEP = 6
FAR_AWAY = 1 << 20


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
    _mix_rows(lambda request: len(request.output_ids) >= 4, lambda request: held(request).cache_protected_len)


def take_cached_page() -> None:
    """Give a row the first page of another, which the prefix cache holds, before the row was looked at with it."""
    _mix_rows(lambda request: held(request).cache_protected_len > 0, lambda request: 0)


def _mix_rows(ready: Any, column: Any) -> None:
    """Give one request's row a page of another, all of it in range, as stale or torn writes would."""
    from sglang.srt.managers.scheduler import Scheduler

    original = Scheduler.process_batch_result
    done = []

    def process_batch_result(scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(scheduler, batch, *args, **kwargs)
        running: Sequence[Any] = [request for request in batch.reqs if not request.finished() and ready(request)]
        if len(running) > 1 and not done:
            done.append(True)
            page, table = scheduler.page_size, scheduler.req_to_token_pool.req_to_token
            mine, others = (held(request).req_pool_idx for request in running[:2])
            at = column(running[0])
            table[mine, at : at + page] = table[others, at : at + page]
        return result

    Scheduler.process_batch_result = process_batch_result


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
