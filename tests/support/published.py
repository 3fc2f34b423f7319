"""Server arguments and ranks for SGLang's own objects in this process, where the installed release looks for them."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from gemma4_runtime.releases import at_least, installed_or_base

IN_A_CONTEXT = at_least(installed_or_base(), "0.5.23")
"""Whether arguments and ranks are published to the process, not read from the runner and from functions."""


def in_capture_mode() -> Any:
    """Return SGLang's own context manager that tells its parts that a CUDA graph is being captured."""
    if IN_A_CONTEXT:
        from sglang.srt.model_executor.runner_utils.capture_mode import model_capture_mode
    else:
        from sglang.srt.model_executor.cuda_graph_runner import model_capture_mode
    return model_capture_mode()


@contextmanager
def published(arguments: SimpleNamespace) -> Iterator[None]:
    """Publish the arguments that the release knows for one rank; nothing where a runner's own are read."""
    if not IN_A_CONTEXT:
        yield
        return
    from sglang.srt.runtime_context import get_context, get_parallel
    from sglang.srt.server_args import ServerArgs

    known = {name: value for name, value in vars(arguments).items() if name in ServerArgs.__struct_fields__}
    with get_context().override_server_args(device="cpu", **known), get_parallel().override(tp_rank=0, attn_dcp_rank=0):
        yield


@contextmanager
def process_of_one_rank(arguments: Any) -> Iterator[None]:
    """Make resolved arguments those of this process, its first rank's; as before at the end.

    Args:
        arguments: SGLang's ServerArgs.
    """
    if not IN_A_CONTEXT:
        from sglang.srt import server_args

        before = server_args._global_server_args
        server_args.set_global_server_args_for_scheduler(arguments)
        try:
            yield
        finally:
            server_args._global_server_args = before
        return
    from sglang.srt import runtime_context

    before = runtime_context.snapshot_context()
    runtime_context.publish(arguments, role="scheduler", ranks=runtime_context.SpawnRanks(world_rank=0))
    try:
        yield
    finally:
        runtime_context.restore_context(before)


def translator_of(runner: Any) -> Any:
    """Return what turns rows into the slots that a backend reads, made for a runner of pools that need none of it."""
    from sglang.srt.mem_cache.kv_index_translator import KVIndexTranslator

    return KVIndexTranslator(
        req_to_token=runner.req_to_token_pool.req_to_token,
        token_to_kv_pool_allocator=runner.token_to_kv_pool_allocator,
        token_to_kv_pool=runner.token_to_kv_pool,
        page_size=runner.page_size,
        device=runner.device,
    )


def bind(backend: Any, forward_batch: Any) -> Any:
    """Return the batch with the plan of its slots, as ForwardBatch.init_new makes it; as it is where there is none."""
    if IN_A_CONTEXT:
        backend.kv_index_translator.own_plan(forward_batch).bind(forward_batch, backend.kv_index_translator)
    return forward_batch
