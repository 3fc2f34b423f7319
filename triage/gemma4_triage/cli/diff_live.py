"""`gemma4-triage diff backends` and `diff patches`: one load through the live engine, side by side."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gemma4_triage.cli import completions
from gemma4_triage.cli.durations import METAVAR, time_from
from gemma4_triage.cli.finished_run import finish
from gemma4_triage.cli.shared_options import AsJson, Force, Output
from gemma4_triage.errors import UsageMistake
from gemma4_triage.terminal import warn

if TYPE_CHECKING:
    from gemma4_repro.parity.compare_tracks import Tolerances
    from gemma4_repro.parity.judge import Agreement
    from gemma4_repro.parity.runner import LiveRun, Options
    from gemma4_repro.parity.side import ChosenPatches, Side
    from gemma4_triage.runs.comparison_record import ComparisonKind

_PROBES, _DEVICES = ("off", "log", "trap"), ("sm100", "sm90")

Scenario = Annotated[
    str,
    typer.Argument(
        metavar="[SCENARIO]",
        help="Which model: e4b, the toy pair; 26b, the toy with experts; pictures, a toy with a vision tower, made for "
        "the run, and prompts with no picture, one and three.",
        autocompletion=completions.words(completions.listed("gemma4_repro.parity.load", "SCENARIOS")),
    ),
]
OldScenario = Annotated[
    str | None, typer.Option("--scenario", hidden=True, help="The scenario, as it was named before.")
]
LoadName = Annotated[
    str,
    typer.Option(
        "--load",
        metavar="NAME",
        help="What is sent: prompts, three of them; pressure, 24 requests that hold more than 85% of a small SWA pool, "
        "for e4b and 26b.",
        autocompletion=completions.words(completions.listed("gemma4_repro.parity.load", "LOADS")),
    ),
]
Backends = Annotated[
    str,
    typer.Option(
        "--backend",
        metavar="NAMES",
        help="Attention backends: triton, trtllm_mha.",
        autocompletion=completions.words(completions.listed("gemma4_repro.parity.side", "BACKENDS")),
    ),
]
Mtp = Annotated[
    str,
    typer.Option(
        "--mtp", metavar="off[,on]", help="Without and with MTP drafts.", autocompletion=completions.words("off", "on")
    ),
]
Probes = Annotated[
    str,
    typer.Option(
        "--probes",
        metavar="off|log|trap",
        help="What probes do; with log they only leave dumps.",
        autocompletion=completions.words(*_PROBES),
    ),
]
DeviceModel = Annotated[
    str,
    typer.Option(
        "--device-model",
        metavar="sm100|sm90",
        help="What a read out of range does: fault, or pass.",
        autocompletion=completions.words(*_DEVICES),
    ),
]
Tolerance = Annotated[
    float | None,
    typer.Option(
        "--tolerance", metavar="NUMBER", min=0, help="By how much logprobs may differ, instead of 2e-4: fp32 round-off."
    ),
]
Keep = Annotated[
    bool, typer.Option("--keep", help="Keep logprobs, hidden states, prompts and drafts too, not only logs and dumps.")
]
TimeLimit = Annotated[
    float | None,
    typer.Option("--timeout", parser=time_from(1), metavar=METAVAR, help="For each side, instead of its own."),
]

_BOTH, _OFF_AND_ON = "triton,trtllm_mha", "off,on"


def backends(
    scenario: Scenario = "e4b",
    named: OldScenario = None,
    backends: Backends = _BOTH,
    mtp: Mtp = _OFF_AND_ON,
    load: LoadName = "prompts",
    fault: Annotated[
        list[str] | None,
        typer.Option(
            "--fault",
            metavar="IDS",
            help="Inject these faults on every side.",
            autocompletion=completions.words(completions.patches("fault")),
        ),
    ] = None,
    patches: Annotated[
        str | None,
        typer.Option(
            "--patches",
            metavar="IDS",
            show_default=False,
            help="Fixes on every side, as in GEMMA4_TRIAGE_PATCHES; default: `default`, less a fix that repairs a "
            "--fault, and with the window fixes that the release needs for --load pressure. `default` changes no "
            "correct output, so what the release gets wrong is found; with `none` the MTP of 0.5.13.post1 crashes on "
            "a CPU.",
            autocompletion=completions.words(completions.patch_sets),
        ),
    ] = None,
    probes: Probes = "log",
    device_model: DeviceModel = "sm100",
    tolerance: Tolerance = None,
    output: Output = None,
    force: Force = False,
    keep: Keep = False,
    time_limit: TimeLimit = None,
    as_json: AsJson = False,
) -> None:
    """Run the same prompts on each attention backend, with and without MTP, and on transformers.

    For example: gemma4-triage diff backends --backend triton,trtllm_mha

    One table: outcome, tokens, logprobs, where and in which layer they part first, accept length, pool usage,
    violations, and where a side died. Exits 0 if all agree with transformers, 1 if one differs, crashes or leaves a
    dump, 2 for a name that is not known, 3 if no engine runs here, 5 if all agree and no side came to what --fault
    changes, or --load pressure did not fill the SWA pool.
    """
    faults = tuple(dict.fromkeys(fault or ()))
    chosen: list[ChosenPatches] = []

    def sides() -> list[Side]:
        from gemma4_repro.parity.side import ChosenPatches, Side, attached, patches_for, read_backends, read_mtp

        chosen.append(patches_for(load, faults) if patches is None else ChosenPatches(patches))
        ids = chosen[0].ids
        attached(ids, faults)
        return [
            Side(f"{backend}-mtp-{'on' if on else 'off'}", backend, on, ids, faults, probes, device_model)
            for backend in read_backends(backends)
            for on in read_mtp(mtp)
        ]

    def judge(run: LiveRun, tolerances: Tolerances) -> Agreement:
        from gemma4_repro.parity.exercise import exercises, nothing_exercised
        from gemma4_repro.parity.judge import Agreement, Column, against_transformers, exit_code
        from gemma4_repro.parity.pressure import below_pressure, death_of

        verdicts = against_transformers(run, tolerances)
        columns = tuple(Column(v.arm, v, v, death_of(v.arm, run, tolerances)) for v in verdicts)
        found = exercises(run)
        nothing = nothing_exercised(run, found) or bool(below_pressure(run))
        return Agreement(run, tolerances, columns, exit_code(verdicts, (), nothing), found, chosen[0])

    _check_words(probes, device_model)
    _check_finite(tolerance)
    scenario = named or scenario
    _check_load(load, scenario)
    options = _options(scenario, output, force, keep, time_limit, faults, load)
    raise typer.Exit(_compare("diff-backends", sides, judge, options, tolerance, as_json))


def patches(
    with_: Annotated[
        str,
        typer.Option(
            "--with",
            metavar="IDS",
            help="The patch set that is to be judged.",
            autocompletion=completions.words(completions.patch_sets),
        ),
    ],
    base: Annotated[
        str,
        typer.Option(
            "--base",
            metavar="IDS",
            help="The patch set that is the measure.",
            autocompletion=completions.words(completions.patch_sets),
        ),
    ] = "default",
    fault: Annotated[
        list[str] | None,
        typer.Option(
            "--fault",
            metavar="IDS",
            help="Inject these faults on the --with side.",
            autocompletion=completions.words(completions.patches("fault")),
        ),
    ] = None,
    scenario: Scenario = "e4b",
    named: OldScenario = None,
    backends: Backends = _BOTH,
    mtp: Mtp = _OFF_AND_ON,
    probes: Probes = "log",
    device_model: DeviceModel = "sm100",
    tolerance: Tolerance = None,
    output: Output = None,
    force: Force = False,
    keep: Keep = False,
    time_limit: TimeLimit = None,
    as_json: AsJson = False,
) -> None:
    """Quality gate: run the same prompts under two patch sets, and hold logprobs and greedy tokens against each other.

    For example: gemma4-triage diff patches --with default --base default,-swa-state-swap

    IDS are those of GEMMA4_TRIAGE_PATCHES: none, default, default,+ID,-ID. A token may differ where the logprobs of
    both tokens lie closer in the base run than the tolerance. The verdict names the patches in which the sets differ
    and that did their work. A patch that returns no logprobs of prompts, as yoco, is compared by those of answers.
    Exits 0 if all is equal, 1 if something differs, crashes or leaves more dumps, 2 for a name that is not known or
    does not attach to the installed release, and for equal sets, 3 if no engine runs here, 5 if no base run came to its
    end, or if all is equal and none of these patches did its work.
    """
    faults = tuple(fault or ())
    pairs: list[tuple[str, str]] = []
    compared: list[str] = []

    def sides() -> list[Side]:
        from gemma4_repro.parity.exercise import differing
        from gemma4_repro.parity.side import Side, attached, read_backends, read_mtp
        from gemma4_runtime.releases import installed_or_base

        for name, ids in (("--base", base), ("--with", with_)):
            if not ids.strip():
                raise UsageMistake(f"{name} is empty", "none stands for no patches")
        attached(base)
        attached(with_, faults)
        columns = [(backend, on) for backend in read_backends(backends) for on in read_mtp(mtp)]
        compared.extend(differing(Side("base", "", False, base), Side("with", "", False, with_, faults)))
        if not compared:
            raise UsageMistake(
                f"--base {base!r} and --with {with_!r} are the same patches on SGLang {installed_or_base()}, and there "
                "is no --fault",
                "name with --with what is to be judged, as default,+ID or default,-ID; gemma4-triage patches list has "
                "what attaches",
            )
        made = []
        for backend, on in columns:
            name = f"{backend}-mtp-{'on' if on else 'off'}"
            pairs.append((f"base-{name}", f"with-{name}"))
            made.append(Side(f"base-{name}", backend, on, base, (), probes, device_model))
            made.append(Side(f"with-{name}", backend, on, with_, faults, probes, device_model))
        return made

    def judge(run: LiveRun, tolerances: Tolerances) -> Agreement:
        from gemma4_repro.parity.exercise import exercises, nothing_exercised
        from gemma4_repro.parity.judge import Agreement, Column, against_base, against_transformers, exit_code
        from gemma4_repro.parity.pressure import death_of

        gates = {verdict.arm.side.id: verdict for verdict in against_base(run, pairs, tolerances)}
        measured = against_transformers(run, tolerances)
        columns = tuple(Column(v.arm, v, gates.get(v.arm.side.id), death_of(v.arm, run, tolerances)) for v in measured)
        bases = [run.arm(base_id) for base_id, _ in pairs]
        found = exercises(run)
        code = exit_code(tuple(gates.values()), bases, nothing_exercised(run, found))
        return Agreement(run, tolerances, columns, code, found)

    _check_words(probes, device_model)
    _check_finite(tolerance)
    scenario = named or scenario
    options = _options(scenario, output, force, keep, time_limit, compared)
    raise typer.Exit(_compare("diff-patches", sides, judge, options, tolerance, as_json))


def _check_words(probes: str, device_model: str) -> None:
    for option, word, allowed in (("--probes", probes, _PROBES), ("--device-model", device_model, _DEVICES)):
        if word not in allowed:
            raise UsageMistake(f"{option} {word!r} is not known", f"allowed: {', '.join(allowed)}")


def _check_finite(tolerance: float | None) -> None:
    """Whatever the sides said would agree to an infinite tolerance."""
    if tolerance is not None and not math.isfinite(tolerance):
        raise UsageMistake(f"--tolerance {tolerance} is no tolerance", "a number of 0 or more; the default is 2e-4")


def _check_load(load: str, scenario: str) -> None:
    """Refuse before anything is imported or written, whatever else was asked for."""
    from gemma4_repro.parity.load import check_load

    check_load(load, scenario)


def _options(
    scenario: str,
    output: Path | None,
    force: bool,
    keep: bool,
    time_limit: float | None,
    compared: Sequence[str] = (),
    load: str = "prompts",
) -> Callable[[], Options]:
    """compared: filled in by the time the options are made."""

    def make() -> Options:
        from gemma4_repro.parity.exercise import watched
        from gemma4_repro.parity.load import asks_for_prompts
        from gemma4_repro.parity.runner import Options

        return Options(
            scenario=scenario,
            typed=("gemma4-triage", *sys.argv[1:]),
            output=output,
            overwrite=force,
            keep_traces=keep,
            time_limit_s=time_limit,
            compared=tuple(compared),
            watched=watched(compared),
            prompt_logprobs=asks_for_prompts(scenario, compared),
            load_name=load,
        )

    return make


def _compare(
    kind: ComparisonKind,
    sides: Callable[[], list[Side]],
    judge: Callable[[LiveRun, Tolerances], Agreement],
    options: Callable[[], Options],
    tolerance: float | None,
    as_json: bool,
) -> int:
    """Run, judge, write verdict.json, show. Returns the exit code."""
    from gemma4_repro.parity.compare_tracks import Tolerances

    tolerances = Tolerances() if tolerance is None else Tolerances(logprob=tolerance)
    return _report(kind, judge(_run(kind, sides(), options()), tolerances), as_json)


def _run(kind: ComparisonKind, sides: list[Side], options: Options) -> LiveRun:
    from gemma4_repro.parity.runner import run_sides
    from gemma4_triage.runs.progress import ComparisonProgress

    with ComparisonProgress() as progress:
        return run_sides(kind, sides, options, progress)


def _report(kind: ComparisonKind, agreement: Agreement, as_json: bool) -> int:
    """Write verdict.json, show the comparison, and return the exit code. Raises OutputUnwritable."""
    from gemma4_triage.runs.convert_comparison import record_of_comparison

    record = record_of_comparison(kind, agreement)
    code = finish(record, agreement.run.folder, as_json)
    if record.nothing_checked_why:
        warn(f"error: {record.nothing_checked_why}")
    return code
