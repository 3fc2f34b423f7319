"""Launch decode_attention: on CUDA one kernel without synchronisation, elsewhere torch."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

from gemma4_kernels.cuda_source import unavailable
from gemma4_kernels.decode_attention import reference
from gemma4_kernels.decode_attention.reference import Front, NewKeys
from gemma4_kernels.decode_attention.spec import (
    CLUSTER_HEADS,
    CLUSTER_PARTS,
    CLUSTER_REQUESTS,
    CLUSTER_SLOTS,
    CLUSTER_TEAMS,
    GROUPS,
    HEAD_DIMS,
    MAX_PARTS,
    SPARED,
    WIDE_PARTS,
)
from gemma4_kernels.launcher import KnownLaunches, Launcher, facts
from gemma4_kernels.row_arguments import DTYPES, Path, takes_kernel
from gemma4_kernels.tickets import MOST, tickets

__all__ = [
    "Front",
    "NewKeys",
    "Plan",
    "cluster_parts",
    "cluster_shares",
    "decode_attention",
    "front_reason",
    "plan_for",
]

_LIST_DTYPES = (torch.int32, torch.int64)
_KNOWN = KnownLaunches()
_NEARLY_ALL = 0.8
"""Of the multiprocessors on which clusters of more than two run at a time."""
_WIDE, _FEW, _SOME = 512, 8, 32
"""A head dim of which a front's heads need more warps, and up to how many key heads that was faster."""


class Plan(NamedTuple):
    """How the slots are shared among programs.

    Attributes:
        splits: Programs per request and key head, at most MAX_PARTS.
        block: Slots that a program reads in one step.
        stages: Steps that are under way at a time.
        least: Slots of a program, at least.
        num_warps: Warps of a program.
    """

    splits: int
    block: int = 32
    stages: int = 5
    least: int = 32
    num_warps: int = 4


def decode_attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    starts: torch.Tensor,
    slots: torch.Tensor,
    scale: float,
    *,
    front: Front | None = None,
    out: torch.Tensor | None = None,
    plan: Plan | None = None,
    path: Path = "auto",
    early: bool = True,
) -> torch.Tensor:
    """Return the attention of one query per request over the keys and values of its slots.

    Args:
        q: [R, H, D] bf16, fp16 or fp32; D in HEAD_DIMS, unit stride inside a head.
        keys: [S, G, D] in q's dtype, on its device; H / G in GROUPS.
        values: Like keys.
        starts: int32 or int64 [R + 1 or more]: where each request's slots begin in `slots`.
        slots: int32 or int64 [N]: rows of keys and values. What starts and slots say is not checked.
        scale: Of the scores.
        front: What is to be done ahead of it in the same launch, see there: q is normed and turned, and so are new keys
            and values, which are written into the pools. None: q is as it is read, and the pools hold all slots.
        out: [R, H, D] in q's dtype, new if None. It must not overlap what is read.
        plan: How the slots are shared. None: `plan_for`, or clustered.cu's own where that takes the front.
        path: The kernel or torch; see `takes_kernel`.
        early: Whether it may start before the kernel ahead has ended, on a device that can. Then starts and slots must
            not be what that kernel writes.

    Returns:
        [R, H, D] in q's dtype.

    Raises:
        ValueError: A shape, dtype, device or stride is not as above, the plan does not fit, or this device cannot run
            the path.
    """
    key = None
    if path == "auto" and front is None:
        # Any number of slots will do, and it is another in each step.
        listed = slots.stride(), slots.dtype, slots.device
        key = (*facts(q, keys, values, starts), listed, out is None or facts(out), float(scale), plan, early)
        if (known := _KNOWN.get(key)) is not None:
            made = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
            if known.again(_pointers(q, keys, values, made, starts, slots, plan, None)):
                return made
    _refuse(q, keys, values, starts, slots)
    if front is not None:
        _refuse_front(q, keys, front)
    requests, heads, head_dim = q.shape
    kv_heads = keys.shape[1]
    if out is None:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    elif out.shape != q.shape or out.dtype != q.dtype or out.device != q.device or out.stride(2) != 1:
        have = f"{list(out.shape)} {out.dtype} on {out.device}"
        raise ValueError(f"out is {have}, expected {list(q.shape)} {q.dtype} on {q.device} with unit stride")
    if requests == 0:
        return out
    if not takes_kernel(q, path):
        ready = q if front is None else reference.in_front(q, keys, values, front)
        return out.copy_(reference.decode_attention(ready, keys, values, starts, slots, scale))
    if front is not None and plan is None and _clustered_reason(q, keys, values, front, out) is None:
        # Here: the torch path needs no driver.
        from gemma4_kernels.decode_attention import clustered

        shares = cluster_shares(requests, heads, kv_heads, head_dim, _multiprocessors(q.device))
        assert shares is not None
        with torch.cuda.device(q.device):
            clustered.launch(q, keys, values, starts, slots, scale, front, out, *shares, early)
        return out
    places, new = requests * kv_heads, None if front is None else front.new
    plan = plan or plan_for(requests, kv_heads, q.device, head_dim if front else 0)
    if not 1 <= plan.splits <= MAX_PARTS:
        raise ValueError(f"the plan has {plan.splits} parts, expected 1..{MAX_PARTS}")
    if places > MOST:
        raise ValueError(f"{requests} requests of {kv_heads} key heads, at most {MOST} of both are possible")
    launch = _launcher().launch(
        places * plan.splits,
        _pointers(q, keys, values, out, starts, slots, plan, front),
        (
            *(stride for tensor in (q, keys, values, out) for stride in tensor.stride()[:2]),
            *((0, 0) if new is None else (new.keys.stride(0), new.values.stride(0))),
        ),
        (float(scale), 0.0 if front is None else front.eps, kv_heads, plan.splits),
        (
            *(heads // kv_heads, 16, head_dim, plan.block, plan.stages, plan.least, MAX_PARTS),
            *(front is not None, new is not None),
        ),
        num_warps=plan.num_warps,
        fuse=True,
        early=early,
    )
    if key is not None:
        _KNOWN.keep(key, launch)
    return out


def _pointers(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    out: torch.Tensor,
    starts: torch.Tensor,
    slots: torch.Tensor,
    plan: Plan | None,
    front: Front | None,
) -> tuple[torch.Tensor, ...]:
    """Return the kernel's tensors, with room for what its programs hand to the last of them.

    In the place of one that a call has not stands one of its own that it has.
    """
    requests, heads, head_dim = q.shape
    plan = plan or plan_for(requests, keys.shape[1], q.device)
    parts = requests * heads * plan.splits if plan.splits > 1 else 0
    partial = torch.empty(parts * head_dim, dtype=torch.float32, device=q.device)
    extremes = torch.empty(parts * 2, dtype=torch.float32, device=q.device)
    own = q, q, starts
    ahead = own if front is None else (front.q_weight, front.cos_sin_cache, front.positions)
    new = None if front is None else front.new
    made = (q, q, q, starts) if new is None else (new.weight, new.keys, new.values, new.places)
    return q, keys, values, out, starts, slots, partial, extremes, tickets(q.device), *ahead, *made


def plan_for(requests: int, kv_heads: int, device: torch.device, front_dim: int = 0) -> Plan:
    """Return a plan by which all multiprocessors have a part to read where the slots are many.

    Args:
        requests: 1 or more.
        kv_heads: Of each.
        device: Where it runs.
        front_dim: The head dim where a front goes ahead, whose heads are then in registers too; else 0.
    """
    places = requests * kv_heads
    plan = Plan(max(1, min(MAX_PARTS, _multiprocessors(device) // places)))
    if front_dim == _WIDE and places <= _FEW:
        return plan._replace(block=64, stages=3, num_warps=8, least=64)
    return plan._replace(num_warps=8) if front_dim == _WIDE and places <= _SOME else plan


def cluster_parts(requests: int, heads: int, kv_heads: int, multiprocessors: int) -> int | None:
    """Return how many blocks share a request's slots where a front goes ahead, or None where too few run at a time.

    A cluster's blocks share one group of a GPU's multiprocessors, of which a few are always left over. With fewer
    blocks than these for each request, the launches one by one were as fast. As many as are SPARED begin before the
    kernel ahead ends; more would all begin behind it.
    """
    if requests > CLUSTER_REQUESTS:
        return None
    clusters = requests * heads // min(heads // kv_heads, CLUSTER_HEADS)
    rooms = SPARED, multiprocessors * 3 // 4
    return next((parts for room in rooms for parts in CLUSTER_PARTS if clusters * parts <= room), None)


def cluster_shares(
    requests: int, heads: int, kv_heads: int, head_dim: int, multiprocessors: int
) -> tuple[int, int] | None:
    """Return how many blocks a cluster has, and how many clusters may share a request's slots; None as `cluster_parts`.

    The slots of wide heads may be many: then nearly all multiprocessors have to read them, and the largest clusters
    with which they do are taken.
    """
    if head_dim != _WIDE:
        parts = cluster_parts(requests, heads, kv_heads, multiprocessors)
        return None if parts is None else (parts, 1)
    if requests > CLUSTER_REQUESTS:
        return None
    clusters = requests * heads // min(heads // kv_heads, CLUSTER_HEADS)
    most = multiprocessors * 3 // 4
    for parts in WIDE_PARTS:
        room = multiprocessors if parts == 2 else most
        teams = min(CLUSTER_TEAMS, room // (clusters * parts))
        if clusters * parts * teams >= _NEARLY_ALL * most:
            return parts, teams
    return None


def front_reason(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, front: Front) -> str | None:
    """Say why norms, store and attention had better be launches of their own; None where one was measured faster."""
    measured = q.shape[2] == _WIDE or (q.shape[2], keys.shape[1]) == (256, 2)
    reason = None if measured else _clustered_reason(q, keys, values, front, q)
    if q.shape[0] > CLUSTER_REQUESTS:
        reason = f"{q.shape[0]} requests, and it was slower with more than {CLUSTER_REQUESTS}"
    return f"one launch for all is not known to be faster: {reason}" if reason else None


def _clustered_reason(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, front: Front, out: torch.Tensor
) -> str | None:
    """Say what clustered.cu does not take of these; None if it takes them."""
    if reason := unavailable(q.device):
        return reason
    if q.dtype is not torch.bfloat16 or front.q_weight.dtype is not torch.bfloat16:
        return f"queries of {q.dtype} with weights of {front.q_weight.dtype}"
    if q.shape[2] not in CLUSTER_SLOTS:
        return f"heads of {q.shape[2]} elements"
    if front.cos_sin_cache.dtype is torch.float16:
        return "angles in fp16"
    if cluster_shares(q.shape[0], q.shape[1], keys.shape[1], q.shape[2], _multiprocessors(q.device)) is None:
        return "more requests than run at a time"
    new = front.new
    rows = (q, keys, values, front.q_weight, front.cos_sin_cache, out)
    return _apart(*rows, *(() if new is None else (new.keys, new.values, new.weight)))


def _apart(*tensors: torch.Tensor) -> str | None:
    bits = 0
    for one in tensors:
        bits |= one.data_ptr()
        for stride in one.stride()[:-1]:
            bits |= stride * one.element_size()
    return "rows that do not begin at multiples of 16 bytes" if bits & 15 else None


@functools.cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 8


def _refuse(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, starts: torch.Tensor, slots: torch.Tensor
) -> None:
    if q.dim() != 3 or q.shape[2] not in HEAD_DIMS:
        raise ValueError(f"q is {list(q.shape)}, expected [requests, heads, one of {', '.join(map(str, HEAD_DIMS))}]")
    if q.dtype not in DTYPES:
        raise ValueError(f"q is {q.dtype}, expected bfloat16, float16 or float32")
    for name, pool in (("keys", keys), ("values", values)):
        if pool.dim() != 3 or pool.shape[2] != q.shape[2] or pool.shape[1:] != keys.shape[1:]:
            raise ValueError(f"{name} is {list(pool.shape)}, expected [slots, key heads, {q.shape[2]}], both alike")
        if pool.dtype != q.dtype or pool.device != q.device:
            raise ValueError(f"{name} is {pool.dtype} on {pool.device}, expected {q.dtype} on {q.device}")
    if keys.shape[1] == 0 or q.shape[1] % keys.shape[1] or q.shape[1] // keys.shape[1] not in GROUPS:
        allowed = ", ".join(map(str, GROUPS))
        raise ValueError(f"{q.shape[1]} heads read {keys.shape[1]} key heads, expected {allowed} of each")
    for name, tensor in (("q", q), ("keys", keys), ("values", values)):
        if tensor.stride(2) != 1:
            raise ValueError(f"{name} has stride {tensor.stride(2)} inside a head, expected 1")
    for name, numbers, least in (("starts", starts, q.shape[0] + 1), ("slots", slots, 0)):
        if numbers.dim() != 1 or len(numbers) < least or numbers.dtype not in _LIST_DTYPES:
            have = f"{list(numbers.shape)} {numbers.dtype}"
            raise ValueError(f"{name} is {have}, expected int32 or int64 [{least} or more]")
        if numbers.device != q.device or (len(numbers) > 1 and numbers.stride(0) != 1):
            raise ValueError(f"{name} is on {numbers.device}, expected contiguous on {q.device}")


def _refuse_front(q: torch.Tensor, keys: torch.Tensor, front: Front) -> None:
    requests, _, head_dim = q.shape
    new = front.new
    tables = [("q_weight", front.q_weight, (head_dim,)), ("cos_sin_cache", front.cos_sin_cache, (-1, head_dim))]
    numbers = [("positions", front.positions)]
    if new is not None:
        tables.append(("the weight of new keys", new.weight, (head_dim,)))
        numbers.append(("places", new.places))
    for name, table, shape in tables:
        if table.dim() != len(shape) or table.shape[-1] != head_dim or table.dtype not in DTYPES:
            raise ValueError(f"{name} is {list(table.shape)} {table.dtype}, expected floating {list(shape)}")
        if table.device != q.device or not table.is_contiguous():
            raise ValueError(f"{name} is on {table.device}, expected contiguous on {q.device}")
    for name, listed in numbers:
        if listed.shape != (requests,) or listed.dtype not in _LIST_DTYPES:
            raise ValueError(f"{name} is {list(listed.shape)} {listed.dtype}, expected int32 or int64 [{requests}]")
        if listed.device != q.device or not listed.is_contiguous():
            raise ValueError(f"{name} is on {listed.device}, expected contiguous on {q.device}")
    if new is None:
        return
    if new.weight.dtype is not front.q_weight.dtype:
        raise ValueError(f"the weight of new keys is {new.weight.dtype}, expected q_weight's {front.q_weight.dtype}")
    for name, rows in (("new keys", new.keys), ("new values", new.values)):
        if rows.shape != (requests, *keys.shape[1:]) or rows.dtype != q.dtype or rows.device != q.device:
            have = f"{list(rows.shape)} {rows.dtype} on {rows.device}"
            want = f"{[requests, *keys.shape[1:]]} {q.dtype} on {q.device}"
            raise ValueError(f"{name} are {have}, expected {want}")
        if rows.stride(2) != 1 or (rows.shape[1] > 1 and rows.stride(1) != head_dim):
            raise ValueError(f"{name} have strides {rows.stride()}, expected heads beside each other")


@functools.cache
def _launcher() -> Launcher:
    # Here: the torch path, which a CPU takes, needs no Triton.
    from gemma4_kernels.decode_attention.kernel import decode_attention_kernel

    return Launcher(decode_attention_kernel)
