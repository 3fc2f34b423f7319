"""`gemma4-triage quality`: whether one patch set answers worse than another, on real weights."""

from __future__ import annotations

import importlib.util
import json
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemma4_runtime.releases import HOW_TO_INSTALL
from gemma4_triage.cli import completions
from gemma4_triage.cli.durations import METAVAR, time_from
from gemma4_triage.cli.quality_sides import Server, own_servers, running_servers
from gemma4_triage.cli.shared_options import AsJson, Force, Output
from gemma4_triage.errors import EnvironmentCannot, UsageMistake
from gemma4_triage.output_file import write_output, write_text
from gemma4_triage.terminal import emit_json, say, stdout_console

if TYPE_CHECKING:
    from gemma4_repro.quality.ask import Answer, Item
    from gemma4_repro.quality.run import Limits

KIND, DOCUMENT_NAME, ANSWERS_NAME = "quality", "quality.json", "answers.jsonl"
_EXAMPLE = "gemma4-triage quality --questions mmlu_test.csv --colours -- --model-path MODEL"
_NEEDED = {"openai": "openai", "scipy": "scipy", "PIL": "pillow"}


def register(app: typer.Typer) -> None:
    """Add the `quality` verb to the application."""
    app.command("quality")(quality)


def quality(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- SGLANG_ARGUMENTS", help="Everything after -- goes to both sides' servers."),
    ] = None,
    questions: Annotated[
        Path | None,
        typer.Option(
            "--questions",
            metavar="PATH",
            help="MMLU as it is published: SUBJECT_test.csv, a folder of these, data.tar, or rows of cais/mmlu as "
            ".jsonl or .parquet.",
        ),
    ] = None,
    examples: Annotated[
        Path | None,
        typer.Option(
            "--examples", metavar="PATH", help="MMLU's dev rows: five of a subject come before its questions."
        ),
    ] = None,
    colours: Annotated[
        bool, typer.Option("--colours", help="Also show 30 images of one plain colour each, and ask which it is.")
    ] = False,
    base: Annotated[
        str | None,
        typer.Option(
            "--base",
            metavar="IDS",
            help="The patch set that is the measure. Default: none.",
            autocompletion=completions.words(completions.patch_sets),
        ),
    ] = None,
    with_: Annotated[
        str | None,
        typer.Option(
            "--with",
            metavar="IDS",
            help="The patch set that is to be judged. Default: default.",
            autocompletion=completions.words(completions.patch_sets),
        ),
    ] = None,
    base_url: Annotated[
        str | None,
        typer.Option("--base-url", metavar="URL", help="Instead of --base: a server that runs already."),
    ] = None,
    with_url: Annotated[
        str | None, typer.Option("--with-url", metavar="URL", help="Instead of --with: a server that runs already.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="NAME", help="Which model to ask, if the servers of the URLs serve several."),
    ] = None,
    api: Annotated[
        str,
        typer.Option(
            "--api",
            metavar="completions|chat",
            help="How questions are put: the published prompt as it is, or in a chat's message.",
            autocompletion=completions.words("completions", "chat"),
        ),
    ] = "completions",
    limit: Annotated[
        int,
        typer.Option("--limit", min=1, help="How many questions to ask; they are drawn at random if there are more."),
    ] = 500,
    seed: Annotated[int, typer.Option("--seed", help="The seed of the random draw of --limit.")] = 0,
    parallel: Annotated[
        int, typer.Option("--parallel", min=1, max=256, help="How many requests are under way at a time.")
    ] = 8,
    timeout_s: Annotated[
        float,
        typer.Option(
            "--timeout",
            parser=time_from(0.1, 86400),
            metavar=METAVAR,
            show_default="2m",
            help="How long one request may take.",
        ),
    ] = 120,
    start_timeout_s: Annotated[
        float,
        typer.Option(
            "--start-timeout",
            parser=time_from(1, 86400, "--start-timeout"),
            metavar=METAVAR,
            show_default="30m",
            help="How long a server may take to start.",
        ),
    ] = 1800,
    host_engine: Annotated[
        bool, typer.Option("--host-engine", help="Start the servers on this CPU, as serve --host-engine does.")
    ] = False,
    output: Output = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Say whether one patch set answers worse than another.

    For example: gemma4-triage quality --colours -- --model-path MODEL

    Both are asked the same on real weights: MMLU and colours, through the OpenAI API, greedily. Every question is a
    pair: the difference of the shares of right answers comes with a 95% interval (Tango's, for paired proportions).
    Exits 0 if neither part is worse beyond it, 1 if one is, if a server died, or if --with failed requests that --base
    answered, 2 for what cannot be read or understood, 3 if a server cannot be started or reached, 5 if nothing was
    answered, or if --base answered no better than guessing, so that no loss could show.
    """
    from gemma4_repro.quality.run import Limits

    if api not in ("completions", "chat"):
        raise UsageMistake(f"--api {api!r} is not known", "allowed: completions, chat")
    if questions is None and not colours:
        raise UsageMistake("there is nothing to ask", f"give --questions or --colours, for example: {_EXAMPLE}")
    if questions is None and examples is not None:
        raise UsageMistake("--examples come before questions, and there are none", "give --questions")
    urls = base_url is not None or with_url is not None
    _refuse_mixed(
        urls, {"--base": base, "--with": with_, "--host-engine": host_engine, "-- SGLANG_ARGUMENTS": arguments}
    )
    if urls and (base_url is None or with_url is None):
        missing = "--base-url" if base_url is None else "--with-url"
        raise UsageMistake(f"{missing} is missing", "give the addresses of both servers, or of neither")
    if model is not None and not urls:
        raise UsageMistake("--model chooses among what running servers serve", "give --base-url and --with-url")
    if not urls and not arguments:
        raise UsageMistake("no arguments for SGLang", f"for example: {_EXAMPLE}")
    _need_packages()
    items, asked_of = _items(questions, examples, colours, api, limit, seed)
    if urls:
        servers = running_servers(base_url or "", with_url or "")
    else:
        servers = own_servers(base or "none", with_ or "default", host_engine, arguments or [], colours)
    run = _Run(servers, items, asked_of, Limits(parallel, timeout_s, start_timeout_s), model)
    raise typer.Exit(run.into(output, force, as_json))


def _refuse_mixed(urls: bool, others: dict[str, Any]) -> None:
    given = [option for option, value in others.items() if value]
    if urls and given:
        raise UsageMistake(
            f"{given[0]} is for servers that quality starts, and the URLs name servers that run already",
            "give one or the other",
        )


def _need_packages() -> None:
    missing = [name for module, name in _NEEDED.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise EnvironmentCannot(
            f"quality needs {', '.join(missing)}, which SGLang brings",
            HOW_TO_INSTALL,
        )


def _items(
    questions: Path | None, examples: Path | None, colours: bool, api: str, limit: int, seed: int
) -> tuple[list[Item], dict[str, Any]]:
    """Return everything to ask, and for the document what it was made of. Raises ReproError."""
    from gemma4_repro.quality.ask import colour_items, mmlu_items
    from gemma4_repro.quality.questions import draw, fingerprint, read_questions

    items: list[Item] = []
    asked_of: dict[str, Any] = {"questions": None, "examples": None, "colours": colours}
    if questions is not None:
        found = read_questions(questions, "test")
        drawn = draw(found, limit, seed)
        shown = read_questions(examples, "dev") if examples is not None else ()
        items += mmlu_items(drawn, shown, api)
        asked_of["questions"] = {"path": str(questions), "sha256": fingerprint(found), "rows": len(found)}
        asked_of["questions"] |= {"asked": len(drawn), "seed": seed, "api": api}
        if examples is not None:
            asked_of["examples"] = {"path": str(examples), "sha256": fingerprint(shown), "rows": len(shown)}
        how = f"drawn with seed {seed}" if len(drawn) < len(found) else "all that there are"
        say(f"MMLU: {len(drawn)} of {len(found)} questions, {how}")
    if colours:
        items += colour_items()
    return items, asked_of


class _Run:
    """Two servers, and what to ask them."""

    def __init__(
        self,
        servers: Sequence[Server],
        items: Sequence[Item],
        asked_of: dict[str, Any],
        limits: Limits,
        model: str | None,
    ) -> None:
        self._servers, self._items, self._asked_of = servers, items, asked_of
        self._limits, self._model = limits, model

    def into(self, output: Path | None, force: bool, as_json: bool) -> int:
        """Run into this folder, show the verdict, and return the exit code. Raises ReproError, UserError."""
        from gemma4_repro.engine.run_folder import prepare_run_folder
        from gemma4_repro.quality.judge import judge
        from gemma4_repro.quality.run import Side, check_running, run_sides
        from gemma4_triage.report.bench_origin import project_origin
        from gemma4_triage.report.quality_view import print_quality

        project = project_origin()
        # A server that cannot be asked leaves no folder behind.
        names = check_running([Side(server.name, server.url) for server in self._servers], self._model)
        folder = prepare_run_folder(KIND, tuple(server.name for server in self._servers), output, force)
        (folder / DOCUMENT_NAME).unlink(missing_ok=True)
        say(f"run folder: {folder}")

        def keep(side: str, answers: Sequence[Answer]) -> None:
            lines = [json.dumps(asdict(answer) | {"right": answer.right}) + "\n" for answer in answers]
            write_text(folder / side / ANSWERS_NAME, "".join(lines))

        sides = [server.side(folder) for server in self._servers]
        measured = run_sides(sides, self._items, folder, self._limits, names, keep, say)
        if measured.failure:
            raise EnvironmentCannot(measured.failure, f"what was answered before is below {folder}")
        verdict = judge(self._items, measured, {server.name: server.chosen for server in self._servers})
        document = {
            "command": shlex.join(["gemma4-triage", *sys.argv[1:]]),
            "project": project,
            "versions": _versions(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "asked_of": self._asked_of,
            "limits": asdict(self._limits),
            "sides": {
                server.name: server.document() | verdict.sides[server.name].model_dump(mode="json")
                for server in self._servers
            },
            "run_folder": str(folder),
        } | verdict.model_dump(mode="json", by_alias=True, exclude={"sides"})
        write_output(folder / DOCUMENT_NAME, KIND, document)
        if as_json:
            emit_json(KIND, document)
        else:
            print_quality(stdout_console(), document)
        return verdict.exit_code


def _versions() -> dict[str, str]:
    found = {}
    for name in ("sglang", "torch", "openai"):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
