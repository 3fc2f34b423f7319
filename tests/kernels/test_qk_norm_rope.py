"""qk_norm_rope against fp64, against Hugging Face's norm with SGLang's turn, and on a GPU against SGLang's kernels."""

import pytest
import torch
from eager_gemma4 import hf_norm
from exact_rows import Exact, exact
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_paths import DEVICE, PATHS, cases_here
from row_op_tests import DTYPES, POISON, assert_like_eager, assert_near

from gemma4_kernels import row_plan
from gemma4_kernels.qk_norm_rope import spec
from gemma4_kernels.qk_norm_rope.launch import _plan, qk_norm_rope
from gemma4_kernels.rounding import Rounding

# The interpreter computes with numpy, which remarks on what the tests are about.
pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered:RuntimeWarning")
PLACES = 37
SMALL = spec.Case("small", 3, 5, 2, 32)


def table_of(head_dim, places=PLACES, still=0.5):
    """[places, D] fp32, as SGLang fills it: the last `still` of the pairs do not turn."""
    pairs = head_dim // 2
    turning = pairs - int(pairs * still)
    frequencies = 10000.0 ** -(torch.arange(pairs) / pairs) * (torch.arange(pairs) < turning)
    angles = torch.arange(places)[:, None] * frequencies
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


def make(case, dtype, magnitude=1.0, seed=0):
    """Arguments: q, k and v are slices of one buffer, as of the projection's output."""
    random = torch.Generator().manual_seed(seed + case.tokens)
    sizes = [heads * case.head_dim for heads in (case.q_heads, case.kv_heads, case.kv_heads)]
    buffer = (torch.randn(case.tokens, sum(sizes), generator=random).double() * magnitude).to(dtype).to(DEVICE)
    q, k, v = buffer.split(sizes, dim=-1)
    weights = ((3 * torch.randn(case.head_dim, generator=random)).to(dtype).to(DEVICE) for _ in range(2))
    # The first and the last place of the table are among them.
    positions = torch.randint(0, PLACES, (case.tokens,), generator=random)
    positions[:1], positions[1:2] = PLACES - 1, 0
    rows = (q, k, v) if case.kv_heads else (q, None, None)
    return [*rows, *weights, table_of(case.head_dim).to(DEVICE), positions.to(DEVICE)]


def given_rows(arguments):
    return [rows for rows in arguments[:3] if rows is not None]


def there(results):
    return [result for result in results if result is not None]


def in_fp64(q, k, v, q_weight, k_weight, table, positions):
    cos, sin = table[positions.long()].double()[:, None].chunk(2, dim=-1)

    def normed(rows, weight):
        heads = exact(rows.unflatten(-1, (-1, q_weight.shape[0])))
        return heads.normed(torch.ones_like(q_weight) if weight is None else weight)

    def turned(rows, weight):
        value, size = (part.chunk(2, dim=-1) for part in normed(rows, weight))
        first = value[0] * cos - value[1] * sin, size[0] * cos.abs() + size[1] * sin.abs()
        second = value[1] * cos + value[0] * sin, size[1] * cos.abs() + size[0] * sin.abs()
        return Exact(*(torch.cat(pair, dim=-1).flatten(-2) for pair in zip(first, second, strict=True)))

    if k is None:
        return [turned(q, q_weight)]
    return [turned(q, q_weight), turned(k, k_weight), Exact(*(part.flatten(-2) for part in normed(v, None)))]


def eager(q, k, v, q_weight, k_weight, table, positions):
    """Return the norm rounded, then turned in fp32 and rounded."""
    cos, sin = table[positions.long()].float()[:, None].chunk(2, dim=-1)

    def normed(rows, weight):
        return hf_norm(rows.unflatten(-1, (-1, q_weight.shape[0])), weight)

    def turned(rows, weight):
        first, second = normed(rows, weight).float().chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).flatten(-2).to(rows.dtype)

    if k is None:
        return [turned(q, q_weight)]
    return [turned(q, q_weight), turned(k, k_weight), normed(v, None).flatten(-2)]


def tolerance(dtype):
    return spec.TOLERANCES[str(dtype).removeprefix("torch.")].relative


def check(arguments, path, both=True):
    dtype, wanted = arguments[0].dtype, in_fp64(*arguments)
    results = there(qk_norm_rope(*arguments, path=path))
    for found, one, rows in zip(results, wanted, given_rows(arguments), strict=True):
        assert (found.shape, found.dtype, found.is_contiguous()) == (rows.shape, dtype, True)
        assert_near(found, one, tolerance(dtype))
    if both:
        rounded = there(qk_norm_rope(*arguments, rounding=Rounding.EAGER, path=path))
        for found, like, one, roundings in zip(rounded, eager(*arguments), wanted, spec.EAGER_ROUNDINGS, strict=False):
            assert_like_eager(found, like, one, roundings)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", cases_here(spec.CASES))
@pytest.mark.parametrize("path", PATHS)
def test_against_fp64_and_against_eager(path, case, dtype):
    arguments = make(case, dtype)
    if case.tokens == 0:
        empty = qk_norm_rope(*arguments, path=path)
        assert [tuple(one.shape) for one in empty] == [tuple(rows.shape) for rows in arguments[:3]]
        return
    check(arguments, path)


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(
    tokens=st.integers(1, 5),
    q_heads=st.integers(1, 9),
    kv_heads=st.integers(0, 5),
    # The interpreter takes a second for 9 heads of 256, which the cases above have.
    head_dim=st.sampled_from([2, 4, 16, 64]),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 99),
)
@pytest.mark.parametrize("path", PATHS)
def test_any_heads(path, tokens, q_heads, kv_heads, head_dim, dtype, seed):
    case = spec.Case("any", tokens, q_heads, kv_heads, head_dim)
    check(make(case, dtype, seed=seed), path, both=False)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("path", PATHS)
def test_bits_of_eager_where_sums_are_exact(path, dtype):
    """Small integers: their squares add up exactly in any order, so that nothing is left but the roundings."""
    arguments = make(spec.Case("exact", 5, 4, 2, 256), dtype)
    for rows in arguments[:3]:
        rows.copy_(torch.randint(-15, 16, rows.shape, generator=torch.Generator().manual_seed(0)))
    found, like = qk_norm_rope(*arguments, rounding=Rounding.EAGER, path=path), eager(*arguments)
    assert all(torch.equal(*pair) for pair in zip(found, like, strict=True))
    # The two modes differ, or the test would say nothing.
    assert not torch.equal(qk_norm_rope(*arguments, path=path).q, like[0])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("magnitude", [1e-42, 1e-30, 1e-8, 1e4, 1e17])
@pytest.mark.parametrize("path", PATHS)
def test_magnitudes_from_denormals_up(path, magnitude):
    for dtype in DTYPES:
        if dtype != torch.float16 or 1e-8 <= magnitude <= 1e4:
            check(make(SMALL, dtype, magnitude), path, both=False)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("place", [7, 16 + 7], ids=["first of a pair", "second of a pair"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("path", PATHS)
def test_nan_and_inf_go_where_they_go_in_eager_and_stay_in_their_head(path, bad, place):
    clean = qk_norm_rope(*make(SMALL, torch.bfloat16), rounding=Rounding.EAGER, path=path)
    for which in range(3):
        arguments = make(SMALL, torch.bfloat16)
        arguments[which][1, 32 + place] = bad
        found, like = qk_norm_rope(*arguments, rounding=Rounding.EAGER, path=path), eager(*arguments)
        assert found[which].isnan().any()
        for one, other, before in zip(found, like, clean, strict=True):
            assert torch.equal(one.isnan(), other.isnan())
            assert torch.equal(one.isinf(), other.isinf())
            one, before = one.clone(), before.clone()
            one[1, 32:64] = before[1, 32:64] = 0
            assert torch.equal(one, before)


@pytest.mark.parametrize("path", PATHS)
def test_the_places_that_do_not_turn_are_the_norm_and_position_0_turns_none(path):
    arguments = make(SMALL, torch.float32)
    still = [*arguments[:6], torch.zeros_like(arguments[6])]
    normed = qk_norm_rope(*still, path=path)
    plain = hf_norm(arguments[0].unflatten(-1, (-1, 32)), arguments[3]).flatten(-2)
    assert torch.allclose(normed.q, plain, rtol=1e-5, atol=1e-6)
    found = qk_norm_rope(*arguments, path=path)
    turns = (found.q != normed.q).unflatten(-1, (-1, 2, 16)).any(dim=0).any(dim=0).any(dim=0)
    assert turns.tolist() == [True] * 8 + [False] * 8
    assert torch.equal(found.v, normed.v)


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
def test_int32_positions_and_other_dtypes_of_weights_and_table(path):
    arguments = make(SMALL, torch.bfloat16)
    wanted = qk_norm_rope(*arguments, path=path)
    found = qk_norm_rope(*arguments[:6], arguments[6].int(), path=path)
    assert all(torch.equal(*pair) for pair in zip(found, wanted, strict=True))
    # A CPU's table is of the model's dtype.
    check([*arguments[:3], *(w.float() * 1.01 for w in arguments[3:5]), arguments[5].bfloat16(), arguments[6]], path)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("layout", ["contiguous", "odd-address", "one-row-for-all"])
@pytest.mark.parametrize("path", PATHS)
def test_layouts(path, layout):
    arguments = make(SMALL, torch.bfloat16)
    rows = [one[:1].expand(3, -1) for one in arguments[:3]] if layout == "one-row-for-all" else arguments[:3]
    laid = [one.contiguous() for one in rows] if layout == "contiguous" else list(rows)
    if layout == "odd-address":
        memory = torch.full((3 * 500 + 1,), POISON, dtype=torch.bfloat16, device=DEVICE)
        sizes = [one.shape[1] for one in rows]
        laid = [
            view.copy_(one) for view, one in zip(memory[1:].view(3, 500).split([*sizes, 212], 1), rows, strict=False)
        ]
    found, wanted = (qk_norm_rope(*given_, *arguments[3:], path=path) for given_ in (laid, rows))
    assert all(torch.equal(*pair) for pair in zip(found, wanted, strict=True))


@pytest.mark.parametrize("apart", [0, 5, 48])
@pytest.mark.parametrize("path", PATHS)
def test_poisoned_outputs_are_filled_and_nothing_else_is_touched(path, apart):
    arguments = make(SMALL, torch.bfloat16)
    before = [tensor.clone() for tensor in arguments]
    wanted = qk_norm_rope(*arguments, path=path)
    widths = [one.shape[1] for one in wanted]
    memory = torch.full((3, sum(widths) + 3 * apart), torch.nan, dtype=torch.bfloat16, device=DEVICE)
    parts = memory.split([width + apart for width in widths], dim=1)
    outs = tuple(part[:, :width] for part, width in zip(parts, widths, strict=True))
    found = qk_norm_rope(*arguments, path=path, out=outs)
    assert [one.data_ptr() for one in found] == [one.data_ptr() for one in outs]
    assert all(torch.equal(*pair) for pair in zip(outs, wanted, strict=True))
    assert memory.isnan().sum() == 3 * 3 * apart
    assert all(torch.equal(*pair) for pair in zip(arguments, before, strict=True))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("case", [SMALL, spec.Case("least", 3, 3, 1, 2)], ids=["small", "least"])
@pytest.mark.parametrize("path", PATHS)
def test_outputs_may_be_their_inputs_and_tiles_give_the_same(path, case, tiled, monkeypatch):
    wanted = qk_norm_rope(*make(case, torch.bfloat16), path=path)
    if tiled:
        monkeypatch.setattr(row_plan, "_TILED_FROM", 1)
        assert _plan(case.tokens, case.q_heads, case.kv_heads, case.head_dim)[0] > case.kv_heads
    arguments = make(case, torch.bfloat16)
    for out in (None, tuple(arguments[:3])):
        found = qk_norm_rope(*arguments, path=path, out=out)
        assert all(torch.equal(*pair) for pair in zip(found, wanted, strict=True))


@given(st.integers(1, 40000), st.integers(1, 64), st.integers(0, 16), st.sampled_from([2**n for n in range(1, 11)]))
def test_no_pair_has_two_threads(tokens, q_heads, kv_heads, head_dim):
    tile, num_warps = _plan(tokens, q_heads, kv_heads, head_dim)
    assert tile & (tile - 1) == 0
    assert num_warps & (num_warps - 1) == 0
    assert num_warps == 1 or num_warps * 32 <= tile * head_dim // 2
    assert tile < 2 * q_heads


ROWS, W, TABLE, PLACE = torch.zeros(2, 48), torch.ones(16), torch.zeros(4, 16), torch.zeros(2, dtype=torch.int64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": ROWS[0]}, r"q is \[48\]"),
        ({"q": torch.zeros(2, 40)}, r"q is \[2, 40\], expected \[2, heads \* 16\]"),
        ({"q": torch.zeros(2, 0)}, r"q is \[2, 0\]"),
        ({"q": ROWS.int()}, "int32"),
        ({"q": torch.zeros(48, 2).T}, "q has stride 2 inside a row"),
        ({"k": ROWS.bfloat16()}, "k is torch.bfloat16"),
        ({"v": ROWS[:1]}, r"v is \[1, 48\]"),
        ({"v": torch.zeros(2, 32)}, r"expected k's \[2, 48\]"),
        ({"v": None}, "one of k and v is None"),
        ({"k_weight": None}, "k_weight is None"),
        ({"k_weight": W[:8]}, r"k_weight is \[8\]"),
        ({"q_weight": torch.ones(24)}, r"q_weight is \[24\], expected \[D\], D a power of two, 2\.\.1024"),
        ({"q_weight": torch.ones(2048)}, "power of two"),
        ({"q_weight": torch.ones(32)[::2]}, "q_weight has strides"),
        ({"cos_sin_cache": torch.zeros(4, 8)}, r"cos_sin_cache is \[4, 8\]"),
        ({"cos_sin_cache": torch.zeros(4, 16, dtype=torch.float64)}, "float64"),
        ({"cos_sin_cache": torch.zeros(16, 4).T}, "cos_sin_cache has strides"),
        ({"cos_sin_cache": torch.zeros(0, 16)}, "no positions for 2 tokens"),
        ({"positions": PLACE[:1]}, r"positions is \[1\]"),
        ({"positions": PLACE.float()}, "float32, expected"),
        ({"positions": torch.zeros(4, dtype=torch.int64)[::2]}, "stride 2"),
        ({"out": (ROWS, ROWS)}, "out has 2 tensors"),
        ({"out": (ROWS, ROWS, ROWS)}, "share memory"),
        ({"out": (ROWS[:1].expand(2, -1), None, None)}, "rows overlap"),
        ({"path": "cuda"}, "path is 'cuda'"),
    ],
)
def test_what_it_refuses(change, message):
    arguments = {"q": ROWS, "k": ROWS.clone(), "v": ROWS.clone(), "q_weight": W, "k_weight": W}
    arguments |= {"cos_sin_cache": TABLE, "positions": PLACE} | change
    with pytest.raises(ValueError, match=message):
        qk_norm_rope(**arguments)


@pytest.mark.parametrize("path", PATHS)
def test_eps_is_added_to_the_mean_square(path):
    q, k, v, q_weight, _, table, positions = make(SMALL, torch.float32)
    rows = [torch.full_like(one, 3.0) for one in (q, k, v)]
    ones, still = torch.ones_like(q_weight), torch.zeros_like(positions)
    for found in qk_norm_rope(*rows, ones, ones, table, still, 16.0, path=path):
        assert torch.allclose(found, torch.full_like(found, 0.6))


def test_weights_of_two_dtypes_are_refused():
    arguments = make(SMALL, torch.bfloat16)
    arguments[4] = arguments[4].float()
    with pytest.raises(ValueError, match=r"k_weight is torch\.float32, expected q_weight's"):
        qk_norm_rope(*arguments)
