"""Build and launch clustered.cu on the current stream."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

import torch

from gemma4_kernels.cuda_source import CudaLaunch, function_of
from gemma4_kernels.decode_attention.reference import Front
from gemma4_kernels.decode_attention.spec import CLUSTER_HEADS, CLUSTER_SLOTS
from gemma4_kernels.tickets import tickets

SOURCE = Path(__file__).with_name("clustered.cu")
KERNEL = "clustered_attention_kernel"
_WARPS, _LEAST, _MOST = 8, 8, 16
_THREADS = 32 * _WARPS
_COLUMNS = 256
"""That a warp has of each slot."""
_PITCH_BYTES, _APART_BYTES = 2 * _COLUMNS + 16, 4 * (_COLUMNS + 8)
_POINTERS = (
    *("q", "keys", "values", "out", "starts", "slots", "positions", "places"),
    *("q_weight", "k_weight", "new_keys", "new_values", "table", "sums", "extremes", "counters"),
)
_LISTS = ("STARTS", "SLOTS", "POSITIONS", "PLACES")
_STRIDES = ("q", "q_head", "key", "key_head", "value", "value_head", "out", "out_head", "new_key", "new_value")


class _Arguments(ctypes.Structure):
    """clustered.cu has the same."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((f"{name}_stride", ctypes.c_int64) for name in _STRIDES),
        ("kv_heads", ctypes.c_int),
        ("scaling", ctypes.c_float),
        ("eps", ctypes.c_float),
    )


def launch(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    starts: torch.Tensor,
    slots: torch.Tensor,
    scale: float,
    front: Front,
    out: torch.Tensor,
    parts: int,
    teams: int,
    early: bool,
) -> None:
    """Launch it on the current device. `decode_attention` has looked at the arguments.

    Args:
        q: [R, H, 256 or 512] bf16.
        keys: [S, G, 256 or 512], the pool.
        values: Like keys.
        starts: Where each request's slots begin in `slots`.
        slots: Rows of the pools.
        scale: Of the scores.
        front: What is done first.
        out: Like q.
        parts: Blocks of a cluster, which share a request's slots, of `cluster_shares`.
        teams: Clusters that share them where they are many.
        early: Whether it may start before the kernel ahead has ended.

    Raises:
        RuntimeError: The compiler or the driver refused it.
    """
    (requests, heads, width), kv_heads, new = q.shape, keys.shape[1], front.new
    group = heads // kv_heads
    held = min(group, CLUSTER_HEADS)
    lists = starts, slots, front.positions, starts if new is None else new.places
    named = (
        ("WIDTH", width),
        ("PARTS", parts),
        ("TEAMS", teams),
        ("SLOTS", slots_of(parts, width)),
        ("HEADS", held),
        ("GROUP", group),
        ("OWN_KEYS", int(new is not None)),
        *((f"LONG_{name}", int(one.dtype is torch.int64)) for name, one in zip(_LISTS, lists, strict=True)),
        ("TABLE_FP32", int(front.cos_sin_cache.dtype is torch.float32)),
        ("EARLY", int(early)),
    )
    clusters = requests * heads // held * teams
    built, arguments = _built(named, clusters * parts, q.get_device(), early)
    left, ends = _left(clusters if teams > 1 else 0, held, width, parts, q.device)
    rows = (q, q) if new is None else (new.keys, new.values)
    pointers = (
        *(q, keys, values, out, *lists),
        *(front.q_weight, front.q_weight if new is None else new.weight, *rows, front.cos_sin_cache),
        *(left, ends, tickets(q.device)),
    )
    strides = *(stride for one in (q, keys, values, out) for stride in one.stride()[:2]), *(r.stride(0) for r in rows)
    with built.lock:
        for name, tensor in zip(_POINTERS, pointers, strict=True):
            setattr(arguments, name, tensor.data_ptr())
        for name, stride in zip(_STRIDES, strides, strict=True):
            setattr(arguments, f"{name}_stride", stride)
        arguments.kv_heads, arguments.scaling, arguments.eps = kv_heads, scale, front.eps
        built()


@functools.cache
def _built(named: tuple[tuple[str, int], ...], programs: int, device: int, early: bool) -> tuple[CudaLaunch, Any]:
    arguments, sizes = _Arguments(), dict(named)
    shared = shared_bytes(sizes["SLOTS"], sizes["HEADS"])
    function = function_of(SOURCE, KERNEL, named, device, shared)
    return CudaLaunch(function, KERNEL, programs, _THREADS, shared, [arguments], early=early, device=device), arguments


def _left(clusters: int, heads: int, width: int, parts: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return room for what clusters leave for the last of them."""
    sums = torch.empty(clusters * heads * width, dtype=torch.float32, device=device)
    return sums, torch.empty(clusters * heads * parts * 2, dtype=torch.float32, device=device)


def slots_of(parts: int, width: int) -> int:
    """Return how many slots a warp has at a time, so that CLUSTER_SLOTS of a request are under way ahead."""
    crews = _WARPS * _COLUMNS // width
    return min(_MOST, max(_LEAST, CLUSTER_SLOTS[width] // (crews * parts)))


def shared_bytes(slots: int, heads: int) -> int:
    """Return the dynamic shared memory of a block: the values of its warps' slots, and their sums."""
    return _WARPS * (slots * _PITCH_BYTES + heads * _APART_BYTES)
