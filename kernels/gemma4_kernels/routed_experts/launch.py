"""Launch routed_experts: on CUDA two kernels without synchronisation, elsewhere torch."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from gemma4_kernels.launcher import KnownLaunch, KnownLaunches, Launcher, TwoLaunches, facts
from gemma4_kernels.routed_experts import reference
from gemma4_kernels.routed_experts.spec import ANY_PLAN, MAX_PAIRS, MAX_ROWS, Plan
from gemma4_kernels.row_arguments import DTYPES, Path, takes_kernel
from gemma4_kernels.tickets import MOST, tickets

__all__ = ["routed_experts"]

_KNOWN = KnownLaunches()
GATE_POINTERS = 7
"""Tensors of the first launch; the others that pointers_of returns are the second one's."""


def routed_experts(
    x: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    shares: torch.Tensor,
    ids: torch.Tensor,
    plan: Plan | None = None,
    *,
    path: Path = "auto",
    early: bool = True,
) -> torch.Tensor:
    """Return the sum of each row's experts: share * ((gelu(gate) * up) @ down.T). See spec.py.

    Args:
        x: [M, H] bf16, fp16 or fp32, M in 0..8; rows any distance apart, unit stride inside a row.
        gate_up: [E, 2 * W, H] in x's dtype, on its device: an expert's gate, then its up. Experts and rows any distance
            apart, unit stride inside a row.
        down: [E, H, W], likewise.
        shares: [M, k] fp32, contiguous, M * k at most 64.
        ids: [M, k] int32, contiguous; those of a row differ from each other.
        plan: How the work is cut; None: one that is right for every size and measured for none.
        path: The kernels or torch; see `takes_kernel`.
        early: Whether they may start before the kernel ahead has ended, on a device that can.

    Returns:
        [M, H] in x's dtype.

    Raises:
        ValueError: A shape, dtype, device or stride is not as above, the plan does not fit, or this device cannot run
            the path.
    """
    plan = plan or ANY_PLAN
    key = (*facts(x, gate_up, down, shares, ids), plan, early) if path == "auto" else None
    if key is not None and (known := _KNOWN.get(key)) is not None:
        out, pointers = pointers_of(x, gate_up, down, shares, ids, plan)
        if known.again(pointers):
            return out
    refuse(x, gate_up, down, shares, ids)
    (rows, hidden), top_k, width = x.shape, ids.shape[1], down.shape[2]
    if rows == 0:
        return torch.empty_like(x)
    if not takes_kernel(x, path):
        return reference.routed_experts(x, gate_up, down, shares, ids)
    refuse_plan(plan, hidden, width)
    out, pointers = pointers_of(x, gate_up, down, shares, ids, plan)
    first, second = pointers[:GATE_POINTERS], pointers[GATE_POINTERS:]
    pairs, most = rows * top_k, power_of_two(rows * top_k)
    gate = _launchers()[0].launch(
        pairs * -(-width // (plan.gate_n // 2)),
        first,
        (x.stride(0), *gate_up.stride()[:2], first[2].stride(0)),
        (pairs, gate_up.shape[0], width, hidden),
        (
            *(top_k, power_of_two(top_k), most),
            *(plan.block_m, plan.gate_n, plan.gate_k, plan.gate_stages),
            hidden % plan.gate_k == 0,
        ),
        num_warps=plan.gate_warps,
        fuse=True,
        early=early,
    )
    last = launch_down(second, top_k, plan, early)
    if key is not None and gate is not None and last is not None:
        _KNOWN.keep(key, TwoLaunches(gate, last, GATE_POINTERS))
    return out


def launch_down(pointers: Sequence[torch.Tensor], top_k: int, plan: Plan, early: bool) -> KnownLaunch | None:
    """Launch the second kernel once, on its tensors of pointers_of; return what makes the same launch again."""
    gated, down, out = pointers[:3]
    (rows, hidden), width = out.shape, down.shape[2]
    each = rows if plan.block_m == 1 else 1
    return _launchers()[1].launch(
        each * -(-hidden // plan.down_n) * plan.down_splits,
        pointers,
        (gated.stride(0), *down.stride()[:2], out.stride(0)),
        (rows, down.shape[0], hidden, width, plan.down_splits),
        (
            *(top_k, power_of_two(rows * top_k)),
            *(plan.block_m, plan.down_n, plan.down_k, plan.down_stages, plan.down_splits > 1),
            width % plan.down_k == 0,
        ),
        num_warps=plan.down_warps,
        fuse=True,
        early=early,
    )


def pointers_of(
    x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, shares: torch.Tensor, ids: torch.Tensor, plan: Plan
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """Return a new output, and the tensors of both launches; those that a kernel does not touch are others of its."""
    (rows, hidden), pairs, width, device = x.shape, ids.numel(), down.shape[2], x.device
    out = torch.empty((rows, hidden), dtype=x.dtype, device=device)
    gated = torch.empty((pairs, width), dtype=x.dtype, device=device)
    order, order_shares, partial, counters = ids, shares, shares, ids
    if plan.block_m > 1:
        most = power_of_two(pairs)
        order = torch.empty(1 + most * (1 + plan.block_m), dtype=torch.int32, device=device)
        order_shares = torch.empty(most * plan.block_m, dtype=torch.float32, device=device)
    if plan.down_splits > 1:
        cells = (rows if plan.block_m == 1 else 1) * -(-hidden // plan.down_n)
        size = cells * plan.down_splits * plan.down_n * plan.block_m
        partial, counters = torch.empty(size, dtype=torch.float32, device=device), tickets(device)
    first = x, gate_up, gated, ids, shares, order, order_shares
    return out, (*first, gated, down, out, ids, shares, order, order_shares, partial, counters)


def power_of_two(number: int) -> int:
    """Return the next one that is not below the number."""
    return 1 << (number - 1).bit_length()


def refuse(x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, shares: torch.Tensor, ids: torch.Tensor) -> None:
    """Raise ValueError unless these are what routed_experts takes."""
    refuse_weights(x, gate_up, down)
    rows = x.shape[0]
    if ids.dim() != 2 or ids.shape[0] != rows or not ids.shape[1] or ids.numel() > MAX_PAIRS:
        raise ValueError(f"ids is {list(ids.shape)}, expected [{rows}, k] of at most {MAX_PAIRS} elements")
    for name, tensor, dtype in (("ids", ids, torch.int32), ("shares", shares, torch.float32)):
        if tensor.shape != ids.shape or tensor.dtype != dtype or tensor.device != x.device:
            have = f"{list(tensor.shape)} {tensor.dtype} on {tensor.device}"
            raise ValueError(f"{name} is {have}, expected {list(ids.shape)} {dtype} on {x.device}")
        if not tensor.is_contiguous():
            raise ValueError(f"{name} has strides {tensor.stride()}, expected contiguous")


def refuse_weights(x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor) -> None:
    """Raise ValueError unless these rows and weights are what routed_experts takes."""
    if x.dim() != 2 or x.shape[0] > MAX_ROWS or not x.shape[1] or x.dtype not in DTYPES:
        have = f"{list(x.shape)} {x.dtype}"
        raise ValueError(f"x is {have}, expected [0..{MAX_ROWS}, hidden] bfloat16, float16 or float32")
    hidden = x.shape[1]
    if down.dim() != 3 or down.shape[1] != hidden or not down.shape[0] or not down.shape[2]:
        raise ValueError(f"down is {list(down.shape)}, expected [experts, {hidden}, width]")
    wanted = down.shape[0], 2 * down.shape[2], hidden
    if gate_up.shape != wanted:
        raise ValueError(f"gate_up is {list(gate_up.shape)}, expected {list(wanted)}")
    for name, tensor in (("gate_up", gate_up), ("down", down)):
        if tensor.dtype != x.dtype or tensor.device != x.device:
            raise ValueError(f"{name} is {tensor.dtype} on {tensor.device}, expected {x.dtype} on {x.device}")
    for name, tensor in (("x", x), ("gate_up", gate_up), ("down", down)):
        if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
            raise ValueError(f"{name} has stride {tensor.stride(-1)} inside a row, expected 1")


def refuse_plan(plan: Plan, hidden: int, width: int) -> None:
    """Raise ValueError unless the plan fits experts of these sizes."""
    if plan.block_m not in (1, MAX_ROWS):
        raise ValueError(f"the plan holds {plan.block_m} rows, expected 1 or {MAX_ROWS}")
    blocks = -(-width // plan.down_k)
    if not 1 <= plan.down_splits <= blocks or (plan.down_splits - 1) * -(-blocks // plan.down_splits) >= blocks:
        raise ValueError(f"the plan shares {blocks} blocks of depth {plan.down_k} among {plan.down_splits} programs")
    if plan.down_splits > 1 and MAX_ROWS * -(-hidden // plan.down_n) > MOST:
        raise ValueError(f"the plan shares the depth of more than {MOST} tiles")


@functools.cache
def _launchers() -> tuple[Launcher, Launcher]:
    # Here: the torch path, which a CPU takes, needs no Triton.
    from gemma4_kernels.routed_experts.down_kernel import experts_down_kernel
    from gemma4_kernels.routed_experts.kernel import routed_experts_kernel

    return Launcher(routed_experts_kernel), Launcher(experts_down_kernel)
