"""The tensors of a dump: what is written is read, and what is damaged is refused."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from dump_examples import seed_bug_draft
from gemma4_dumps.budget import fit_tensors
from gemma4_dumps.caps import StoreCaps
from gemma4_dumps.draft import TensorPayload
from gemma4_dumps.dtypes import SAFETENSORS_TAG, storage_dtype, to_float32
from gemma4_dumps.reader import read_dump, verify_dump
from gemma4_dumps.writer import write_dump


def roundtrip(root, **payloads):
    outcome = write_dump(root, seed_bug_draft(tensors=payloads))
    assert outcome.path is not None, outcome
    return read_dump(outcome.path)


@st.composite
def strided_arrays(draw):
    dtype = draw(st.sampled_from(["int32", "int64", "float16", "float32", "bool", "uint8"]))
    base = draw(npst.arrays(dtype, npst.array_shapes(min_dims=1, max_dims=3, max_side=6)))
    view = base[draw(npst.basic_indices(base.shape))]
    view = np.asarray(view)
    return view.transpose(draw(st.permutations(range(view.ndim))))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(array=strided_arrays(), offset=st.one_of(st.none(), st.integers(0, 9)))
def test_values_shape_and_stride_come_back(tmp_path, array, offset):
    if offset is not None and any(step < 0 for step in array.strides):
        offset = None
    dump = roundtrip(tmp_path, x=TensorPayload.from_array(array, storage_offset=offset))
    np.testing.assert_array_equal(dump.tensor("x"), array)
    rebuilt = dump.strided("x")
    np.testing.assert_array_equal(rebuilt, array)
    assert rebuilt.dtype == array.dtype
    if array.size:
        assert rebuilt.strides == array.strides


def test_strides_that_go_backwards_begin_at_the_last_element():
    payload = TensorPayload.from_array(np.arange(12).reshape(3, 4)[::-1, ::-1])
    assert (payload.stride, payload.storage_offset) == ((-4, -1), 11)


def test_expanded_tensor_has_stride_zero():
    row = np.broadcast_to(np.arange(3, dtype=np.int32), (4, 3))
    fitted = fit_tensors({"x": TensorPayload.from_array(row)}, 10_000).kept["x"]
    assert fitted.record.stride == (0, 1)
    assert fitted.values.shape == (4, 3)


def test_big_endian_arrays_are_turned_round(tmp_path):
    dump = roundtrip(tmp_path, x=TensorPayload.from_array(np.array([1, 258], dtype=">i4")))
    assert dump.tensor("x").tolist() == [1, 258]


@pytest.mark.parametrize("dtype", sorted(SAFETENSORS_TAG))
def test_every_dtype_as_raw_bytes(tmp_path, dtype):
    stored = storage_dtype(dtype)
    data = bytes(range(2 * 3 * stored.itemsize)) if dtype != "bool" else b"\0\1\1\0\0\1"
    payload = TensorPayload(data=data, dtype=f"torch.{dtype}", shape=(2, 3), stride=(1, 2), storage_offset=5)
    dump = roundtrip(tmp_path, x=payload)
    record = dump.manifest.tensors["x"]
    assert (record.dtype, record.stride, record.storage_offset) == (dtype, (1, 2), 5)
    assert dump.tensor("x").tobytes() == data
    assert dump.as_float32("x").dtype == np.float32


def test_tensors_that_are_cut_together_stay_equally_long(tmp_path):
    pages = np.arange(100 * 600, dtype=np.float32).reshape(100, 600)
    tensors = {
        "kv_page_ids": TensorPayload.from_array(np.arange(100)),
        "key_pages": TensorPayload.from_array(pages),
        "value_pages": TensorPayload.from_array(-pages),
    }
    tensors = {name: replace(tensor, cut_with="kv", cut_from=250) for name, tensor in tensors.items()}
    table = np.zeros((40, 40), np.int32)
    table[2, 7] = 70  # as the draft's offence says
    tensors["page_table"] = TensorPayload.from_array(table)
    path = write_dump(tmp_path, seed_bug_draft(tensors=tensors), StoreCaps(bytes_per_dump=150_000)).path
    assert path is not None
    dump = read_dump(path)
    kept = len(dump.tensor("kv_page_ids"))
    assert 20 < kept < 40
    assert np.array_equal(dump.tensor("key_pages"), pages[:kept])
    assert np.array_equal(dump.tensor("value_pages"), -pages[:kept])
    assert dump.tensor("page_table").shape == (40, 40)
    assert {name: cut.from_shape for name, cut in dump.manifest.truncated.items()} == {
        "kv_page_ids": (250,),
        "key_pages": (250, 600),
        "value_pages": (250, 600),
    }
    assert verify_dump(path).ok


def test_what_the_probe_left_out_is_counted_where_all_the_rest_fits(tmp_path):
    tensors = {"key_pages": replace(TensorPayload.from_array(np.zeros((0, 4), np.float32)), cut_from=7)}
    dump = read_dump(write_dump(tmp_path, seed_bug_draft(tensors=tensors)).path)
    cut = dump.manifest.truncated["key_pages"]
    assert (cut.from_shape, cut.to_shape, dump.tensor("key_pages").shape) == ((7, 4), (0, 4), (0, 4))


def test_decoding_agrees_with_torch():
    torch = pytest.importorskip("torch")
    bytes_ = torch.arange(256, dtype=torch.uint8)
    for name in ("float8_e4m3fn", "float8_e5m2"):
        expected = bytes_.view(getattr(torch, name)).float().numpy()
        np.testing.assert_array_equal(to_float32(bytes_.numpy(), name), expected)
    halves = torch.arange(65536, dtype=torch.int32).to(torch.uint16)
    expected = halves.view(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(to_float32(halves.numpy(), "bfloat16"), expected)


def test_the_tensor_file_is_readable_by_safetensors_itself(tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    halves = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    payload = TensorPayload(data=halves.view(torch.uint8).numpy().tobytes(), dtype="bfloat16", shape=(2,))
    dump = roundtrip(tmp_path, x=payload)
    assert torch.equal(load_file(dump.path / "tensors.safetensors")["x"], halves)


def test_scalars_and_empty_tensors(tmp_path):
    dump = roundtrip(
        tmp_path, scalar=TensorPayload.from_array(np.array(7)), empty=TensorPayload.from_array(np.zeros((0, 4)))
    )
    assert dump.tensor("scalar").shape == ()
    assert dump.strided("scalar") == 7
    assert dump.strided("empty").shape == (0, 4)
