"""token_embeddings against torch's own lookups and products, bit for bit, and against SGLang's lines."""

import pytest
import torch
from kernel_paths import DEVICE, PATHS, cases_here

from gemma4_kernels.token_embeddings import spec
from gemma4_kernels.token_embeddings.launch import token_embeddings

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
TOKENS, SHOWN = 50, 40
PICTURE, VIDEO, SOUND, PAD = 44, 45, 7, 3
HIDDEN = {"hidden_ids": (PICTURE, VIDEO, SOUND), "pad": PAD}
# Every case has as many of these as it has tokens, the last of either table and what is past the second among them.
IDS = (0, TOKENS - 1, PICTURE, SHOWN - 1, SHOWN, SOUND, PAD, VIDEO, 1)


def tables(case, dtype):
    random = torch.Generator().manual_seed(case.tokens)
    made = torch.randn(TOKENS, case.width, generator=random), torch.randn(SHOWN, case.per_layer, generator=random)
    return tuple((one * 3).to(dtype).to(DEVICE) for one in made)


def ids_of(case, dtype=torch.int64):
    return torch.tensor([IDS[number % len(IDS)] for number in range(case.tokens)], dtype=dtype, device=DEVICE)


def as_sglang(ids, table, factor, per_layer_table, per_layer_factor):
    """Returns what the lines of SGLang 0.5.13.post1's multimodal and text model make of ids."""
    shown = ids.clone()
    for hidden in HIDDEN["hidden_ids"]:
        shown[ids == hidden] = HIDDEN["pad"]
    mask = torch.logical_and(shown >= 0, shown < len(per_layer_table))
    shown = torch.where(mask, shown, torch.zeros_like(shown))
    lookup = torch.nn.functional.embedding
    return lookup(ids, table) * factor, lookup(shown, per_layer_table) * per_layer_factor


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", cases_here(spec.CASES))
@pytest.mark.parametrize("path", PATHS)
def test_the_bits_are_those_of_sglangs_lines(path, case, dtype):
    table, per_layer = tables(case, dtype)
    factors = case.width**0.5, max(case.per_layer, 1) ** 0.5
    for index_dtype in (torch.int64, torch.int32):
        ids = ids_of(case, index_dtype)
        if not case.per_layer:
            found = token_embeddings(ids, table, factors[0], path=path)
            assert found.per_layer is None
            assert torch.equal(found.tokens, torch.nn.functional.embedding(ids, table) * factors[0])
            continue
        found = token_embeddings(ids, table, factors[0], per_layer, factors[1], **HIDDEN, path=path)
        for one, wanted in zip(found, as_sglang(ids, table, factors[0], per_layer, factors[1]), strict=True):
            assert (one.shape, one.dtype, one.is_contiguous()) == (wanted.shape, dtype, True)
            assert torch.equal(one, wanted)


SMALL = spec.Case("small", 7, 64, 96)


@pytest.mark.parametrize("path", PATHS)
def test_a_product_is_rounded_once(path):
    """Against fp64, in which a product of these numbers is exact."""
    table, per_layer = tables(SMALL, torch.bfloat16)
    factor = torch.tensor(2560**0.5).item()
    found = token_embeddings(ids_of(SMALL), table, factor, per_layer, factor, path=path).tokens
    exact = table[ids_of(SMALL)].double() * factor
    unit = 2.0 ** (exact.abs().log2().floor() - 7)
    assert ((found.double() - exact).abs() <= unit * (0.5 + 2**-15)).all()


@pytest.mark.parametrize("path", PATHS)
def test_what_is_no_id_is_told_and_its_neighbours_are_as_ever(path):
    table, per_layer = tables(SMALL, torch.bfloat16)
    ids = torch.tensor([-1, 5, TOKENS, 2**40, 6, -(2**40), 2], device=DEVICE)
    found = token_embeddings(ids, table, 2.0, per_layer, 3.0, **HIDDEN, path=path)
    outside = torch.tensor([0, 2, 3, 5], device=DEVICE)
    inside = torch.tensor([1, 4, 6], device=DEVICE)
    assert found.tokens[outside].isnan().all()
    assert torch.equal(found.tokens[inside], table[ids[inside]] * 2.0)
    # SGLang shows these id 0.
    assert torch.equal(found.per_layer[outside], (per_layer[:1] * 3.0).expand(4, -1))
    assert torch.equal(found.per_layer[inside], per_layer[ids[inside]] * 3.0)


@pytest.mark.parametrize("path", PATHS)
def test_without_ids_to_hide_all_are_shown(path):
    table, per_layer = tables(SMALL, torch.bfloat16)
    ids = torch.tensor([0, SOUND, PAD], device=DEVICE)
    found = token_embeddings(ids, table, 1.0, per_layer, 1.0, path=path)
    assert torch.equal(found.per_layer, per_layer[ids])
    # A pad that the per-layer embedding does not have is shown as 0.
    found = token_embeddings(ids, table, 1.0, per_layer, 1.0, hidden_ids=(SOUND,) * 3, pad=SHOWN + 1, path=path)
    assert torch.equal(found.per_layer, per_layer[torch.tensor([0, 0, PAD], device=DEVICE)])


@pytest.mark.parametrize("path", PATHS)
def test_infinities_nan_and_signs_of_zero_come_through(path):
    odd = torch.tensor([torch.inf, -torch.inf, torch.nan, -0.0, 0.0, 3e38, 1e-39, -1e-40], dtype=torch.bfloat16)
    table = odd.repeat(3, 8).to(DEVICE)
    ids = torch.tensor([2, 0], device=DEVICE)
    found = token_embeddings(ids, table, 4.0, table, 0.5, path=path)
    for one, wanted in ((found.tokens, table[ids] * 4.0), (found.per_layer, table[ids] * 0.5)):
        assert torch.equal(one.isnan(), wanted.isnan())
        assert torch.equal(one.signbit() & ~one.isnan(), wanted.signbit() & ~wanted.isnan())
        assert torch.equal(one.nan_to_num(1.0, 2.0, 3.0), wanted.nan_to_num(1.0, 2.0, 3.0))


@pytest.mark.parametrize("path", PATHS)
def test_rows_of_the_tables_may_lie_apart(path):
    table, per_layer = tables(SMALL, torch.bfloat16)
    wanted = token_embeddings(ids_of(SMALL), table, 2.0, per_layer, 3.0, **HIDDEN, path=path)
    wide = [torch.full((len(one), one.shape[1] + 5), torch.nan).to(one) for one in (table, per_layer)]
    apart = [big[:, 3:-2].copy_(one) for big, one in zip(wide, (table, per_layer), strict=True)]
    found = token_embeddings(ids_of(SMALL), apart[0], 2.0, apart[1], 3.0, **HIDDEN, path=path)
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


@pytest.mark.gpu
def test_rows_of_a_table_of_more_than_two_gibi_elements():
    """E4B's per-layer embedding has 262144 rows of 10752: the last begin past 2^31."""
    table = torch.empty(262144, 10752, dtype=torch.bfloat16, device="cuda")
    ids = torch.tensor([262143, 0, 199729, 199728], device="cuda")
    for number, one in enumerate(ids.tolist()):
        table[one] = number + 1
    found = token_embeddings(ids, table, 2.0, table, 3.0)
    wanted = torch.arange(1, 5, device="cuda")[:, None].expand(4, 10752)
    assert torch.equal(found.tokens, (wanted * 2).bfloat16())
    assert torch.equal(found.per_layer, (wanted * 3).bfloat16())


ROWS, FEW = torch.zeros(4, 16), torch.zeros(3, dtype=torch.int64)


@pytest.mark.parametrize(
    ("ids", "table", "per_layer", "message"),
    [
        (FEW[:, None], ROWS, None, "ids is"),
        (FEW.float(), ROWS, None, "float32, expected"),
        (torch.zeros(6, dtype=torch.int64)[::2], ROWS, None, "contiguous"),
        (FEW, ROWS[0], None, "table is"),
        (FEW, ROWS[:0], None, "table is"),
        (FEW, ROWS.int(), None, "int32, expected"),
        (FEW, ROWS, ROWS.bfloat16(), "both tables alike"),
        (FEW, ROWS.T.contiguous().T, None, "stride 4 inside a row"),
        (FEW, ROWS, ROWS.to("meta"), "is on meta"),
    ],
)
def test_what_it_refuses(ids, table, per_layer, message):
    with pytest.raises(ValueError, match=message):
        token_embeddings(ids, table, 1.0, per_layer)
