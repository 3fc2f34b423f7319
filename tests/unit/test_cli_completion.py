"""Completion in shells: the script, and what it is answered."""

import shutil
import subprocess

import pytest

from command_line import run_command
from gemma4_dumps.directory_name import short_id
from gemma4_triage.cli.app import COMPLETE_VARIABLE, SHELLS
from gemma4_triage.samples import SAMPLES, place


def completed(words: str, **variables: str) -> list[str]:
    environment = {"PATH": "/usr/bin:/bin", COMPLETE_VARIABLE: "complete_bash", "COMP_WORDS": words}
    environment |= {"COMP_CWORD": str(words.count(" ")), **variables}
    done = run_command((), environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def test_verbs_dumps_and_patches():
    folder = place(SAMPLES[0]).parent
    assert "diagnose" in completed("gemma4-triage dia")
    assert completed("gemma4-triage dumps show 20261122", SGLANG_TRTLLM_MHA_DEBUG_DIR=str(folder)) == [SAMPLES[3].file]
    assert completed(f"gemma4-triage dumps show --dir {folder} 20261122") == [SAMPLES[3].file]
    assert completed("gemma4-triage dumps show --dir /none 2026") == []
    assert set(completed("gemma4-triage patches explain yo")) == {"yoco", "yoco-stale-cache-loc"}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        *(
            (f"{verb} --dir {{0}} 20261122", "{1}")
            for verb in (*("diagnose", "report", "audit", "diff dumps", "replay", "dumps export", "dumps verify"),)
        ),
        ("diagnose --dir {0} latest {2}", "{2}"),
        ("serve --preset pro", "production"),
        ("serve --debug tr", "trap"),
        ("serve --patches default,+triton-d", "default,+triton-decode-window"),
        ("serve --probes page-table,geo", "page-table,geometry"),
        ("serve --fault swa-state", "swa-state-stale"),
        ("serve --device-model sm9", "sm90"),
        ("patches explain produ", "production"),
        ("patches list --kind prob", "probe"),
        ("known show gemma4-mtp-trtllm-s", "gemma4-mtp-trtllm-swa-stale"),
        ("known list --topic hi", "hicache"),
        ("samples row", "row-overflow"),
        ("repro e4b-trt", "e4b-trtllm"),
        ("repro corpus --only double", "double-bookkeeping"),
        ("repro crash e4b_trtllm_v1_b", "e4b_trtllm_v1_bounds"),
        ("logs x --color al", "always"),
        ("--color ne", "never"),
    ],
)
def test_ids_dumps_and_choices_at_every_verb(words, expected):
    folder, name = place(SAMPLES[0]).parent, SAMPLES[3].file
    given = [text.format(folder, name, short_id(name)) for text in (words, expected)]
    assert completed(f"gemma4-triage {given[0]}") == [given[1]]


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_takes_its_script(cli, shell):
    code, out, err = cli("--completion", shell)
    assert (code, err) == (0, "")
    assert f"{COMPLETE_VARIABLE}=complete_{shell}" in out
    if program := shutil.which(shell):
        subprocess.run([program, "-n"], input=out, text=True, check=True, capture_output=True)


def test_another_shell(cli):
    assert cli("--completion", "csh")[0] == 2
