"""What is typed, or was written by somebody else, never commands the terminal."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

from gemma4_triage.terminal import shell_words

PACKAGE = Path(__file__).parents[2] / "triage/gemma4_triage"
RED = "\x1b[31mred\x07"
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def test_only_the_terminal_prints():
    """There, every text is cleaned on its way out."""
    elsewhere = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in PACKAGE.rglob("*.py")
        if path.name != "terminal.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert elsewhere == []


@pytest.mark.parametrize(
    "words",
    [
        (RED,),
        ("diagnose", RED),
        ("diagnose", "--log", RED),
        ("diagnose", "--dir", RED),
        ("diagnose", f"--{RED}"),
        ("dumps", RED),
        ("dumps", "show", RED),
        ("dumps", "prune", "--older-than", RED),
        ("logs", RED),
        ("profile", RED),
        ("pools", "--config", RED, "--kv-mem", "1GiB", "--workload", "1x1+1"),
        ("patches", "explain", RED),
        ("known", "show", RED),
        ("samples", RED),
        ("collect", RED),
        ("report", RED),
        ("replay", RED, "--backend", RED),
        ("audit", RED),
        ("diff", RED, RED),
        ("diff", "patches", "--with", RED),
        ("diff", "backends", "--backend", RED),
        ("repro", RED),
        ("repro", "crash", RED),
        ("repro", "crash", "e4b_trtllm_v1", "--dry-run", "--model", RED, "--", "--served-model-name", RED),
        ("bench", "kernels", "--ops", RED),
        ("bench", "step", "--model", RED),
        ("bench", "serving", RED),
        ("bench", "probes", "--arm", RED),
        ("bench", "plot", RED, "-o", RED),
        ("quality", "--questions", RED, "--", "--model-path", "x"),
        ("quality", "--colours", "--base-url", RED),
        ("doctor", "--constraints", RED),
        ("serve", "--preset", RED, "--model-path", "x"),
        ("serve", "--dry-run", "--patches", RED, "--model-path", "x"),
        ("serve", "--dry-run", "--dir", RED, "--model-path", RED, "--host", RED),
    ],
)
@pytest.mark.parametrize("verbose", [(), ("-v",)])
def test_what_is_typed_is_shown_and_not_obeyed(cli, words, verbose):
    _, out, err = cli(*words, *(() if "--" in words else verbose))
    assert CONTROL.findall(out + err) == []


def test_the_line_of_a_dry_run_is_the_line_that_was_typed(cli):
    code, out, _ = cli("serve", "--dry-run", "--model-path", "x", "--served-model-name", f"it's {RED}\\n\nb")
    assert code == 0
    (name,) = re.findall(r"--served-model-name (.*\'(?!\w))", out)
    assert name == r"$'it\'s \x1b[31mred\x07\\n\nb'"


def test_words_of_a_shell_are_read_back():
    words = [
        "plain",
        "two words",
        "it's",
        "back\\slash",
        RED + "f",
        "a\nb",
        "\u202eabc",
        "\U000e0041b",
        "$HOME `x` \\' \x7f",
    ]
    script = f"printf '%s\\0' {shell_words(words)}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, env={"LC_ALL": "C.UTF-8"}, check=True)
    assert done.stdout.decode().split("\0")[:-1] == words
    assert CONTROL.findall(script) == []
