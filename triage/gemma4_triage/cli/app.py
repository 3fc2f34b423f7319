"""The `gemma4-triage` command and its one error boundary.

A verb is a module of this package with `register(app)`. It imports what is heavy inside its commands, because every
verb's module is imported for `--help`, which has half a second.
"""

import atexit
import functools
import gc
import importlib
import os
import re
import shlex
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from gemma4_dumps.errors import ExitCode, UserError
from gemma4_triage.cli import completions
from gemma4_triage.cli.help_text import tidy_help
from gemma4_triage.cli.manner_options import Color, Quiet, Verbose, take_manner_everywhere
from gemma4_triage.cli.option_names import as_typed, in_todays_words, take_one_form
from gemma4_triage.cli.shells import COMPLETE_VARIABLE, SHELLS, prepare_answers, print_script
from gemma4_triage.cli.streams import abandon_stdout, prepare_streams, stdout_is_lost
from gemma4_triage.errors import Interrupted
from gemma4_triage.terminal import MANNER, emit_json, print_plain, warn

VERBS: tuple[str, ...] = (
    "repro",
    "serve",
    "diagnose",
    "collect",
    "report",
    "replay",
    "dumps",
    "diff",
    "audit",
    "logs",
    "known",
    "profile",
    "pools",
    "patches",
    "doctor",
    "bench",
    "quality",
    "samples",
)

OBJECTS_BETWEEN_COLLECTIONS = 150_000

TRACEBACK_VARIABLE = "GEMMA4_TRIAGE_TRACEBACK"

# click's base of all usage errors. Newer typer releases carry their own click, so it is reached through typer.
_ClickError: type[Exception] = typer.BadParameter.__mro__[2]


class _Verbs(TyperGroup):
    """typer makes an exit code of an interrupt, silently; whoever reads stdout is owed a document."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the verbs in their own order; typer would list those with subcommands last."""
        return [verb for verb in VERBS if verb in self.commands]

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise Interrupted("interrupted") from error


def build_app(verbs: Sequence[str] = VERBS) -> typer.Typer:
    """Return the Typer application with these verbs."""
    app = typer.Typer(
        name="gemma4-triage",
        cls=_Verbs,
        help="Find out why a Gemma-4 server on SGLang crashes, leaks or goes quietly wrong.\n\n"
        "For example: gemma4-triage diagnose server.log",
        # rich's help looks better and takes 0.25 s of the 0.5 s that --help has.
        rich_markup_mode=None,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        epilog="Exit codes: 0 as expected, 1 violation or mismatch, 2 usage, 3 environment cannot, "
        "4 dump unreadable, 5 nothing checked.",
    )

    @app.callback()
    def main_options(
        version: Annotated[
            bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
        ] = False,
        completion: Annotated[
            str | None,
            typer.Option(
                "--completion",
                metavar="bash|zsh|fish",
                autocompletion=completions.words(*SHELLS),
                callback=print_script,
                is_eager=True,
                help="Print what completes words in that shell.",
            ),
        ] = None,
        color: Color = None,
        quiet: Quiet = False,
        verbose: Verbose = False,
    ) -> None:
        pass

    for verb in verbs:
        importlib.import_module(f"gemma4_triage.cli.{verb}").register(app)
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code is returned. arguments: without the program's name; None: sys.argv's."""
    typed = list(sys.argv[1:] if arguments is None else arguments)
    # Imports make many objects and no cycles: looking for some takes a fifth of a short command, half of it at the end,
    # where Python looks through all that there is.
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    atexit.register(gc.freeze)
    prepare_streams()
    MANNER.reset()
    try:
        code = _run(in_todays_words(typed), typed)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader (head, a pager) has left.
        abandon_stdout()
        return ExitCode.BROKEN_PIPE
    except OSError as error:
        abandon_stdout()
        warn(f"error: the output cannot be written: {error.strerror or error}")
        return ExitCode.ENVIRONMENT
    return code


@functools.cache
def command_tree(verb: str | None = None) -> Any:
    """Return click's tree of all verbs, or of one, made once a process: typer evaluates every annotation to make it."""
    tree = typer.main.get_command(build_app(VERBS if verb is None else (verb,)))
    take_manner_everywhere(tree)
    take_one_form(tree)
    tidy_help(tree)
    return tree


def _run(words: list[str], typed: list[str]) -> int:
    """Run a line in the words of today; `typed` is the line as written. Raises OSError only if stdout is lost."""
    try:
        if COMPLETE_VARIABLE in os.environ:
            prepare_answers()
        # A line that begins with a verb needs no other.
        verb = words[0] if words and words[0] in VERBS and COMPLETE_VARIABLE not in os.environ else None
        code = command_tree(verb).main(args=words, prog_name="gemma4-triage", standalone_mode=False)
        return int(code or 0)
    except SystemExit as done:
        # click ends so with 1, which is a violation here, if the reader of stdout has gone.
        if isinstance(done.__context__, BrokenPipeError):
            raise done.__context__ from None
        # How a completion ends.
        return int(done.code or 0)
    except UserError as error:
        return _fail(as_typed(error.message, typed), error.hint, error.exit_code, words)
    except _ClickError as error:
        return _fail_usage(error, words)
    # While verbs are imported or the line is parsed; typer makes an Abort of an end of input.
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", "", ExitCode.INTERRUPTED, words)
    except BrokenPipeError:
        raise
    # Broad on purpose: this is the boundary. What arrives here is a defect of ours.
    except Exception as error:
        if isinstance(error, OSError) and stdout_is_lost(error):
            raise
        if os.environ.get(TRACEBACK_VARIABLE) == "1" or MANNER.verbose:
            for line in traceback.format_exc().splitlines():
                warn(line)
        if _began_with_an_interrupt(error):
            return _fail("interrupted", "", ExitCode.INTERRUPTED, words)
        hint = "-v shows the traceback: attach it to a bug report"
        return _fail(f"this is a bug in gemma4-triage: {type(error).__name__}: {error}", hint, ExitCode.BUG, words)


def _began_with_an_interrupt(error: BaseException) -> bool:
    """Return whether Ctrl-C came first and the cleaning up after it failed, as zipfile's does in mid-entry."""
    earlier = error.__context__
    while earlier is not None and not isinstance(earlier, KeyboardInterrupt):
        earlier = earlier.__context__
    return earlier is not None


def _fail(message: str, hint: str, code: int, words: Sequence[str]) -> int:
    warn(f"error: {message if MANNER.verbose else _LONG_WORD.sub(_shortened, message)}")
    hint = _with_folder(hint, words)
    if hint:
        warn(f"hint: {hint}")
    if "--json" in words:
        # Whoever parses stdout gets a document in every case.
        emit_json("error", {"message": message, "hint": hint, "exit_code": int(code)})
    return int(code)


_LONG_WORD = re.compile(r"\S{301,}")


def _shortened(word: re.Match[str]) -> str:
    return f"{word[0][:100]}… ({len(word[0])} characters)"


def _with_folder(hint: str, words: Sequence[str]) -> str:
    """Return a hint whose commands look for dumps where this line did, so that they can be pasted."""
    given = [
        after if not equals else value
        for word, after in zip(words, [*words[1:], ""], strict=True)
        for name, equals, value in [word.partition("=")]
        if name in ("--dir", "--dump-dir")
    ]
    if not given or not given[-1]:
        return hint
    return re.sub(r"gemma4-triage dumps (list|verify DUMP)(?! --dir)", rf"\g<0> --dir {shlex.quote(given[-1])}", hint)


# What typer says of a value that an option does not take, with pydantic's own words in it.
_NO_CHOICE = re.compile(r"Invalid value for '(\S+)'.*?: (?:Value error, )?(.+) is not one of ('.*')\.", re.DOTALL)


def _fail_usage(error: Any, words: Sequence[str]) -> int:
    context = getattr(error, "ctx", None)
    if context is not None and getattr(error, "possibilities", None):
        # Names that an option once had are taken, and shown nowhere.
        shown = {name for parameter in context.command.params for name in parameter.opts}
        error.possibilities = [name for name in error.possibilities if name in shown]
    message = getattr(error, "format_message", error.__str__)()
    if type(error).__name__ == "NoArgsIsHelpError":
        # Asking for nothing gets the help, and is still not a successful run.
        print_plain(message)
        return ExitCode.USAGE
    if (no_choice := _NO_CHOICE.fullmatch(message)) is not None:
        name, value, choices = no_choice.groups()
        hint = "choices: " + choices.replace("'", "")
        return _fail(f"{name} {value} is no choice", hint, ExitCode.USAGE, words)
    command = getattr(context, "command_path", None) or _command_of(words)
    meant = _meant_to_read(message, command, words) if command in _READERS else None
    return _fail(message, meant or f"{command} --help shows the usage", ExitCode.USAGE, words)


def _command_of(words: Sequence[str]) -> str:
    """Return the command that a line begins with; an option without its value says of no command that it is its."""
    tree, names = command_tree(words[0] if words and words[0] in VERBS else None), ["gemma4-triage"]
    for word in words:
        if word not in getattr(tree, "commands", {}):
            break
        tree = tree.commands[word]
        names.append(word)
    return " ".join(names)


# What reads a thing that was named where a command has to stand.
_READERS = {
    "gemma4-triage": "gemma4-triage diagnose",
    "gemma4-triage known": "gemma4-triage known check",
    "gemma4-triage dumps": "gemma4-triage dumps show",
    "gemma4-triage patches": "gemma4-triage patches explain",
}


def _meant_to_read(message: str, command: str, words: Sequence[str]) -> str | None:
    """Return a hint for a thing that stands where a command has to; None where none does, or one is like it."""
    named = next((word for word in words if message.startswith(f"No such command {word!r}.")), "")
    # Names of dumps and patches look like any word; a log is a file.
    is_like_one = "Did you mean" in message or not (command.endswith((" dumps", " patches")) or "." in named)
    if not named or (is_like_one and not os.path.lexists(named)):
        return None
    return f"to read it: {_READERS[command]} {shlex.quote(named)}"


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print_plain(f"gemma4-triage {version('gemma4-triage')}")
        raise typer.Exit


if __name__ == "__main__":
    sys.exit(main())
