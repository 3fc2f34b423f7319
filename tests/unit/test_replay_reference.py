"""The fp64 replay against an independent dense attention, and the values that it is made of."""

import tempfile
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dump_examples import list_draft, paged_draft, written
from gemma4_dumps.draft import TensorPayload
from gemma4_dumps.errors import DumpUnreadable
from gemma4_triage.errors import EnvironmentCannot, NothingChecked
from gemma4_triage.replay import rebuild as rebuild_module
from gemma4_triage.replay.call import MAX_QUERIES_PER_ROW
from gemma4_triage.replay.compare import compare
from gemma4_triage.replay.options import ReplayOptions
from gemma4_triage.replay.prepare import prepare
from gemma4_triage.replay.rebuild import rebuild
from gemma4_triage.replay.run import replay
from gemma4_triage.replay.shrink import shrink
from gemma4_triage.replay.tables import AS_DUMPED, VARIANTS
from gemma4_triage.replay.values import page_values, query_values

PAGE = 4


def dense(query, keys, values, scale):
    """Return one query [heads, d] over keys, values [n, kv_heads, d], head by head."""
    group = query.shape[0] // keys.shape[1]
    out = np.zeros(query.shape)
    for head in range(query.shape[0]):
        scores = keys[:, head // group].astype(np.float64) @ query[head].astype(np.float64) * scale
        weights = np.exp(scores - scores.max())
        out[head] = (weights / weights.sum()) @ values[:, head // group].astype(np.float64)
    return out


@st.composite
def clean_calls(draw):
    rows = draw(st.integers(1, 4))
    lengths = draw(st.lists(st.integers(1, 30), min_size=rows, max_size=rows))
    columns = -(-max(lengths) // PAGE) + draw(st.integers(0, 2))
    table = draw(
        st.lists(st.lists(st.integers(1, 64), min_size=columns, max_size=columns), min_size=rows, max_size=rows)
    )
    kv_heads = draw(st.sampled_from([1, 2, 3]))
    scalars = {
        "window_left": draw(st.sampled_from([-1, 0, 3, 9])),
        "max_seq_len_q": draw(st.sampled_from([1, 4])),
        "kv_heads": kv_heads,
        "q_heads": kv_heads * draw(st.sampled_from([1, 2])),
        "head_dim": draw(st.sampled_from([3, 8])),
    }
    return table, lengths, scalars


class TestAgainstDenseAttention:
    @settings(max_examples=60, deadline=None)
    @given(clean_calls(), st.integers(0, 3))
    def test_clean_page_tables(self, drawn, seed):
        table, lengths, scalars = drawn
        with tempfile.TemporaryDirectory() as root:
            dump = written(root, paged_draft(table, lengths, page_size=PAGE, scalars=scalars))
            options = ReplayOptions(seed=seed)
            call = rebuild(dump, options)
            prepared = prepare(dump, call, options)
        shape = (PAGE, scalars["kv_heads"], scalars["head_dim"])
        expected = []
        for row, length in enumerate(lengths):
            pages = [page_values(seed, page, shape) for page in table[row][: -(-length // PAGE)]]
            keys, values = (np.concatenate(part) for part in zip(*pages, strict=True))
            for position in range(max(length - scalars["max_seq_len_q"], 0), length):
                first = max(position - scalars["window_left"], 0) if scalars["window_left"] >= 0 else 0
                query = query_values(seed, row, position, (scalars["q_heads"], scalars["head_dim"]))
                seen = slice(first, position + 1)
                expected.append(dense(query, keys[seen], values[seen], scalars["head_dim"] ** -0.5))
        for variant in VARIANTS:
            np.testing.assert_allclose(prepared.reference[variant], np.stack(expected), rtol=0, atol=1e-12)

    def test_slot_lists(self, tmp_path):
        slots, indptr = [9, 4, 17, 30, 31, 8, 258], [0, 3, 3, 7]
        dump = written(tmp_path, list_draft(slots, indptr, page_size=PAGE))
        options = ReplayOptions()
        call = rebuild(dump, options)
        prepared = prepare(dump, call, options)
        assert call.queries[0].tolist() == [0, 2]
        for number, (row, begin, end) in enumerate([(0, 0, 3), (2, 3, 7)]):
            pages = [page_values(0, slot // PAGE, (PAGE, 2, 8)) for slot in slots[begin:end]]
            keys, values = (
                np.stack([page[part][slot % PAGE] for page, slot in zip(pages, slots[begin:end], strict=True)])
                for part in (0, 1)
            )
            query = query_values(0, row, end - begin - 1, (4, 8))
            expected = dense(query, keys, values, 8**-0.5)
            np.testing.assert_allclose(prepared.reference[AS_DUMPED][number], expected, rtol=0, atol=1e-12)

    def test_a_row_longer_than_a_chunk(self, tmp_path):
        """9000 keys in three chunks: the running softmax forgets nothing."""
        table = np.tile(np.arange(1, 65), 36)[None, :2250]
        dump = written(tmp_path, paged_draft(table, [9000], page_size=PAGE))
        options = ReplayOptions()
        prepared = prepare(dump, rebuild(dump, options), options)
        pages = [page_values(0, int(page), (PAGE, 2, 8)) for page in table[0]]
        keys, values = (np.concatenate(part) for part in zip(*pages, strict=True))
        expected = dense(query_values(0, 0, 8999, (4, 8)), keys, values, 8**-0.5)
        np.testing.assert_allclose(prepared.reference[AS_DUMPED][0], expected, rtol=0, atol=1e-12)

    def test_many_queries_are_thinned_out_from_the_first_to_the_last(self, tmp_path):
        dump = written(tmp_path, paged_draft([range(1, 51)], [200], page_size=PAGE, scalars={"max_seq_len_q": 200}))
        positions = rebuild(dump, ReplayOptions()).queries[1].tolist()
        assert (positions[0], positions[-1], len(positions)) == (0, 199, MAX_QUERIES_PER_ROW)


class TestValues:
    def test_they_go_by_seed_and_page_alone(self):
        first, again = page_values(1, 7, (4, 2, 8)), page_values(1, 7, (4, 2, 8))
        assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
        for other in (page_values(2, 7, (4, 2, 8)), page_values(1, 8, (4, 2, 8)), page_values(1, -1, (4, 2, 8))):
            assert not np.array_equal(first[0], other[0])
            assert not np.array_equal(first[1], other[1])

    def test_they_are_the_same_on_every_machine(self):
        """Known from this release: a NumPy that draws otherwise would make replays incomparable."""
        keys, values = page_values(0, 65, (1, 1, 4))
        assert (keys.ravel() * 64).tolist() == [61, 87, 108, 54]
        assert (values.ravel() * 64).tolist() == [40, 1, -19, -11]

    @pytest.mark.parametrize("page", [0, 3, -5, 2**61 + 9])
    def test_bfloat16_holds_them_exactly(self, page):
        for part in page_values(0, page, (16, 2, 64)):
            assert not (part.view(np.uint32) & 0xFFFF).any()
            assert np.abs(part).max() <= 2

    def test_a_single_wrong_page_of_many_shows(self, tmp_path):
        """Averaging over 256 keys does not level it out."""
        table = np.arange(1, 65)[None]
        wrong = table.copy()
        wrong[0, 30] = 7
        found = replay(written(tmp_path, paged_draft(wrong, [256], translated=table)), ReplayOptions())
        difference = found.reference[AS_DUMPED]
        assert difference.max_abs is not None
        assert difference.max_abs > 1e-3
        assert not found.reads_right


class TestValuesFromTheDump:
    def draft(self, pages, **more):
        rng = np.random.default_rng(0)
        made = {name: rng.standard_normal((len(pages), PAGE, 2, 8)).astype(np.float32) for name in ("key", "value")}
        tensors = {"kv_page_ids": np.asarray(pages, np.int64), "key_pages": made["key"], "value_pages": made["value"]}
        draft = paged_draft([[5, 6]], [7], page_size=PAGE, scalars={"scaling": 1.0})
        draft.tensors.update({name: TensorPayload.from_array(array) for name, array in (tensors | more).items()})
        return draft, made

    def test_they_are_used_with_the_layers_own_scale(self, tmp_path):
        query = np.full((1, 4, 8), 0.5, np.float32)
        draft, made = self.draft([6, 5], query=query)
        dump = written(tmp_path, draft)
        prepared = prepare(dump, rebuild(dump, ReplayOptions()), ReplayOptions())
        keys, values = (np.concatenate([made[name][1], made[name][0]])[:7] for name in ("key", "value"))
        np.testing.assert_allclose(prepared.reference[AS_DUMPED][0], dense(query[0], keys, values, 1.0), atol=1e-12)
        assert prepared.values_from.startswith("from the dump for 2 pages")

    def test_pages_without_values_are_seeded(self, tmp_path):
        draft, _ = self.draft([6])
        dump = written(tmp_path, draft)
        prepared = prepare(dump, rebuild(dump, ReplayOptions()), ReplayOptions())
        image = prepared.image
        assert np.array_equal(image.keys[int(image.stored(np.array([5]))[0])], page_values(0, 5, (PAGE, 2, 8))[0])

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
    def test_values_that_are_not_finite_are_a_result(self, tmp_path, value, recwarn):
        draft, _ = self.draft([6, 5])
        draft.tensors["key_pages"].data[0, 0, 0, 0] = value
        found = replay(written(tmp_path, draft), ReplayOptions())
        assert found.reference[AS_DUMPED].max_abs in (None, 0.0)
        assert not [str(one.message) for one in recwarn]

    @pytest.mark.parametrize(
        ("ids", "said"),
        [(np.array([6.0, 5.0]), "no indices"), (np.array([[6], [5]]), "no indices"), (np.array([6]), "the call needs")],
    )
    def test_page_ids_that_do_not_fit_are_refused(self, tmp_path, ids, said):
        draft, _ = self.draft([6, 5])
        draft.tensors["kv_page_ids"] = TensorPayload.from_array(ids)
        with pytest.raises(NothingChecked, match=said):
            replay(written(tmp_path, draft), ReplayOptions())

    def test_of_a_page_that_is_there_twice_the_first_counts(self, tmp_path):
        draft, made = self.draft([6, 5, 6])
        dump = written(tmp_path, draft)
        image = prepare(dump, rebuild(dump, ReplayOptions()), ReplayOptions()).image
        assert np.array_equal(image.values[int(image.stored(np.array([6]))[0])], made["value"][0])

    def test_more_values_than_the_cap_are_not_read(self, tmp_path):
        """Two of 3000 pages are wanted."""
        draft, _ = self.draft([*range(5, 3005)])
        found = replay(written(tmp_path, draft), ReplayOptions(cap_bytes=10_000))
        assert found.values_from.startswith("from the dump for 2 pages")


class TestCaps:
    def test_a_huge_pool_is_not_materialised(self, tmp_path):
        dump = written(tmp_path, paged_draft([[2**30, 1]], [8], bound=2**30 + 1))
        found = replay(dump, ReplayOptions(cap_bytes=10_000))
        # Pages 0, 1 and 2**30.
        assert found.pages == 3
        assert found.fine

    def test_too_many_pages_are_refused_with_the_cap(self, tmp_path):
        dump = written(tmp_path, paged_draft([range(1, 65)], [256]))
        with pytest.raises(EnvironmentCannot, match=r"65 pages of keys and values .* the cap is 0"):
            replay(dump, ReplayOptions(cap_bytes=10_000))

    @pytest.mark.parametrize("shrunk", [False, True])
    @pytest.mark.parametrize(
        ("draft", "said"),
        [
            (
                paged_draft([[1], [2]], [4, 2**31 - 1]),
                r"cache_seqlens\[1\] is 2147483647 keys, .* page_table has 1 column",
            ),
            (list_draft([9, 4], [0, 2**31 - 1]), "a row of kv_indices has 2147483647 slots .* and kv_indices 2 in all"),
        ],
    )
    def test_lengths_that_nothing_bears_out_are_a_contradiction(self, tmp_path, draft, said, shrunk):
        dump = written(tmp_path, draft)
        with pytest.raises(DumpUnreadable, match=f"the dump contradicts itself: {said}"):
            shrink(dump, ReplayOptions(), tmp_path / "out") if shrunk else replay(dump, ReplayOptions())
        assert not (tmp_path / "out").exists()

    def test_the_command_line_says_so_with_exit_4(self, tmp_path, cli):
        dump = written(tmp_path, paged_draft([[1]], [2**31 - 1]))
        code, out, err = cli("replay", dump.path)
        assert (code, out) == (4, "")
        assert err.startswith("error: the dump contradicts itself: cache_seqlens[0] is 2147483647 keys")

    def test_what_the_dump_does_hold_and_is_too_large_is_no_contradiction(self, tmp_path, monkeypatch):
        monkeypatch.setattr(rebuild_module, "MAX_ENTRIES", 100)
        dump = written(tmp_path, paged_draft(np.ones((3, 40)), [4, 160, 8]))
        with pytest.raises(EnvironmentCannot, match="too large to replay: 3 rows of up to 40 pages"):
            replay(dump, ReplayOptions())
        dump = written(tmp_path, paged_draft(np.ones((70_000, 1)), np.ones(70_000)))
        with pytest.raises(EnvironmentCannot, match="too large to replay: 70000 rows; at most 65536"):
            replay(dump, ReplayOptions())

    def test_more_products_than_minutes_allow_are_refused(self, tmp_path):
        dump = written(tmp_path, paged_draft([[1] * 50_000], [200_000]))
        with pytest.raises(EnvironmentCannot, match="1 query sees 200000 keys with 1024 heads of 1024"):
            replay(dump, ReplayOptions(heads=(1024, 1), head_dim=1024))

    def test_wide_heads_are_gathered_in_smaller_chunks(self, tmp_path):
        """4096 keys of 64 heads of 64 would be 128 MiB at once, for keys and for values."""
        dump = written(tmp_path, paged_draft([[1] * 1030], [4120]))
        tracemalloc.start()
        found = replay(dump, ReplayOptions(heads=(64, 64), head_dim=64))
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert found.fine
        assert peak_bytes < 128 * 1024**2


class TestCompare:
    rows = np.array([0, 0, 2])

    def test_first_row_and_head_and_the_measures(self):
        expected = np.ones((3, 2, 4))
        found = expected.copy()
        found[2, 1, 3] = 3.0
        difference = compare(found, expected, self.rows, "float64")
        assert (difference.max_abs, difference.relative) == (2.0, 2.0)
        assert (difference.bad_rows, difference.first_bad) == ((2,), (2, 1))
        assert difference.cosine == pytest.approx(6 / np.sqrt(4 * 12))

    def test_what_is_not_finite_is_bad_and_has_no_number(self):
        expected = np.zeros((3, 2, 4))
        found = expected.copy()
        found[1, 0, 0] = np.nan
        difference = compare(found, expected, self.rows, "bfloat16")
        assert (difference.max_abs, difference.relative, difference.cosine) == (None, None, None)
        assert difference.bad_rows == (0,)

    def test_within_the_tolerance_is_fine(self):
        expected = np.ones((3, 2, 4))
        assert compare(expected + 1e-2, expected, self.rows, "bfloat16").fine
        assert not compare(expected + 1e-2, expected, self.rows, "float16").fine
