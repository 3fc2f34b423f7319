"""Launch small_m_linear, alone or with a gate: on CUDA one kernel without synchronisation, elsewhere torch.

The kernel is Triton's (kernel.py), or with a StreamedPlan that of streamed.cu.
"""

from __future__ import annotations

import functools

import torch

from gemma4_kernels.cuda_source import unavailable
from gemma4_kernels.launcher import KnownLaunches, Launcher, facts
from gemma4_kernels.row_arguments import DTYPES, Path, takes_kernel
from gemma4_kernels.small_m_linear import reference, streamed
from gemma4_kernels.small_m_linear.spec import MAX_ROWS, Gate, Plan, StreamedPlan
from gemma4_kernels.tickets import MOST, tickets

__all__ = ["any_plan", "small_m_geglu", "small_m_gelu_mul", "small_m_linear"]

_KNOWN = KnownLaunches()


def small_m_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    plan: Plan | StreamedPlan | None = None,
    *,
    out: torch.Tensor | None = None,
    path: Path = "auto",
    early: bool = True,
) -> torch.Tensor:
    """Return x @ weight.T.

    Args:
        x: [M, K] bf16, fp16 or fp32, M in 0..16; rows any distance apart, unit stride inside a row.
        weight: [N, K] in x's dtype, on its device; rows any distance apart, unit stride inside a row.
        plan: How the product is cut. None: `any_plan`, which is right for every size and measured for none. A
            StreamedPlan takes bf16 of a depth in blocks of 32 columns, and rows that begin at multiples of 16 bytes.
        out: [M, N] in x's dtype, new if None. It must not overlap x or weight.
        path: The kernel or torch; see `takes_kernel`.
        early: Whether it may start before the kernel ahead has ended, on a device that can. Then `weight` must not be
            what that kernel writes.

    Returns:
        [M, N] in x's dtype.

    Raises:
        ValueError: A shape, dtype, device or stride is not as above, the plan does not fit, or this device cannot run
            the path.
    """
    return _product(x, weight, plan, out, path, early, "none", None)


def small_m_geglu(
    x: torch.Tensor,
    weight: torch.Tensor,
    plan: Plan | StreamedPlan | None = None,
    *,
    out: torch.Tensor | None = None,
    path: Path = "auto",
    early: bool = True,
) -> torch.Tensor:
    """Return gelu_tanh of the first half of x @ weight.T, times the second half, in one launch.

    The product is rounded to x's dtype before it is gated: the bits are those of small_m_linear and gelu_tanh_mul.

    Args:
        x: As `small_m_linear` takes it.
        weight: [2 * N, K]: the rows of the gate, then those of its partner.
        plan: Of the whole weight, as for `small_m_linear`.
        out: [M, N] in x's dtype, new if None. It must not overlap x or weight.
        path: The kernel or torch; see `takes_kernel`.
        early: As for `small_m_linear`.

    Returns:
        [M, N] in x's dtype.

    Raises:
        ValueError: As `small_m_linear` raises it; or the weight has an odd number of rows.
    """
    return _product(x, weight, plan, out, path, early, "halves", None)


def small_m_gelu_mul(
    x: torch.Tensor,
    weight: torch.Tensor,
    factor: torch.Tensor,
    plan: Plan | StreamedPlan | None = None,
    *,
    out: torch.Tensor | None = None,
    path: Path = "auto",
    early: bool = True,
) -> torch.Tensor:
    """Return gelu_tanh(x @ weight.T) * factor, in one launch.

    The product is rounded to x's dtype before it is gated: the bits are those of small_m_linear and gelu_tanh_mul.

    Args:
        x: As `small_m_linear` takes it.
        weight: As `small_m_linear` takes it.
        factor: [M, N] in x's dtype, on its device; rows any distance apart, unit stride inside a row.
        plan: As for `small_m_linear`.
        out: [M, N] in x's dtype, new if None. It must not overlap x or weight; it may be factor.
        path: The kernel or torch; see `takes_kernel`.
        early: As for `small_m_linear`.

    Returns:
        [M, N] in x's dtype.

    Raises:
        ValueError: As `small_m_linear` raises it, of factor too.
    """
    return _product(x, weight, plan, out, path, early, "factor", factor)


def _product(
    x: torch.Tensor,
    weight: torch.Tensor,
    plan: Plan | StreamedPlan | None,
    out: torch.Tensor | None,
    path: Path,
    early: bool,
    gate: Gate,
    factor: torch.Tensor | None,
) -> torch.Tensor:
    key = None
    if out is None and path == "auto":
        key = (*facts(x, weight), *(() if factor is None else facts(factor)), plan, early, gate)
        if (known := _KNOWN.get(key)) is not None:
            made = _output(x, weight, gate)
            if known.again(_pointers(x, weight, made, factor, _plan(plan, x, made), gate)):
                return made
    refuse(x, weight)
    (rows, depth), columns = x.shape, weight.shape[0]
    if gate == "halves":
        if columns % 2:
            raise ValueError(f"weight is {list(weight.shape)}, expected an even number of rows")
        columns //= 2
    for name, tensor in (("out", out), ("factor", factor)):
        if tensor is None:
            continue
        if tensor.shape != (rows, columns) or tensor.dtype != x.dtype or tensor.device != x.device:
            have, want = f"{list(tensor.shape)} {tensor.dtype} on {tensor.device}", f"[{rows}, {columns}] {x.dtype}"
            raise ValueError(f"{name} is {have}, expected {want} on {x.device} with unit stride")
        if tensor.stride(1) != 1 and columns > 1:
            raise ValueError(f"{name} has stride {tensor.stride(1)} inside a row, expected 1")
    if out is None:
        out = _output(x, weight, gate)
    if rows == 0:
        return out
    if not takes_kernel(x, path):
        return out.copy_(_reference(x, weight, gate, factor))
    plan = _plan(plan, x, out)
    if isinstance(plan, StreamedPlan):
        launch = _stream(plan, (x, weight, out, out if factor is None else factor), gate, early)
        if key is not None:
            _KNOWN.keep(key, launch)
        return out
    tiles = _tiles(plan, columns, gate)
    refuse_plan(plan, rows, depth, tiles)
    pointers = _pointers(x, weight, out, factor, plan, gate)
    launch = _launcher().launch(
        tiles * plan.splits,
        pointers,
        tuple(tensor.stride(0) for tensor in pointers[:4]),
        (rows, columns, depth, plan.splits),
        (
            plan.block_m,
            plan.block_n,
            plan.block_k,
            plan.stages,
            plan.splits > 1,
            plan.ahead,
            depth % plan.block_k == 0,
            gate,
        ),
        num_warps=plan.num_warps,
        fuse=True,
        early=early,
    )
    if key is not None:
        _KNOWN.keep(key, launch)
    return out


def _stream(
    plan: StreamedPlan, pointers: tuple[torch.Tensor, ...], gate: Gate, early: bool
) -> streamed.StreamedLaunch | None:
    """Launch it once by streamed.cu; return what makes the same launch again on the current device."""
    x, weight, *_ = pointers
    if reason := unavailable(x.device):
        raise ValueError(f"a streamed plan cannot run here: {reason}")
    if not streamed.fits(x, weight):
        have = f"{x.dtype} {list(x.shape)} with strides {x.stride()} and {weight.stride()}"
        raise ValueError(f"a streamed plan takes bf16 rows at multiples of 16 bytes, of a depth in 32s, not {have}")
    with torch.cuda.device(x.device):
        launch = streamed.launch_of(plan, pointers, gate, early)
        launch.again(pointers)
    return launch


def _output(x: torch.Tensor, weight: torch.Tensor, gate: Gate) -> torch.Tensor:
    columns = weight.shape[0] // 2 if gate == "halves" else weight.shape[0]
    return torch.empty((x.shape[0], columns), dtype=x.dtype, device=x.device)


def _plan(given: Plan | StreamedPlan | None, x: torch.Tensor, out: torch.Tensor) -> Plan | StreamedPlan:
    return given or any_plan(x.shape[0], out.shape[1], x.shape[1])


def _tiles(plan: Plan, columns: int, gate: Gate) -> int:
    return -(-columns // (plan.block_n // 2 if gate == "halves" else plan.block_n))


def _pointers(
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    factor: torch.Tensor | None,
    plan: Plan | StreamedPlan,
    gate: Gate,
) -> tuple[torch.Tensor, ...]:
    """Return the kernel's tensors; those that it does not touch are its output."""
    partial = counters = out
    if isinstance(plan, StreamedPlan):
        return x, weight, out, out if factor is None else factor
    if plan.splits > 1:
        size = _tiles(plan, out.shape[1], gate) * plan.splits * plan.block_n * plan.block_m
        partial = torch.empty(size, dtype=torch.float32, device=x.device)
        counters = tickets(x.device)
    return x, weight, out, out if factor is None else factor, partial, counters


def _reference(x: torch.Tensor, weight: torch.Tensor, gate: Gate, factor: torch.Tensor | None) -> torch.Tensor:
    if factor is not None:
        return reference.small_m_gelu_mul(x, weight, factor)
    return reference.small_m_geglu(x, weight) if gate == "halves" else reference.small_m_linear(x, weight)


def any_plan(rows: int, columns: int, depth: int) -> Plan:
    """Return a plan that is right for every size, and measured for none."""
    block_m = 1 if rows == 1 else 8 if rows <= 8 else 16
    block_k = max(16, min(128, 1 << (depth - 1).bit_length()))
    return Plan(block_m, 16, block_k, 1, 4, 2, False)


def refuse(x: torch.Tensor, weight: torch.Tensor) -> None:
    """Raise ValueError unless these are what small_m_linear takes."""
    if x.dim() != 2 or x.shape[0] > MAX_ROWS or x.shape[1] < 1:
        raise ValueError(f"x is {list(x.shape)}, expected [0..{MAX_ROWS}, 1 or more]")
    if x.dtype not in DTYPES:
        raise ValueError(f"x is {x.dtype}, expected bfloat16, float16 or float32")
    if weight.dim() != 2 or weight.shape[0] < 1 or weight.shape[1] != x.shape[1]:
        raise ValueError(f"weight is {list(weight.shape)}, expected [1 or more, {x.shape[1]}]")
    if weight.dtype != x.dtype or weight.device != x.device:
        raise ValueError(f"weight is {weight.dtype} on {weight.device}, expected {x.dtype} on {x.device}")
    for name, tensor in (("x", x), ("weight", weight)):
        if tensor.stride(1) != 1 and tensor.shape[1] > 1:
            raise ValueError(f"{name} has stride {tensor.stride(1)} inside a row, expected 1")


def refuse_plan(plan: Plan, rows: int, depth: int, tiles: int) -> None:
    """Raise ValueError unless the plan fits a product of these sizes."""
    if rows > plan.block_m:
        raise ValueError(f"the plan holds {plan.block_m} rows, and x has {rows}")
    blocks = -(-depth // plan.block_k)
    # Every part has a block: its first weights are loaded before it is asked how many there are.
    if not 1 <= plan.splits <= blocks or (plan.splits - 1) * -(-blocks // plan.splits) >= blocks:
        raise ValueError(f"the plan shares {blocks} blocks of depth {plan.block_k} among {plan.splits} programs")
    if plan.splits > 1 and tiles > MOST:
        raise ValueError(f"the plan shares the depth of {tiles} tiles, at most {MOST} are possible")


@functools.cache
def _launcher() -> Launcher:
    # Here: the torch path, which a CPU takes, needs no Triton.
    from gemma4_kernels.small_m_linear.kernel import small_m_linear_kernel

    return Launcher(small_m_linear_kernel)
