"""Completion in shells: the script, what it is answered, and what real shells make of it."""

import os
import pty
import shutil
import subprocess
import sys
import time
from pathlib import Path

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


FOLDER, SHAPES = place(SAMPLES[0]).parent, SAMPLES[3].file
LINES = [
    ("gemma4-triage dia", "diagnose"),
    (f"gemma4-triage dumps show --dir {FOLDER} 20261122", SHAPES),
    (f"gemma4-triage replay --dir={FOLDER} {short_id(SHAPES)[:5]}", short_id(SHAPES)),
    ("gemma4-triage patches explain swa-state-sw", "swa-state-swap"),
    ("gemma4-triage serve --patches default,+triton-d", "default,+triton-decode-window"),
    ("gemma4-triage known show gemma4-mtp-trtllm-s", "gemma4-mtp-trtllm-swa-stale"),
    ("gemma4-triage logs x --color al", "always"),
]


@pytest.fixture
def start_file(tmp_path):
    """Return a home and a function that installs completion there by the one command of the documentation."""

    def install(shell: str) -> dict[str, str]:
        program = Path(sys.executable).parent
        variables = {"HOME": str(tmp_path), "PATH": f"{program}:/usr/bin:/bin", "TERM": "dumb", "LC_ALL": "C.UTF-8"}
        page = Path(__file__).parents[2] / "docs/settings.md"
        line = next(line for line in page.read_text().splitlines() if line.startswith(f"| {shell} | `")).split("`")[1]
        (tmp_path / ".config/fish").mkdir(parents=True)
        subprocess.run(["bash", "-c", line], env=variables, check=True)
        return variables

    return install


def test_bash_completes(start_file):
    variables = start_file("bash")
    for line, expected in (
        *LINES,
        ("gemma4-triage serve --patches=default,+triton-d", "default,+triton-decode-window"),
    ):
        words = line.replace("=", " = ").split()
        asked = f"COMP_WORDS=({' '.join(words)}) COMP_CWORD={len(words) - 1}; _gemma4_triage_completion gemma4-triage"
        script = f'. ~/.bashrc; {asked}; printf "%s\n" "${{COMPREPLY[@]}}"'
        done = subprocess.run(["bash", "-c", script], env=variables, capture_output=True, text=True, check=True)
        assert (done.stdout.split(), done.stderr) == ([expected], ""), line


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes(start_file):
    variables = start_file("fish")
    for line, expected in LINES:
        done = subprocess.run(["fish", "-c", f"complete -C '{line}'"], env=variables, capture_output=True, text=True)
        assert [one.split("\t")[0] for one in done.stdout.splitlines()] == [expected], line


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_completes(start_file):
    """Only at a prompt does zsh complete, so it gets a terminal."""
    variables = start_file("zsh") | {"PS1": "ready> ", "COLUMNS": "300"}
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe("zsh", ["zsh", "-i"], variables)
    try:
        assert _type(terminal, "", "ready> ")
        for line, expected in LINES:
            # Ctrl-U empties the line.
            assert _type(terminal, f"\x15{line}\t", f"{expected} "), line
    finally:
        os.close(terminal)
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def _type(terminal: int, keys: str, expected: str, within_s: float = 30.0) -> bool:
    """Return whether `expected` was shown some time after the keys were typed."""
    os.write(terminal, keys.encode())
    shown, end = "", time.monotonic() + within_s
    os.set_blocking(terminal, False)
    while expected not in shown and time.monotonic() < end:
        try:
            shown += os.read(terminal, 65536).decode(errors="replace")
        except BlockingIOError:
            time.sleep(0.05)
    return expected in shown


def test_another_shell(cli):
    assert cli("--completion", "csh")[0] == 2
