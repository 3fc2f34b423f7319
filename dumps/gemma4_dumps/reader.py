"""Read a dump. Its bytes may come from anywhere: every defect is a DumpError, never another exception."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from .dtypes import storage_dtype, to_float32
from .errors import DumpNotFound, DumpUnreadable
from .event_file import read_events
from .manifest_file import EVENTS_NAME, load_named_manifest
from .schema import Manifest, TensorRecord
from .tensor_file import TENSORS_NAME, TensorIndex, index_tensors
from .unpacked import origin
from .verify import Check, VerifyReport, check_files, verify_dump

__all__ = ["Check", "Dump", "VerifyReport", "read_dump", "verify_dump"]

MAX_STORAGE_BYTES = 256 * 1024**2
"""How large a storage `strided` rebuilds: a small slice of a huge buffer records the huge buffer's strides."""


@dataclass(frozen=True)
class Dump:
    """A dump whose manifest has been read; its tensors and events are read when they are asked for.

    Attributes:
        path: Its folder.
        manifest: What it says of itself.
        hash_at_most: Files of more bytes are not held against their hashes, only against their sizes; None for none.
    """

    path: Path
    manifest: Manifest
    hash_at_most: int | None = None

    @property
    def place(self) -> str:
        """Return how to name the dump to a reader: its path, or the zip and the place in it, as `a.zip/NAME`."""
        return origin(self.path)

    def record(self, name: str) -> TensorRecord:
        """Return the layout of a tensor, which the file holds exactly so. Raises like `tensor`."""
        if name not in self.manifest.tensors:
            known = ", ".join(self.manifest.tensors) or "none"
            raise DumpNotFound(f"no tensor {name!r} in this dump; it holds: {known:.500}")
        return self._index.records[name]

    def tensor(self, name: str) -> np.ndarray:
        """Return a tensor as a dense read-only array; bfloat16 and float8 as their bits, see `as_float32`.

        Raises DumpNotFound for an unknown name, DumpUnreadable for a damaged file or for more than 256 MiB, see
        `window`.
        """
        shape = self.record(name).shape
        values = self._index.read(name, 0, prod(shape))
        try:
            return values.reshape(shape)
        except (ValueError, OverflowError) as error:
            # No value at all, and extents that no array can have.
            raise DumpUnreadable(f"tensor {name!r} cannot be {list(shape)}: {error}") from error

    def window(self, name: str, start: int, stop: int) -> np.ndarray:
        """Elements [start, stop) of the flattened tensor, cut to what there is: shape [stop - start], read-only.

        For tensors of any size: nothing else is read. Raises like `tensor`.
        """
        size = prod(self.record(name).shape)
        start = min(max(start, 0), size)
        return self._index.read(name, start, min(max(stop, start), size))

    def as_float32(self, name: str) -> np.ndarray:
        """Return the values of a tensor decoded to float32. Raises like `tensor`."""
        return to_float32(self.tensor(name), self.manifest.tensors[name].dtype)

    def strided(self, name: str) -> np.ndarray:
        """Return the values in the layout that they had: same stride and offset, zeros where nothing was stored.

        Raises like `tensor`, and DumpUnreadable if the storage would exceed MAX_STORAGE_BYTES.
        """
        return _lay_out(self.tensor(name), self.manifest.tensors[name], name)

    def events(self) -> Iterator[Any]:
        """Return what led here, oldest first. It raises DumpUnreadable at the first damaged line."""
        return read_events(self.path, EVENTS_NAME in self.manifest.files)

    @cached_property
    def damage(self) -> tuple[str, ...]:
        """Return what is wrong with the dump's files, each as one sentence; empty if they are what the manifest says.

        Its files are read once, the first time that somebody asks.
        """
        checks = check_files(self.path, self.manifest, self.hash_at_most)
        return tuple(f"{check.subject}: {check.detail}" for check in checks if not check.ok)

    @property
    def not_hashed(self) -> tuple[str, ...]:
        """Return the files that are too large to be held against their hashes."""
        most = self.hash_at_most
        sizes = {name: record.size_bytes for name, record in self.manifest.files.items()}
        return () if most is None else tuple(name for name in sorted(sizes) if sizes[name] > most)

    @cached_property
    def _index(self) -> TensorIndex:
        return index_tensors(self.path / TENSORS_NAME, self.manifest.tensors)


def read_dump(path: Path | str, hash_at_most: int | None = None) -> Dump:
    """Open the dump in directory `path`. Raises DumpNotFound, DumpUnreadable, DumpIncompatible.

    Args:
        path: Of the directory.
        hash_at_most: See Dump.
    """
    directory = Path(path)
    # os.path's predicate, not pathlib's: it also answers for names that no file system accepts.
    if not os.path.isdir(directory):
        raise DumpNotFound(f"{directory!s:.200} is not a directory")
    return Dump(directory, load_named_manifest(directory), hash_at_most)


def _lay_out(values: np.ndarray, record: TensorRecord, name: str) -> np.ndarray:
    itemsize = storage_dtype(record.dtype).itemsize
    if len(record.stride) != values.ndim:
        raise DumpUnreadable(f"tensor {name!r} has {values.ndim} dimensions and {len(record.stride)} strides")
    reach = [step * (extent - 1) for step, extent in zip(record.stride, values.shape, strict=True) if values.size]
    lowest = record.storage_offset + sum(step for step in reach if step < 0)
    length = record.storage_offset + sum(step for step in reach if step > 0) + 1
    if lowest < 0 or length * itemsize > MAX_STORAGE_BYTES or any(abs(step) >= 2**40 for step in record.stride):
        raise DumpUnreadable(
            f"tensor {name!r}: stride {list(record.stride)[:8]} at offset {record.storage_offset} needs a storage of "
            f"{length * itemsize} bytes from element {lowest}; at most {MAX_STORAGE_BYTES} bytes from 0 are rebuilt"
        )
    storage = np.zeros(length, dtype=values.dtype)
    strides = [step * itemsize for step in record.stride]
    view = np.lib.stride_tricks.as_strided(storage[record.storage_offset :], values.shape, strides)
    view[...] = values
    return view
