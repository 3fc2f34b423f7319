"""The header of tensors.safetensors: ours is read strictly, and agrees with the library's own reader."""

import json
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, deserialize

from gemma4_dumps.dtypes import SAFETENSORS_TAG, storage_dtype
from gemma4_dumps.errors import DumpUnreadable
from gemma4_dumps.safe_file import read_regular
from gemma4_dumps.schema import TensorRecord
from gemma4_dumps.tensor_file import MAX_HEADER_BYTES, index_tensors

DTYPE_OF_TAG = {tag: dtype for dtype, tag in SAFETENSORS_TAG.items()}


def record(shape=(2, 3), dtype="int32") -> TensorRecord:
    return TensorRecord(shape=shape, dtype=dtype, stride=(1,) * len(shape))


def entry(begin=0, end=24, dtype="I32", shape=(2, 3)) -> dict:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def write(path, header, values: bytes, length: int | None = None):
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded) if length is None else length) + encoded + values)
    return path


def test_a_whole_file(tmp_path):
    values = np.arange(6, dtype="<i4")
    path = write(tmp_path / "x", {"__metadata__": {"a": "b"}, "t": entry()}, values.tobytes())
    index = index_tensors(path, {"t": record()})
    assert index.read("t", 0, 6).tolist() == [0, 1, 2, 3, 4, 5]
    assert index.read("t", 2, 4).tolist() == [2, 3]


def test_a_file_that_shrinks_after_its_header_was_read(tmp_path):
    path = write(tmp_path / "x", {"t": entry()}, bytes(24))
    index = index_tensors(path, {"t": record()})
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DumpUnreadable, match="ends 1 bytes too early"):
        index.read("t", 0, 6)


@pytest.mark.parametrize(
    ("header", "values", "said"),
    [
        (b'{"t":' + json.dumps(entry()).encode() + b',"t":' + json.dumps(entry()).encode() + b"}", 24, "stands twice"),
        (b"[]", 0, "no object"),
        (b'{"t": 3}', 24, "no layout"),
        (b'{"t": NaN}', 24, "not JSON"),
        (b"[" * 100_000, 24, "not JSON"),
        ({}, 0, "do not list the same tensors: t"),
        ({"t": entry(), "u": entry(24, 48)}, 48, "do not list the same tensors: u"),
        ({"t": entry(dtype="F32")}, 24, "the manifest says int32"),
        ({"t": entry(dtype=["I32"])}, 24, "the manifest says int32"),
        ({"t": entry(shape=(3, 2))}, 24, "the manifest says int32"),
        ({"t": entry(shape=("2", 3))}, 24, "the manifest says int32"),
        ({"t": entry(0, 23)}, 23, "has 23 bytes"),
        ({"t": entry(24, 0)}, 24, "has -24 bytes"),
        ({"t": entry(-24, 0)}, 24, "begins at byte -24"),
        ({"t": entry(8, 32)}, 32, "begins at byte 8"),
        ({"t": entry()}, 23, "23 bytes of values"),
        ({"t": entry()}, 25, "25 bytes of values"),
        ({"t": entry() | {"data_offsets": [0, 24.0]}}, 24, "no data_offsets"),
        ({"t": entry() | {"data_offsets": [False, 24]}}, 24, "no data_offsets"),
        ({"t": entry() | {"data_offsets": [10**30, 10**30 + 24]}}, 24, "begins at byte"),
    ],
    ids=range(20),
)
def test_what_is_refused(tmp_path, header, values, said):
    path = write(tmp_path / "x", header, bytes(values))
    with pytest.raises(DumpUnreadable, match=said):
        index_tensors(path, {"t": record()})


@pytest.mark.parametrize("length", [2, 10**6, MAX_HEADER_BYTES + 1, 2**63, 2**64 - 1])
def test_a_header_as_long_as_it_likes(tmp_path, length):
    with pytest.raises(DumpUnreadable):
        index_tensors(write(tmp_path / "x", {"t": entry()}, b"", length), {"t": record()})


def test_tensors_that_overlap(tmp_path):
    path = write(tmp_path / "x", {"t": entry(), "u": entry(12, 36)}, bytes(36))
    with pytest.raises(DumpUnreadable, match="begins at byte 12, not 24"):
        index_tensors(path, {"t": record(), "u": record()})


def test_more_dimensions_than_an_array_can_have(tmp_path):
    shape = (1,) * 100
    path = write(tmp_path / "x", {"t": entry(0, 4, shape=shape)}, bytes(4))
    with pytest.raises(DumpUnreadable, match="100 dimensions"):
        index_tensors(path, {"t": record(shape)})


def test_what_the_system_says_is_unreadable(tmp_path):
    from pathlib import Path

    # A regular file, mode 0600, whose first page gives EIO.
    with pytest.raises(DumpUnreadable, match="Input/output error"):
        read_regular(Path("/proc/self/mem"), 10)


@st.composite
def files(draw):
    """Return a header with layouts near the truth, and the values that go with some of them."""
    header, at = {}, 0
    for name in draw(st.lists(st.sampled_from("abc"), max_size=3, unique=True)):
        dtype = draw(st.sampled_from(["I32", "F16", "BOOL", "BF16", "I7", "F4"]))
        shape = draw(st.lists(st.integers(0, 3), max_size=3))
        size = int(np.prod(shape)) * {"I32": 4, "F16": 2, "BOOL": 1, "BF16": 2}.get(dtype, 1)
        end = at + size + draw(st.sampled_from([0, 0, 0, 0, 1, -1]))
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, end]}
        at = end + draw(st.sampled_from([0, 0, 0, 0, 1]))
    size = max(at + draw(st.sampled_from([0, 0, 0, 1, -1])), 0)
    return header, draw(st.binary(min_size=size, max_size=size))


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(files())
def test_what_is_accepted_is_what_the_library_accepts(tmp_path_factory, file):
    header, values = file
    path = write(tmp_path_factory.mktemp("x") / "x", header, values)
    records = {
        name: record(tuple(layout["shape"]), DTYPE_OF_TAG.get(layout["dtype"], layout["dtype"]))
        for name, layout in header.items()
    }
    try:
        theirs = {name: bytes(found["data"]) for name, found in deserialize(path.read_bytes())}
    except SafetensorError:
        theirs = None
    try:
        index = index_tensors(path, records)
        ours = {name: index.read(name, 0, int(np.prod(records[name].shape))).tobytes() for name in header}
        assert all(len(ours[name]) % storage_dtype(records[name].dtype).itemsize == 0 for name in ours)
    except DumpUnreadable:
        ours = None
    # The library has types that a dump never holds.
    if all(layout["dtype"] in DTYPE_OF_TAG for layout in header.values()):
        assert ours == theirs
    else:
        assert ours is None
