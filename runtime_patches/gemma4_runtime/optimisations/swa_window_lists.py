"""The slots that sliding layers of Triton attention read, listed in one launch and without the host waiting.

`update_sliding_window_buffer` cuts lengths to the window, sums them, gathers slots and translates them to the sliding
layers' pool: nine launches, and two waits, because the number of slots is a value on the device that Python slices by.
It runs before each eager forward and each replay of a decode, a target verify or a draft. With overlap scheduling the
device still computes the step before, so the host cannot run ahead of it, and what it does next is idle time there.
Still so in 0.5.14; SGLang 38137 measures the idle time on Gemma-4 E2B. What the wait did keep in order without being
meant to is kept by schedule_stream.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gemma4_kernels.window_lists.launch import window_lists
from gemma4_runtime.fusion.eligible import on_host_engine
from gemma4_runtime.fusion.paths import PATHS
from gemma4_runtime.optimisations.schedule_stream import scheduler_comes_later
from gemma4_runtime.release import SWAKVPool

OP = "swa-window-lists"
_OURS = SWAKVPool.translate_loc_from_full_to_swa


def around_window_buffer(
    original: Callable[..., Any],
    window_kv_indptr: torch.Tensor,
    req_to_token: torch.Tensor,
    sliding_window_size: int,
    seq_lens: torch.Tensor,
    req_pool_indices: torch.Tensor,
    bs: int,
    device: Any = None,
    token_to_kv_pool: Any = None,
    window_kv_indices: torch.Tensor | None = None,
) -> Any:
    """Run around `update_sliding_window_buffer`: (starts [bs + 1], slots, kept [bs], first token listed [bs]).

    A list that is not given has room for bs whole windows, where SGLang's has no slot too many.
    """
    reason = _reason(seq_lens, bs, token_to_kv_pool)
    found = None
    if reason is None:
        try:
            found = window_lists(
                req_to_token,
                req_pool_indices,
                seq_lens,
                sliding_window_size,
                getattr(token_to_kv_pool, "full_to_swa_index_mapping", None),
                window_kv_indptr,
                window_kv_indices,
            )
        except ValueError:
            # It looks at its arguments before it writes anything.
            reason = "tensors that the kernel does not take"
    if reason is None:
        PATHS.ran(OP, req_to_token)
    else:
        PATHS.took(OP, reason)
    if found is None:
        return original(
            window_kv_indptr,
            req_to_token,
            sliding_window_size,
            seq_lens,
            req_pool_indices,
            bs,
            device,
            token_to_kv_pool,
            window_kv_indices,
        )
    scheduler_comes_later()
    slots, kept, first = found
    return window_kv_indptr[: bs + 1], slots, kept, first


def _reason(lengths: Any, requests: int, pool: Any) -> str | None:
    """Say why SGLang's own lines have to run; None if there is no reason."""
    if torch.version.hip is not None or not (lengths.is_cuda or on_host_engine()):
        return f"lengths on {'ROCm' if lengths.is_cuda else lengths.device.type}"
    if lengths.shape[0] != requests:
        return "other lengths than those of the batch"
    translates = hasattr(pool, "translate_loc_from_full_to_swa")
    # Another pool may translate otherwise.
    ours = getattr(type(pool), "translate_loc_from_full_to_swa", None) is _OURS
    has_mapping = getattr(pool, "full_to_swa_index_mapping", None) is not None
    if translates != has_mapping or (translates and not ours):
        return f"a {type(pool).__name__} that translates in its own way"
    return None
