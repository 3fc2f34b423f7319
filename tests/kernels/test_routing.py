"""routing on planted cases: shapes, ties, zeros, NaN, inf, magnitudes, layouts; both roundings."""

import math

import pytest
import torch
from kernel_paths import DEVICE, PATHS, cases_here
from routing_by_hand import DTYPES, assert_like_eager, assert_routes, order

from gemma4_kernels.rounding import Rounding
from gemma4_kernels.routing import spec
from gemma4_kernels.routing.launch import routing

# The interpreter computes with numpy, which remarks on what the tests are about.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
INF, NAN = math.inf, math.nan
GENERATOR = torch.Generator().manual_seed(0)


def logits_of(tokens: int, experts: int, dtype: torch.dtype, spread: float = 3.0) -> torch.Tensor:
    return (torch.randn(tokens, experts, generator=GENERATOR) * spread).to(dtype)


def scale_of(experts: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (0.5 + torch.rand(experts, generator=GENERATOR)).to(dtype)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", cases_here(spec.CASES))
@pytest.mark.parametrize("path", PATHS)
def test_random_logits(path, case, dtype):
    scale = scale_of(case.experts, dtype)
    # By hand the large cases would take minutes; their first and last tokens are in different programs.
    logits = logits_of(case.tokens, case.experts, dtype)
    if case.interpreted:
        assert_routes(logits, scale, case.top_k, path)
    else:
        weights, ids = routing(logits.to(DEVICE), scale.to(DEVICE), case.top_k, path=path)
        assert ids[-9:].tolist() == [order(row, case.top_k) for row in logits[-9:].double().tolist()]
        stable = torch.sort(logits.to(DEVICE), dim=-1, descending=True, stable=True).indices[:, : case.top_k]
        assert torch.equal(ids.long(), stable)
        assert torch.isfinite(weights).all()
    if case.tokens:
        assert_like_eager(logits, scale, case.top_k, path)


ROWS = {
    "all-equal": [1.5] * 128,
    "all-zero": [0.0] * 128,
    "all-minus-zero": [-0.0] * 128,
    "zeros-of-both-signs": [-0.0, 0.0] * 64,
    "minus-zero-before-zero": [-1.0] * 100 + [-0.0, 0.0, -0.0, 0.0] + [-1.0] * 24,
    "ties-at-the-cut": [3.0] * 5 + [2.0] * 20 + [1.0] * 103,
    "ties-at-the-end": [1.0] * 120 + [2.0] * 8,
    "ascending": [float(i) for i in range(128)],
    "descending": [float(-i) for i in range(128)],
    "all-negative": [-1.0 - i % 7 for i in range(128)],
    "one-nan": [NAN if i == 77 else float(i) for i in range(128)],
    "nan-first-and-last": [NAN, *[1.0] * 126, NAN],
    "all-nan": [NAN] * 128,
    "more-nan-than-places": [NAN if i % 3 else 1.0 for i in range(128)],
    "one-inf": [INF if i == 3 else 0.5 for i in range(128)],
    "two-inf": [INF if i in (3, 120) else 0.5 for i in range(128)],
    "inf-and-nan": [INF if i == 3 else NAN if i == 9 else 0.5 for i in range(128)],
    "minus-inf-but-three": [-INF] * 60 + [1.0, 2.0, 1.0] + [-INF] * 65,
    "all-minus-inf": [-INF] * 128,
    "one-far-ahead": [60000.0 if i == 64 else 0.0 for i in range(128)],
    "one-far-behind": [-60000.0 if i == 0 else 0.0 for i in range(128)],
    "largest-finite": [65504.0 if i % 2 else -65504.0 for i in range(128)],
    "denormals-of-fp16": [6e-8 * (i % 5 - 2) for i in range(128)],
    "denormals-of-fp32": [1e-39 * (i % 5 - 2) for i in range(128)],
    "steps-of-one-unit": [1.0 + 2**-7 * (i % 3) for i in range(128)],
    "last-expert-only": [0.0] * 127 + [1.0],
    "first-expert-only": [1.0] + [0.0] * 127,
    "across-lanes": [float((i * 37) % 128) for i in range(128)],
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("path", PATHS)
def test_planted_rows(path, name, dtype):
    planted = torch.tensor([ROWS[name]], dtype=torch.float32).to(dtype)
    # Beside ordinary tokens, which must not notice.
    logits = torch.cat([logits_of(1, 128, dtype), planted, logits_of(1, 128, dtype)])
    assert_routes(logits, scale_of(128), 8, path)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("path", PATHS)
def test_nan_of_every_sign_and_payload_is_one_value_above_inf(path, dtype):
    integers = {2: torch.int16, 4: torch.int32}[dtype.itemsize]
    quiet, top = {
        torch.bfloat16: (0x7FC0, 0x7F80),
        torch.float16: (0x7E00, 0x7C00),
        torch.float32: (0x7FC00000, 0x7F800000),
    }[dtype]
    sign = -(2 ** (8 * dtype.itemsize - 1))
    bits = [0] * 32
    bits[5], bits[9], bits[11], bits[20], bits[30] = top, quiet, top + 1, sign + quiet, -1
    logits = torch.tensor([bits], dtype=integers).view(dtype)
    assert logits.isnan().sum() == 4
    _, ids = routing(logits.to(DEVICE), scale_of(32).to(DEVICE), 6, path=path)
    assert ids.tolist() == [[9, 11, 20, 30, 5, 0]]


@pytest.mark.parametrize("path", PATHS)
def test_eager_without_probabilities_takes_the_first_experts(path):
    logits = torch.zeros(3, 64)
    logits[0, 7], logits[1, 8], logits[2] = NAN, INF, -INF
    scale = torch.ones(64)
    weights, ids = routing(logits.to(DEVICE), scale.to(DEVICE), 4, rounding=Rounding.EAGER, path=path)
    assert ids.tolist() == [[0, 1, 2, 3]] * 3
    assert weights.isnan().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("path", PATHS)
def test_rows_any_distance_apart_at_any_address(path, dtype):
    memory = torch.full((9, 200), 99.0, dtype=dtype)
    view = memory[1::2, 3:131]
    view.copy_(logits_of(4, 128, dtype))
    assert_routes(view, scale_of(128), 8, path)
    # One row for all tokens.
    assert_routes(view[:1].expand(5, 128), scale_of(128), 8, path)


@pytest.mark.parametrize("path", PATHS)
def test_scales_of_any_dtype_sign_and_size(path):
    for dtype in DTYPES:
        scale = scale_of(128, dtype)
        scale[:3] = torch.tensor([0.0, -2.0, 1e4], dtype=dtype)
        logits = logits_of(2, 128, torch.bfloat16)
        logits[0, :3] = 20.0
        assert_routes(logits, scale, 8, path)


@pytest.mark.parametrize("path", PATHS)
def test_weights_without_scale_sum_to_one_and_descend(path):
    logits = logits_of(16, 128, torch.bfloat16, spread=10.0)
    weights, _ = routing(logits.to(DEVICE), torch.ones(128, device=DEVICE), 8, path=path)
    assert torch.allclose(weights.sum(dim=1), torch.ones(16, device=DEVICE), atol=1e-6)
    assert (weights[:, 1:] <= weights[:, :-1]).all()


@pytest.mark.parametrize("path", PATHS)
def test_a_tile_of_tokens_gives_what_single_tokens_give(path, monkeypatch):
    """Large batches take the tiled form; here it is asked for at a size that the interpreter can run."""
    from gemma4_kernels.routing import launch

    logits, scale = logits_of(7, 128, torch.bfloat16).to(DEVICE), scale_of(128).to(DEVICE)
    one_by_one = routing(logits, scale, 8, path=path)
    monkeypatch.setattr(launch, "_TILED_FROM", 1)
    tiled = routing(logits, scale, 8, path=path)
    assert torch.equal(one_by_one[1], tiled[1])
    assert torch.equal(one_by_one[0], tiled[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logits": torch.zeros(2, 3, 4)}, "logits is"),
        ({"logits": torch.zeros(2, 257)}, "expected \\[tokens, 1..256\\]"),
        ({"logits": torch.zeros(2, 16, dtype=torch.int32)}, "int32"),
        ({"logits": torch.zeros(16, 2).T}, "stride"),
        ({"per_expert_scale": torch.ones(15)}, "per_expert_scale is \\[15\\]"),
        ({"per_expert_scale": torch.ones(32)[::2]}, "contiguous"),
        ({"per_expert_scale": torch.ones(16, dtype=torch.int64)}, "int64"),
        ({"top_k": 0}, "expected 1..16"),
        ({"top_k": 17}, "expected 1..16"),
        ({"rounding": Rounding.EAGER, "per_expert_scale": torch.ones(16, dtype=torch.bfloat16)}, "beside logits"),
        ({"path": "cuda"}, "path is 'cuda'"),
    ],
)
def test_what_it_refuses(change, message):
    given = {"logits": torch.zeros(2, 16), "per_expert_scale": torch.ones(16), "top_k": 4} | change
    with pytest.raises(ValueError, match=message):
        routing(**given)
