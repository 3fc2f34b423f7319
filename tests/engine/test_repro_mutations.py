"""Mutations through the command line, on the live engine: entries and scores are those of the committed rows."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gemma4_repro.mutations.rows_file import RowsFile
from gemma4_repro.mutations.score import Cause, State
from gemma4_repro.mutations.truth import read_truth
from gemma4_runtime.releases import BASE, installed_or_base

pytestmark = [pytest.mark.engine, pytest.mark.releases("0.5.13.post1", "0.5.23")]

ROOT = Path(__file__).parents[2]
SEED, NUMBERS = 2411 if installed_or_base() == BASE else 2701, (1, 8)
FIXED_SEED, FIXED = 3000, range(1, 26)
"""Of 0.5.23."""
TIME_LIMIT_S = 1200
DONE = ("opportunities", "acted", "where", "before", "after", "prompt", "row")


def rows_of(folder: Path, seed: int) -> RowsFile:
    """Return the rows of a run."""
    file = RowsFile(folder, seed)
    file.read()
    return file


def run(seed: int, *words: object) -> dict:
    """Return the document of a run of the command line."""
    command = [Path(sys.executable).with_name("gemma4-triage"), "repro", "mutations", "--seed", seed, "--json", *words]
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False
    )
    assert done.returncode in (0, 1), done.stdout[-4000:] + done.stderr[-4000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def committed() -> RowsFile:
    """Return the rows that are in the repository."""
    return rows_of(ROOT / "docs" / "mutations" / str(SEED), SEED)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, committed) -> Path:
    """Return a run that was interrupted: it has the committed rows up to the last of NUMBERS, but for these."""
    folder = tmp_path_factory.mktemp("mutations")
    begun = RowsFile(folder, SEED)
    begun.begin(committed.sglang_version)
    for number, row in committed.rows.items():
        if number < max(NUMBERS) and number not in NUMBERS:
            begun.add(row)
    return folder


@pytest.fixture(scope="module")
def document(folder) -> dict:
    """Return the document of that run once it has gone on."""
    return run(SEED, "--count", max(NUMBERS), "--resume", "--output", folder)


def test_every_mutation_has_a_row_and_the_clean_loads_are_silent(document):
    assert document["complete"]
    assert [row["mutation"]["number"] for row in document["rows"]] == list(range(1, max(NUMBERS) + 1))
    assert len(document["clean"]) == 2
    for clean in document["clean"]:
        assert clean["answers"]
        assert not clean["named"]


@pytest.mark.parametrize("number", NUMBERS)
def test_the_same_seed_corrupts_the_same_entry_with_probes_and_without(committed, folder, document, number):
    known = committed.rows[number].truth
    for name in (f"run-{number:04d}", f"run-{number:04d}-bare"):
        truth = read_truth(folder / name)
        assert truth.acted is not None
        assert [getattr(truth, field) for field in DONE] == [getattr(known, field) for field in DONE]


@pytest.mark.parametrize("number", NUMBERS)
def test_nothing_that_a_diagnosis_reads_tells_what_was_corrupted(folder, document, number):
    run = folder / f"run-{number:04d}"
    read = [*(run / "dumps").rglob("*.json"), *(run / "dumps").rglob("*.jsonl"), run / "log.txt"]
    assert len(read) > 1
    for path in read:
        text = path.read_text(encoding="utf-8", errors="replace")
        assert "gemma4_repro/mutations" not in text
        assert "entry_seed" not in text


# Its draft is of the newest release; before that drafts do not overlap.
@pytest.mark.releases("0.5.23")
def test_the_lengths_of_a_batch_whose_request_goes_on_in_another_are_read_by_nobody(tmp_path):
    """A batch that takes another in has the lengths that its forwards settled, where drafts overlap."""
    seed, number = 3701, 422
    known = rows_of(ROOT / "docs" / "mutations" / str(seed), seed)
    begun = RowsFile(tmp_path, seed)
    begun.begin(known.sglang_version)
    for clean in known.clean.values():
        begun.add_clean(clean)
    for other, row in known.rows.items():
        if other < number:
            begun.add(row)
    run(seed, "--count", number, "--no-bare", "--resume", "--output", tmp_path)
    row = rows_of(tmp_path, seed).rows[number]
    assert row.truth.where == known.rows[number].truth.where
    assert (row.state, row.truth.read) == (State.INERT, None)


@pytest.fixture(scope="module")
def fixed(tmp_path_factory) -> RowsFile:
    """Return the rows of the fixed mutations, made now, with probes alone."""
    folder = tmp_path_factory.mktemp("fixed")
    run(FIXED_SEED, "--count", len(FIXED), "--no-bare", "--side-by-side", 2, "--output", folder)
    return rows_of(folder, FIXED_SEED)


# What the newest release draws; of the base the two above are run, and its rows are committed too.
@pytest.mark.releases("0.5.23")
class TestFixed:
    """How late a dump came and how long a run took are the machine's, and are not compared."""

    @pytest.fixture(scope="class")
    def known(self) -> RowsFile:
        return rows_of(ROOT / "docs" / "mutations" / str(FIXED_SEED), FIXED_SEED)

    @pytest.mark.parametrize("number", FIXED)
    def test_the_committed_entry_is_corrupted_and_scored_as_committed(self, fixed, known, number):
        now, then = fixed.rows[number], known.rows[number]
        assert now.mutation == then.mutation
        assert [getattr(now.truth, field) for field in DONE] == [getattr(then.truth, field) for field in DONE]
        assert (now.state, now.cause, now.owner) == (then.state, then.cause, then.owner), now.sight.named

    def test_no_cause_is_certain_and_wrong_and_the_clean_loads_are_silent(self, fixed):
        assert not any(row.cause is Cause.WRONG and row.confidence == "certain" for row in fixed.rows.values())
        assert [clean.silent for clean in fixed.clean.values()] == [True, True]
