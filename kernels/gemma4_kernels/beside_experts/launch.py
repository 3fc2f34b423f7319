"""Launch beside_experts: on CUDA four kernels without synchronisation, elsewhere torch.

A model routes by its own lines, between `gate_beside_router` and `experts_beside_down`.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

from gemma4_kernels.beside_experts import reference
from gemma4_kernels.beside_experts.spec import ANY_PLAN, MAX_ROWS, Plan, Weights
from gemma4_kernels.launcher import KnownLaunches, Launcher, TwoLaunches, facts
from gemma4_kernels.routed_experts import launch as experts
from gemma4_kernels.routing.launch import routing
from gemma4_kernels.row_arguments import Path, refuse_unlike, takes_kernel
from gemma4_kernels.small_m_linear import launch as product
from gemma4_kernels.small_m_linear.spec import Plan as ProductPlan

__all__ = ["BesideExperts", "GateBesideRouter", "dense_beside_experts", "experts_beside_down", "gate_beside_router"]

_FIRST, _LAST = KnownLaunches(), KnownLaunches()
_THIRD_POINTERS = experts.GATE_POINTERS + 3


class GateBesideRouter(NamedTuple):
    """What the first launch leaves.

    Attributes:
        gated: [M, D], of the dense MLP.
        logits: [M, E], of the router.
    """

    gated: torch.Tensor
    logits: torch.Tensor


class BesideExperts(NamedTuple):
    """What a layer adds up behind its norms.

    Attributes:
        dense: [M, H], of the dense MLP.
        experts: [M, H].
    """

    dense: torch.Tensor
    experts: torch.Tensor


def dense_beside_experts(
    dense_x: torch.Tensor,
    router_x: torch.Tensor,
    experts_x: torch.Tensor,
    weights: Weights,
    top_k: int,
    plan: Plan | None = None,
    *,
    path: Path = "auto",
    early: bool = True,
) -> BesideExperts:
    """Return what the dense MLP and the experts of a layer make of their inputs, see spec.py: all four launches.

    Args:
        dense_x: As `gate_beside_router` takes it.
        router_x: Likewise.
        experts_x: As `experts_beside_down` takes it.
        weights: Of the layer.
        top_k: Experts of each row, as routing takes it.
        plan: How the work is cut; None: one that is right for every size and measured for none.
        path: The kernels or torch; see `takes_kernel`.
        early: Whether they may start before the kernel ahead has ended, on a device that can.

    Returns:
        New contiguous tensors.

    Raises:
        ValueError: As the two parts and routing raise it.
    """
    gated, logits = gate_beside_router(dense_x, router_x, weights.gate_up, weights.router, plan, path=path, early=early)
    shares, ids = routing(logits, weights.per_expert_scale, top_k, path=path)
    of_experts = experts_x, weights.experts_gate_up, weights.experts_down, shares, ids
    return experts_beside_down(*of_experts, gated, weights.down, plan, path=path, early=early)


def gate_beside_router(
    dense_x: torch.Tensor,
    router_x: torch.Tensor,
    gate_up: torch.Tensor,
    router: torch.Tensor,
    plan: Plan | None = None,
    *,
    path: Path = "auto",
    early: bool = True,
) -> GateBesideRouter:
    """Return the gated rows of the dense MLP and the router's logits: the first launch.

    Args:
        dense_x: [M, H] bf16, fp16 or fp32, M in 0..8; rows any distance apart, unit stride inside a row.
        router_x: Likewise.
        gate_up: [2 * D, H] in their dtype, on their device: the gate's rows, then the up's; any distance apart.
        router: [E, H], likewise.
        plan: How the work is cut; None: one that is right for every size and measured for none.
        path: The kernel or torch; see `takes_kernel`.
        early: Whether it may start before the kernel ahead has ended. Then no weight may be what that kernel writes.

    Returns:
        New contiguous tensors.

    Raises:
        ValueError: A shape, dtype, device or stride is not as above, the plan does not fit, or this device cannot run
            the path.
    """
    plan = plan or ANY_PLAN
    key = (*facts(dense_x, router_x, gate_up, router), plan, early) if path == "auto" else None
    if key is not None and (known := _FIRST.get(key)) is not None:
        made = _first_outputs(dense_x, gate_up, router)
        if known.again((dense_x, gate_up, made.gated, router_x, router, made.logits)):
            return made
    _refuse_first(dense_x, router_x, gate_up, router)
    made = _first_outputs(dense_x, gate_up, router)
    rows, hidden = dense_x.shape
    if rows == 0:
        return made
    if not takes_kernel(dense_x, path):
        return GateBesideRouter(*reference.gate_beside_router(dense_x, router_x, gate_up, router))
    _refuse_cut(plan.first, rows, hidden)
    pointers = dense_x, gate_up, made.gated, router_x, router, made.logits
    count, columns = router.shape[0], made.gated.shape[1]
    launch = _launchers()[0].launch(
        -(-count // plan.first_n) + -(-columns // (plan.first_n // 2)),
        pointers,
        tuple(tensor.stride(0) for tensor in pointers),
        (rows, columns, count, hidden),
        (
            *(plan.first_m, plan.first_n, plan.first_k, plan.first_stages, plan.first_ahead),
            hidden % plan.first_k == 0,
        ),
        num_warps=plan.first_warps,
        fuse=True,
        early=early,
    )
    if key is not None:
        _FIRST.keep(key, launch)
    return made


def experts_beside_down(
    experts_x: torch.Tensor,
    experts_gate_up: torch.Tensor,
    experts_down: torch.Tensor,
    shares: torch.Tensor,
    ids: torch.Tensor,
    gated: torch.Tensor,
    down: torch.Tensor,
    plan: Plan | None = None,
    *,
    path: Path = "auto",
    early: bool = True,
) -> BesideExperts:
    """Return the down product of the dense MLP and the sum of each row's experts: the third launch and the fourth.

    Args:
        experts_x: [M, H] bf16, fp16 or fp32, M in 0..8, as routed_experts takes it; and so the four behind it.
        experts_gate_up: [E, 2 * W, H].
        experts_down: [E, H, W].
        shares: [M, k] fp32.
        ids: [M, k] int32.
        gated: [M, D] in their dtype, on their device: the dense MLP's rows; unit stride inside a row.
        down: [H, D], likewise.
        plan: How the work is cut; None: one that is right for every size and measured for none.
        path: The kernels or torch; see `takes_kernel`.
        early: As for `gate_beside_router`.

    Returns:
        New contiguous tensors.

    Raises:
        ValueError: As `gate_beside_router` and routed_experts raise it.
    """
    plan = plan or ANY_PLAN
    of_experts = experts_x, experts_gate_up, experts_down, shares, ids
    key = (*facts(*of_experts, gated, down), plan, early) if path == "auto" else None
    if key is not None and (known := _LAST.get(key)) is not None:
        made, third, fourth = _last_pointers(*of_experts, gated, down, plan)
        if known.again((*third, *fourth)):
            return made
    experts.refuse(*of_experts)
    _refuse_down(experts_x, gated, down)
    (rows, hidden), dense_width, top_k = experts_x.shape, gated.shape[1], ids.shape[1]
    if rows == 0:
        return BesideExperts(torch.empty_like(experts_x), torch.empty_like(experts_x))
    if not takes_kernel(experts_x, path):
        return BesideExperts(*reference.experts_beside_down(*of_experts, gated, down))
    _refuse_cut(plan.dense, rows, dense_width)
    experts.refuse_plan(plan.experts, hidden, experts_down.shape[2])
    made, third, fourth = _last_pointers(*of_experts, gated, down, plan)
    pairs, width = third[2].shape
    strides = *experts_gate_up.stride()[:2], *(tensor.stride(0) for tensor in (third[2], gated, down, made.dense))
    launch = _launchers()[1].launch(
        pairs * -(-width // (plan.gate_n // 2)) + -(-hidden // plan.dense_n),
        third,
        (experts_x.stride(0), *strides),
        (pairs, experts_gate_up.shape[0], width, hidden, rows, dense_width),
        (
            *(top_k, experts.power_of_two(top_k), experts.power_of_two(pairs)),
            *(plan.block_m, plan.gate_n, plan.gate_k, plan.gate_stages, hidden % plan.gate_k == 0),
            *(plan.dense_m, plan.dense_n, plan.dense_k, plan.dense_stages, plan.dense_ahead),
            *(dense_width % plan.dense_k == 0, plan.dense_first),
        ),
        num_warps=plan.gate_warps,
        fuse=True,
        early=early,
    )
    last = experts.launch_down(fourth, top_k, plan.experts, early)
    if key is not None and launch is not None and last is not None:
        _LAST.keep(key, TwoLaunches(launch, last, _THIRD_POINTERS))
    return made


def _first_outputs(dense_x: torch.Tensor, gate_up: torch.Tensor, router: torch.Tensor) -> GateBesideRouter:
    sizes = gate_up.shape[0] // 2, router.shape[0]
    made = [torch.empty((dense_x.shape[0], size), dtype=dense_x.dtype, device=dense_x.device) for size in sizes]
    return GateBesideRouter(*made)


def _last_pointers(
    experts_x: torch.Tensor,
    gate_up: torch.Tensor,
    experts_down: torch.Tensor,
    shares: torch.Tensor,
    ids: torch.Tensor,
    gated: torch.Tensor,
    down: torch.Tensor,
    plan: Plan,
) -> tuple[BesideExperts, tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """Return new outputs, and the tensors of the third launch and of the fourth."""
    out, pointers = experts.pointers_of(experts_x, gate_up, experts_down, shares, ids, plan.experts)
    dense = torch.empty_like(out)
    third = *pointers[: experts.GATE_POINTERS], gated, down, dense
    return BesideExperts(dense, out), third, pointers[experts.GATE_POINTERS :]


def _refuse_first(dense_x: torch.Tensor, router_x: torch.Tensor, gate_up: torch.Tensor, router: torch.Tensor) -> None:
    if dense_x.dim() != 2 or dense_x.shape[0] > MAX_ROWS:
        raise ValueError(f"dense_x is {list(dense_x.shape)}, expected [0..{MAX_ROWS}, hidden]")
    for name, x in (("dense_x", dense_x), ("router_x", router_x)):
        refuse_unlike(name, x, dense_x)
    for weight in (gate_up, router):
        product.refuse(dense_x, weight)
    if gate_up.shape[0] % 2:
        raise ValueError(f"gate_up is {list(gate_up.shape)}, expected an even number of rows")


def _refuse_down(experts_x: torch.Tensor, gated: torch.Tensor, down: torch.Tensor) -> None:
    rows, hidden = experts_x.shape
    if gated.dim() != 2 or gated.shape[0] != rows:
        raise ValueError(f"gated is {list(gated.shape)}, expected [{rows}, width]")
    if gated.dtype != experts_x.dtype or gated.device != experts_x.device:
        have, want = f"{gated.dtype} on {gated.device}", f"{experts_x.dtype} on {experts_x.device}"
        raise ValueError(f"gated is {have}, expected {want}")
    product.refuse(gated, down)
    if down.shape[0] != hidden:
        raise ValueError(f"down is {list(down.shape)}, expected [{hidden}, {gated.shape[1]}]")


def _refuse_cut(cut: ProductPlan, rows: int, depth: int) -> None:
    if cut.block_m not in (1, MAX_ROWS):
        raise ValueError(f"the plan holds {cut.block_m} rows, expected 1 or {MAX_ROWS}")
    product.refuse_plan(cut, rows, depth, 1)


@functools.cache
def _launchers() -> tuple[Launcher, Launcher]:
    # Here: the torch path, which a CPU takes, needs no Triton.
    from gemma4_kernels.beside_experts.kernel import dense_beside_router_kernel
    from gemma4_kernels.beside_experts.third_kernel import experts_beside_dense_kernel

    return Launcher(dense_beside_router_kernel), Launcher(experts_beside_dense_kernel)
