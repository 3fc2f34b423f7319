"""What a newcomer types first, and what they were told wrongly once: each command with what it has to say.

TESTS names, for each group of what was met, the tests that hold it; those without a file are here.
"""

import json
import re
import shutil
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from gemma4_triage.cli import server_start
from gemma4_triage.inspection import environment
from walk_first_hour import NEEDS, commands

ROOT = Path(__file__).parents[2]
DUMP = "dumps/samples/20261121T103430.648335Z_vm_r0_p24275_page-table-bounds_0001"
FEW_LINES = 2
TESTS = {
    "1 a log of another run is no evidence": (
        "test_a_log_of_another_run_stands_alone",
        "test_cli_diagnose.py::test_a_foreign_log_is_a_run_of_its_own_and_says_what_parts_them",
        "test_diagnose_logs.py::test_no_foreign_log_changes_what_is_found",
    ),
    "2 nothing wrong is exit code 0": (
        "test_nothing_wrong_is_exit_code_0",
        "test_cli_diagnose.py::test_nothing_wrong",
        "test_diagnose_logs.py::test_a_line_about_the_releases_window_is_a_note_too",
    ),
    "3 a torn file is said first, and is exit code 4": ("test_a_torn_file_is_said_first_by_every_verb",),
    "4 SIGTERM ends a server that was used": (
        "engine/test_unsent_requests_live.py::test_",
        "test_fix_unsent_requests.py::test_what_was_not_sent_goes",
        "engine/test_serve.py::test_it_serves_guarded_and_stops_on_sigterm",
    ),
    "5 a port in use and a bad argument end the start at once": (
        "test_cli_serve_before_start.py::test_a_port_in_use",
        "test_cli_serve_before_start.py::test_a_value_that_sglang_would_refuse",
    ),
    "6 a renamed dump and an export are found": (
        "test_a_renamed_dump_and_an_export_are_dumps",
        "test_a_dump_for_a_folder_of_dumps_and_a_folder_for_a_dump_are_told_the_other",
        "test_cli_dumps.py::test_a_renamed_dump_has_one_too",
    ),
    "7 a log alone speaks of that log": ("test_diagnose_sources.py::test_a_log_alone_speaks_of_that_log_only",),
    "8 advice can be pasted": (
        "test_a_log_fills_in_the_command_that_its_findings_name",
        "test_advice.py::test_every_line_that_is_shown_runs",
    ),
    "9 SGLang's arguments need no dashes": ("test_cli_serve.py::test_sglangs_arguments_need_no_dashes",),
    "10 shells complete": (
        "test_cli_completion.py::test_bash_and_zsh_complete",
        "test_cli_completion.py::test_fish_completes",
    ),
    "11 names": (
        "test_a_misspelt_patch_is_told_what_is_near_it",
        "test_the_sets_of_patches_are_explained",
        "test_the_american_spelling_of_a_kind_is_one",
        "test_a_source_has_no_number_of_a_list_that_nobody_has",
        "test_patches_begin_with_what_a_server_is_given",
    ),
    "12 a replay that cannot run": ("test_a_replay_that_no_backend_can_do_says_so_beside_its_code",),
    "13 terminals, names, hints, links, pipes": (
        "test_a_hint_repeats_the_folder_that_was_named",
        "test_a_runs_folder_is_diagnosed",
        "test_a_laptop_sees_what_serve_would_start_and_that_it_cannot",
        "test_a_laptops_doctor_does_not_say_that_sglang_will_load_anything",
        "test_terminal_width.py::test_a_narrow_terminal_loses_no_word",
        "test_terminal_width.py::test_a_thread_of_sglang_is_a_link_on_a_terminal",
        "test_cli_dumps.py::test_the_beginning_of_several_names_them",
        "test_cli_help.py::test_there_is_one_example_and_the_command_takes_it",
        "test_a_thing_where_a_command_has_to_stand_is_told_what_reads_it",
        "test_an_option_without_its_value_is_its_commands",
        "test_cli_rough_use.py::test_a_pipe_that_nobody_writes_to_is_not_waited_for",
        "test_cli_rough_use.py::test_a_hint_looks_where_the_line_did",
        "test_diagnose_limits.py::test_thousands_of_torn_files_end_in_a_count",
    ),
    "14 the README's lines run": ("test_the_walk_that_is_written_down_is_of_the_readme_as_it_is",),
    "15 the package": (
        "contract/test_packaging.py::test_an_sdist_holds_all_that_git_has",
        "contract/test_packaging.py::test_a_wheel_says_where_sglang_is_and_carries_types_samples_and_constraints",
        "contract/test_base_install.py::test_constraints_come_with_it_by_the_extra",
    ),
    "one name for one thing": (
        "contract/test_option_names.py::test_an_option_is_shown_by_todays_name",
        "contract/test_option_names.py::test_an_old_name_does_the_same_and_is_hidden",
        "contract/test_option_names.py::test_several_values_are_repeated_or_stand_between_commas",
    ),
}


@pytest.fixture(autouse=True)
def in_the_checkout(monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for name in ("SGLANG_TRTLLM_MHA_DEBUG_DIR", "GEMMA4_TRIAGE_PATCHES"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def without_sglang(monkeypatch):
    """Have this installation look like a laptop's."""

    def version(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(server_start, "version", version)
    monkeypatch.setattr(environment, "version", version)


def test_each_group_has_its_tests():
    for name in (name for names in TESTS.values() for name in names):
        file, _, test = name.rpartition("::")
        path = ROOT / "tests" / (file if "/" in file else f"unit/{file or Path(__file__).name}")
        assert re.search(rf"def {test}\w*\(" if test == "test_" else rf"def {test}\(", path.read_text()), name


def test_a_log_of_another_run_stands_alone(cli):
    _, out, _ = cli("diagnose", "--dir", "dumps/samples", "--log", "tests/data/logs/illegal-access.log")
    with_dumps, _, alone = out.partition("\nRUN WITHOUT DUMPS")
    assert "CERTAIN  draft-swa-state-stale" in with_dumps
    assert "[L1]" not in with_dumps.rpartition("\nINCIDENT")[2]
    assert "[L1]  tests/data/logs/illegal-access.log" in alone


def test_nothing_wrong_is_exit_code_0(cli):
    code, out, _ = cli("diagnose", "tests/data/logs/healthy.log")
    assert (code, "nothing wrong in the log" in out) == (0, True)


@pytest.mark.parametrize("verb", ["dumps show", "replay", "report", "diagnose", "diff", "dumps verify"])
def test_a_torn_file_is_said_first_by_every_verb(cli, tmp_path, verb):
    torn = tmp_path / Path(DUMP).name
    shutil.copytree(DUMP, torn)
    (torn / "tensors.safetensors").write_bytes((torn / "tensors.safetensors").read_bytes()[:200])
    code, out, err = cli(*verb.split(), torn, *([DUMP] if verb == "diff" else []))
    if verb == "dumps verify":
        assert (code, "it ends 96 bytes too early" in out) == (1, True)
    else:
        assert (code, "CERTAIN" in out) == (4, False)
        assert out.startswith("damaged: ") or err.startswith("damaged: ")


def test_a_renamed_dump_and_an_export_are_dumps(cli, tmp_path):
    shutil.copytree(DUMP, tmp_path / "two" / "mine")
    assert "mine" in cli("dumps", "list", "--dir", tmp_path / "two")[1]
    assert cli("dumps", "export", tmp_path / "two" / "mine", "-o", tmp_path / "a.zip")[0] == 0
    for words in (
        ("--dir", tmp_path / "two"),
        (tmp_path / "two",),
        (tmp_path / "two" / "mine",),
        (tmp_path / "a.zip",),
    ):
        code, out, _ = cli("diagnose", *words)
        assert (code, "CERTAIN  draft-swa-state-stale" in out) == (1, True), words


def test_a_dump_for_a_folder_of_dumps_and_a_folder_for_a_dump_are_told_the_other(cli):
    code, _, err = cli("dumps", "list", "--dir", DUMP)
    assert (code, err) == (0, f"{DUMP} is a dump itself: gemma4-triage dumps show {DUMP}\n")
    for verb in ("dumps show", "dumps verify", "replay", "audit"):
        code, _, err = cli(*verb.split(), "dumps/samples")
        assert (code, err.splitlines()[0]) == (4, "error: dumps/samples: it holds dumps, and is none itself")
        assert "dumps list --dir dumps/samples shows them; gemma4-triage diagnose dumps/samples" in err.splitlines()[1]


def test_a_misspelt_patch_is_told_what_is_near_it(cli):
    code, _, err = cli("serve", "--dry-run", "--patches", "default,+yocoo", "--model-path", "m")
    assert (code, len(err.splitlines())) == (2, FEW_LINES)
    assert "; near it: yoco; " in err.splitlines()[0]


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (
            ("repro", "corpus", "--only", "swa-state-stal"),
            "near it: swa-state-stale; gemma4-triage repro corpus --list",
        ),
        (("repro", "corpus", "--only", "nope"), "hint: gemma4-triage repro corpus --list shows all"),
        (("repro", "e4b"), "near it: e4b-trtllm, e4b-triton; "),
        (("samples", "pagetable"), "near it: page-table, page-table-later; gemma4-triage samples lists all"),
        (("serve", "--dry-run", "--preset", "produktion", "--model-path", "m"), "near it: production"),
        (
            ("serve", "--dry-run", "--patches", "nope", "--model-path", "m"),
            "have; gemma4-triage patches list shows all",
        ),
        (("known", "list", "--topic", "lor"), "near it: lora"),
        (("replay", DUMP, "--backend", "tritn"), "near it: triton"),
    ],
)
def test_a_name_that_nothing_has_is_told_what_is_near_it_and_not_every_name(cli, words, near):
    code, _, err = cli(*words)
    assert (code, near in err, len(err.splitlines())) == (2, True, FEW_LINES)
    assert max(map(len, err.splitlines())) < 200


def test_a_misspelt_variable_is_told_what_is_near_it(cli, monkeypatch):
    monkeypatch.setenv("GEMMA4_TRIAGE_PATCHS", "default")
    code, _, err = cli("patches", "list")
    assert (code, err.splitlines()[0].endswith("; near it: GEMMA4_TRIAGE_PATCHES")) == (2, True)


@pytest.mark.parametrize(
    ("name", "said"), [("default", "swa-state-swap"), ("none", "sets: GEMMA4_TRIAGE_PATCHES=none")]
)
def test_the_sets_of_patches_are_explained(cli, name, said):
    code, out, _ = cli("patches", "explain", name)
    assert (code, said in out) == (0, True)
    assert out.splitlines()[-1] == f"gemma4-triage serve --patches {name} --model-path MODEL"


def test_the_american_spelling_of_a_kind_is_one(cli):
    assert cli("patches", "list", "--kind", "optimization")[1] == cli("patches", "list", "--kind", "optimisation")[1]


def test_a_source_has_no_number_of_a_list_that_nobody_has(cli):
    assert "feature F" not in cli("patches", "list", "-v")[1]


def test_patches_begin_with_what_a_server_is_given(cli):
    lines = cli("patches")[1].splitlines()
    kinds = ("fix", "optimisation", "probe", "fault", "host leaf")
    places = [next(at for at, line in enumerate(lines) if f" {kind} " in line) for kind in kinds]
    assert places == sorted(places)


def test_a_hint_repeats_the_folder_that_was_named(cli):
    _, _, err = cli("dumps", "show", "2026", "--dir", "dumps/samples")
    assert "hint: gemma4-triage dumps list --dir dumps/samples shows" in err
    assert "hint: gemma4-triage dumps list shows" in cli("dumps", "show", "2026")[2]


def test_a_log_fills_in_the_command_that_its_findings_name(cli):
    _, out, _ = cli("logs", "tests/data/logs/swa-starved.log")
    lines = {line for line in out.splitlines() if "next: gemma4-triage pools" in line}
    assert len(lines) == 1
    assert "--page-size 16 " in lines.pop()


def test_a_replay_that_no_backend_can_do_says_so_beside_its_code(cli, monkeypatch):
    code, out, err = cli("replay", DUMP, "--backend", "trtllm_mha")
    assert (code, "cannot run here" in out) == (3, True)
    assert out.startswith("NOT RUN on trtllm_mha: ")
    assert err == "error: no backend that was asked for can run here: trtllm_mha\n"
    assert cli("replay", DUMP, "--backend", "reference,trtllm_mha")[1].startswith("READS BEYOND THE BUFFER")


def test_a_laptop_sees_what_serve_would_start_and_that_it_cannot(cli, without_sglang):
    code, out, err = cli("serve", "--dry-run", "--debug", "1", "--model-path", "m")
    assert (code, out.endswith(" sglang serve --model-path m\n")) == (0, True)
    assert "SGLang is not installed here" in err
    code, _, err = cli("serve", "--debug", "1", "--model-path", "m")
    assert (code, "SGLang is not installed, and serve starts its server" in err) == (3, True)


def test_a_laptops_doctor_does_not_say_that_sglang_will_load_anything(cli, without_sglang):
    code, out, _ = cli("doctor")
    assert code == 0
    assert "SGLang will load" not in out
    assert "registered: an SGLang that is installed here will load" in out


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("known", "tests/data/logs/swa-starved.log"), "known check tests/data/logs/swa-starved.log"),
        (("known", "no-such.log"), "known check no-such.log"),
        (("dumps", DUMP), f"dumps show {DUMP}"),
        (("patches", "yoco"), "patches explain yoco"),
        (("server log",), None),
        (("dumps/samples",), "diagnose dumps/samples"),
        (("known", "chekc"), None),
    ],
)
def test_a_thing_where_a_command_has_to_stand_is_told_what_reads_it(cli, words, hint):
    code, _, err = cli(*words)
    assert (code, len(err.splitlines())) == (2, FEW_LINES)
    line = err.splitlines()[1]
    assert line == f"hint: to read it: gemma4-triage {hint}" if hint else line.endswith("--help shows the usage")


@pytest.mark.parametrize(
    ("words", "command"),
    [(("report", "-o"), "report"), (("dumps", "export", "x", "-o"), "dumps export"), (("report", "--log"), "report")],
)
def test_an_option_without_its_value_is_its_commands(cli, words, command):
    assert cli(*words)[2].splitlines()[1] == f"hint: gemma4-triage {command} --help shows the usage"


def test_a_runs_folder_is_diagnosed(cli):
    assert cli("diagnose", "--dir", "tests/data/finished_runs/e4b-trtllm")[0] == 1


def test_the_walk_that_is_written_down_is_of_the_readme_as_it_is():
    lines = commands((ROOT / "README.md").read_text())
    assert list(lines) == list(NEEDS.values())
    walked = [
        line.split("`")[1] for line in (ROOT / "docs/first_hour.md").read_text().splitlines() if line[:3] == "| `"
    ]
    assert walked == [line for need in lines.values() for line in need]
    assert len(walked) > 10


class TestWhatWasToldWrongly:
    """The first commands of somebody whose server crashed, or who was sent a dump, with what they say now."""

    def test_1_a_log_of_another_server_is_a_run_of_its_own_and_no_evidence(self, cli):
        words = ("diagnose", "--dir", "dumps/samples", "--log", "tests/data/logs/illegal-access.log")
        code, out, _ = cli(*words)
        incidents, _, run = out.partition("RUN WITHOUT DUMPS")
        assert (code, "[L1]" in incidents) == (1, False)
        assert "a run of its own, not that of 2026" in run
        alone = cli("diagnose", "--dir", "dumps/samples", "--json")[1]
        joined = cli(*words, "--json")[1]
        sure = [[finding["confidence"] for finding in one["findings"]] for one in json.loads(alone)["incidents"]]
        assert [[finding["confidence"] for finding in one["findings"]] for one in json.loads(joined)["incidents"]][
            : len(sure)
        ] == sure

    def test_2_a_healthy_server_is_one_whose_release_has_a_note(self, cli):
        # tests/engine/test_clean_run_diagnosed.py has it of live servers, every backend and both toys.
        code, out, _ = cli("diagnose", "tests/data/corpus_dumps/window-one-too-wide")
        assert (code, out.count("NOTE  window-one-too-wide")) == (0, 1)
        assert "nothing wrong here" in out
        assert "The fix is `swa-window-width`" in out
        assert "CERTAIN" not in out

    @pytest.mark.parametrize("verb", ["dumps show", "replay", "report", "diagnose"])
    def test_3_a_torn_file_is_a_first_line_and_exit_4(self, cli, tmp_path, verb):
        dump = shutil.copytree(ROOT / DUMP, tmp_path / Path(DUMP).name)
        with (dump / "tensors.safetensors").open("r+b") as file:
            file.truncate(700)
        code, out, err = cli(*verb.split(), dump)
        assert code == 4
        assert "damaged" in (out + err).splitlines()[0]
        assert "CERTAIN" not in out

    def test_6_a_renamed_dump_and_an_export_are_read(self, cli, tmp_path):
        shutil.copytree(ROOT / DUMP, tmp_path / "two" / "from bob")
        code, out, _ = cli("dumps", "list", "--dir", tmp_path / "two")
        assert (code, "from bob" in out) == (0, True)
        assert cli("dumps", "export", DUMP, "-o", tmp_path / "sent.zip")[0] == 0
        for words in (("--dir", tmp_path / "two"), (tmp_path / "two",), (tmp_path / "sent.zip",)):
            code, out, _ = cli("diagnose", *words)
            assert (code, "1. CERTAIN  draft-swa-state-stale" in out) == (1, True)

    def test_7_a_log_alone_is_judged_alone(self, cli, monkeypatch):
        monkeypatch.setenv("SGLANG_TRTLLM_MHA_DEBUG_DIR", "dumps/samples")
        code, out, _ = cli("diagnose", "--log", "tests/data/logs/swa-starved.log")
        assert (code, "INCIDENT" in out, "2026112" in out) == (1, False, False)

    def test_8_what_to_run_is_one_plan_with_what_the_log_says(self, cli):
        _, out, _ = cli("diagnose", "--log", "tests/data/logs/illegal-access.log")
        plan = [
            line.split("#")[0] for line in out.splitlines() if "gemma4-triage serve" in line and "next: " not in line
        ]
        assert len(plan) == 1
        assert "--attention-backend trtllm_mha" in plan[0]
        assert "--page-size 16" in plan[0]
        assert "--speculative-algorithm NEXTN" in plan[0]
        _, out, _ = cli("diagnose", "--log", "tests/data/logs/swa-starved.log")
        pools = next(line for line in out.splitlines() if "gemma4-triage pools" in line)
        assert "64x8000+1000" not in pools
        assert "--page-size 16" in pools
