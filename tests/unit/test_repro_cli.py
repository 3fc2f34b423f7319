"""The command line of `repro`: what it shows and writes of a finished run, and what it refuses before one."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from dump_examples import seed_bug_draft
from gemma4_dumps.schema import Provenance
from gemma4_dumps.store import DumpStore
from gemma4_repro.catalog import SCENARIOS
from gemma4_repro.engine import readiness
from gemma4_repro.engine.outcome import Answer, ArmResult, Ending, IdleCheck, Outcome, Raised
from gemma4_repro.expect_evidence import WritesDump
from gemma4_repro.runner import Run
from gemma4_repro.toys import locate
from gemma4_repro.verdict import judge
from gemma4_triage.cli import repro as verb
from gemma4_triage.runs.convert import record_of_scenario
from gemma4_triage.runs.record_file import read_record
from gemma4_triage.runs.root_cause import root_cause

TRTLLM = SCENARIOS[0]
# It depends on the installed release.
(FIRST_WRONG,) = {
    wanted.verdict for arm in TRTLLM.arms for wanted in arm.expectations if isinstance(wanted, WritesDump)
}


@pytest.fixture
def finished(tmp_path, monkeypatch):
    """Makes the command report a run that never ran: real folders, logs and dumps, made-up outcomes."""

    def make(*arms, **changes):
        outcomes = {}
        for arm in arms:
            folder = tmp_path / arm
            (folder / "dumps").mkdir(parents=True)
            (folder / "log.txt").write_text("".join(f"log line {i}\n" for i in range(100)))
            (folder / "drafts.jsonl").write_text(json.dumps([0, 1, [1 if arm == "fixed" else 2]]) + "\n")
            outcomes[arm] = _outcome(arm, folder)
        if "fault-probes" in arms:
            DumpStore(tmp_path / "fault-probes" / "dumps").write(seed_bug_draft(verdict=FIRST_WRONG, **changes))
        run = Run(TRTLLM, tmp_path, "0.5.13.post1", 42.0, 9.0, judge(TRTLLM, outcomes))
        monkeypatch.setattr(verb, "_run", lambda scenario, options: run)
        return run

    def trapped_by(raised):
        """Return the run of all arms that was made last, with this error in the log of the arm with probes."""
        outcomes = {arm: _outcome(arm, tmp_path / arm) for arm in ALL}
        outcomes["fault-probes"] = replace(outcomes["fault-probes"], raised=(raised,))
        run = Run(TRTLLM, tmp_path, "0.5.13.post1", 42.0, 9.0, judge(TRTLLM, outcomes))
        monkeypatch.setattr(verb, "_run", lambda scenario, options: run)
        return run

    make.trapped_by = trapped_by
    return make


def _outcome(arm, folder):
    crash = {"fault": "IllegalAddress", "fault-probes": "TrappedViolation"}.get(arm)
    if crash:
        raised = (Raised(crash, "page 65 of 65"),)
        return Outcome(arm, Ending.CRASHED, folder, 3.0, None, "SIGKILL", raised, None)
    answers = (Answer(prompt=0, output_ids=(1, 2, 3, 4), verify_rounds=1 if arm == "fixed" else 2),)
    idle = IdleCheck(leak_checker_ran=True, flush_succeeded=True, used_tokens_after_flush=0, used_share_after_flush=0)
    result = ArmResult(arm=arm, sglang_version="0", start_s=1, load_s=2, answers=answers, idle=idle)
    return Outcome(arm, Ending.COMPLETED, folder, 9.0, 0, None, (), result)


ALL = ("fault", "fault-silent", "fault-probes", "fixed")


def test_without_an_argument_the_scenarios_are_listed(cli):
    code, out, _ = cli("repro")
    assert code == 0
    for scenario in SCENARIOS:
        assert scenario.id in out
        assert scenario.hardware in out
    code, out, _ = cli("repro", "--json")
    document = json.loads(out)
    assert (code, document["kind"]) == (0, "scenario-list")
    assert [s["id"] for s in document["scenarios"]] == [s.id for s in SCENARIOS]


@pytest.mark.parametrize(
    ("words", "known"),
    [
        (("repro", "e4b"), "e4b-trtllm"),
        (("repro", "e4b-trtllm", "--arm", "silent"), "fault-silent"),
        (("repro", "--arm", "fault"), "lists the scenarios"),
        (("repro", "e4b-trtllm", "--time-limit", "0"), "from 1s on"),
    ],
)
def test_a_usage_mistake_says_what_there_is(cli, words, known):
    code, _, err = cli(*words)
    assert code == 2
    assert known in err


def test_a_run_as_expected(cli, finished, tmp_path):
    finished(*ALL)
    code, out, err = cli("repro", "e4b-trtllm")
    assert code == 0
    assert "surprise" not in out
    assert "1 of 1 (100%)" in out
    assert "accept length 2.00" in out
    assert "ids of the full pool" in out
    assert f"gemma4-triage dumps show {tmp_path}/fault-probes/dumps/" in out
    for arm in ALL:
        assert f"gemma4-triage repro e4b-trtllm --arm {arm}" in out
    assert f"Wrote {tmp_path}/verdict.json" in err
    assert json.loads((tmp_path / "verdict.json").read_text())["schema_version"] == "1.1"


def test_json_is_one_document_with_everything(cli, finished):
    finished(*ALL)
    code, out, _ = cli("repro", "e4b-trtllm", "--json")
    document = json.loads(out)
    assert (code, document["exit_code"], document["schema_version"]) == (0, 0, "1.1")
    assert [arm["status"] for arm in document["arms"]] == ["ok"] * 4
    assert document["arms"][1]["numbers"]["drafts_differing_share"] == 1.0
    assert document["arms"][2]["dumps"][0]["path"] == document["root_cause"]["dump"]
    assert {leaf["id"] for leaf in document["host_engine"]["stand_ins"]} >= {"host-paged-attention"}


def test_a_check_names_its_dump_in_a_field_and_the_table_leaves_its_path_to_the_line_below(cli, finished, tmp_path):
    finished(*ALL)
    arm = tmp_path / "fault-probes"
    (dump,) = (arm / "dumps").glob("*_page-table-bounds_*")
    trapped = Raised("TrappedViolation", f"page 65 of 65 [dump: {dump}]")
    run = finished.trapped_by(trapped)
    code, out, _ = cli("repro", "e4b-trtllm", "--json")
    (check,) = [one for one in json.loads(out)["arms"][2]["checks"] if one["dump"]]
    assert (code, check["dump"]) == (0, str(dump))
    assert check["observed"].endswith(f"TrappedViolation: page 65 of 65 [dump: {dump}]")
    assert read_record(run.folder).arms[2].checks[0].brief == "crashed (SIGKILL): TrappedViolation: page 65 of 65"
    assert "[dump:" not in cli("repro", "e4b-trtllm")[1]


def test_a_run_in_a_folder_whose_name_is_no_unicode_has_a_record(finished):
    run = replace(finished(*ALL), folder=Path(os.fsdecode(b"/runs/\xff")))
    assert record_of_scenario(run).folder == "/runs/\ufffd"


def test_one_arm_alone_says_that_it_was_not_compared(cli, finished):
    finished("fault-silent")
    code, out, _ = cli("repro", "e4b-trtllm", "--arm", "fault-silent")
    assert code == 0
    assert out.count("not checked") == 3
    assert "arm fixed did not run" in out
    assert "nothing is said about the cause" in out


def test_a_surprise_shows_the_end_of_its_log(cli, finished, tmp_path):
    finished(*ALL, provenance=Provenance(table_space="swa", buffer_space="swa"))
    code, out, _ = cli("repro", "e4b-trtllm")
    assert code == 1
    assert "log line 99" in out
    assert "log line 60" in out
    assert "log line 59" not in out
    assert str(tmp_path / "fault-probes" / "log.txt") in out
    # The cause follows the dump, not the scenario.
    assert "both belong to the SWA pool" in out
    code, out, _ = cli("repro", "e4b-trtllm", "--json")
    assert code == 1
    assert len(json.loads(out)["arms"][2]["log_tail"]) == 40


def test_nothing_checked_is_neither_good_nor_bad(cli, finished):
    finished()
    code, _, err = cli("repro", "e4b-trtllm")
    assert code == 5
    assert "nothing was checked" in err
    code, out, _ = cli("repro", "e4b-trtllm", "--json")
    assert (code, json.loads(out)["exit_code"]) == (5, 5)


def test_a_missing_extra_says_what_to_install(cli, monkeypatch):
    def absent(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(readiness, "version", absent)
    code, _, err = cli("repro", "e4b-trtllm")
    assert code == 3
    assert "pip install -c constraints.txt '.[runtime]'" in err


@pytest.mark.parametrize(("release", "nearest"), [("0.4.0", "0.5.13.post1"), ("0.5.24", "0.5.23")])
def test_another_release_of_sglang_is_named_with_the_nearest_that_it_runs_on(cli, monkeypatch, release, nearest):
    monkeypatch.setattr(readiness, "version", lambda name: release)
    code, _, err = cli("repro", "e4b-trtllm")
    assert code == 3
    assert f"SGLang {release} is installed" in err
    assert f"the nearest of them is {nearest}" in err


def test_missing_toys_say_how_to_make_them(cli, monkeypatch):
    def absent(name):
        raise FileNotFoundError(f"no toy checkpoint named {name!r}\nMake the toys with: python -m x")

    monkeypatch.setattr(readiness, "version", lambda name: "0.5.13.post1")
    monkeypatch.setattr(readiness, "toy_path", absent)
    code, _, err = cli("repro", "e4b-trtllm")
    assert code == 3
    assert "no toy checkpoint" in err
    assert "hint: Make the toys with" in err


def test_missing_toys_and_sglang_are_named_together(cli, monkeypatch):
    def no_sglang(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(readiness, "version", no_sglang)
    monkeypatch.setattr(locate, "_candidates", lambda name: [Path("/none") / name])
    code, _, err = cli("repro", "e4b-trtllm")
    assert (code, len(err.splitlines()), "\\n" in err) == (3, 2, False)
    assert err.splitlines()[0] == "error: no toy checkpoint named 'toy-e4b', and SGLang is not installed"
    assert "./repro/toys" in err.splitlines()[1]


def test_an_output_that_is_not_empty_or_not_writable(cli, monkeypatch, tmp_path):
    monkeypatch.setattr(readiness, "version", lambda name: "0.5.13.post1")
    monkeypatch.setattr(readiness, "toy_path", lambda name: tmp_path)
    (tmp_path / "file").write_text("x")
    code, _, err = cli("repro", "e4b-trtllm", "--output", tmp_path)
    assert code == 2
    assert "--force" in err
    code, out, err = cli("repro", "e4b-trtllm", "--output", tmp_path / "file" / "below", "--json")
    assert code == 3
    assert "cannot be written" in err
    assert json.loads(out)["exit_code"] == 3


def test_a_folder_that_json_cannot_name_is_refused_before_it_is_made(cli, tmp_path):
    code, out, err = cli("repro", "e4b-trtllm", "--output", tmp_path / os.fsdecode(b"\xff") / "run", "--json")
    assert (code, json.loads(out)["exit_code"]) == (2, 2)
    assert "its name is not UTF-8" in err
    assert list(tmp_path.iterdir()) == []


def test_the_cause_is_put_together_from_the_dump(tmp_path):
    from gemma4_dumps.reader import read_dump

    store = DumpStore(tmp_path)
    dump = read_dump(store.write(seed_bug_draft()).path)
    text = root_cause(dump)
    assert "draft" in text
    assert "layer 4 (sliding)" in text
    assert "swa-state-swap" in text
    other = read_dump(store.write(seed_bug_draft(verdict="negative", provenance=Provenance(), role="target")).path)
    text = root_cause(other)
    assert "not recorded" in text
    assert "swa-state-swap" not in text


def test_the_command_line_imports_no_engine_and_no_scenario_for_help():
    code = (
        "import sys\nfrom gemma4_triage.cli.app import main\nmain(['repro', '--help'])\n"
        "print([m for m in ('torch', 'sglang', 'rich', 'gemma4_repro') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "drafts.jsonl" in done.stdout


def test_the_runner_imports_neither_torch_nor_sglang_nor_the_terminal():
    code = (
        "import sys\nimport gemma4_repro.runner\n"
        "print([m for m in ('torch', 'sglang', 'rich', 'typer') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
