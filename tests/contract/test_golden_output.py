"""What the command line prints, word for word: help of every verb, and the committed sample dumps.

`UPDATE_GOLDEN=1 pytest tests/contract/test_golden_output.py` rewrites the files; read the difference before committing.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
from test_golden_documents import commands

from command_line import run_command

GOLDEN = Path(__file__).with_name("golden")
ROOT = Path(__file__).parents[2]
# Beside the dumps lie traces: test_trace_samples.py.
SAMPLES = sorted(path.name for path in (ROOT / "dumps" / "samples").iterdir() if path.is_dir())
EVIDENCE = sorted(path.name for path in (ROOT / "tests" / "data" / "evidence").iterdir() if path.is_dir())
AUDITS = [name for name in SAMPLES if "_leak-audit_" in name]
ATTENTION = [name for name in SAMPLES if "_page-table-bounds_" in name]
REPORTED = [
    *(f"dumps/samples/{name}" for name in SAMPLES),
    *(f"tests/data/finished_runs/{name}" for name in ("e4b-trtllm", "corpus", "diff-patches")),
]
VERBS = [
    "",
    "repro",
    "repro crash",
    "repro mutations",
    "serve",
    "patches",
    "patches list",
    "patches explain",
    "doctor",
    "audit",
    "diagnose",
    "collect",
    "report",
    "logs",
    "known",
    "known list",
    "known show",
    "known check",
    "profile",
    "pools",
    "replay",
    "dumps",
    "dumps list",
    "dumps show",
    "dumps verify",
    "dumps export",
    "dumps prune",
    "bench",
    "bench probes",
    "bench plot",
    "bench kernels",
    "bench step",
    "bench serving",
    "diff",
    "diff dumps",
    "diff backends",
    "diff patches",
    "quality",
    "samples",
]


@pytest.fixture(autouse=True)
def in_the_checkout(monkeypatch):
    """Outputs name files as they were named, from here."""
    monkeypatch.chdir(ROOT)


def run(*words: str, **variables: str) -> subprocess.CompletedProcess:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("GEMMA4_", "SGLANG_"))}
    return run_command(words, clean | variables | {"COLUMNS": "100"})


def compare(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN") == "1":
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("verb", VERBS)
def test_help(verb):
    done = run(*verb.split(), "--help")
    assert done.returncode == 0
    compare(f"help_{verb.replace(' ', '_') or 'top'}.txt", done.stdout)


def test_every_verb_has_a_golden_help():
    from gemma4_triage.cli.app import VERBS as known

    assert {verb.split()[0] for verb in VERBS if verb} == set(known)
    assert not set(commands()) - set(VERBS)


def test_there_are_samples_from_a_cpu_and_one_from_a_gpu():
    gpus = [json.loads((ROOT / "dumps" / "samples" / name / "manifest.json").read_text())["gpu"] for name in SAMPLES]
    assert sorted(gpu is not None for gpu in gpus) == [False, False, False, False, True]


@pytest.mark.parametrize("sample", SAMPLES)
class TestSamples:
    def test_show(self, sample):
        done = run("dumps", "show", f"dumps/samples/{sample}")
        assert done.returncode == 0
        compare(f"show_{sample}.txt", done.stdout)

    def test_show_json_is_one_document_with_the_evidence(self, sample):
        done = run("dumps", "show", f"dumps/samples/{sample}", "--json")
        document = json.loads(done.stdout)
        assert document["schema_version"]
        assert done.stderr == ""
        text = json.dumps(document)
        if sample in AUDITS:
            assert "16 missing" in text
        if sample in ATTENTION:
            assert '"table_space": "full"' in text
            assert '"buffer_space": "swa"' in text

    def test_it_is_whole(self, sample):
        assert run("dumps", "verify", f"dumps/samples/{sample}").returncode == 0

    def test_it_names_no_path_of_a_home(self, sample):
        text = (ROOT / "dumps" / "samples" / sample / "manifest.json").read_text()
        assert "/root" not in text
        assert "/home" not in text


@pytest.mark.parametrize("sample", AUDITS)
def test_audit(sample):
    done = run("audit", f"dumps/samples/{sample}")
    assert done.returncode == 1
    compare(f"audit_{sample}.txt", done.stdout)


@pytest.mark.parametrize("sample", SAMPLES)
def test_diagnose(sample):
    done = run("diagnose", f"dumps/samples/{sample}")
    assert (done.returncode, done.stderr) == (1, "")
    compare(f"diagnose_{sample}.txt", done.stdout)


def test_diagnose_with_a_log():
    done = run("diagnose", "tests/data/corpus_dumps/swa-state-stale", "--log", "tests/data/logs/illegal-access.log")
    assert (done.returncode, done.stderr) == (1, "")
    compare("diagnose_with_log.txt", done.stdout)


NOTHING_WRONG = ("requests", "stacks", "flight-recorder-nccl", "flight-recorder-nccl-json")
"""What servers left with which nothing was wrong."""


@pytest.mark.parametrize("folder", EVIDENCE)
def test_diagnose_what_else_a_server_left(folder):
    done = run("diagnose", f"tests/data/evidence/{folder}")
    assert (done.stderr, done.returncode) == ("", 0 if folder in NOTHING_WRONG else 1)
    compare(f"diagnose_evidence_{folder}.txt", done.stdout)


def test_diagnose_a_log_alone(tmp_path):
    done = run("diagnose", "--dir", str(tmp_path), "--log", "tests/data/logs/pool-leak.log")
    assert (done.returncode, done.stderr) == (1, "")
    compare("diagnose_log_alone.txt", done.stdout)


@pytest.mark.parametrize("source", REPORTED)
def test_report(source, tmp_path):
    out = tmp_path / "report.md"
    done = run("report", source, "--markdown", str(out))
    assert done.stderr == f"Wrote {out}\n"
    name = source.rpartition("/")[2]
    compare(f"report_{name}.txt", done.stdout)
    compare(f"report_{name}.md", out.read_text())


@pytest.mark.parametrize("sample", SAMPLES)
def test_replay(sample):
    done = run("replay", f"dumps/samples/{sample}")
    assert done.returncode == 1
    compare(f"replay_{sample}.txt", done.stdout)


def test_diff():
    done = run("diff", *(f"dumps/samples/{name}" for name in ATTENTION))
    assert (done.returncode, done.stderr) == (1, "")
    compare("diff_samples.txt", done.stdout)


def test_patches_of_a_kind():
    done = run("patches", "list", "--kind", "probe")
    assert done.returncode == 0
    compare("patches_list_probes.txt", done.stdout)
