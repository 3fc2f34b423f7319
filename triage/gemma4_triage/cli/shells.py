"""How bash, zsh and fish are told what to ask, and how they want their answers; `completions.py` has the answers."""

from __future__ import annotations

import os
from typing import Any

import typer

from gemma4_triage.errors import UsageMistake
from gemma4_triage.terminal import print_plain

SHELLS = ("bash", "zsh", "fish")
COMPLETE_VARIABLE = "_GEMMA4_TRIAGE_COMPLETE"

# A zsh whose start-up file is new knows no completion yet.
_ZSH_BEFORE = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }"


def print_script(shell: str | None) -> None:
    """Print what a shell's start-up file needs, if a shell is named. Raises UsageMistake for one that is not known."""
    if shell is None:
        return
    from typer._completion_shared import get_completion_script

    if shell not in SHELLS:
        raise UsageMistake(f"there is no completion for {shell!r}", f"shells: {', '.join(SHELLS)}")
    if shell == "zsh":
        print_plain(_ZSH_BEFORE)
    print_plain(get_completion_script(prog_name="gemma4-triage", complete_var=COMPLETE_VARIABLE, shell=shell))
    raise typer.Exit


def prepare_answers() -> None:
    """Let a shell that asks be answered in its own way, behind `--option=` too."""
    from typer import _completion_classes as classes

    class Zsh(classes.ZshComplete):
        """What zsh is to run: it compares an answer with the whole word, unless told where the word begins."""

        def complete(self) -> str:
            skip = "compset -P '*='; " if _is_glued(self.get_completion_args()[1]) else ""
            return skip + super().complete()

    class Fish(classes.FishComplete):
        """Words for fish, which puts them in the place of the whole word."""

        def get_completions(self, args: list[str], incomplete: str) -> list[Any]:
            answers = super().get_completions(args, incomplete)
            if _is_glued(incomplete):
                for answer in answers:
                    answer.value = f"{incomplete.partition('=')[0]}={answer.value}"
            return answers

    classes.completion_init()
    # Which click it is from depends on the release of typer.
    add: Any = vars(classes)["add_completion_class"]
    add(Zsh, "zsh")
    add(Fish, "fish")
    _join_words_of_bash()


def _is_glued(word: str) -> bool:
    return word.startswith("--") and "=" in word


def _join_words_of_bash() -> None:
    """Take the equals signs out of what bash asks about: it makes three words of `--patches=default`."""
    words, at = os.environ.get("COMP_WORDS", "").split("\n"), os.environ.get("COMP_CWORD", "")
    if at.isdecimal():
        os.environ["COMP_WORDS"] = "\n".join(word for word in words if word != "=")
        os.environ["COMP_CWORD"] = str(int(at) - words[: int(at)].count("="))
