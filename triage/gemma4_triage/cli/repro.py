"""`gemma4-triage repro`: run a scenario's arms in supervised processes and hold them against what is expected."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from gemma4_dumps.errors import ExitCode
from gemma4_triage.cli import completions, repro_corpus, repro_crash, repro_mutations
from gemma4_triage.cli.durations import METAVAR, time_from
from gemma4_triage.cli.finished_run import finish
from gemma4_triage.cli.shared_options import AsJson, Force, IncludeKv, IncludeTokens, Output, include_value
from gemma4_triage.errors import NothingChecked, UsageMistake
from gemma4_triage.terminal import MANNER, emit_json, print_plain, say, stdout_console

if TYPE_CHECKING:
    from gemma4_repro.runner import Options, Run
    from gemma4_repro.scenario import Scenario


_SCENARIO = "scenario"


class _ScenarioUnlessCommand(TyperGroup):
    """`repro crash …` and `repro mutations …` are commands; all else is a scenario's name and its options."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Return the context of the command that the first word leads to."""
        if args[:1] in ([repro_crash.NAME], [repro_mutations.NAME]):
            return super().make_context(info_name, args, parent, **extra)
        return self.commands[_SCENARIO].make_context(info_name, args, parent, **extra)


def register(app: typer.Typer) -> None:
    """Add the `repro` verb to the application."""
    group = typer.Typer(cls=_ScenarioUnlessCommand)
    group.command(_SCENARIO, hidden=True)(repro)
    group.command(repro_crash.NAME)(repro_crash.crash)
    group.command(repro_mutations.NAME)(repro_mutations.mutations)
    app.add_typer(group, name="repro", help=repro.__doc__)


def repro(
    scenario: Annotated[
        str | None,
        typer.Argument(
            metavar="[SCENARIO]",
            autocompletion=completions.words(completions.scenarios),
            help="What to reproduce. Without it: a list of them. `corpus`: every known fault, and which probe sees it. "
            "`crash CELL`: a published crash on real weights, see repro crash --help. "
            "`mutations`: what diagnose makes of corruptions that no rule was written for, see repro mutations --help.",
        ),
    ] = None,
    arm: Annotated[
        list[str] | None,
        typer.Option(
            "--arm",
            metavar="NAMES",
            help="Run these arms only.",
            autocompletion=completions.words_of("scenario", completions.arms_of_scenario),
        ),
    ] = None,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep",
            help="Keep drafts.jsonl (every draft token), request.json and phase.txt too. "
            "Logs, results, dumps and the verdict are always kept.",
        ),
    ] = False,
    output: Output = None,
    force: Force = False,
    time_limit: Annotated[
        float | None,
        typer.Option("--timeout", parser=time_from(1), metavar=METAVAR, help="For each arm, instead of its own."),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(
            "--only",
            metavar="IDS",
            help="corpus: run these cases only.",
            autocompletion=completions.words(completions.corpus_cases),
        ),
    ] = None,
    list_cases: Annotated[bool, typer.Option("--list", help="corpus: list its cases and run none.")] = False,
    unguarded: Annotated[
        bool, typer.Option("--unguarded", help="corpus: run each fault without probes too, to see what it does.")
    ] = False,
    include_kv: IncludeKv = False,
    include_tokens: IncludeTokens = False,
    as_json: AsJson = False,
) -> None:
    """Reproduce a fault, trap it, and show it fixed, with the real engine on this CPU.

    For example: gemma4-triage repro e4b-trtllm
    """
    from gemma4_repro.runner import Options

    names, include = tuple(arm or ()), include_value(include_kv, include_tokens)
    if scenario == repro_corpus.NAME:
        if include:
            raise UsageMistake("--include-kv and --include-tokens belong to a scenario", "leave them out of the corpus")
        if names:
            raise UsageMistake("the corpus has no arms", "--only ID[,ID] chooses its cases, --list names them")
        if only is not None and (list_cases or not _items(only)):
            what = "--list names all cases" if list_cases else f"--only {only!r} names no case"
            raise UsageMistake(what, "gemma4-triage repro corpus --list, without --only")
        raise typer.Exit(_corpus(_items(only), list_cases, unguarded, output, force, keep, time_limit, as_json))
    if only is not None or list_cases or unguarded:
        raise UsageMistake("--only, --list and --unguarded belong to the corpus", "gemma4-triage repro corpus --list")
    if scenario is None:
        if names or output is not None or include:
            said = "--arm, --output, --include-kv and --include-tokens need a scenario"
            raise UsageMistake(said, "gemma4-triage repro lists the scenarios")
        _list_scenarios(as_json)
        return
    run = _run(scenario, Options(names, output, force, keep, time_limit, include=include))
    code = _report(run, as_json)
    raise typer.Exit(code)


def _corpus(
    only: tuple[str, ...],
    list_cases: bool,
    unguarded: bool,
    output: Path | None,
    force: bool,
    keep: bool,
    time_limit: float | None,
    as_json: bool,
) -> int:
    from gemma4_repro.corpus.runner import Options

    if list_cases:
        repro_corpus.list_cases(as_json)
        return ExitCode.OK
    return repro_corpus.run_and_report(Options(only, output, force, keep, time_limit, unguarded), as_json)


def _items(text: str | None) -> tuple[str, ...]:
    return tuple(item.strip() for item in (text or "").split(",") if item.strip())


def _list_scenarios(as_json: bool) -> None:
    from gemma4_repro.catalog import SCENARIOS, absent_scenarios
    from gemma4_runtime.releases import installed_or_base
    from gemma4_triage.runs.convert import scenario_list
    from gemma4_triage.runs.corpus_view import print_absent
    from gemma4_triage.runs.view import print_scenarios

    release = installed_or_base()
    absent = absent_scenarios(release)
    if as_json:
        emit_json("scenario-list", {"sglang_version": release, "absent": absent, **scenario_list(SCENARIOS)})
    elif MANNER.quiet:
        print_plain("\n".join(scenario.id for scenario in SCENARIOS if scenario.id not in absent))
    else:
        print_scenarios(stdout_console(), SCENARIOS)
        print_absent(stdout_console(), release, absent)
        say("gemma4-triage repro SCENARIO runs one; gemma4-triage repro corpus runs every known fault under all probes")
        say("gemma4-triage repro crash --matrix lists the published crashes on real weights, for a machine with a GPU")


def _run(scenario_id: str, options: "Options") -> "Run":
    from gemma4_repro.catalog import choose_arms, find_scenario
    from gemma4_repro.runner import run_scenario
    from gemma4_runtime.releases import installed_or_base
    from gemma4_triage.runs.progress import ScenarioProgress

    scenario: Scenario = find_scenario(scenario_id, installed_or_base())
    arms = choose_arms(scenario, options.arms)
    if options.include and not any(arm.has_probes for arm in arms):
        raise UsageMistake("--include-kv and --include-tokens: none of these arms has probes", "run an arm that has")
    with ScenarioProgress(scenario, arms) as progress:
        return run_scenario(scenario, options, progress)


def _report(run: "Run", as_json: bool) -> int:
    """Write verdict.json, show the verdict, and return the exit code. Raises NothingChecked, OutputUnwritable."""
    from gemma4_triage.runs.convert import record_of_scenario

    code = finish(record_of_scenario(run), run.folder, as_json)
    if code == ExitCode.NOTHING_CHECKED and not as_json:
        raise NothingChecked("nothing was checked: every comparison needs an arm that did not run", "run all arms")
    return code
