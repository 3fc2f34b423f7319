"""`gemma4-triage repro corpus` without an engine: what it prints, and its exit codes."""

import json

import pytest

from dump_examples import seed_bug_draft
from gemma4_dumps.store import DumpStore
from gemma4_repro.catalog import absent_scenarios
from gemma4_repro.corpus.case import CleanCase
from gemma4_repro.corpus.catalog import absent_cases
from gemma4_repro.corpus.clean import CLEAN
from gemma4_repro.corpus.evidence import gather
from gemma4_repro.corpus.faults import FAULTS, LOGIT_FAULTS
from gemma4_repro.corpus.matrix import CleanRow, FaultRow, Matrix
from gemma4_repro.corpus.runner import CorpusRun
from gemma4_repro.engine.outcome import Answer, ArmResult, Ending, IdleCheck, Outcome
from gemma4_repro.errors import EnvironmentLacks
from gemma4_runtime import releases
from gemma4_runtime.releases import BASE, RUNNABLE, installed_or_base
from gemma4_triage.cli import repro_corpus

# The case whose one finding the example dump makes.
PAST_END = next(case for case in FAULTS if case.id == "page-past-the-end")
MIXED = CLEAN[0]


def outcome(case, folder):
    answers = tuple(
        Answer(prompt=number, output_ids=(1,) * count, verify_rounds=1)
        for number, count in enumerate(case.workload.new_tokens())
    )
    idle = IdleCheck(leak_checker_ran=True, flush_succeeded=True, used_tokens_after_flush=0, used_share_after_flush=0)
    result = ArmResult(arm=case.id, sglang_version="0", start_s=1, load_s=2, answers=answers, idle=idle)
    return Outcome(case.id, Ending.COMPLETED, folder, 3.0, 0, None, (), result)


@pytest.fixture
def finished(tmp_path, monkeypatch):
    """Makes the command report a run that never ran: real folders and dumps, made-up outcomes."""

    def make(*dumped, unguarded=None):
        rows = []
        for case in (PAST_END, MIXED):
            folder = tmp_path / case.id
            (folder / "dumps").mkdir(parents=True)
            (folder / "steps.txt").write_text("1.0\n2.0\n")
            if case.id in dumped:
                DumpStore(folder / "dumps").write(seed_bug_draft())
            evidence = gather(case, outcome(case, folder))
            is_clean = isinstance(case, CleanCase)
            rows.append(CleanRow(case, evidence) if is_clean else FaultRow(case, evidence, unguarded))
        run = CorpusRun(tmp_path, "0.5.13.post1", 42.0, 9.0, Matrix((rows[0],), (rows[1],)))
        monkeypatch.setattr(repro_corpus, "_run", lambda options: run)
        return run

    return make


def test_quiet_lists_names_alone(cli):
    lines = cli("repro", "corpus", "--list", "-q")[1].splitlines()
    assert {"swa-state-stale", "clean-aborts"} <= set(lines)
    assert not any(" " in line for line in lines)


def test_the_list_names_every_case_and_where_it_comes_from(cli):
    code, out, _ = cli("repro", "corpus", "--list")
    assert code == 0
    for case in (*FAULTS, *CLEAN, *LOGIT_FAULTS):
        assert case.id in out
    for case in LOGIT_FAULTS:
        caught = f"No probe sees {case.id}: it changes logits. What catches it: {case.command}" in out
        assert caught == (case.id not in absent_cases(installed_or_base()))
    assert "SGLang 26957" in out
    code, out, _ = cli("repro", "corpus", "--list", "--json")
    document = json.loads(out)
    assert (code, document["kind"], document["schema_version"]) == (0, "corpus-list", "1.0")
    assert [fault["id"] for fault in document["faults"]] == [case.id for case in FAULTS]
    assert document["faults"][0]["expected"][0]["rule"]
    assert [fault["caught_by"] for fault in document["logit_faults"]] == [case.command for case in LOGIT_FAULTS]


@pytest.mark.parametrize("release", RUNNABLE)
def test_the_list_marks_what_the_release_cannot_have_and_says_why(cli, monkeypatch, release):
    monkeypatch.setattr(releases, "installed_or_base", lambda: release)
    absent = absent_cases(release)
    out = cli("repro", "corpus", "--list")[1]
    for case in (*FAULTS, *CLEAN, *LOGIT_FAULTS):
        (row,) = [line for line in out.splitlines() if line.startswith(f"{case.id} ")]
        assert row.split()[1] == ("absent" if case.id in absent else "yes")
        said = [line for line in out.splitlines() if line.startswith(f"Not on SGLang {release}: {case.id}: ")]
        assert len(said) == (case.id in absent)
    document = json.loads(cli("repro", "corpus", "--list", "--json")[1])
    assert (document["sglang_version"], document["absent"]) == (release, absent)
    assert not absent.keys() & set(cli("repro", "corpus", "--list", "-q")[1].splitlines())


@pytest.mark.parametrize("release", RUNNABLE)
def test_the_list_of_scenarios_marks_them_too(cli, monkeypatch, release):
    monkeypatch.setattr(releases, "installed_or_base", lambda: release)
    absent = absent_scenarios(release)
    assert bool(absent) == (release != BASE)
    out = cli("repro")[1]
    assert all(f"Not on SGLang {release}: {name}: {why}" in out for name, why in absent.items())
    assert json.loads(cli("repro", "--json")[1])["absent"] == absent
    assert not absent.keys() & set(cli("repro", "-q")[1].splitlines())


def test_a_dump_of_another_cause_is_a_wrong_cause_with_its_reasons(cli, finished, tmp_path):
    # The seed bug's dump: rule and verdict are right, role and index space are not.
    finished(PAST_END.id, unguarded="crashed: IllegalAddress")
    code, out, err = cli("repro", "corpus")
    assert code == 1
    assert "role is 'draft', not 'target'" in out
    # The cell is folded where the terminal is narrow.
    assert "crashed:IllegalAddress" in "".join(out.split())
    assert "1 fault: 0 missed, 1 with a wrong cause; 1 clean run: 0 false alarms" in out
    assert f"gemma4-triage repro corpus --only {PAST_END.id}" in out
    assert f"No probe sees {LOGIT_FAULTS[0].id}" in out or LOGIT_FAULTS[0].id in absent_cases(installed_or_base())
    assert f"Wrote {tmp_path}/verdict.json" in err


def test_a_miss_and_a_false_alarm(cli, finished, tmp_path):
    finished(MIXED.id)
    code, out, _ = cli("repro", "corpus", "--json")
    document = json.loads(out)
    assert (code, document["kind"], document["exit_code"]) == (1, "corpus", 1)
    assert document["totals"]["missed"] == 1
    assert document["totals"]["false_alarms"] == 1
    assert document["faults"][0]["silent_probes"] == ["page-table"]
    assert document["faults"][0]["cause"] == "none"
    assert document["clean"][0]["fired"] == {"page-table": 1}
    assert document["clean"][0]["dumps"][0]["step"] == 2
    assert json.loads((tmp_path / "verdict.json").read_text())["kind"] == "corpus"
    _, out, _ = cli("repro", "corpus")
    assert "miss" in out
    assert "probe page-table wrote no dump" in out


@pytest.mark.parametrize(
    ("words", "known"),
    [
        (("repro", "corpus", "--only", "seed"), "repro corpus --list shows all"),
        (
            ("repro", "corpus", "--only", "yoco-stale-cache-loc"),
            "it acts on yoco"
            if "yoco-stale-cache-loc" in absent_cases(installed_or_base())
            else "diff patches --with default --fault yoco-stale",
        ),
        (("repro", "corpus", "--arm", "fault"), "--only"),
        (("repro", "e4b-trtllm", "--list"), "belong to the corpus"),
        (("repro", "--only", "swa-state-stale"), "belong to the corpus"),
        (("repro", "e4b-trtllm", "--unguarded"), "belong to the corpus"),
    ],
)
def test_a_usage_mistake_says_what_there_is(cli, words, known):
    code, _, err = cli(*words)
    assert code == 2
    assert known in err


def test_no_engine_is_exit_code_3(cli, monkeypatch):
    def lacking(options):
        raise EnvironmentLacks("SGLang is not installed", "make setup")

    monkeypatch.setattr(repro_corpus, "_run", lacking)
    code, out, err = cli("repro", "corpus", "--json")
    assert code == 3
    assert json.loads(out)["kind"] == "error"
    assert "make setup" in err
