"""Shrinking: what comes out fails in the same way, is 1-minimal, and is a dump like any other."""

import json
import tempfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dump_examples import list_draft, offence, paged_draft, written
from gemma4_dumps.draft import TensorPayload
from gemma4_dumps.errors import DumpUnreadable
from gemma4_dumps.reader import read_dump
from gemma4_dumps.schema import Provenance
from gemma4_dumps.verify import verify_dump
from gemma4_triage.errors import NothingChecked
from gemma4_triage.replay.cut import keep_columns, keep_keys, keep_rows, renumbered, whole
from gemma4_triage.replay.damage import Kind, kinds, worst_read
from gemma4_triage.replay.delta_debugging import smallest_failing, smallest_failing_count
from gemma4_triage.replay.options import ReplayOptions
from gemma4_triage.replay.rebuild import rebuild
from gemma4_triage.replay.run import replay
from gemma4_triage.replay.shrink import shrink

OPTIONS = ReplayOptions()
FAULTS = {"out_of_range": 70, "far": 2**30, "negative": -3, "null": 0, "other_page": 40}


class TestDeltaDebugging:
    @settings(max_examples=200, deadline=None)
    @given(st.integers(1, 40), st.sets(st.sets(st.integers(0, 39), min_size=1, max_size=4).map(frozenset), min_size=1))
    def test_it_fails_and_no_item_can_be_left_out(self, count, causes):
        """A list fails if it holds all of any one cause."""
        causes = [cause for cause in causes if max(cause) < count] or [frozenset(range(count))]

        def fails(items):
            return any(cause <= set(items) for cause in causes)

        found = smallest_failing(range(count), fails)
        assert fails(found)
        assert found == sorted(found)
        assert not any(fails([item for item in found if item != left_out]) for left_out in found if len(found) > 1)

    @given(st.lists(st.booleans(), max_size=60))
    def test_a_count_fails_and_the_one_below_does_not(self, below):
        answers = [False, *below, True]
        found = smallest_failing_count(len(answers) - 1, lambda number: answers[number])
        assert answers[found]
        assert not answers[found - 1]


@st.composite
def damaged_calls(draw):
    rows, columns, page_size = draw(st.integers(1, 6)), draw(st.integers(1, 8)), 4
    lengths = draw(st.lists(st.integers(1, columns * page_size), min_size=rows, max_size=rows))
    # Two rows may share a page, and the null page is no right answer.
    right = np.array(draw(st.lists(st.integers(1, 39), min_size=rows * columns, max_size=rows * columns)))
    right = right.reshape(rows, columns)
    table = right.copy()
    for _ in range(draw(st.integers(1, 4))):
        row = draw(st.integers(0, rows - 1))
        column = draw(st.integers(0, (lengths[row] - 1) // page_size))
        table[row, column] = draw(st.sampled_from(sorted(FAULTS.values())))
    scalars = {"window_left": draw(st.sampled_from([-1, 2, 6])), "max_seq_len_q": draw(st.sampled_from([1, 3]))}
    return paged_draft(table, lengths, translated=right, scalars=scalars), scalars


def one_less(cut):
    """Yield every call with one row, column or key less."""
    rows, columns = cut.call.rows, len(cut.columns)
    if rows > 1:
        yield from (keep_rows(cut, [row for row in range(rows) if row != out]) for out in range(rows))
    if columns > 1:
        yield from (keep_columns(cut, [one for one in range(columns) if one != out]) for out in range(columns))
    yield from (keep_keys(cut, row, int(keys) - 1) for row, keys in enumerate(cut.call.key_counts) if keys > 1)


class TestShrink:
    @settings(max_examples=80, deadline=None)
    @given(damaged_calls(), st.booleans())
    def test_it_still_fails_and_is_1_minimal(self, drawn, renumber):
        draft, _ = drawn
        with tempfile.TemporaryDirectory() as root:
            dump = written(f"{root}/before", draft)
            kind = worst_read(rebuild(dump, OPTIONS))
            if kind is Kind.RIGHT:
                with pytest.raises(NothingChecked, match="nothing to shrink"):
                    shrink(dump, OPTIONS, f"{root}/after")
                return
            shrunk = shrink(dump, OPTIONS, f"{root}/after", renumber)
            assert verify_dump(shrunk.dump.path).ok
            # What was written is read back, not what was in memory.
            call = rebuild(shrunk.dump, OPTIONS)
            assert worst_read(call) is kind is shrunk.kind
            assert not any(worst_read(smaller.call) is kind for smaller in one_less(whole(call)))
            assert not replay(shrunk.dump, OPTIONS).reads_right
            assert all(after <= before for before, after in zip(shrunk.before, shrunk.after, strict=True))

    def test_the_manifest_says_from_what_and_what_is_left(self, tmp_path):
        table = np.arange(1, 41).reshape(5, 8)
        right = table.copy()
        table[3, 6] = 70
        dump = written(
            tmp_path / "before", paged_draft(table, [32] * 5, translated=right, offences=[offence(3, 6, 70)])
        )
        shrunk = shrink(dump, OPTIONS, tmp_path / "after")
        manifest = shrunk.dump.manifest
        assert manifest.scalars["shrunk_from"] == dump.manifest.dump_id
        assert (manifest.scalars["shrunk_rows"], manifest.scalars["shrunk_columns"]) == ("3", "6")
        assert (shrunk.before, shrunk.after) == ((5, 8, 160), (1, 1, 1))
        assert shrunk.bytes_after < shrunk.bytes_before
        (left,) = manifest.offences
        assert (left.row, left.column, left.value, left.upper, left.request_slot) == (0, 0, 70, 65, 4)
        assert (manifest.verdict, manifest.rule, manifest.backend, manifest.layer) == (
            "out_of_range",
            dump.manifest.rule,
            dump.manifest.backend,
            dump.manifest.layer,
        )
        assert shrunk.dump.tensor("translated_page_table").tolist() == [[31]]

    def test_a_row_beyond_its_table(self, tmp_path):
        dump = written(tmp_path / "before", paged_draft([[3, 4], [5, 6]], [13, 8], verdict="table_too_narrow"))
        shrunk = shrink(dump, OPTIONS, tmp_path / "after")
        assert (shrunk.kind, shrunk.after) == (Kind.MISSING, (1, 1, 1))
        assert shrunk.dump.tensor("page_table").shape == (1, 0)
        assert worst_read(rebuild(shrunk.dump, OPTIONS)) is Kind.MISSING

    @pytest.mark.parametrize("renumber", [False, True])
    def test_a_slot_list(self, tmp_path, renumber):
        dump = written(tmp_path / "before", list_draft([8, 9, 20, 262, 30, 31], [0, 3, 6]))
        shrunk = shrink(dump, OPTIONS, tmp_path / "after", renumber)
        assert (shrunk.rows, shrunk.columns, shrunk.after) == ((1,), (0,), (1, 1, 1))
        # The dummy page is all that is left of the buffer, and the slot is as far outside as it was.
        assert shrunk.dump.tensor("kv_indices").tolist() == [4 + 2 if renumber else 262]
        assert worst_read(rebuild(shrunk.dump, OPTIONS)) is Kind.OUT_OF_RANGE

    def test_the_right_table_comes_along_whichever_it_was(self, tmp_path):
        spaces = Provenance(table_space="swa", buffer_space="full", table_origin="a.swa_page_table")
        draft = paged_draft([[3, 4, 5]], [12], provenance=spaces)
        draft.tensors["swa_page_table"] = TensorPayload.from_array(np.array([[3, 9, 5]], np.int32))
        shrunk = shrink(written(tmp_path / "before", draft), OPTIONS, tmp_path / "after")
        call = rebuild(shrunk.dump, OPTIONS)
        assert (call.ids.tolist(), call.translated.tolist(), shrunk.columns) == ([[9]], [[4]], (1,))

    def test_what_no_dump_can_hold_is_the_dumps_own_fault(self, tmp_path):
        """An integer that the reader takes and the writer does not: found by the fuzzer."""
        dump = written(tmp_path, paged_draft([[70]], [4]))
        document = json.loads((dump.path / "manifest.json").read_text())
        (dump.path / "manifest.json").write_text(json.dumps(document | {"step": 10**400}))
        with pytest.raises(DumpUnreadable, match="holds what cannot be written again: 1 validation error for Manifest"):
            shrink(read_dump(dump.path), OPTIONS, tmp_path / "out")
        assert [path.name for path in (tmp_path / "out").glob("*page-table*")] == []

    @pytest.mark.parametrize("rank", [10**400, -1], ids=["huge", "negative"])
    def test_a_rank_that_makes_no_name_is_left_out(self, tmp_path, rank):
        dump = written(tmp_path, paged_draft([[70]], [4]))
        document = json.loads((dump.path / "manifest.json").read_text())
        document["host"]["rank"] = rank
        (dump.path / "manifest.json").write_text(json.dumps(document))
        assert shrink(read_dump(dump.path), OPTIONS, tmp_path / "out").dump.manifest.host.rank == 0

    def test_values_of_pages_that_are_left_stay(self, tmp_path):
        draft = paged_draft([[3, 70], [4, 5]], [8, 8], translated=[[3, 9], [4, 5]])
        values = np.arange(2 * 4 * 2 * 8, dtype=np.float32).reshape(2, 4, 2, 8)
        for name, array in (("kv_page_ids", np.array([4, 9])), ("key_pages", values), ("value_pages", -values)):
            draft.tensors[name] = TensorPayload.from_array(array)
        dump = written(tmp_path / "before", draft)
        shrunk = shrink(dump, OPTIONS, tmp_path / "after").dump
        assert shrunk.tensor("kv_page_ids").tolist() == [9]
        assert np.array_equal(shrunk.tensor("key_pages"), values[1:])
        assert shrunk.manifest.included == ("kv",)
        renamed = shrink(dump, OPTIONS, tmp_path / "renamed", renumber=True).dump
        assert "key_pages" not in renamed.manifest.tensors


class TestRenumbering:
    def test_pages_count_from_1_and_outside_keeps_its_distance(self, tmp_path):
        call = rebuild(written(tmp_path, paged_draft([[50, 67, 30, -2]], [16], translated=[[50, 12, 30, 7]])), OPTIONS)
        new = renumbered(whole(call)).call
        # 7, 12, 30 and 50 are the pages that either table names.
        assert (new.ids.tolist(), new.translated.tolist(), new.bound) == ([[4, 7, 3, -2]], [[4, 2, 3, 1]], 5)
        assert kinds(new).tolist() == kinds(call).tolist()
