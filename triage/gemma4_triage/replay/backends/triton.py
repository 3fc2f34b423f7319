"""SGLang's own Triton decode kernel; without CUDA under Triton's interpreter, which has no bfloat16 arithmetic."""

from __future__ import annotations

import os

import numpy as np
import torch

if not torch.cuda.is_available():
    # Read by Triton and SGLang when they are imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")

from gemma4_triage.replay.backends.contract import Attention
from gemma4_triage.replay.backends.cuda_call import to_device, to_host
from gemma4_triage.replay.exchange import BackendCall

_SPLITS = 8


def prepare(call: BackendCall) -> Attention:
    try:
        from sglang.srt.layers.attention.triton_ops.decode_attention import (  # pyright: ignore[reportMissingImports]
            decode_attention_fwd,
        )
    except ModuleNotFoundError:
        # Where SGLang 0.5.17 and later have it.
        from sglang.kernels.ops.attention.decode_attention import (  # pyright: ignore[reportMissingImports]
            decode_attention_fwd,
        )

    on_gpu = torch.cuda.is_available()
    here = to_device(call, "cuda" if on_gpu else "cpu", None if on_gpu else "float32")
    rows, heads, dim = here.queries.shape
    # The interpreter pays for each program.
    splits = _SPLITS if on_gpu else 1
    device = here.keys.device

    def run(variant: str) -> np.ndarray:
        indptr, indices = here.lists(call.slots(variant))
        out = torch.empty_like(here.queries)
        decode_attention_fwd(
            here.queries,
            here.keys.flatten(0, 1),
            here.values.flatten(0, 1),
            out,
            indptr,
            indices.to(torch.int64),
            torch.zeros(rows, heads, splits, dim, dtype=torch.float32, device=device),
            torch.zeros(rows, heads, splits, dtype=torch.float32, device=device),
            torch.full((rows,), splits, dtype=torch.int32, device=device),
            splits,
            call.scale,
            1.0,
            1.0,
        )
        return to_host(out)

    name = torch.cuda.get_device_name() if on_gpu else "cpu, Triton's interpreter"
    return Attention(run, name, here.dtype)
