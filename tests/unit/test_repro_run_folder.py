"""A run has a folder of its own, which no other run writes into."""

import errno
import shutil
from collections import namedtuple

import pytest

from gemma4_repro.engine import run_folder
from gemma4_repro.engine.run_folder import prepare_run_folder, writing
from gemma4_repro.errors import OutputRefused, OutputUnwritable
from gemma4_repro.recorders.catalog import remove_traces

Usage = namedtuple("Usage", "total used free")


def test_a_run_gets_a_folder_of_its_own_below_the_state_directory(tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder, "runs_root", lambda: tmp_path / "state" / "runs")
    folder = prepare_run_folder("e4b-trtllm", ("fault",), None, overwrite=False)
    assert folder.parent == tmp_path / "state" / "runs"
    assert folder.name.endswith("Z_e4b-trtllm")
    assert (folder / "fault" / "dumps").is_dir()
    for path in (folder, folder / "fault", folder / "fault" / "dumps"):
        assert path.stat().st_mode & 0o777 == 0o700


def test_a_folder_with_files_is_refused_unless_forced_and_then_only_ours_go(tmp_path):
    (tmp_path / "fault").mkdir()
    (tmp_path / "fault" / "log.txt").write_text("old")
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "verdict.json").write_text("old")
    with pytest.raises(OutputRefused, match="not empty"):
        prepare_run_folder("s", ("fault",), tmp_path, overwrite=False)
    assert (tmp_path / "fault" / "log.txt").exists()
    prepare_run_folder("s", ("fault",), tmp_path, overwrite=True)
    assert not (tmp_path / "fault" / "log.txt").exists()
    assert not (tmp_path / "verdict.json").exists()
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_link_in_place_of_an_arm_is_removed_and_not_followed(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").write_text("x")
    output = tmp_path / "run"
    output.mkdir()
    (output / "fault").symlink_to(elsewhere)
    prepare_run_folder("s", ("fault",), output, overwrite=True)
    assert (elsewhere / "precious").exists()
    assert not (output / "fault").is_symlink()


def test_what_cannot_be_a_folder_is_said_in_words(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(OutputRefused, match="not a directory"):
        prepare_run_folder("s", ("a",), file, overwrite=True)
    with pytest.raises(OutputUnwritable, match="cannot be written"):
        prepare_run_folder("s", ("a",), file / "below", overwrite=False)


def test_a_disk_without_room_is_refused_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(100, 100, 3 * 1024**2))
    with pytest.raises(OutputUnwritable, match="3 MiB left"):
        prepare_run_folder("s", ("a",), tmp_path / "new", overwrite=False)


def test_a_full_disk_says_so(tmp_path):
    with pytest.raises(OutputUnwritable) as full, writing(tmp_path):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert "No space left on device" in str(full.value)
    assert "disk is full" in full.value.hint


def test_removing_traces_twice_is_fine(tmp_path):
    prepare_run_folder("s", ("a",), tmp_path / "run", overwrite=False)
    (tmp_path / "run" / "a" / "drafts.jsonl").write_text("x")
    remove_traces(tmp_path / "run", ("a",))
    remove_traces(tmp_path / "run", ("a",))
    assert not (tmp_path / "run" / "a" / "drafts.jsonl").exists()
