"""repro/crash_repro: each cell has its script, each script its cell, and a script says what the cell's record says.

After a change of a record: `python -m gemma4_repro.crash.scripts repro/crash_repro`.
"""

import subprocess
from pathlib import Path

import pytest

from gemma4_repro.crash.cells import CELLS
from gemma4_repro.crash.scripts import script_name, script_text, write_scripts

FOLDER = Path(__file__).resolve().parents[2] / "repro" / "crash_repro"


def test_every_cell_has_its_script_and_every_script_its_cell():
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(script_name(cell) for cell in CELLS)


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.id)
def test_a_script_is_what_its_record_says(cell):
    path = FOLDER / script_name(cell)
    assert path.read_text(encoding="utf-8") == script_text(cell)
    assert path.stat().st_mode & 0o111 == 0o111


@pytest.mark.parametrize(
    "cell",
    [
        # 0.5.23 has no V2 of ours: it has its own.
        pytest.param(cell, marks=pytest.mark.releases("0.5.13.post1") if "_v2" in cell.id else (), id=cell.id)
        for cell in CELLS
    ],
)
def test_the_lines_that_it_shows_are_those_of_a_dry_run(cell, cli):
    code, out, _ = cli("repro", "crash", cell.id, "--dry-run")
    shown = [line.removeprefix("#").strip().removesuffix("\\").strip() for line in script_text(cell).splitlines()]
    assert code == 0
    assert all(line in " ".join(shown) for line in out.splitlines())


def test_bash_reads_them():
    paths = sorted(FOLDER.iterdir())
    done = subprocess.run(["bash", "-c", 'for f; do bash -n "$f" || exit 1; done', "_", *paths], check=False)
    assert done.returncode == 0


def test_writing_them_again_removes_what_no_cell_has(tmp_path):
    (tmp_path / "repro_e9b_triton_off.sh").touch()
    (tmp_path / "notes.txt").touch()
    write_scripts(tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"notes.txt", *(script_name(cell) for cell in CELLS)}
