"""`gemma4-triage serve`: become SGLang's server, with probes and fixes on, after saying what is effective."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from gemma4_dumps.errors import UserError
from gemma4_dumps.wording import names_near
from gemma4_triage.cli import completions
from gemma4_triage.cli.option_names import other_names
from gemma4_triage.cli.shared_options import IncludeKv, IncludeTokens, include_value
from gemma4_triage.errors import EnvironmentCannot, UsageMistake
from gemma4_triage.terminal import emit_json, print_plain, say, shell_words, warn

if TYPE_CHECKING:
    from gemma4_triage.cli.server_start import Start

_EXAMPLE = "gemma4-triage serve --debug 1 -- --model-path MODEL"
_OPTIONS = {
    "SGLANG_TRTLLM_MHA_DEBUG": "--debug",
    "GEMMA4_TRIAGE_PATCHES": "--patches",
    "GEMMA4_TRIAGE_PROBES": "--probes",
    "GEMMA4_TRIAGE_FAULTS": "--fault",
    "GEMMA4_TRIAGE_DEVICE_MODEL": "--device-model",
}


def register(app: typer.Typer) -> None:
    """Add the `serve` verb to the application."""
    # What is no option of ours goes to SGLang, in its place.
    app.command("serve", context_settings={"ignore_unknown_options": True})(serve)


def serve(
    context: typer.Context,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[--] SGLANG_ARGUMENTS",
            help="What is no option of serve, and everything after --, goes to SGLang's server.",
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            "--preset",
            metavar="speed|debug|production",
            autocompletion=completions.words(completions.presets),
            help="Patches and probes by use; options win over it. gemma4-triage patches explain speed says what it is.",
        ),
    ] = None,
    debug: Annotated[
        str | None,
        typer.Option(
            "--debug",
            metavar="off|log|contain|trap|1",
            help="Probe mode: SGLANG_TRTLLM_MHA_DEBUG.",
            autocompletion=completions.words("off", "log", "contain", "trap", "1"),
        ),
    ] = None,
    patches: Annotated[
        str | None,
        typer.Option(
            "--patches",
            metavar="IDS",
            autocompletion=completions.words(completions.patch_sets),
            help="Fixes and optimisations, such as default,+clamp or none: GEMMA4_TRIAGE_PATCHES; default if unset.",
        ),
    ] = None,
    probes: Annotated[
        str | None,
        typer.Option(
            "--probes",
            metavar="IDS",
            help="Only these probes: GEMMA4_TRIAGE_PROBES.",
            autocompletion=completions.words(completions.patches("probe")),
        ),
    ] = None,
    faults: Annotated[
        str | None,
        typer.Option(
            "--fault",
            metavar="IDS",
            help="Break the server on purpose: GEMMA4_TRIAGE_FAULTS.",
            autocompletion=completions.words(completions.patches("fault")),
        ),
    ] = None,
    dump_dir: Annotated[
        str | None,
        typer.Option("--dir", metavar="DIR", help="For dumps and guard manifests: SGLANG_TRTLLM_MHA_DEBUG_DIR."),
    ] = None,
    host_engine: Annotated[
        bool,
        typer.Option(
            "--host-engine",
            help="Run on this CPU: GEMMA4_TRIAGE_HOST_ENGINE, what Python needs before it starts, "
            "and the SGLang arguments that a CPU needs where they are not given.",
        ),
    ] = False,
    device_model: Annotated[
        str | None,
        typer.Option(
            "--device-model",
            metavar="sm100|sm90",
            help="Which GPU the host engine imitates: GEMMA4_TRIAGE_DEVICE_MODEL.",
            autocompletion=completions.words("sm100", "sm90"),
        ),
    ] = None,
    allow_missing: Annotated[
        bool,
        typer.Option(
            "--allow-missing", help="Start without a probe that cannot attach here: GEMMA4_TRIAGE_ALLOW_MISSING."
        ),
    ] = False,
    allow_untested: Annotated[
        bool,
        typer.Option(
            "--allow-untested",
            help="Attach probes, and nothing else, beside an SGLang that is not known: GEMMA4_TRIAGE_ALLOW_UNTESTED.",
        ),
    ] = False,
    include_kv: IncludeKv = False,
    include_tokens: IncludeTokens = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print the shell line that would start the server, and what would be refused here."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --dry-run: print one JSON document on stdout.")] = False,
) -> None:
    """Start SGLang's server with fixes and probes.

    For example: gemma4-triage serve --preset production --model-path MODEL --port 30000

    An option wins over the inherited variable that it names; a variable without its option holds. What is effective is
    printed on stderr. SGLang's arguments, the model's path and the port are checked first. Then this process becomes
    the server: signals and exit code are the server's own.

    Exits 2 if a setting or an argument cannot be read or the port is in use, 3 if SGLang is missing, of another
    release, or cannot be guarded as asked.
    """
    from gemma4_runtime.settings import HostEngine
    from gemma4_triage.cli import check_start
    from gemma4_triage.cli.server_start import is_sglang_installed, plan_for_user
    from gemma4_triage.cli.sglang_options import sglang_options

    if not arguments:
        raise UsageMistake("no arguments for SGLang", f"for example: {_EXAMPLE}")
    if as_json and not dry_run:
        raise UsageMistake("--json needs --dry-run: stdout belongs to the server", "add --dry-run, or leave --json out")
    options = _preset(preset)
    given = {
        "SGLANG_TRTLLM_MHA_DEBUG": debug,
        "GEMMA4_TRIAGE_PATCHES": patches,
        "GEMMA4_TRIAGE_PROBES": probes,
        "GEMMA4_TRIAGE_FAULTS": faults,
        "SGLANG_TRTLLM_MHA_DEBUG_DIR": dump_dir and os.path.expanduser(dump_dir),
        "GEMMA4_TRIAGE_HOST_ENGINE": "1" if host_engine else None,
        "GEMMA4_TRIAGE_DEVICE_MODEL": device_model,
        "GEMMA4_TRIAGE_ALLOW_MISSING": "1" if allow_missing else None,
        "GEMMA4_TRIAGE_ALLOW_UNTESTED": "1" if allow_untested else None,
        "GEMMA4_TRIAGE_INCLUDE": include_value(include_kv, include_tokens),
    }
    for variable, option in _OPTIONS.items():
        value = given[variable]
        if isinstance(value, str) and not value.replace(",", "").strip():
            hint = "none stands for no patches" if option == "--patches" else "leave it out"
            raise UsageMistake(f"{option} is empty", f"{hint}; a variable of the shell that is not set reads so")
    options |= {name: value for name, value in given.items() if value is not None}
    ours = {name for parameter in context.command.params for name in parameter.opts if name.startswith("-")}
    ours |= other_names(list(ours))
    arguments = check_start.with_home(check_start.with_model(arguments))
    check_start.check_arguments(arguments, ours, sglang_options())
    check_start.port_of(arguments)
    typed = {variable: option for variable, option in _OPTIONS.items() if given[variable] is not None}
    start = plan_for_user(options, arguments, elsewhere=dry_run, typed=typed)
    if device_model is not None and start.settings.host_engine is HostEngine.OFF:
        raise UsageMistake("--device-model is the host engine's, and that is off", "add --host-engine")
    refused = []
    checks = [partial(check_start.check_model, arguments), partial(check_start.check_port, arguments)]
    if start.patches:
        checks.append(partial(check_start.check_dump_folder, start.dump_folder, make=not dry_run))
    for check in checks:
        try:
            check()
        except UserError as error:
            # The line may be for another machine.
            if not dry_run:
                raise
            refused.append(error.message)
    if dry_run and not is_sglang_installed():
        say("gemma4-triage: SGLang is not installed here; the line is for a machine that has it")
    for line in _effective(start):
        say(f"gemma4-triage: {line}")
    for line in refused:
        warn(f"gemma4-triage: serve would refuse this here: {line}")
    if as_json:
        emit_json("serve", _document(start) | {"refused_here": refused})
    elif dry_run:
        print_plain(start.shell_line)
    else:
        _become_the_server(start)


def _preset(name: str | None) -> dict[str, str]:
    from gemma4_runtime.presets import PRESETS, preset

    if name is None:
        return {}
    found = preset(name)
    if found is None:
        raise UsageMistake(f"there is no preset called {name!r}", names_near(name, (one.id for one in PRESETS)))
    return dict(found.variables)


def _effective(start: Start) -> Iterator[str]:
    """Yield what the server will have, the worst first, and what only the command line knows of it."""
    from gemma4_runtime import announcement
    from gemma4_runtime.releases import installed_or_base
    from gemma4_runtime.settings import HostEngine, Mode

    settings = start.settings
    for line in announcement.lines(settings, start.patches, start.missing_probes, installed_or_base()):
        yield line.text
    if settings.mode is not Mode.OFF and settings.allow_missing:
        yield "the server also starts without a probe whose target is missing; it names each as PROBE NOT ATTACHED"
    if settings.host_engine is not HostEngine.OFF:
        yield f"arguments added for the CPU: {shell_words(start.added) or 'none, all were given'}"
    for name, value in start.overridden.items():
        now = shell_words([start.variables[name]])
        yield f"{name}={now}, not the inherited {shell_words([value])}: an option wins over a variable"
    for name, value in start.kept.items():
        yield f"{name}={shell_words([value])} was inherited and is kept; the host engine was tested with another value"
    if start.patches:
        yield f"dumps: {start.dump_folder}"
        yield f"guard manifests, one per process: {start.dump_folder / 'guards'}"
    else:
        yield "nothing is attached: SGLang runs as shipped"


def _document(start: Start) -> dict:
    settings = start.settings.model_dump(mode="json", exclude={"dump_dir"})
    return {
        "shell_line": start.shell_line,
        "environment": dict(start.variables),
        "command": list(start.command),
        "added_arguments": list(start.added),
        "overridden": dict(start.overridden),
        "kept": dict(start.kept),
        "settings": settings,
        "patches": [{"id": patch.id, "kind": patch.kind.value} for patch in start.patches],
        "missing_probes": dict(start.missing_probes),
        "dump_folder": str(start.dump_folder),
        "guard_manifests": str(start.dump_folder / "guards"),
    }


def _become_the_server(start: Start) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(start.command[0], start.command, start.environment)
    except OSError as error:
        raise EnvironmentCannot(f"{start.command[0]} cannot be started: {error.strerror}") from None
