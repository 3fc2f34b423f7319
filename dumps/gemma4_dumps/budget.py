"""Fit a dump's tensors into its byte cap, and say what had to go."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from .draft import TensorPayload
from .dtypes import SAFETENSORS_TAG, storage_dtype
from .schema import TensorRecord, Truncation

HEADER_BYTES_PER_TENSOR = 512
"""Room for one tensor in the safetensors header and in the manifest."""


@dataclass(frozen=True)
class FittedTensor:
    """A dense little-endian array that fits, with the record that goes into the manifest."""

    values: np.ndarray
    record: TensorRecord


@dataclass(frozen=True)
class FittedTensors:
    kept: dict[str, FittedTensor]
    truncated: dict[str, Truncation]


def fit_tensors(payloads: Mapping[str, TensorPayload], budget_bytes: int) -> FittedTensors:
    """Keep every tensor that fits. The rest share the room that is left, cut along dimension 0.

    Smallest first, so that a page table of kilobytes never loses its place to a KV cache of gigabytes.
    """
    kept: dict[str, FittedTensor] = {}
    truncated: dict[str, Truncation] = {}
    dense: dict[str, np.ndarray] = {}
    for name, payload in payloads.items():
        try:
            dense[name] = _dense_values(payload)
        except (KeyError, TypeError, ValueError) as error:
            # A payload that contradicts itself is a defect of the probe; the other tensors are still evidence.
            truncated[name] = Truncation(
                from_shape=tuple(int(n) for n in payload.shape), to_shape=None, reason=f"not storable: {error}"
            )
    left = budget_bytes
    together = _cut_together(payloads, dense)
    for waiting, names in zip(range(len(together), 0, -1), together, strict=True):
        headers = sum(HEADER_BYTES_PER_TENSOR + 2 * len(name) for name in names)
        share = max(left // waiting - headers, 0)
        rows = _rows_that_fit([dense[name] for name in names], share)
        for name in names:
            values = dense[name] if rows is None else dense[name][:rows] if rows else None
            whole = _whole_shape(payloads[name], dense[name])
            if values is None or values.shape != whole:
                size_bytes = prod(whole) * dense[name].itemsize
                reason = f"{size_bytes} bytes do not fit: {share} left of this dump's cap"
                truncated[name] = Truncation(
                    from_shape=whole, to_shape=None if values is None else values.shape, reason=reason
                )
            if values is not None:
                kept[name] = FittedTensor(values, _record(payloads[name], values, whole))
                left -= values.nbytes + HEADER_BYTES_PER_TENSOR + 2 * len(name)
    return FittedTensors(kept, truncated)


def _cut_together(payloads: Mapping[str, TensorPayload], dense: Mapping[str, np.ndarray]) -> list[list[str]]:
    """Names of tensors that stay equally long; smallest first."""
    groups: dict[tuple[str, int], list[str]] = {}
    for name, values in dense.items():
        group = payloads[name].cut_with
        # Of different lengths they are no group, whatever the probe says.
        key = (f"alone: {name}", 0) if group is None or not values.ndim else (f"group: {group}", values.shape[0])
        groups.setdefault(key, []).append(name)
    return sorted(groups.values(), key=lambda names: (sum(dense[name].nbytes for name in names), names))


def _rows_that_fit(tensors: list[np.ndarray], room_bytes: int) -> int | None:
    """Say how much of dimension 0; None: all of it, 0: nothing."""
    size_bytes = sum(values.nbytes for values in tensors)
    if size_bytes <= room_bytes:
        return None
    return room_bytes // (size_bytes // tensors[0].shape[0]) if tensors[0].ndim else 0


def _dense_values(payload: TensorPayload) -> np.ndarray:
    dtype = payload.dtype.removeprefix("torch.")
    if dtype not in SAFETENSORS_TAG:
        raise ValueError(f"dtype {dtype!r} is not one of {', '.join(SAFETENSORS_TAG)}")
    shape = tuple(int(n) for n in payload.shape)
    if payload.stride is not None and len(payload.stride) != len(shape):
        raise ValueError(f"stride {payload.stride} does not go with shape {shape}")
    carrier = storage_dtype(dtype)
    if isinstance(payload.data, np.ndarray):
        if payload.data.dtype.itemsize != carrier.itemsize or payload.data.shape != shape:
            raise ValueError(f"array {payload.data.dtype}{payload.data.shape} is not {dtype}{shape}")
        little_endian = payload.data.dtype.newbyteorder("<")
        return np.ascontiguousarray(payload.data.astype(little_endian, copy=False)).reshape(shape).view(carrier)
    data = bytes(payload.data)
    if len(data) != prod(shape) * carrier.itemsize:
        raise ValueError(f"{len(data)} bytes are not {dtype}{shape}")
    return np.frombuffer(data, dtype=carrier).reshape(shape)


def _whole_shape(payload: TensorPayload, values: np.ndarray) -> tuple[int, ...]:
    """Return the shape as it was before the probe cut it."""
    if payload.cut_from is None or not values.ndim:
        return values.shape
    return (max(payload.cut_from, values.shape[0]), *values.shape[1:])


def _record(payload: TensorPayload, values: np.ndarray, whole: tuple[int, ...]) -> TensorRecord:
    stride = payload.stride
    if stride is None:
        stride = tuple(int(prod(whole[axis + 1 :])) for axis in range(len(whole)))
    return TensorRecord(
        shape=values.shape,
        dtype=payload.dtype.removeprefix("torch."),
        stride=tuple(int(step) for step in stride),
        storage_offset=int(payload.storage_offset),
        truncated_from_shape=None if values.shape == whole else whole,
    )
