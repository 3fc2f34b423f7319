"""Which part of a saved table `dumps show` puts before the reader."""

import numpy as np
import pytest

from dump_examples import seed_bug_draft
from gemma4_dumps.draft import TensorPayload
from gemma4_dumps.reader import read_dump
from gemma4_dumps.schema import Offence
from gemma4_dumps.writer import write_dump
from gemma4_triage.inspection.offending_rows import offending_rows


def rows_of(folder, **changes):
    outcome = write_dump(folder, seed_bug_draft(**changes))
    assert outcome.path is not None
    return offending_rows(read_dump(outcome.path), limit=4)


def test_an_entry_and_its_neighbours(tmp_path):
    (row,) = rows_of(tmp_path)
    assert [(cell.column, cell.value) for cell in row.cells if cell.offends] == [(7, 70)]
    assert [cell.column for cell in row.cells] == [4, 5, 6, 7, 8, 9, 10]


def test_a_contained_entry_is_shown_as_it_was(tmp_path):
    table = np.ones((4, 20), dtype=np.int32)
    table[2, 7] = 0
    tensors = {
        "page_table": TensorPayload.from_array(table),
        # As an earlier writer left it: made from the table after containment.
        "translated_page_table": TensorPayload.from_array(table * 5),
    }
    (row,) = rows_of(tmp_path, action="contained", mode="contain", tensors=tensors)
    assert {cell.column: (cell.value, cell.translated) for cell in row.cells}[7] == (70, None)
    assert {cell.column: (cell.value, cell.translated) for cell in row.cells}[8] == (1, 5)


def ragged(values, indptr, row, column):
    offence = Offence(table="kv_indices", row=row, column=column, value=values[-1], lower=16, upper=65)
    tensors = {
        "kv_indices": TensorPayload.from_array(np.array(values, dtype=np.int64)),
        "kv_indices_indptr": TensorPayload.from_array(np.array(indptr, dtype=np.int32)),
    }
    return {"offences": [offence], "tensors": tensors}


def test_a_row_of_a_ragged_list(tmp_path):
    (row,) = rows_of(tmp_path, **ragged([16, 17, 18, 32, 33, 70], [0, 3, 6], row=1, column=2))
    assert [(cell.column, cell.value, cell.offends) for cell in row.cells] == [
        (0, 32, False),
        (1, 33, False),
        (2, 70, True),
    ]


@pytest.mark.parametrize(("indptr", "row"), [([0, 3, 6], 2), ([0, 3, 600], 5), ([0, 5000, 2], 1), ([0, -7, -9], 1)])
def test_an_indptr_that_leads_nowhere_is_no_error(tmp_path, indptr, row):
    (found,) = rows_of(tmp_path, **ragged([16, 17, 18, 32, 33, 70], indptr, row=row, column=2))
    assert found.cells == ()
    assert "not in the saved part" in found.missing
