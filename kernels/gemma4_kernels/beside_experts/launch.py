"""Launch beside_experts: on CUDA four kernels without synchronisation, elsewhere torch."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch

from gemma4_kernels.beside_experts import reference
from gemma4_kernels.beside_experts.spec import ANY_PLAN, MAX_ROWS, Plan, Weights
from gemma4_kernels.launcher import KnownLaunch, KnownLaunches, Launcher, facts
from gemma4_kernels.routed_experts.launch import (
    GATE_POINTERS,
    launch_down,
    pointers_of,
    power_of_two,
    refuse_plan,
    refuse_weights,
)
from gemma4_kernels.routed_experts.spec import MAX_PAIRS
from gemma4_kernels.routing.launch import routing
from gemma4_kernels.routing.spec import MAX_EXPERTS, MAX_TOP_K
from gemma4_kernels.row_arguments import Path, refuse_unlike, takes_kernel
from gemma4_kernels.small_m_linear import launch as product

__all__ = ["BesideExperts", "dense_beside_experts"]

_FIRST, _LAST = KnownLaunches(), KnownLaunches()
_THIRD_POINTERS = GATE_POINTERS + 3


class BesideExperts(NamedTuple):
    """What a layer adds up behind its norms.

    Attributes:
        dense: [M, H], of the dense MLP.
        experts: [M, H].
    """

    dense: torch.Tensor
    experts: torch.Tensor


class _LastLaunches(NamedTuple):
    """The third launch of a call and the fourth; its pointers are the one's, then the other's."""

    third: KnownLaunch
    fourth: KnownLaunch

    def again(self, pointers: Sequence[torch.Tensor]) -> bool:
        return self.third.again(pointers[:_THIRD_POINTERS]) and self.fourth.again(pointers[_THIRD_POINTERS:])


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
    """Return what the dense MLP and the experts of a layer make of their inputs, see spec.py.

    Args:
        dense_x: [M, H] bf16, fp16 or fp32, M in 0..8: of the dense MLP; rows any distance apart, unit stride inside.
        router_x: Likewise, of the router.
        experts_x: Likewise, of the experts.
        weights: Of the layer, in the rows' dtype and on their device, rows and experts any distance apart.
        top_k: Experts of each row, 1..16; M times as many are at most 64.
        plan: How the work is cut; None: one that is right for every size and measured for none.
        path: The kernels or torch; see `takes_kernel`.
        early: Whether they may start before the kernel ahead has ended, on a device that can.

    Returns:
        New contiguous tensors.

    Raises:
        ValueError: A shape, dtype, device or stride is not as above, the plan does not fit, or this device cannot run
            the path.
    """
    plan = plan or ANY_PLAN
    key = (*facts(dense_x, router_x, experts_x, *weights), top_k, plan, early) if path == "auto" else None
    known = None if key is None else _FIRST.get(key)
    if known is None:
        _refuse(dense_x, router_x, experts_x, weights, top_k)
        if dense_x.shape[0] == 0:
            return BesideExperts(torch.empty_like(dense_x), torch.empty_like(experts_x))
        if not takes_kernel(dense_x, path):
            return BesideExperts(*reference.dense_beside_experts(dense_x, router_x, experts_x, weights, top_k))
        _refuse_plan(plan, dense_x, weights)
    rows, hidden = dense_x.shape
    gated, logits, dense = (
        torch.empty((rows, columns), dtype=dense_x.dtype, device=dense_x.device)
        for columns in (weights.down.shape[1], weights.router.shape[0], hidden)
    )
    pointers = dense_x, weights.gate_up, gated, router_x, weights.router, logits
    if known is None or not known.again(pointers):
        launch = _launch_first(pointers, plan, early)
        if key is not None:
            _FIRST.keep(key, launch)
    shares, ids = routing(logits, weights.per_expert_scale, top_k, path=path)
    out, of_experts = pointers_of(experts_x, weights.experts_gate_up, weights.experts_down, shares, ids, plan.experts)
    third = *of_experts[:GATE_POINTERS], gated, weights.down, dense
    fourth = of_experts[GATE_POINTERS:]
    known = None if key is None else _LAST.get(key)
    if known is None or not known.again((*third, *fourth)):
        launches = _launch_third(third, top_k, plan, early), launch_down(fourth, top_k, plan.experts, early)
        if key is not None and launches[0] is not None and launches[1] is not None:
            _LAST.keep(key, _LastLaunches(launches[0], launches[1]))
    return BesideExperts(dense, out)


def _launch_first(pointers: Sequence[torch.Tensor], plan: Plan, early: bool) -> KnownLaunch | None:
    x, _, gated, _, router, _ = pointers
    (rows, hidden), columns, experts = x.shape, gated.shape[1], router.shape[0]
    return _launchers()[0].launch(
        -(-experts // plan.first_n) + -(-columns // (plan.first_n // 2)),
        pointers,
        tuple(tensor.stride(0) for tensor in pointers),
        (rows, columns, experts, hidden),
        (
            *(plan.first_m, plan.first_n, plan.first_k, plan.first_stages, plan.first_ahead),
            hidden % plan.first_k == 0,
        ),
        num_warps=plan.first_warps,
        fuse=True,
        early=early,
    )


def _launch_third(pointers: Sequence[torch.Tensor], top_k: int, plan: Plan, early: bool) -> KnownLaunch | None:
    x, weight, out = pointers[:3]
    dense_rows = pointers[GATE_POINTERS:]
    (rows, hidden), (pairs, width), dense_width = x.shape, out.shape, dense_rows[0].shape[1]
    return _launchers()[1].launch(
        pairs * -(-width // (plan.gate_n // 2)) + -(-hidden // plan.dense_n),
        pointers,
        (x.stride(0), *weight.stride()[:2], out.stride(0), *(tensor.stride(0) for tensor in dense_rows)),
        (pairs, weight.shape[0], width, hidden, rows, dense_width),
        (
            *(top_k, power_of_two(top_k), power_of_two(pairs)),
            *(plan.block_m, plan.gate_n, plan.gate_k, plan.gate_stages, hidden % plan.gate_k == 0),
            *(plan.dense_m, plan.dense_n, plan.dense_k, plan.dense_stages, plan.dense_ahead),
            *(dense_width % plan.dense_k == 0, plan.dense_first),
        ),
        num_warps=plan.gate_warps,
        fuse=True,
        early=early,
    )


def _refuse(
    dense_x: torch.Tensor, router_x: torch.Tensor, experts_x: torch.Tensor, weights: Weights, top_k: int
) -> None:
    """Raise ValueError before anything runs: routing itself would only behind the first launch."""
    if dense_x.dim() != 2 or dense_x.shape[0] > MAX_ROWS:
        raise ValueError(f"dense_x is {list(dense_x.shape)}, expected [0..{MAX_ROWS}, hidden]")
    for name, x in (("dense_x", dense_x), ("router_x", router_x), ("experts_x", experts_x)):
        refuse_unlike(name, x, dense_x)
    refuse_weights(experts_x, weights.experts_gate_up, weights.experts_down)
    (rows, hidden), experts = dense_x.shape, weights.experts_down.shape[0]
    wanted = {
        "gate_up": (weights.gate_up, (2 * weights.down.shape[-1], hidden)),
        "down": (weights.down, (hidden, weights.down.shape[-1])),
        "router": (weights.router, (experts, hidden)),
    }
    for name, (weight, shape) in wanted.items():
        if weight.shape != shape or not weight.shape[1]:
            raise ValueError(f"{name} is {list(weight.shape)}, expected {list(shape)}")
        if weight.dtype != dense_x.dtype or weight.device != dense_x.device:
            have, want = f"{weight.dtype} on {weight.device}", f"{dense_x.dtype} on {dense_x.device}"
            raise ValueError(f"{name} is {have}, expected {want}")
        if weight.stride(1) != 1 and weight.shape[1] > 1:
            raise ValueError(f"{name} has stride {weight.stride(1)} inside a row, expected 1")
    scale = weights.per_expert_scale
    if scale.shape != (experts,) or scale.device != dense_x.device or not scale.is_floating_point():
        have = f"{list(scale.shape)} {scale.dtype} on {scale.device}"
        raise ValueError(f"per_expert_scale is {have}, expected floating [{experts}] on {dense_x.device}")
    if experts > MAX_EXPERTS or not 1 <= top_k <= min(MAX_TOP_K, experts) or rows * top_k > MAX_PAIRS:
        raise ValueError(
            f"{rows} rows choose {top_k} of {experts} experts, expected at most {MAX_EXPERTS} experts, of which a row "
            f"chooses 1..{MAX_TOP_K}, and {MAX_PAIRS} choices"
        )


def _refuse_plan(plan: Plan, x: torch.Tensor, weights: Weights) -> None:
    (rows, hidden), dense_width = x.shape, weights.down.shape[1]
    for one, depth in ((plan.first, hidden), (plan.dense, dense_width)):
        if one.block_m not in (1, MAX_ROWS):
            raise ValueError(f"the plan holds {one.block_m} rows, expected 1 or {MAX_ROWS}")
        product.refuse_plan(one, rows, depth, 1)
    refuse_plan(plan.experts, hidden, weights.experts_down.shape[2])


@functools.cache
def _launchers() -> tuple[Launcher, Launcher]:
    # Here: the torch path, which a CPU takes, needs no Triton.
    from gemma4_kernels.beside_experts.kernel import dense_beside_router_kernel
    from gemma4_kernels.beside_experts.third_kernel import experts_beside_dense_kernel

    return Launcher(dense_beside_router_kernel), Launcher(experts_beside_dense_kernel)
