# pyright: reportMissingImports=false
"""A short run of the fuzzer in tests/fuzz; `make fuzz` is the long one."""

import json
import sys
from pathlib import Path

import pytest

from gemma4_dumps.manifest_file import SEAL

FUZZ = Path(__file__).parents[1] / "fuzz"
sys.path.insert(0, str(FUZZ))

from mutations import MANIFEST  # noqa: E402
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

    seeds = corpus()
    certain = "certainty: certain of whole files"
    old, new = (
        next(one for one in seeds if sealed == (SEAL in json.loads(one[MANIFEST])) and said(tmp_path, one) == certain)
        for sealed in (False, True)
    )
    torn = {**old, "tensors.safetensors": b"torn"}
    another_step = {**new, MANIFEST: json.dumps(json.loads(new[MANIFEST]) | {"step": 10**6}).encode()}
    for files in (torn, another_step):
        assert said(tmp_path, files) == "certainty: not certain of changed files"
    monkeypatch.setattr(Dump, "damage", ())
    for files, name in ((torn, "tensors.safetensors"), (another_step, MANIFEST)):
        with pytest.raises(Overconfident, match=rf"is certain, and {name} is not what"):
            said(tmp_path, files)


def said(folder, files):
    return hold_against_certainty(lay_out(folder, files), corpus())


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
