"""tensors.safetensors: written whole, read in pieces. The values are dense; the layout they had is in the manifest.

The library's readers take the file into memory or map it. A dump may be larger than this machine's memory, and a mapped
file that shrinks kills the process; so the header is read here, and then only what is asked for.
"""

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from safetensors import TensorSpec, serialize

from .dtypes import SAFETENSORS_TAG, storage_dtype
from .errors import DumpUnreadable
from .safe_file import as_unreadable, open_regular
from .schema import TensorRecord
from .strict_json import strict_json

TENSORS_NAME = "tensors.safetensors"
MAX_HEADER_BYTES = 2 * 1024**2
"""Room for 15,000 tensors. Parsed, hostile JSON takes fifty times its size in memory."""
MAX_VALUES_BYTES = 256 * 1024**2
"""The most that is read into memory at once."""
MAX_DIMENSIONS = 32
"""NumPy's own limit, before release 2."""

_METADATA = "__metadata__"


@dataclass(frozen=True)
class TensorIndex:
    """Where each tensor begins in the file, in bytes. Made only of a file that holds exactly what the manifest says."""

    path: Path
    begins: Mapping[str, int]
    records: Mapping[str, TensorRecord]

    def read(self, name: str, start: int, stop: int) -> np.ndarray:
        """Elements [start, stop) of the flattened tensor: a read-only array of stored bits, 1-D.

        Raises DumpUnreadable if the file has shrunk, or that is more than MAX_VALUES_BYTES.
        """
        dtype = storage_dtype(self.records[name].dtype)
        length = (stop - start) * dtype.itemsize
        if length > MAX_VALUES_BYTES:
            raise DumpUnreadable(f"tensor {name!r}: {length} bytes; at most {MAX_VALUES_BYTES} are read at once")
        with open_regular(self.path) as file, as_unreadable(self.path):
            file.seek(self.begins[name] + start * dtype.itemsize)
            return np.frombuffer(_read_exactly(file, length), dtype=dtype)


def encode_tensors(arrays: Mapping[str, tuple[np.ndarray, str]]) -> bytes:
    """Serialise {name: (contiguous array of stored bits, dtype name)}."""
    # The specs hold bare pointers: `arrays` must stay referenced until serialize() returns, and it does.
    specs = {
        name: TensorSpec(dtype=dtype, shape=list(array.shape), data_ptr=array.ctypes.data, data_len=array.nbytes)
        for name, (array, dtype) in arrays.items()
    }
    return bytes(serialize(specs))


def index_tensors(path: Path, records: Mapping[str, TensorRecord]) -> TensorIndex:
    """Read the header of the tensor file at `path`, and hold it against the manifest's `records`.

    Raises DumpUnreadable if the file is damaged, or does not hold exactly what the manifest says.
    """
    with open_regular(path) as file, as_unreadable(path):
        size_bytes = os.fstat(file.fileno()).st_size
        (length,) = struct.unpack("<Q", _read_exactly(file, 8))
        if length > MAX_HEADER_BYTES:
            raise DumpUnreadable(f"{TENSORS_NAME} is damaged: a header of {length} bytes; at most {MAX_HEADER_BYTES}")
        header = strict_json(_read_exactly(file, length), f"the header of {TENSORS_NAME}")
    if not isinstance(header, dict):
        raise DumpUnreadable(f"{TENSORS_NAME} is damaged: its header is no object")
    header.pop(_METADATA, None)
    if header.keys() != records.keys():
        odd = ", ".join(sorted(header.keys() ^ records.keys())[:5])
        raise DumpUnreadable(f"{TENSORS_NAME} and the manifest do not list the same tensors: {odd}")
    spans = {name: _span(name, header[name], record) for name, record in records.items()}
    _require_gapless(spans, size_bytes - 8 - length)
    return TensorIndex(path, {name: 8 + length + begin for name, (begin, _) in spans.items()}, records)


def _span(name: str, entry: Any, record: TensorRecord) -> tuple[int, int]:
    """Begin and end of a tensor, counted in bytes from the end of the header."""
    if not isinstance(entry, dict):
        raise DumpUnreadable(f"{TENSORS_NAME} is damaged: {name!r} has no layout")
    tag, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if record.dtype not in SAFETENSORS_TAG or SAFETENSORS_TAG[record.dtype] != tag or shape != list(record.shape):
        found = f"{tag!s:.20}{shape!s:.80}"
        raise DumpUnreadable(f"tensor {name!r} is {found} but the manifest says {record.dtype}{record.shape}")
    if not (isinstance(offsets, list) and len(offsets) == 2 and all(type(offset) is int for offset in offsets)):
        raise DumpUnreadable(f"{TENSORS_NAME} is damaged: {name!r} has no data_offsets")
    if len(record.shape) > MAX_DIMENSIONS:
        raise DumpUnreadable(f"tensor {name!r} has {len(record.shape)} dimensions; at most {MAX_DIMENSIONS} are read")
    begin, end = offsets
    if end - begin != prod(record.shape) * storage_dtype(record.dtype).itemsize:
        raise DumpUnreadable(f"tensor {name!r} has {end - begin} bytes, not those of {record.dtype}{record.shape}")
    return begin, end


def _require_gapless(spans: Mapping[str, tuple[int, int]], size_bytes: int) -> None:
    """Check that nothing overlaps, nothing is hidden in between, and the file is neither shorter nor longer."""
    at = 0
    for begin, end in sorted(spans.values()):
        if begin != at:
            raise DumpUnreadable(f"{TENSORS_NAME} is damaged: a tensor begins at byte {begin}, not {at}")
        at = end
    if at != size_bytes:
        raise DumpUnreadable(f"{TENSORS_NAME} is damaged: {size_bytes} bytes of values, its header says {at}")


def _read_exactly(file: BinaryIO, length: int) -> bytes:
    data = file.read(length)
    if len(data) != length:
        raise DumpUnreadable(f"{TENSORS_NAME} is damaged: it ends {length - len(data)} bytes too early")
    return data
