"""Completion in shells: the script, what it is answered, and what real shells make of it."""

import os
import pty
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from command_line import run_command
from gemma4_dumps.directory_name import short_id
from gemma4_repro.catalog import SCENARIOS, find_scenario
from gemma4_repro.serving_bench.loads import LOADS
from gemma4_triage.cli.app import command_tree
from gemma4_triage.cli.shells import COMPLETE_VARIABLE, SHELLS
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
        ("repro e4b-triton --arm trtllm-fau", "trtllm-fault"),
        ("repro crash --load summ", "summarisation"),
        ("repro crash --fault swa", "swa-state-stale"),
        ("repro crash --patches none,+cl", "none,+clamp"),
        ("repro crash --device-model sm9", "sm90"),
        ("diff patches e", "e4b"),
        ("diff patches --with default,-yo", "default,-yoco"),
        ("diff patches --base=defa", "default"),
        ("diff patches --fault swa-state-st", "swa-state-stale"),
        ("diff backends pic", "pictures"),
        ("diff backends --backend triton,trt", "triton,trtllm_mha"),
        ("diff backends --load pre", "pressure"),
        ("diff backends --mtp off,o", "off,off off,on"),
        ("diff backends --probes tr", "trap"),
        ("diff backends --patches no", "none"),
        ("audit --live --fault swa-state-st", "swa-state-stale"),
        ("replay --backend reference,fl", "reference,flashinfer"),
        ("bench kernels --ops tri", "triple_rmsnorm"),
        ("bench kernels --model 3", "31b"),
        ("bench kernels --arm sgl-", "sgl-kernel"),
        ("bench step --model 3", "31b"),
        ("bench step --arm all-c", "all-cublas"),
        ("bench probes --arm led", "ledger"),
        ("bench probes --mtp b", "both"),
        ("bench probes --model sc", "scaled"),
        ("bench serving pict", "pictures"),
        ("bench serving lengths --model 2", "26b"),
        ("bench serving decode --arm none,att", "none,attention"),
        ("quality --base defa", "default"),
        ("quality --with default,-yo", "default,-yoco"),
        ("quality --api ch", "chat"),
        ("doctor --constraints run", "runtime"),
        ("patches list --sglang 0.5.2", "0.5.23"),
        ("known check --release 0.5.2", "0.5.23"),
        ("profile --steps wh", "whole"),
        ("pools --kv-dtype float", "float32"),
        ("logs x --color al", "always"),
        ("--color ne", "never"),
        ("--completion fi", "fish"),
    ],
)
def test_ids_dumps_and_choices_at_every_verb(words, expected):
    folder, name = place(SAMPLES[0]).parent, SAMPLES[3].file
    given = [text.format(folder, name, short_id(name)) for text in (words, expected)]
    assert completed(f"gemma4-triage {given[0]}") == given[1].split()


FREE = re.compile(
    r"|N|M|R|F|NUMBERS?|COUNTS|SIZES?|TIME|AGE|Q:KV|NxP\+O|URL(\|PID)?|(.*-- |\[--\] )SGLANG_ARGUMENTS"
    r"|DIR|PATH|FILE|TRACE|(\[?)(LOG|FILE)(\]?)\.\.\.|.*\.(\w+)"
)
"""What stands for numbers, addresses, and files, which shells complete themselves."""


def test_every_parameter_completes_unless_its_values_are_free():
    def silent(command, path):
        for name, below in getattr(command, "commands", {}).items():
            yield from silent(below, f"{path} {name}")
        for one in command.params:
            free = getattr(one, "is_flag", False) or FREE.fullmatch(one.metavar or "")
            if not (free or one.hidden or one._custom_shell_complete):
                yield f"{path} {one.opts[0]} {one.metavar}"

    # The servers of --base-url say which models they have.
    assert [*silent(command_tree(), "")] == [" quality --model NAME"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("repro mtp-v2-leak --arm ", [arm.id for arm in find_scenario("mtp-v2-leak").arms]),
        ("repro e4b-triton --arm=", [arm.id for arm in find_scenario("e4b-triton").arms]),
        ("repro --keep e4b-triton --arm ", [arm.id for arm in find_scenario("e4b-triton").arms]),
        ("bench serving decode --arm ", [arm.id for arm in LOADS["decode"].arms]),
        ("bench serving pictures --rounds 3 --model ", [*LOADS["pictures"].models]),
    ],
)
def test_arms_and_models_are_those_of_what_the_line_names(words, expected):
    assert completed(f"gemma4-triage {words}") == expected


def test_an_arm_is_completed_before_its_scenario_is_typed_too():
    every = completed("gemma4-triage repro --arm ")
    assert set(every) == {arm.id for scenario in SCENARIOS for arm in scenario.arms}
    assert completed("gemma4-triage repro no-such --arm ") == every
    assert len(completed("gemma4-triage bench serving --arm ")) > len(LOADS["decode"].arms)


def test_runs_are_completed_beside_dumps(tmp_path):
    run = tmp_path / "gemma4-triage/runs/20261126T000000Z_e4b-trtllm"
    run.mkdir(parents=True)
    for verb in ("report", "diagnose"):
        assert completed(f"gemma4-triage {verb} ", XDG_STATE_HOME=str(tmp_path)) == ["latest", str(run)]
        assert completed(f"gemma4-triage {verb} {tmp_path}/gem", XDG_STATE_HOME=str(tmp_path)) == [str(run)]


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_takes_its_script(cli, shell):
    code, out, err = cli("--completion", shell)
    assert (code, err) == (0, "")
    assert f"{COMPLETE_VARIABLE}=complete_{shell}" in out
    if program := shutil.which(shell):
        subprocess.run([program, "-n"], input=out, text=True, check=True, capture_output=True)


LOGS = Path(__file__).parents[1] / "data/logs"
FOLDER, SHAPES = place(SAMPLES[0]).parent, SAMPLES[3].file
LINES = [
    ("gemma4-triage dia", "diagnose"),
    (f"gemma4-triage dumps show --dir {FOLDER} 20261122", SHAPES),
    (f"gemma4-triage replay --dir={FOLDER} {short_id(SHAPES)[:5]}", short_id(SHAPES)),
    ("gemma4-triage patches explain swa-state-sw", "swa-state-swap"),
    ("gemma4-triage serve --patches default,+triton-d", "default,+triton-decode-window"),
    ("gemma4-triage known show gemma4-mtp-trtllm-s", "gemma4-mtp-trtllm-swa-stale"),
    ("gemma4-triage logs x --color al", "always"),
    ("gemma4-triage repro e4b-triton --arm trtllm-fau", "trtllm-fault"),
    (f"gemma4-triage diagnose --log {LOGS}/illegal-acc", f"{LOGS}/illegal-access.log"),
]
GLUED = [
    ("gemma4-triage serve --preset=sp", "speed"),
    ("gemma4-triage serve --patches=default,+triton-d", "default,+triton-decode-window"),
    (f"gemma4-triage diagnose --log={LOGS}/illegal-acc", f"{LOGS}/illegal-access.log"),
]
"""What bash gets in three words, fish has to be told with the option, and zsh with where the value begins."""


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


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_bash_and_zsh_complete(start_file, shell):
    """Only at a prompt do they complete all, so each gets a terminal."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    variables = start_file(shell) | {"COLUMNS": "300"}
    with Path(variables["HOME"], f".{shell}rc").open("a") as start:
        start.write("PS1='ready> '\n")
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(shell, [shell, "-i"], variables)
    try:
        assert _type(terminal, "", "ready> ")
        for line, expected in (*LINES, *GLUED):
            # Ctrl-U empties the line.
            assert _type(terminal, f"\x15{line}\t", f"{expected} "), line
    finally:
        os.close(terminal)
        os.kill(pid, 9)
        os.waitpid(pid, 0)


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes(start_file):
    variables = start_file("fish")
    glued = [(line, f"{line.split()[-1].partition('=')[0]}={expected}") for line, expected in GLUED]
    for line, expected in (*LINES, *glued):
        done = subprocess.run(["fish", "-c", f"complete -C '{line}'"], env=variables, capture_output=True, text=True)
        assert [one.split("\t")[0] for one in done.stdout.splitlines()] == [expected], line


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
