"""Reads which part of a model this process runs; 0.5.23 asks a context where a runner knew it before."""

from __future__ import annotations

from typing import Any

from gemma4_runtime.releases import at_least, read_as

_IN_A_CONTEXT = at_least(read_as(), "0.5.23")


def tensor_parallel_rank(runner: Any) -> int:
    """Returns the rank of this process within tensor parallelism.

    Args:
        runner: A `ModelRunner`.
    """
    if not _IN_A_CONTEXT:
        return runner.tp_rank
    from gemma4_runtime.release import get_parallel

    return get_parallel().tp_rank


def pipeline_stages(scheduler: Any) -> int:
    """Returns over how many processes the layers of a model are spread.

    Args:
        scheduler: A `Scheduler`.
    """
    if not _IN_A_CONTEXT:
        return scheduler.ps.pp_size
    from gemma4_runtime.release import get_parallel

    return get_parallel().pp_size


def attention_ranks() -> int:
    """Return over how many processes the heads of an attention layer are spread."""
    if not _IN_A_CONTEXT:
        from gemma4_runtime.release import get_attention_tp_size

        return get_attention_tp_size()
    from gemma4_runtime.release import get_parallel

    return get_parallel().attn_tp_size
