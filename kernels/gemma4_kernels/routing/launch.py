"""Launch routing: on CUDA one kernel without synchronisation, elsewhere torch."""

from __future__ import annotations

import functools

import torch

from gemma4_kernels.launcher import KnownLaunches, Launcher, facts
from gemma4_kernels.rounding import Rounding
from gemma4_kernels.routing import reference
from gemma4_kernels.routing.spec import MAX_EXPERTS, MAX_TOP_K
from gemma4_kernels.row_arguments import DTYPES, Path, takes_kernel

__all__ = ["routing"]

_KNOWN = KnownLaunches()

# Tokens from which a program takes a tile of them, with a warp for each: before, one token and one warp per program
# reach more SMs.
_TILED_FROM, _TILE = 1024, 4


def routing(
    logits: torch.Tensor,
    per_expert_scale: torch.Tensor,
    top_k: int,
    *,
    rounding: Rounding = Rounding.FP32,
    path: Path = "auto",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the k experts of each token, in descending order of their logits, and their weights.

    What is done with ties, NaN and inf: see spec.py. The inputs are only read.

    Args:
        logits: [T, E] bf16, fp16 or fp32, T >= 0, E 1..256; rows any distance apart, unit stride inside a row.
        per_expert_scale: [E] floating, contiguous; with Rounding.EAGER of the logits' dtype.
        top_k: 1..16, and at most E.
        rounding: Where it rounds.
        path: Kernel or torch; `auto`: the kernel on CUDA.

    Returns:
        (weights [T, k] fp32, ids [T, k] int32), contiguous.

    Raises:
        ValueError: a shape, dtype, device or stride that is not as above, or a path that this device cannot run.
    """
    eager = rounding is Rounding.EAGER
    key = (*facts(logits, per_expert_scale), top_k, eager) if path == "auto" else None
    if key is not None and (known := _KNOWN.get(key)) is not None:
        weights, ids = _outputs(logits, top_k)
        if known.again((logits, per_expert_scale, weights, ids)):
            return weights, ids
    _refuse(logits, per_expert_scale, top_k, rounding)
    tokens, experts = logits.shape
    weights, ids = _outputs(logits, top_k)
    if tokens == 0:
        return weights, ids
    if not takes_kernel(logits, path):
        return reference.routing(logits, per_expert_scale, top_k, rounding)
    block = max(32, 1 << (max(experts, top_k) - 1).bit_length())
    tile = _TILE if tokens >= _TILED_FROM else 1
    launch = _launcher().launch(
        -(-tokens // tile),
        (logits, per_expert_scale, weights, ids),
        (logits.stride(0),),
        (tokens,),
        (experts, top_k, block, tile, eager),
        num_warps=tile,
        fuse=not eager,
        early=tile == 1,
    )
    if key is not None:
        _KNOWN.keep(key, launch)
    return weights, ids


def _outputs(logits: torch.Tensor, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    shape, device = (logits.shape[0], top_k), logits.device
    return torch.empty(shape, dtype=torch.float32, device=device), torch.empty(shape, dtype=torch.int32, device=device)


def _refuse(logits: torch.Tensor, scale: torch.Tensor, top_k: int, rounding: Rounding) -> None:
    if logits.dim() != 2 or not 1 <= logits.shape[1] <= MAX_EXPERTS or logits.dtype not in DTYPES:
        what = f"{list(logits.shape)} {logits.dtype}"
        raise ValueError(f"logits is {what}, expected [tokens, 1..{MAX_EXPERTS}] bfloat16, float16 or float32")
    experts = logits.shape[1]
    if logits.stride(1) != 1 and experts > 1:
        raise ValueError(f"logits has stride {logits.stride(1)} inside a row, expected 1")
    if scale.shape != (experts,) or scale.device != logits.device or (scale.stride(0) != 1 and experts > 1):
        what = f"{list(scale.shape)} on {scale.device}"
        raise ValueError(f"per_expert_scale is {what}, expected contiguous [{experts}] on {logits.device}")
    if scale.dtype not in DTYPES or (rounding is Rounding.EAGER and scale.dtype != logits.dtype):
        raise ValueError(f"per_expert_scale is {scale.dtype} beside logits of {logits.dtype}")
    if not 1 <= top_k <= min(MAX_TOP_K, experts):
        raise ValueError(f"top_k is {top_k}, expected 1..{min(MAX_TOP_K, experts)}")


@functools.cache
def _launcher() -> Launcher:
    # Here: the torch path, which a CPU takes, needs no Triton.
    from gemma4_kernels.routing.kernel import routing_kernel

    return Launcher(routing_kernel)
