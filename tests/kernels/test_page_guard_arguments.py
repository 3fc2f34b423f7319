"""What page_guard refuses: arguments, paths, words that are not a result."""

import pytest
import torch
from page_guard_runs import one

from gemma4_kernels.page_guard import spec
from gemma4_kernels.page_guard.findings import decode
from gemma4_kernels.page_guard.launch import GuardedSlots, NullPage, Padding, PageGuard

PAGES = torch.ones(2, 3, dtype=torch.int32)
INDPTR = torch.tensor([0, 1, 3])


def flat(slots: torch.Tensor = PAGES[0], indptr: torch.Tensor | None = INDPTR) -> list[GuardedSlots]:
    return [GuardedSlots(slots, 4, indptr=indptr)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"arrays": []}, "0 arrays"),
        ({"arrays": one(PAGES) * 5}, "5 arrays"),
        ({"arrays": one(PAGES.short())}, "torch.int16"),
        ({"arrays": one(PAGES[0])}, "expected .* int32"),
        ({"arrays": one(PAGES.to("meta"))}, "on meta"),
        ({"arrays": [*one(PAGES), *one(PAGES[:1])]}, r"array 1 is \[1, 3\]"),
        ({"arrays": one(torch.ones(spec.MAX_ROWS + 1, 3, dtype=torch.int32))}, "65536 rows"),
        ({"arrays": one(PAGES, 0)}, "bound is 0"),
        ({"arrays": one(PAGES, 2**63)}, "bound is 9223372036854775808"),
        ({"arrays": one(PAGES, 4, NullPage.LEGAL_IN_PADDED_ROWS)}, "no padding"),
        ({"arrays": one(PAGES, 4, NullPage.LEGAL, -2)}, "window_keys is -2"),
        ({"arrays": flat(PAGES)}, "because it has an indptr"),
        ({"arrays": flat(PAGES[0], None), "cache_seqlens": None}, "or .n. with indptr"),
        ({"arrays": flat(indptr=INDPTR[:2])}, r"indptr is \[2\]"),
        ({"arrays": flat(indptr=INDPTR.float())}, "indptr is .* torch.float32"),
        ({"arrays": flat(indptr=INDPTR[:0]), "cache_seqlens": None}, "-1 rows"),
        ({"arrays": flat(), "rows": 3}, "expected .4 or more"),
        ({"rows": 3}, "expected .3, columns"),
        ({"page_size": 0}, "page_size is 0"),
        ({"cache_seqlens": None}, "cache_seqlens is None"),
        ({"cache_seqlens": torch.tensor([1, 2, 3])}, r"cache_seqlens is \[3\]"),
        ({"cache_seqlens": torch.tensor([1.0, 2.0])}, "cache_seqlens is .* torch.float32"),
        ({"padding": Padding(torch.tensor([1]), 1)}, "padding.seq_lens"),
        ({"arrays": one(PAGES[:1].expand(2, 3))}, "share memory"),
    ],
)
def test_arguments_that_cannot_be_checked(change, message):
    ok = {"arrays": one(PAGES), "cache_seqlens": torch.tensor([1, 2]), "page_size": 1, "contain": True}
    guard = PageGuard("cpu", "torch")
    for method in (guard.check, guard.prepare):
        with pytest.raises(ValueError, match=message):
            method(**(ok | change))


def test_the_rows_of_ragged_slots_alone():
    def rows(**more):
        return guard.check([GuardedSlots(torch.tensor([99] * 3), 9, indptr=INDPTR)], None, 1, contain=False, **more)

    guard = PageGuard("cpu", "torch")
    assert rows().rows == (0, 1)
    assert rows(rows=1).rows == (0,)


def test_a_path_that_there_is_not():
    with pytest.raises(ValueError, match="path is 'gpu'"):
        PageGuard("cpu", "gpu")  # pyright: ignore[reportArgumentType]


def test_words_that_are_not_a_result_are_refused():
    words = spec.result_words(1, 2)
    for result in (torch.zeros(3, dtype=torch.int64), torch.zeros(words), torch.zeros(words, device="meta")):
        with pytest.raises(ValueError, match="a result is"):
            decode(result)
    prepared = PageGuard("cpu", "torch").prepare(one(PAGES, 1), torch.tensor([0, 1]), 1, contain=False)
    prepared.launch()
    result = prepared.result
    # As many words as another result has, and older ones behind.
    assert decode(torch.cat([result, torch.full((9,), -1)])) == decode(result) is not None
    lane = spec.LANES + spec.LANE_WORDS
    for word, value in [
        *((spec.FOUND, value) for value in (2, -1)),
        *((word, value) for word in (spec.ARRAYS, spec.ROWS, spec.SPLITS) for value in (0, -1, 5, 2**62)),
        *((lane + spec.COUNT, value) for value in (0, -1)),
        *((lane + word, -1) for word in (spec.COLUMN, spec.LOWER)),
        (lane + spec.VALUE, 0),
        (spec.ARRAY + spec.BOUND, 9),
        (lane + spec.NEEDED, 2),
    ]:
        spoilt = result.clone()
        spoilt[word] = value
        if word == lane + spec.VALUE:
            spoilt[spec.ARRAY + spec.BOUND], spoilt[lane + spec.LOWER] = 9, 0
        with pytest.raises(ValueError, match="not a page_guard result"):
            decode(spoilt)
