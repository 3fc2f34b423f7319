"""Launch qk_norm_rope: on CUDA one kernel without synchronisation, elsewhere torch."""

from __future__ import annotations

import functools

import torch

from gemma4_kernels.launcher import KnownLaunches, Launcher, facts
from gemma4_kernels.qk_norm_rope import reference
from gemma4_kernels.qk_norm_rope.reference import Roped
from gemma4_kernels.qk_norm_rope.spec import MAX_HEAD_DIM
from gemma4_kernels.rounding import Rounding
from gemma4_kernels.row_arguments import DTYPES, Path, new_like, output_like, takes_kernel
from gemma4_kernels.row_plan import plan_tiles

__all__ = ["Roped", "qk_norm_rope"]

_MAX_HEADS = 2**31 - 1
_KNOWN = KnownLaunches()
# Elements of a tile: 16 for each thread of 4 warps.
_TILE = 2048


def qk_norm_rope(
    q: torch.Tensor,
    k: torch.Tensor | None,
    v: torch.Tensor | None,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor | None,
    cos_sin_cache: torch.Tensor,
    positions: torch.Tensor,
    eps: float = 1e-6,
    *,
    rounding: Rounding = Rounding.FP32,
    out: tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None] | None = None,
    path: Path = "auto",
) -> Roped:
    """Return rope(rms(q) * q_weight), rope(rms(k) * k_weight) and rms(v), head by head.

    Args:
        q: [T, heads * D] bf16, fp16 or fp32, T >= 0; rows any distance apart, unit stride inside a row, so that a slice
            of the projection's output will do. D is a power of two, 2..1024.
        k: [T, KV heads * D], as q; None in a layer that reads another layer's.
        v: as k; None if k is.
        q_weight: [D] bf16, fp16 or fp32, contiguous.
        k_weight: as q_weight; not read without k, and may be None.
        cos_sin_cache: [P, D] bf16, fp16 or fp32, contiguous: for each position D/2 cosines, then D/2 sines.
        positions: [T] int32 or int64, contiguous, each 0..P-1. Not checked, which would take a synchronisation.
        eps: of the norms.
        rounding: where values are rounded, see Rounding.
        path: which implementation to run; "auto" for the one that this device takes.
        out: as q, k and v; new and contiguous if None. Each may be its own input; any other overlap is undefined.

    Returns:
        (q, k, v), in q's dtype; k and v are None without k and v.

    Raises:
        ValueError: a shape, dtype, device or stride that is not as above, or a path that this device cannot run.
    """
    eager = rounding is Rounding.EAGER
    key = None
    if out is None and path == "auto":
        # What the kernel was compiled not to touch is some tensor of the right dtype.
        if k is None or v is None or k_weight is None:
            rows = [q if given is None else given for given in (q, k, v)]
            inputs = *rows, q_weight, q_weight if k_weight is None else k_weight, positions, cos_sin_cache
        else:
            inputs = q, k, v, q_weight, k_weight, positions, cos_sin_cache
        key = (*facts(*inputs), k is None, v is None, k_weight is None, eps, type(eps), eager)
        if (known := _KNOWN.get(key)) is not None:
            first = new_like(q)
            if k is None or v is None:
                out, results = Roped(first, None, None), (first, first, first)
            else:
                results = first, new_like(k), new_like(v)
                out = Roped(*results)
            if known.again((*inputs, *results)):
                return out
    tokens, head_dim = _refuse(q, k, v, q_weight, k_weight, cos_sin_cache, positions)
    outputs = _outputs(q, k, v, out)
    if tokens == 0:
        return outputs
    if not takes_kernel(q, path):
        made = reference.qk_norm_rope(q, k, v, q_weight, k_weight, cos_sin_cache, positions, eps, rounding)
        for output, result in zip(outputs, made, strict=True):
            if output is not None and result is not None:
                output.copy_(result)
        return outputs
    q_heads, kv_heads = q.shape[1] // head_dim, 0 if k is None else k.shape[1] // head_dim
    tile, num_warps = _plan(tokens, q_heads, kv_heads, head_dim)
    tiles = -(-q_heads // tile) + 2 * -(-kv_heads // tile)
    rows = [q if given is None else given for given in (q, k, v)]
    results = [outputs.q if output is None else output for output in outputs]
    launch = _launcher().launch(
        tokens * tiles,
        (*rows, q_weight, q_weight if k_weight is None else k_weight, positions, cos_sin_cache, *results),
        (*(tensor.stride(0) for tensor in rows), *(tensor.stride(0) for tensor in results)),
        (eps,),
        (q_heads, kv_heads, head_dim // 2, tile, eager),
        num_warps=num_warps,
        fuse=not eager,
        early=tile == 1,
    )
    if key is not None:
        _KNOWN.keep(key, launch)
    return outputs


def _plan(tokens: int, q_heads: int, kv_heads: int, head_dim: int) -> tuple[int, int]:
    """Return (heads per program, warps).

    It is one head and a warp while heads are few, as `plan_tiles` has it; then tiles, in which the heads of a token
    share their sines and cosines.
    """
    plan = plan_tiles(head_dim, tokens * (q_heads + 2 * kv_heads), _TILE)
    tile = min(plan.tile, 1 << (q_heads - 1).bit_length())
    # No more threads than pairs: two threads with one element would make an output that is an input a race.
    return tile, max(1, min(plan.num_warps, tile * head_dim // 64))


def _outputs(
    q: torch.Tensor,
    k: torch.Tensor | None,
    v: torch.Tensor | None,
    out: tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None] | None,
) -> Roped:
    if out is not None and len(out) != 3:
        raise ValueError(f"out has {len(out)} tensors, expected q, k, v")
    outputs = Roped(
        output_like("q's output", out and out[0], q),
        None if k is None else output_like("k's output", out and out[1], k),
        None if v is None else output_like("v's output", out and out[2], v),
    )
    places = [output.data_ptr() for output in outputs if output is not None]
    if q.shape[0] and len(set(places)) < len(places):
        raise ValueError("the outputs share memory")
    return outputs


def _refuse(
    q: torch.Tensor,
    k: torch.Tensor | None,
    v: torch.Tensor | None,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor | None,
    cos_sin_cache: torch.Tensor,
    positions: torch.Tensor,
) -> tuple[int, int]:
    """(T, D)."""
    if q_weight.dim() != 1 or not 2 <= (head_dim := q_weight.shape[0]) <= MAX_HEAD_DIM or head_dim & (head_dim - 1):
        raise ValueError(f"q_weight is {list(q_weight.shape)}, expected [D], D a power of two, 2..{MAX_HEAD_DIM}")
    if q.dtype not in DTYPES:
        raise ValueError(f"q is {q.dtype}, expected bfloat16, float16 or float32")
    if (k is None) != (v is None):
        raise ValueError("one of k and v is None, expected both or neither")
    for name, rows in (("q", q), ("k", k), ("v", v)):
        if rows is not None:
            _refuse_heads(name, rows, head_dim, q)
    if k is not None and v is not None:
        if k.shape != v.shape:
            raise ValueError(f"v is {list(v.shape)}, expected k's {list(k.shape)}")
        if k_weight is None:
            raise ValueError("k_weight is None, expected one for k")
    if k_weight is not None and k_weight.dtype != q_weight.dtype:
        raise ValueError(f"k_weight is {k_weight.dtype}, expected q_weight's {q_weight.dtype}")
    for name, weight in (("q_weight", q_weight), ("k_weight", k_weight)):
        if weight is not None:
            _refuse_table(name, weight, (head_dim,), q)
    rows = cos_sin_cache.shape[0] if cos_sin_cache.dim() else 0
    _refuse_table("cos_sin_cache", cos_sin_cache, (rows, head_dim), q)
    tokens = q.shape[0]
    if tokens and not rows:
        raise ValueError(f"cos_sin_cache has no positions for {tokens} tokens")
    if positions.shape != (tokens,) or positions.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"positions is {list(positions.shape)} {positions.dtype}, expected [{tokens}] int32 or int64")
    if positions.device != q.device or not positions.is_contiguous():
        where = f"on {positions.device} with stride {positions.stride(0)}"
        raise ValueError(f"positions is {where}, expected contiguous on {q.device}")
    if tokens * sum(0 if one is None else one.shape[1] // head_dim for one in (q, k, v)) > _MAX_HEADS:
        raise ValueError(f"q is {list(q.shape)}: expected fewer than 2^31 heads of all tokens")
    return tokens, head_dim


def _refuse_heads(name: str, rows: torch.Tensor, head_dim: int, first: torch.Tensor) -> None:
    if rows.dim() != 2 or rows.shape[1] < head_dim or rows.shape[1] % head_dim or rows.shape[0] != first.shape[0]:
        raise ValueError(f"{name} is {list(rows.shape)}, expected [{first.shape[0]}, heads * {head_dim}]")
    if rows.dtype != first.dtype or rows.device != first.device:
        what = f"{rows.dtype} on {rows.device}"
        raise ValueError(f"{name} is {what}, expected {first.dtype} on {first.device}")
    if rows.stride(1) != 1:
        raise ValueError(f"{name} has stride {rows.stride(1)} inside a row, expected 1")


def _refuse_table(name: str, table: torch.Tensor, shape: tuple[int, ...], first: torch.Tensor) -> None:
    if table.shape != shape or table.dtype not in DTYPES or table.device != first.device:
        what = f"{list(table.shape)} {table.dtype} on {table.device}"
        raise ValueError(f"{name} is {what}, expected floating {list(shape)} on {first.device}")
    if not table.is_contiguous():
        raise ValueError(f"{name} has strides {list(table.stride())}, expected contiguous")


@functools.cache
def _launcher() -> Launcher:
    # Here: the torch path, which a CPU takes, needs no Triton.
    from gemma4_kernels.qk_norm_rope.kernel import qk_norm_rope_kernel

    return Launcher(qk_norm_rope_kernel)
