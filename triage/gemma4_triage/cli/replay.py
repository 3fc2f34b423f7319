"""`gemma4-triage replay`: what a dump is about, done again without the server.

That is an attention call, an allocator's calls, the history of leaked pages, or the comparison of shapes.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gemma4_dumps.errors import ExitCode
from gemma4_dumps.wording import names_near
from gemma4_triage.cli import completions
from gemma4_triage.cli.dumps import DumpName
from gemma4_triage.cli.durations import METAVAR, time_from
from gemma4_triage.cli.shared_options import AsJson
from gemma4_triage.cli.store_options import Directory, open_store
from gemma4_triage.errors import EnvironmentCannot, NothingChecked, UsageMistake
from gemma4_triage.terminal import emit_json, say, stdout_console, warn

if TYPE_CHECKING:
    from gemma4_dumps.reader import Dump
    from gemma4_triage.replay.options import ReplayOptions
    from gemma4_triage.replay.outcome import Replay
    from gemma4_triage.replay.shrink import Shrunk


_OF_ATTENTION = (
    *("backend", "heads", "head_dim", "window", "seed", "cap_mib", "timeout_s"),
    *("shrink", "renumber", "output"),
)


def register(app: typer.Typer) -> None:
    """Add the `replay` verb to the application."""
    app.command("replay")(replay)


def replay(
    context: typer.Context,
    dump: DumpName,
    backend: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="Comma-separated: reference (fp64, needs nothing), torch, triton, flashinfer, trtllm_mha.",
            autocompletion=completions.words(completions.listed("gemma4_triage.replay.backend_run", "BACKENDS")),
        ),
    ] = "reference",
    heads: Annotated[
        str | None, typer.Option(metavar="Q:KV", help="Query and KV heads. Default: the dump's, else 8:2.")
    ] = None,
    head_dim: Annotated[int | None, typer.Option(min=1, max=1024, help="Default: the dump's, else 64.")] = None,
    window: Annotated[
        int | None,
        typer.Option(min=-1, help="Keys before a query that it sees; -1: all. Default: the dump's, else -1."),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="The seed of keys, values and queries that the dump does not hold.")
    ] = 0,
    cap_mib: Annotated[int, typer.Option(min=1, help="How much the keys and values may take.")] = 256,
    timeout_s: Annotated[
        float,
        typer.Option(
            "--timeout",
            parser=time_from(1),
            metavar=METAVAR,
            show_default="5m",
            help="Per backend. The first run may compile kernels.",
        ),
    ] = 300.0,
    rows: Annotated[int, typer.Option(min=1, help="How many rows, calls or pages to show.")] = 8,
    shrink: Annotated[
        bool, typer.Option("--shrink", help="First cut it down to the smallest dump that still fails; replay that.")
    ] = False,
    renumber: Annotated[bool, typer.Option("--renumber", help="With --shrink: number the pages anew, from 1.")] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="With --shrink: where the new dump goes. Default: the user state directory.",
        ),
    ] = None,
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """Do again what a dump is about, without the server.

    For example: gemma4-triage replay latest --shrink

    An attention call: what its table reads, and how far the outputs are off. They are held against fp64 on the table as
    it should have been; each real backend runs in a process of its own. An allocator's calls: on a reference allocator,
    to the first that breaks an invariant. A leak: the event after which a page is lost. Shapes: found beside expected.
    Only an attention call takes options other than --rows, --dir and --json.

    Exits 0 if all is as it should be, 1 if it is not, 3 if a backend cannot run here and nothing else is wrong, if none
    of those asked for can, or if there is too much to replay, 4 if the dump cannot be read, is damaged or contradicts
    itself, 5 if there is nothing in it to replay.
    """
    from gemma4_dumps.reader import read_dump
    from gemma4_triage.replay.geometry import MAX_WINDOW
    from gemma4_triage.replay.run import replay as run_replay

    if window is not None and window > MAX_WINDOW:
        raise UsageMistake(f"--window {window} is no window", f"at most {MAX_WINDOW}; -1 for all")
    names, options = _backends(backend), _options(heads, head_dim, window, seed, cap_mib)
    if not shrink and (renumber or output):
        raise UsageMistake("--renumber and --output are of --shrink", "add --shrink, or leave them out")
    found = read_dump(open_store(directory).resolve(dump))
    with _damage_first(found, as_json):
        if found.manifest.rule in _other_rules():
            sources = {name: context.get_parameter_source(name) for name in _OF_ATTENTION}
            given = [name for name, source in sources.items() if source is not None and source.name != "DEFAULT"]
            code = _replay_other(found, given, rows, as_json)
        else:
            shrunk = _shrink(found, options, output, renumber) if shrink else None
            result = run_replay(found if shrunk is None else shrunk.dump, options, names, timeout_s)
            _report(found, result, shrunk, names, rows, as_json)
            code = _exit_code(result, names)
            if result.none_ran(names):
                # The verdict above is of the table, and holds without a backend.
                warn(f"error: no backend that was asked for can run here: {', '.join(names)}")
    raise typer.Exit(ExitCode.DUMP_UNREADABLE if found.damage else code)


@contextmanager
def _damage_first(dump: "Dump", as_json: bool) -> Iterator[None]:
    """Say what is damaged before anything else; whatever then keeps a damaged dump from being replayed is exit 4."""
    from gemma4_dumps.errors import DumpUnreadable
    from gemma4_triage.cli.dump_view import print_damage

    print_damage(dump, as_json)
    try:
        yield
    except (EnvironmentCannot, NothingChecked) as error:
        if not dump.damage:
            raise
        raise DumpUnreadable(f"a damaged dump: {error.message}") from error


def _other_rules() -> tuple[str, ...]:
    from gemma4_triage.replay import allocator_replay, leak_replay, shapes_replay

    return (*allocator_replay.RULES, leak_replay.RULE, *shapes_replay.RULES)


def _replay_other(dump: "Dump", given: Sequence[str], rows: int, as_json: bool) -> ExitCode:
    """Replay a dump without an attention call. given: options of attention that the command line has."""
    from gemma4_triage.replay import allocator_replay, leak_replay
    from gemma4_triage.replay.shapes_replay import replay_shapes
    from gemma4_triage.report import replay_calls_view as view
    from gemma4_triage.report.diagnosis_document import damaged_document

    rule, console = dump.manifest.rule, stdout_console()
    if given:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise UsageMistake(f"{names}: for dumps of attention, and this is one of {rule}", "leave the option out")
    if rule in allocator_replay.RULES:
        kind, result = "replay-allocator", allocator_replay.replay_allocator(dump)
        show = partial(view.print_allocator, console, result, Path(dump.place), rows)
    elif rule == leak_replay.RULE:
        kind, result = "replay-leak", leak_replay.replay_leak(dump)
        show = partial(view.print_leak, console, result, Path(dump.place), rows)
    else:
        kind, result = "replay-shapes", replay_shapes(dump)
        show = partial(view.print_shapes, console, result, Path(dump.place))
    if as_json:
        damaged = damaged_document([dump])
        emit_json(kind, {"fine": result.fine} | result.model_dump(mode="json") | {"damaged": damaged})
    else:
        show()
    if not result.fine:
        return ExitCode.VIOLATION
    match getattr(result, "agreement", "agrees"):
        case "disagrees":
            return ExitCode.VIOLATION
        case "cannot be judged":
            return ExitCode.NOTHING_CHECKED
        case _:
            return ExitCode.OK


def _report(
    dump: "Dump", result: "Replay", shrunk: "Shrunk | None", names: tuple[str, ...], rows: int, as_json: bool
) -> None:
    from gemma4_triage.report.replay_document import replay_document
    from gemma4_triage.report.replay_view import print_replay, shrunk_text

    if as_json:
        emit_json("replay", replay_document(dump, result, shrunk, names))
    else:
        print_replay(stdout_console(), result, rows, names)
    if shrunk is not None:
        say(shrunk_text(shrunk))
        say(f"Wrote {shrunk.dump.path}")


def _shrink(dump: "Dump", options: "ReplayOptions", output: Path | None, renumber: bool) -> "Shrunk":
    from gemma4_dumps.errors import DumpUnreadable
    from gemma4_dumps.store import state_folder
    from gemma4_triage.replay.shrink import shrink

    if dump.damage:
        raise DumpUnreadable("a damaged dump is not shrunk: the new one's checksums would vouch for what is damaged")
    if output is not None and os.path.exists(output) and not os.path.isdir(output):
        raise UsageMistake(f"{output} is not a directory", "--output takes a directory; it is made if it is not there")
    return shrink(dump, options, output or state_folder() / "shrunk", renumber)


def _exit_code(result: "Replay", names: tuple[str, ...]) -> ExitCode:
    if result.none_ran(names):
        return ExitCode.ENVIRONMENT
    if not result.fine:
        return ExitCode.VIOLATION
    refused = any(outcome.refusal is not None for outcome in result.backends)
    return ExitCode.ENVIRONMENT if refused else ExitCode.OK


def _backends(text: str) -> tuple[str, ...]:
    from gemma4_triage.replay.backend_run import BACKENDS

    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = [name for name in names if name not in BACKENDS]
    if unknown or not names:
        said = f"no backend is called {', '.join(unknown)}" if unknown else "--backend names none"
        raise UsageMistake(said, names_near("".join(unknown[:1]), BACKENDS))
    return names


def _options(heads: str | None, head_dim: int | None, window: int | None, seed: int, cap_mib: int) -> "ReplayOptions":
    from gemma4_triage.replay.options import MIB, ReplayOptions

    return ReplayOptions(
        heads=None if heads is None else _heads(heads),
        head_dim=head_dim,
        window_left=window,
        seed=seed,
        cap_bytes=cap_mib * MIB,
    )


def _heads(text: str) -> tuple[int, int]:
    from gemma4_triage.replay.geometry import MAX_HEADS

    query, _, key = text.partition(":")
    if not (query.isdecimal() and key.isdecimal() and 0 < int(query) <= MAX_HEADS and 0 < int(key) <= MAX_HEADS):
        raise UsageMistake(f"--heads {text} is not query heads and KV heads", "--heads 8:2, for example")
    return int(query), int(key)
