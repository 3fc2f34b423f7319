"""What the row ops ask of their arguments. Cheap: these run before every launch of an eager step."""

from __future__ import annotations

from typing import Literal

import torch

from gemma4_kernels.row_plan import MAX_WIDTH

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
Path = Literal["auto", "kernel", "torch"]


def refuse_rows(name: str, rows: torch.Tensor) -> None:
    """Raises ValueError unless `rows` is [T, 1..MAX_WIDTH] bf16, fp16 or fp32 with unit stride inside a row."""
    if rows.dim() != 2 or not 1 <= rows.shape[1] <= MAX_WIDTH:
        raise ValueError(f"{name} is {list(rows.shape)}, expected [rows, 1..{MAX_WIDTH}]")
    if rows.dtype not in DTYPES:
        raise ValueError(f"{name} is {rows.dtype}, expected bfloat16, float16 or float32")
    _refuse_stride(name, rows)


def refuse_unlike(name: str, rows: torch.Tensor, first: torch.Tensor) -> None:
    """Raises ValueError unless `rows` has the shape, dtype and device of `first`, and unit stride inside a row."""
    if rows.shape != first.shape or rows.dtype != first.dtype or rows.device != first.device:
        have, want = (f"{list(t.shape)} {t.dtype} on {t.device}" for t in (rows, first))
        raise ValueError(f"{name} is {have}, expected {want}")
    _refuse_stride(name, rows)


def refuse_weight(name: str, weight: torch.Tensor, first: torch.Tensor) -> None:
    """Raises ValueError unless `weight` is [width], floating and contiguous, on the rows' device."""
    if weight.shape != first.shape[1:] or weight.device != first.device:
        have = f"{list(weight.shape)} on {weight.device}"
        raise ValueError(f"{name} is {have}, expected [{first.shape[1]}] on {first.device}")
    if weight.dtype not in DTYPES:
        raise ValueError(f"{name} is {weight.dtype}, expected bfloat16, float16 or float32")
    if weight.stride(0) != 1 and weight.shape[0] > 1:
        raise ValueError(f"{name} has stride {weight.stride(0)}, expected contiguous")


def refuse_scalar(name: str, scalar: torch.Tensor, first: torch.Tensor) -> None:
    """Raises ValueError unless `scalar` has one floating element, on the rows' device."""
    if scalar.numel() != 1 or scalar.dtype not in DTYPES or scalar.device != first.device:
        have = f"{list(scalar.shape)} {scalar.dtype} on {scalar.device}"
        raise ValueError(f"{name} is {have}, expected one floating element on {first.device}")


def new_like(first: torch.Tensor) -> torch.Tensor:
    """Return a new contiguous tensor of the same shape, dtype and device: several times as fast as naming them."""
    return torch.empty_like(first, memory_format=torch.contiguous_format)


def output_like(name: str, out: torch.Tensor | None, first: torch.Tensor) -> torch.Tensor:
    """`out`, or a new contiguous tensor like `first`. Raises ValueError if `out` does not fit, or its rows overlap."""
    if out is None:
        return new_like(first)
    refuse_unlike(name, out, first)
    if out.shape[0] > 1 and out.stride(0) < out.shape[1]:
        raise ValueError(f"{name} has rows {out.stride(0)} elements apart, so that its rows overlap")
    return out


def outputs_like(
    names: tuple[str, ...], out: tuple[torch.Tensor, ...] | None, first: torch.Tensor
) -> list[torch.Tensor]:
    """`output_like` of each. Raises ValueError if there are not as many as names, or two are one tensor."""
    given: tuple[torch.Tensor | None, ...] = (None,) * len(names) if out is None else out
    if len(given) != len(names):
        raise ValueError(f"out has {len(given)} tensors, expected {', '.join(names)}")
    outputs = [output_like(name, tensor, first) for name, tensor in zip(names, given, strict=True)]
    if first.shape[0] and len({output.data_ptr() for output in outputs}) < len(outputs):
        raise ValueError(f"{', '.join(names)} share memory")
    return outputs


def takes_kernel(first: torch.Tensor, path: Path) -> bool:
    """Kernel or torch: "auto" takes the kernel on CUDA and torch elsewhere.

    Raises:
        ValueError: an unknown path, or "kernel" without CUDA and without TRITON_INTERPRET=1.
    """
    if path == "auto":
        return first.is_cuda
    if path not in ("kernel", "torch"):
        raise ValueError(f"path is {path!r}, expected 'auto', 'kernel' or 'torch'")
    if path == "kernel" and not first.is_cuda:
        # Here, not above: the torch path, which a CPU takes, needs no Triton.
        from triton import knobs

        if not knobs.runtime.interpret:
            raise ValueError("the kernel needs CUDA tensors, or TRITON_INTERPRET=1 set before Triton is imported")
    return path == "kernel"


def _refuse_stride(name: str, rows: torch.Tensor) -> None:
    if rows.stride(1) != 1 and rows.shape[1] > 1:
        raise ValueError(f"{name} has stride {rows.stride(1)} inside a row, expected 1")
