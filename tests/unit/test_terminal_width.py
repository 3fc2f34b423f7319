"""What commands show on terminals of every width, and how much they say."""

import io
import shutil
from pathlib import Path

import pytest

from gemma4_triage.cli import app
from gemma4_triage.terminal import MANNER, break_line, ending_command

ROOT = Path(__file__).parents[2]
SAMPLES = "dumps/samples"
DUMPS = sorted(path.name for path in (ROOT / SAMPLES).iterdir() if path.is_dir())
TABLES = [name for name in DUMPS if "_page-table-bounds_" in name]
LOGS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests" / "data" / "logs").glob("*.log"))
RUNS = sorted(path.name for path in (ROOT / "tests" / "data" / "finished_runs").iterdir())
CONFIG = "tests/data/configs/26b-a4b.json"
VIEWS = [
    *("patches", "dumps show 2026 --dir dumps/samples", "known show 1", "audit", "repro no-such"),
    *("samples", "doctor", "repro", "repro corpus --list", "repro crash --matrix", f"dumps list --dir {SAMPLES}"),
    *(
        "known list",
        "known list -v",
        f"dumps list -v --dir {SAMPLES}",
        "known show 29616",
        "known check",
        f"diagnose {SAMPLES}",
        "diagnose tests/data/evidence",
    ),
    *(
        "patches list",
        "patches list -v",
        "patches list --sglang 0.5.23",
        "patches explain yoco",
        "patches explain speed",
    ),
    *("diagnose tests/data/corpus_dumps", "logs " + " ".join(LOGS), f"diff {' '.join(TABLES)} --dir {SAMPLES}"),
    f"pools --config {CONFIG} --kv-mem 100GiB --workload 80x8000+1000",
    f"profile {SAMPLES}/e4b-mtp-v2_h200_2026-11-22.trace.json.gz",
    *(
        f"{verb} {SAMPLES}/{name}"
        for name in DUMPS
        for verb in ("dumps show", "dumps verify", "audit", "replay", "report")
    ),
    *(f"report tests/data/finished_runs/{name}" for name in RUNS),
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def shown(monkeypatch, tmp_path):
    """Return what a command shows on a terminal of that many columns, or in a pipe."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("SGLANG_TRTLLM_MHA_DEBUG_DIR", str(tmp_path))
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")

    def run(line: str, columns: int | None = None) -> tuple[str, str]:
        out, err = (io.StringIO(), io.StringIO()) if columns is None else (Terminal(), Terminal())
        monkeypatch.setenv("COLUMNS", str(columns or 80))
        monkeypatch.setattr("sys.stdout", out)
        monkeypatch.setattr("sys.stderr", err)
        app.main(line.split())
        return out.getvalue(), err.getvalue()

    return run


def cannot_be_broken(line: str, columns: int) -> bool:
    """Return whether a line is a command to paste, or a word too long for the terminal behind at most a label."""
    before, _, word = line.rstrip().rpartition(" ")
    return bool(ending_command(line)) or (len(word) + 2 > columns - len(before) and len(before) <= columns // 2)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("columns", [60, 80, 200])
@pytest.mark.parametrize("line", VIEWS, ids=lambda line: line[:60])
def test_nothing_is_wider_than_the_terminal(shown, line, columns):
    out, err = shown(f"{line} --color never", columns)
    assert out or err
    wide = [text for text in (out + err).splitlines() if len(text) > columns and not cannot_be_broken(text, columns)]
    assert wide == []


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "line",
    [
        "patches list",
        "known list",
        f"dumps list --dir {SAMPLES}",
        f"diagnose {SAMPLES}",
        f"audit {SAMPLES}/{DUMPS[1]}",
        "doctor",
    ],
)
def test_a_narrow_terminal_loses_no_word(shown, line, monkeypatch):
    # Other tests fill the disk and empty it between the two calls.
    usage = shutil.disk_usage(ROOT)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    # A row whose cells stand below each other begins with what it is called.
    words = set(shown(line)[0].split()) - {"id"}
    assert words <= set(shown(f"{line} -v --color never", 60)[0].split())


@pytest.mark.parametrize("line", ["patches list", "known list"])
def test_a_pipe_has_a_line_for_each_row_and_cuts_no_word(shown, line):
    ids = shown(f"{line} -q")[0].splitlines()
    out = shown(line)[0]
    assert sorted(text.split()[0] for text in out.splitlines()[1:]) == sorted(ids)
    assert max(map(len, out.splitlines())) > 160
    assert not any(text.endswith(" ") for text in out.splitlines())
    assert shown(f"{line} --color always")[0].count("\n") == out.count("\n")


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("line", "of"),
    [
        ("patches list", "patches list -q"),
        ("patches list --sglang 0.5.23", "patches list --sglang 0.5.23 -q"),
        ("known list", "known list -q"),
        ("repro corpus --list", "repro corpus --list -q"),
    ],
)
@pytest.mark.parametrize("columns", [60, 80, 200])
def test_a_long_list_takes_a_line_for_each_unless_all_is_asked_for(shown, line, of, columns):
    ids = shown(of)[0].splitlines()
    lines = shown(f"{line} --color never", columns)[0].splitlines()
    assert sorted(text.split()[0] for text in lines if text.split()[0] in ids) == sorted(ids)
    # What the installed release cannot have is marked, and its reasons follow the list.
    here = [
        text
        for text in lines[: next((n for n, text in enumerate(lines) if text.startswith("Not on SGLang")), None)]
        if text.split()[1:2] != ["absent"]
    ]
    assert len(ids) <= len(here) < len(ids) + 10
    # On the narrowest there may be no room for a column, which is then left out.
    assert columns != 80 or any(text.rstrip().endswith("…") for text in lines)
    assert "…" not in shown(f"{line} -v --color never", columns)[0]
    assert "…" not in shown(line)[0]


def test_a_short_list_says_what_is_switched_on(shown, monkeypatch):
    assert "here" not in shown("patches list --color never", 80)[0].splitlines()[0]
    monkeypatch.setenv("GEMMA4_TRIAGE_PATCHES", "default")
    lines = shown("patches list --color never", 80)[0].splitlines()
    assert "here" in lines[0]
    assert ["swa-state-swap", "yes", "on"] in [line.split()[:3] for line in lines]


def test_whole_names_of_dumps_are_shown_to_whoever_asks(shown):
    assert DUMPS[0] not in shown(f"dumps list --dir {SAMPLES} --color never", 80)[0]
    assert set(DUMPS) <= set(shown(f"dumps list -v --dir {SAMPLES} --color never", 60)[0].split())


class TestLines:
    def test_a_label_stays_left_of_what_goes_on(self):
        text = "   what to do    Look for a caller of free_swa that names part of a page."
        pieces = [" " * indent + text[start:end] for start, end, indent in break_line(text, 45)]
        assert pieces == [
            "   what to do    Look for a caller of",
            "                 free_swa that names part of",
            "                 a page.",
        ]

    def test_a_command_and_a_path_stay_whole(self):
        command = "gemma4-triage dumps show /a/long/path/of/a/dump --rows 10"
        text = f"Run this to see all of it: {command}"
        assert text[slice(*break_line(text, 40)[-1][:2])] == command
        text = "The evidence lies in /a/very/long/path/of/a/folder/of/dumps as before"
        assert "/a/very/long/path/of/a/folder/of/dumps" in [text[start:end] for start, end, _ in break_line(text, 30)]

    def test_a_sentence_about_a_command_is_broken_behind_it(self):
        text = "gemma4-triage dumps list --dir a/b shows the dumps; gemma4-triage repro corpus runs all of them"
        pieces = [text[start:end] for start, end, _ in break_line(text, 40)]
        assert pieces == [
            "gemma4-triage dumps list --dir a/b shows",
            "the dumps; gemma4-triage repro corpus",
            "runs all of them",
        ]
        # A folder of that name is none of the sentence's words.
        command = "gemma4-triage report --dir runs --markdown report.md a/long/path/of/a/run"
        assert break_line(command, 40) == [(0, len(command), 0)]

    def test_a_short_line_is_left_alone(self):
        assert break_line("  short  line", 13) == [(0, 13, 0)]


class TestManner:
    def test_colour_is_for_terminals_unless_asked_for(self, shown, monkeypatch):
        line = f"diagnose {SAMPLES}/{DUMPS[0]}"
        assert "\x1b[1;31m" in shown(line, 100)[0]
        assert "\x1b" not in shown(line)[0]
        assert "\x1b" not in shown(f"--color never {line}", 100)[0]
        assert "\x1b[1;31m" in shown(f"{line} --color always")[0]
        monkeypatch.setenv("NO_COLOR", "1")
        assert "\x1b" not in shown(line, 100)[0]
        assert "\x1b" in shown(f"{line} --color always", 100)[0]

    def test_a_thread_of_sglang_is_a_link_on_a_terminal(self, shown):
        line = f"diagnose {SAMPLES}/{DUMPS[0]}"
        assert ";https://github.com/sgl-project/sglang/issues/26957\x1b\\" in shown(line, 100)[0]
        assert "https://github.com/sgl-project/sglang/issues/26957" in shown(line)[0]

    def test_a_color_that_is_none(self, cli):
        code, _, err = cli("doctor", "--color", "sometimes")
        assert (code, "choices: auto, always, never" in err) == (2, True)

    @pytest.mark.parametrize("line", ["known list", "patches list --kind fix", "samples", "repro"])
    def test_quiet_lists_are_names_alone(self, shown, line):
        out, err = shown(f"{line} -q")
        assert err == ""
        assert all(len(text.split()) == 1 for text in out.splitlines())
        assert len(out.splitlines()) >= 2

    def test_quiet_leaves_out_remarks_and_no_error(self, shown, tmp_path):
        assert shown(f"dumps list --dir {SAMPLES}")[1]
        assert shown(f"-q dumps list --dir {SAMPLES}")[1] == ""
        assert "error: " in shown("dumps show none -q")[1]
        for number in range(9):
            (tmp_path / f"20261121T10343{number}.648335Z_vm_r0_p2_page-table-bounds_0001").mkdir()
        assert shown(f"diagnose {tmp_path} -q")[1].count("not read: ") == 2

    def test_verbose_shows_everything_that_is_damaged(self, shown, tmp_path):
        for number in range(9):
            (tmp_path / f"20261121T10343{number}.648335Z_vm_r0_p2_page-table-bounds_0001").mkdir()
        assert shown(f"diagnose {tmp_path} -v")[1].count("not read: ") == 9

    def test_one_command_line_does_not_change_the_next(self, shown):
        shown("samples -q -v --color always")
        shown("samples")
        assert (MANNER.quiet, MANNER.verbose, MANNER.color) == (False, False, "auto")
