"""What a probe hands to the writer. Building these checks nothing and raises nothing: the writer does, out of harm."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np

from .schema import Graph, Layer, Offence, Provenance


@dataclass(frozen=True, kw_only=True)
class TensorPayload:
    """Values of one tensor, copied to the host, and the layout that it had on the device.

    Attributes:
        data: the values densely in C order, as bytes or as an array (of `shape`, bits where NumPy lacks the type).
        dtype: torch's name without its prefix, for example "int32", "bfloat16", "float8_e4m3fn".
        stride, storage_offset: in elements; stride None means contiguous.
        cut_from: how long dimension 0 was, if the probe left out its end to stay within the dump's cap.
        cut_with: tensors with the same word here are as long as each other, and stay so if the cap cuts them.
    """

    data: bytes | bytearray | memoryview | np.ndarray
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None = None
    storage_offset: int = 0
    cut_from: int | None = None
    cut_with: str | None = None

    @property
    def size_bytes(self) -> int:
        return len(self.data) if isinstance(self.data, bytes | bytearray) else self.data.nbytes

    @classmethod
    def from_array(cls, array: np.ndarray, storage_offset: int | None = None) -> "TensorPayload":
        """Describe a NumPy array; its stride is recorded when it is a whole number of elements.

        Args:
            array: the values.
            storage_offset: in elements; None: the smallest with which no stride reaches below the storage's start.
        """
        stride: tuple[int, ...] | None = None
        if array.itemsize and all(step % array.itemsize == 0 for step in array.strides):
            stride = tuple(step // array.itemsize for step in array.strides)
        if storage_offset is None:
            storage_offset = sum(
                -step * (extent - 1) for step, extent in zip(stride or (), array.shape, strict=False) if step < 0
            )
        return cls(
            data=array, dtype=array.dtype.name, shape=array.shape, stride=stride, storage_offset=max(storage_offset, 0)
        )


@dataclass(frozen=True, kw_only=True)
class DumpDraft:
    """Everything a probe knows about a violation. Fields mean what they mean in `schema.Manifest`.

    Attributes:
        mode, action: the guard says what was done. A draft without them makes no dump.
        tensors: by name. An offence's `table` should be one of these names, so that its row can be shown.
        events: what led here, oldest first; the latest are kept when there are too many.
        offence_count: all offences, also those not listed; None: as many as listed.
        dropped_events: events that the probe's own ring had already lost.
    """

    rule: str
    verdict: str
    summary: str
    site: str
    mode: str = ""
    action: str = ""
    layer: Layer = field(default_factory=Layer)
    pool_kind: str | None = None
    provenance: Provenance = field(default_factory=Provenance)
    role: str | None = None
    backend: str | None = None
    forward_mode: str | None = None
    graph: Graph = field(default_factory=Graph)
    step: int | None = None
    page_size: int | None = None
    extents: Mapping[str, int] = field(default_factory=dict)
    scalars: Mapping[str, Any] = field(default_factory=dict)
    offences: Sequence[Offence] = ()
    offence_count: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    gpu: Mapping[str, Any] | None = None
    rank: int = 0
    launch_args: Sequence[str] = ()
    guards: Mapping[str, Any] = field(default_factory=dict)
    repeat_command: str | None = None
    notes: Sequence[str] = ()
    tensors: Mapping[str, TensorPayload] = field(default_factory=dict)
    events: Sequence[Mapping[str, Any]] = ()
    dropped_events: int = 0
    created_utc: datetime | None = None
