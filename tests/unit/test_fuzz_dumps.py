# pyright: reportMissingImports=false
"""A short run of the fuzzer in tests/fuzz; `make fuzz` is the long one."""

import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).parents[1] / "fuzz"
sys.path.insert(0, str(FUZZ))

from run import fuzz  # noqa: E402
from seeds import corpus  # noqa: E402
from target import Misbehaved, Overconfident, hold_against_certainty, lay_out, read_all, run_command  # noqa: E402


@pytest.mark.slow
def test_a_thousand_damaged_dumps_bring_nothing_but_dump_errors(tmp_path):
    outcomes = fuzz(1000, seed=1, keep=tmp_path)
    kinds = {outcome.partition(":")[0] for outcome in outcomes}
    assert kinds >= {"manifest", "header", "tensors", "raw", "values", "swap", "events", "dumps show", "audit"}
    # Inputs that nobody reads to the end, or that all are whole, would prove nothing.
    read = sum(count for outcome, count in outcomes.items() if outcome.endswith(": read"))
    assert 100 < read < 900


def test_the_samples_themselves_are_read(tmp_path):
    for files in corpus():
        path = lay_out(tmp_path, files)
        assert read_all(path) == "read"
        assert run_command(path, ("dumps", "verify")) == "dumps verify: OK"


def test_a_certain_cause_of_changed_files_is_found(tmp_path, monkeypatch):
    from gemma4_dumps.reader import Dump

    files = next(
        files for files in corpus() if hold_against_certainty(lay_out(tmp_path, files)).endswith("whole files")
    )
    path = lay_out(tmp_path, {**files, "tensors.safetensors": b"torn"})
    assert hold_against_certainty(path) == "certainty: not certain of changed files"
    monkeypatch.setattr(Dump, "damage", ())
    with pytest.raises(Overconfident, match=r"is certain, and tensors\.safetensors is not what"):
        hold_against_certainty(path)


def test_what_is_no_dump_error_is_found_and_kept(tmp_path, monkeypatch):
    from gemma4_dumps import verify

    def break_down(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(verify, "_check_tensors", break_down)
    with pytest.raises(ZeroDivisionError) as caught:
        fuzz(50, seed=1, keep=tmp_path)
    assert str(tmp_path) in caught.value.__notes__[0]
    (kept,) = tmp_path.iterdir()
    assert (kept / "manifest.json").exists()
    with pytest.raises(Misbehaved, match="exit 70"):
        run_command(kept, ("dumps", "verify"))
