"""ple_front_end against fp64 and against Hugging Face's lines."""

import pytest
import torch
from eager_gemma4 import hf_norm
from exact_rows import exact
from kernel_paths import DEVICE, PATHS, cases_here
from row_op_tests import DTYPES, assert_like_eager, assert_near

from gemma4_kernels import row_plan
from gemma4_kernels.ple_front_end import spec
from gemma4_kernels.ple_front_end.launch import ple_front_end
from gemma4_kernels.rounding import Rounding


def make(case, dtype):
    random = torch.Generator().manual_seed(case.tokens)
    shape = (case.tokens, case.layers, case.width)
    # A projection of H terms: what the first factor takes back.
    projection = torch.randn(shape, generator=random) * case.hidden**0.5
    made = projection, torch.randn(case.width, generator=random), torch.randn(shape, generator=random)
    return tuple(tensor.to(dtype).to(DEVICE) for tensor in made)


def in_fp64(projection, weight, ple, hidden):
    normed = exact(projection).times(hidden**-0.5).normed(weight)
    return normed if ple is None else normed.plus(exact(ple)).times(2**-0.5)


def eager(projection, weight, ple, hidden):
    normed = hf_norm(projection * hidden**-0.5, weight)
    return normed if ple is None else (normed + ple) * 2.0**-0.5


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", cases_here(spec.CASES))
@pytest.mark.parametrize("path", PATHS)
def test_against_fp64_and_against_eager(path, case, dtype):
    projection, weight, ple = make(case, dtype)
    for embedded in (ple, None):
        wanted = in_fp64(projection, weight, embedded, case.hidden)
        found = ple_front_end(projection, weight, embedded, case.hidden, path=path)
        assert (found.shape, found.dtype, found.is_contiguous()) == (projection.shape, dtype, True)
        assert_near(found, wanted, spec.TOLERANCES[str(dtype).removeprefix("torch.")].relative)
        found = ple_front_end(projection, weight, embedded, case.hidden, rounding=Rounding.EAGER, path=path)
        like = eager(projection, weight, embedded, case.hidden)
        assert_like_eager(found, like, wanted, spec.EAGER_ROUNDINGS)


SMALL = spec.Case("small", 3, 5, 64, 100)


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
def test_strides_and_places(path):
    projection, weight, ple = make(SMALL, torch.bfloat16)
    wanted = ple_front_end(projection, weight, ple, 100, path=path)
    # Rows as a GEMM leaves them, an embedding in a larger buffer, layers before tokens.
    flat = projection.reshape(3, 320).clone().view(3, 5, 64)
    memory = torch.full((3, 7, 69), 77.0, dtype=torch.bfloat16, device=DEVICE)
    wide = memory[:, 1:6, 3:67].copy_(ple)
    turned = ple.transpose(0, 1).contiguous().transpose(0, 1)
    for embedded in (wide, turned):
        assert torch.equal(ple_front_end(flat, weight, embedded, 100, path=path), wanted)
    out = torch.full_like(memory, torch.nan)
    ple_front_end(projection, weight, ple, 100, out=out[:, 1:6, 3:67], path=path)
    assert torch.equal(out[:, 1:6, 3:67], wanted)
    assert out.isnan().sum() == out.numel() - wanted.numel()
    for place in (0, 2):
        given_ = make(SMALL, torch.bfloat16)
        assert torch.equal(ple_front_end(*given_, 100, out=given_[place], path=path), wanted)


@pytest.mark.parametrize("path", PATHS)
def test_tiles_of_rows_give_the_same(path, monkeypatch):
    projection, weight, ple = make(SMALL, torch.bfloat16)
    wanted = ple_front_end(projection, weight, ple, 100, path=path)
    monkeypatch.setattr(row_plan, "_TILED_FROM", 1)
    assert torch.equal(ple_front_end(projection, weight, ple, 100, path=path), wanted)


@pytest.mark.parametrize("path", PATHS)
def test_nan_stays_with_its_token_and_layer(path):
    projection, weight, ple = make(SMALL, torch.bfloat16)
    wanted = ple_front_end(projection, weight, ple, 100, path=path)
    projection[1, 2, 3] = torch.nan
    found = ple_front_end(projection, weight, ple, 100, path=path)
    assert found[1, 2].isnan().all()
    found[1, 2] = wanted[1, 2]
    assert torch.equal(found, wanted)


ROWS, WEIGHT = torch.zeros(2, 3, 16), torch.ones(16)


@pytest.mark.parametrize(
    ("projection", "weight", "ple", "hidden", "message"),
    [
        (ROWS[0], WEIGHT, ROWS[0], 64, "projection is"),
        (ROWS.to(torch.int32), WEIGHT, None, 64, "int32"),
        (ROWS, WEIGHT[:15], None, 64, "weight is"),
        (ROWS, torch.ones(32)[::2], None, 64, "weight has stride 2"),
        (ROWS, WEIGHT, ROWS[:1], 64, "ple is"),
        (ROWS, WEIGHT, ROWS.bfloat16(), 64, "bfloat16"),
        (ROWS, WEIGHT, torch.zeros(2, 16, 3).transpose(1, 2), 64, "stride 3 inside a row"),
        (ROWS, WEIGHT, None, 0, "hidden_size is 0"),
        (torch.zeros(1, 1, 16).expand(2**16, 2**15, 16), WEIGHT, None, 64, "below 2\\^31"),
    ],
)
def test_what_it_refuses(projection, weight, ple, hidden, message):
    with pytest.raises(ValueError, match=message):
        ple_front_end(projection, weight, ple, hidden)
