"""`samples`, and the other names that an option may have."""

import json
import shlex

import pytest

from gemma4_triage.cli.app import command_tree
from gemma4_triage.cli.option_names import SAME
from gemma4_triage.samples import SAMPLES, place


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.id)
def test_the_command_of_each_reads_it(cli, sample):
    (row,) = json.loads(cli("samples", sample.id, "--json")[1])["samples"]
    code, out, _ = cli(*shlex.split(row["command"])[1:])
    assert code in (0, 1)
    assert out


def test_copies(cli, tmp_path):
    code, out, err = cli("samples", "leak", "crash-log", "-o", tmp_path / "new" / "try")
    assert (code, err) == (0, f"Wrote {tmp_path}/new/try\n")
    for line in (line for line in out.splitlines() if line.startswith("  ")):
        assert cli(*shlex.split(line)[1:])[0] == 1
    log = tmp_path / "new" / "try" / "illegal-access.log"
    log.write_text("mine")
    assert cli("samples", "crash-log", "-o", log.parent)[0] == 2
    assert log.read_text() == "mine"
    assert cli("samples", "crash-log", "-o", log.parent, "--force")[0] == 0
    assert log.read_bytes() == place(next(one for one in SAMPLES if one.id == "crash-log")).read_bytes()
    log.unlink()
    log.symlink_to(tmp_path / "elsewhere")
    assert cli("samples", "crash-log", "-o", log.parent, "--force")[0] == 2
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(("words", "code"), [(["nope"], 2), (["leak", "-o", ""], 2), (["leak", "-o", "/proc/x"], 3)])
def test_bad_input(cli, words, code):
    found, out, err = cli("samples", *words)
    assert (found, out, len(err.splitlines())) == (code, "", 2)


def test_an_option_is_found_by_every_name_of_the_thing(cli, tmp_path):
    for name in ("--output", "--out", "-o"):
        assert cli("dumps", "export", place(SAMPLES[0]), name, tmp_path / f"{name.strip('-')}.zip")[0] == 0
    assert len(list(tmp_path.iterdir())) == 3
    folder = place(SAMPLES[0]).parent
    assert cli("dumps", "ls", "--dump-dir", folder)[1] == cli("dumps", "list", "--dir", folder)[1]
    assert "--dump-dir" not in cli("dumps", "list", "--help")[1]
    words = ("serve", "--dry-run", "--json", "--model-path", "m")
    fault = "swa-state-stale"
    named = [
        cli(*words, *also)[1] for also in (["--dir", "d", "--fault", fault], ["--dump-dir", "d", "--faults", fault])
    ]
    assert named[0] == named[1]


def test_help_shows_one_name_of_each_thing():
    def options(command):
        yield from (name for parameter in command.params for name in parameter.opts)
        for below in getattr(command, "commands", {}).values():
            yield from options(below)

    shown = set(options(command_tree()))
    assert not shown & {"--out", "--dump-dir", "--time-limit"}
    assert all(shown & {*same} for same in SAME)
