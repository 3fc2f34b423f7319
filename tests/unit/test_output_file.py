"""Where a result file can go is asked before the work starts, by every command that measures or draws one."""

import pytest

from gemma4_triage.errors import EnvironmentCannot, UsageMistake
from gemma4_triage.output_file import refuse_existing, write_text

COMMANDS = (
    ("bench", "probes", "--host-engine"),
    ("bench", "kernels"),
    ("bench", "step"),
    ("bench", "serving", "prefill", "--host-engine"),
    ("bench", "plot", "rows.json"),
)


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[1])
def test_every_bench_refuses_a_place_that_takes_no_file_before_it_starts(cli, words):
    code, out, err = cli(*words, "--out", "/proc/rows.svg")
    assert (code, out) == (3, "")
    assert "/proc/rows.svg cannot be written: " in err
    assert "CUDA" not in err


def test_a_place_that_takes_one_is_left_as_it_was(tmp_path):
    refuse_existing(tmp_path / "rows.json", force=False)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "rows.json").write_text("old")
    refuse_existing(tmp_path / "rows.json", force=True)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_a_name_that_is_too_long(tmp_path):
    with pytest.raises(EnvironmentCannot, match="cannot be written: File name too long"):
        refuse_existing(tmp_path / ("x" * 300), force=False)


@pytest.mark.parametrize("name", ["", "folder", "no-folder/rows.json"])
def test_what_is_no_file_is_a_mistake(tmp_path, name):
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageMistake):
        refuse_existing(tmp_path / name, force=True)


def test_a_place_that_is_lost_meanwhile_is_said_alike(tmp_path):
    with pytest.raises(EnvironmentCannot, match="cannot be written: No such file"):
        write_text(tmp_path / "gone" / "rows.json", "{}")
