"""Launch capped_logits: on CUDA one kernel without synchronisation, elsewhere torch."""

from __future__ import annotations

import functools

import torch

from gemma4_kernels.capped_logits import reference
from gemma4_kernels.capped_logits.spec import BLOCK
from gemma4_kernels.launcher import KnownLaunches, Launcher, facts
from gemma4_kernels.row_arguments import Path, takes_kernel

__all__ = ["capped_logits"]

_KNOWN = KnownLaunches()


def capped_logits(
    logits: torch.Tensor, cap: float, *, out: torch.Tensor | None = None, path: Path = "auto"
) -> torch.Tensor:
    """Return cap * tanh(logits / cap) in fp32.

    Args:
        logits: [T, V] bf16 or fp16, T >= 0; rows any distance apart, unit stride inside a row.
        cap: above 0.
        out: [T, V] fp32, rows likewise, that do not overlap; new if None.
        path: which implementation to run; "auto" for the one that this device takes.

    Returns:
        out.

    Raises:
        ValueError: a shape, dtype, device or stride that is not as above, or a path that this device cannot run.
    """
    key = None
    if out is None and path == "auto":
        key = (*facts(logits), cap)
        if (known := _KNOWN.get(key)) is not None:
            out = logits.new_empty(logits.shape, dtype=torch.float32)
            if known.again((logits, out)):
                return out
    _refuse(logits, cap)
    if out is None:
        out = logits.new_empty(logits.shape, dtype=torch.float32)
    else:
        _refuse_out(out, logits)
    rows, width = logits.shape
    if rows == 0:
        return out
    if not takes_kernel(logits, path):
        return out.copy_(reference.capped_logits(logits, cap))
    launch = _launcher().launch(
        rows * -(-width // BLOCK),
        (logits, out),
        (logits.stride(0), out.stride(0)),
        (float(cap),),
        (width, BLOCK),
        num_warps=4,
        # SGLang's kernel is compiled so.
        fuse=True,
        early=True,
    )
    if key is not None:
        _KNOWN.keep(key, launch)
    return out


def _refuse(logits: torch.Tensor, cap: float) -> None:
    if logits.dim() != 2 or logits.shape[1] == 0 or logits.dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(f"logits is {list(logits.shape)} {logits.dtype}, expected [T, V] bfloat16 or float16")
    if logits.stride(1) != 1 and logits.shape[1] > 1:
        raise ValueError(f"logits has stride {logits.stride(1)} inside a row, expected 1")
    if not cap > 0:
        raise ValueError(f"cap is {cap}, expected above 0")


def _refuse_out(out: torch.Tensor, logits: torch.Tensor) -> None:
    if out.shape != logits.shape or out.dtype != torch.float32 or out.device != logits.device:
        have = f"{list(out.shape)} {out.dtype} on {out.device}"
        raise ValueError(f"out is {have}, expected {list(logits.shape)} torch.float32 on {logits.device}")
    if (out.stride(1) != 1 and out.shape[1] > 1) or (out.shape[0] > 1 and out.stride(0) < out.shape[1]):
        raise ValueError(f"out has the strides {out.stride()}, expected rows of unit stride that do not overlap")


@functools.cache
def _launcher() -> Launcher:
    # Here: the torch path, which a CPU takes, needs no Triton.
    from gemma4_kernels.capped_logits.kernel import capped_logits_kernel

    return Launcher(capped_logits_kernel)
