"""tensors.safetensors as bytes. The values are dense; the layout they had is in the manifest."""

from collections.abc import Mapping
from math import prod

import numpy as np
from safetensors import SafetensorError, TensorSpec, deserialize, serialize

from .dtypes import SAFETENSORS_TAG, storage_dtype
from .errors import DumpUnreadable
from .schema import TensorRecord


def encode_tensors(arrays: Mapping[str, tuple[np.ndarray, str]]) -> bytes:
    """Serialise {name: (contiguous array of stored bits, dtype name)}."""
    # The specs hold bare pointers: `arrays` must stay referenced until serialize() returns, and it does.
    specs = {
        name: TensorSpec(dtype=dtype, shape=list(array.shape), data_ptr=array.ctypes.data, data_len=array.nbytes)
        for name, (array, dtype) in arrays.items()
    }
    return bytes(serialize(specs))


def decode_tensors(data: bytes, records: Mapping[str, TensorRecord]) -> dict[str, np.ndarray]:
    """Read the tensors that the manifest lists, as dense arrays of their stored bits.

    Raises DumpUnreadable if the file is damaged, or does not hold exactly what the manifest says.
    """
    try:
        found = dict(deserialize(data))
    except (SafetensorError, ValueError, OverflowError) as error:
        raise DumpUnreadable(f"tensors.safetensors is damaged: {error}") from error
    if found.keys() != records.keys():
        odd = ", ".join(sorted(found.keys() ^ records.keys())[:5])
        raise DumpUnreadable(f"tensors.safetensors and the manifest do not list the same tensors: {odd}")
    return {name: _as_array(name, found[name], record) for name, record in records.items()}


def _as_array(name: str, stored: Mapping, record: TensorRecord) -> np.ndarray:
    tag, shape = stored["dtype"], tuple(stored["shape"])
    if SAFETENSORS_TAG.get(record.dtype) != tag or shape != record.shape:
        raise DumpUnreadable(f"tensor {name!r} is {tag}{shape} but the manifest says {record.dtype}{record.shape}")
    dtype = storage_dtype(record.dtype)
    if len(stored["data"]) != prod(shape) * dtype.itemsize:
        raise DumpUnreadable(f"tensor {name!r} has {len(stored['data'])} bytes, not those of {tag}{shape}")
    return np.frombuffer(stored["data"], dtype=dtype).reshape(shape)
