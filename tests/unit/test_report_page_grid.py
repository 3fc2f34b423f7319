"""The page table of a report: which part is shown, and that each entry is what the replay takes it for."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dump_examples import list_draft, offence, paged_draft, seed_bug_draft, written
from gemma4_dumps.caps import StoreCaps
from gemma4_dumps.draft import TensorPayload
from gemma4_dumps.reader import read_dump
from gemma4_dumps.store import DumpStore
from gemma4_triage.replay.damage import Kind, kinds
from gemma4_triage.replay.options import ReplayOptions
from gemma4_triage.replay.rebuild import rebuild
from gemma4_triage.report.model.limits import MAX_COLUMNS, MAX_ROWS
from gemma4_triage.report.model.page_grid import page_grid
from gemma4_triage.report.model.page_window import NoPicture, around
from report_examples import CONTAINED, CORPUS, SEED_BUG, large_draft

WIDE_CAPS = dataclasses.replace(StoreCaps(), bytes_per_dump=256 * 1024**2)


def states(grid) -> list[list[str]]:
    return [[cell.state.value for cell in row.cells] for row in grid.rows]


def corpus_grid(case: str, number: int = 0):
    paths = sorted(path for path in (CORPUS / case).iterdir() if "page-table-bounds" in path.name)
    return page_grid(read_dump(paths[number]))


class TestStates:
    def test_the_seed_bug(self):
        grid = page_grid(read_dump(SEED_BUG))
        assert (grid.table, grid.lower, grid.upper, grid.buffer) == ("page_table", 1, 65, "SWA pool's buffer")
        assert grid.left_out == ()
        bad = grid.rows[5]
        assert (bad.request_slot, bad.keys) == (7, 123)
        assert states(grid)[5] == ["other"] * 7 + ["out"] + ["stale"] * 2
        (listed,) = [cell for row in grid.rows for cell in row.cells if cell.offends]
        assert (listed.value, listed.right) == (65, 49)

    def test_ids_of_another_pool_that_happen_to_be_right_are_no_live_pages(self):
        grid = corpus_grid("full-draft-through-swa-map")
        assert {state for row in states(grid) for state in row} == {"same"}

    def test_what_the_window_hides_and_what_is_past_the_end(self):
        row = states(corpus_grid("one-untranslated-row"))[5]
        assert row == ["behind"] * 5 + ["live"] * 2 + ["out"] + ["stale"] * 2

    def test_the_null_page_behind_the_window_is_legal_and_in_it_is_not(self, tmp_path):
        table = [[0, 0, 3, 4], [0, 5, 6, 0]]
        listed = [offence(1, 3, 0)]
        draft = paged_draft(
            table, [16, 16], space="swa", scalars={"window_left": 7}, offences=listed, verdict="null_page_live"
        )
        grid = page_grid(written(tmp_path, draft))
        assert states(grid) == [["evicted", "evicted", "live", "live"], ["evicted", "behind", "live", "null"]]
        assert grid.window == "8 keys"

    def test_a_row_that_needs_more_columns_than_there_are(self, tmp_path):
        draft = paged_draft([[1, 2]], [16], space="swa", verdict="table_too_narrow")
        grid = page_grid(written(tmp_path, draft))
        assert states(grid) == [["live", "live", "missing", "missing"]]
        assert [cell.value for cell in grid.rows[0].cells] == [1, 2, None, None]

    def test_what_containment_replaced_is_put_back_as_far_as_it_is_known(self):
        grid = page_grid(read_dump(CONTAINED))
        assert [(cell.value, cell.state) for cell in grid.rows[2].cells[2:4]] == [(65, "out"), (0, "null")]
        assert grid.notes == (
            "Containment put the null page in place of 7 more bad entries; what was there is not in the dump.",
        )

    def test_a_slot_list(self, tmp_path):
        draft = list_draft([5, 6, 7, 300, 8], [0, 2, 5], offences=[offence(1, 1, 300, "kv_indices", 260)])
        grid = page_grid(written(tmp_path, draft))
        assert (grid.unit, grid.upper) == ("slot", 260)
        assert states(grid) == [["live", "live", "stale"], ["live", "out", "live"]]

    def test_write_locations_have_bounds_and_no_lengths(self):
        grid = corpus_grid("swa-alloc-oob")
        assert states(grid) == [["entry"], ["out"]]
        assert grid.window == "not known"

    def test_no_picture_of_what_the_probe_held_against_something_else(self):
        (path,) = (CORPUS / "eager-out-cache-loc").iterdir()
        with pytest.raises(NoPicture, match="or not its entries"):
            page_grid(read_dump(path))

    @pytest.mark.parametrize("tensors", [{}, {"page_table": np.ones((2, 2, 2), np.int32)}, {"page_table": np.ones(3)}])
    def test_no_picture_without_a_table(self, tmp_path, tensors):
        payloads = {name: TensorPayload.from_array(array) for name, array in tensors.items()}
        with pytest.raises(NoPicture):
            page_grid(written(tmp_path, seed_bug_draft(tensors=payloads)))


class TestWindow:
    def test_a_table_of_4096_by_4096(self, tmp_path):
        draft = large_draft(4096, 4096, [(9, 4095), (4000, 17)])
        path = DumpStore(tmp_path, WIDE_CAPS).write(draft).path
        assert path is not None
        grid = page_grid(read_dump(path))
        assert len(grid.rows) <= MAX_ROWS
        assert len(grid.columns) <= MAX_COLUMNS
        bad = [(row.row, grid.columns[at]) for row in grid.rows for at, cell in enumerate(row.cells) if cell.offends]
        assert bad == [(9, 4095), (4000, 17)]
        assert sum(state == "out" for row in states(grid) for state in row) == 2
        assert grid.left_out == tuple(
            f"{len(shown)} of 4096 {what} are shown, around the entries that the probe listed"
            for shown, what in ((grid.rows, "rows"), (grid.columns, "columns"))
        )

    @given(st.lists(st.integers(-5, 3000), max_size=60), st.integers(0, 2500), st.integers(1, 50))
    def test_what_is_chosen(self, points, count, limit):
        chosen = around(points, count, limit)
        assert list(chosen) == sorted(set(chosen))
        assert all(0 <= number < count for number in chosen)
        assert len(chosen) <= limit
        inside = sorted({point for point in points if 0 <= point < count})
        assert set(inside[:limit]) <= set(chosen)
        if count <= limit:
            assert chosen == tuple(range(count))


_OUT = {Kind.OUT_OF_RANGE: "out", Kind.NEGATIVE: "out", Kind.NULL: "null", Kind.OTHER_PAGE: "other"}


@pytest.mark.slow
@given(st.data())
def test_each_entry_shown_is_what_the_replay_takes_it_for(tmp_path_factory, data):
    rows, columns = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 60))
    seed = data.draw(st.integers(0, 2**32 - 1))
    random = np.random.default_rng(seed)
    table = random.integers(-2, 75, (rows, columns))
    keys = random.integers(1, columns * 4 + 1, rows)
    listed = [offence(int(random.integers(rows)), int(random.integers(columns)), 70)]
    table[listed[0].row, listed[0].column] = 70
    window = data.draw(st.sampled_from([-1, 7, 31]))
    space = data.draw(st.sampled_from(["swa", "full"]))
    right = random.integers(0, 65, (rows, columns)) if space == "full" else None
    draft = paged_draft(
        table, keys, space=space, translated=right, scalars={"window_left": window}, offences=listed, verdict="negative"
    )
    dump = written(tmp_path_factory.mktemp("dumps"), draft)
    grid, call = page_grid(dump), rebuild(dump, ReplayOptions())
    whole = kinds(call)
    for row in grid.rows:
        for at, cell in zip(grid.columns, row.cells, strict=True):
            live = at < call.ids.shape[1] and call.live[row.row, at]
            kind = Kind(int(whole[row.row, at])) if live else None
            assert cell.value == table[row.row, at]
            if kind is None:
                assert cell.state == "stale"
            elif kind in _OUT:
                assert cell.state == _OUT[kind]
            else:
                assert cell.state in ("live", "behind", "evicted", "same")
                assert (cell.state == "behind") <= (not call.read[row.row, at])
