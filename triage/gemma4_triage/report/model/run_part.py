"""A run's verdict.json as the records of a report: arms of a scenario, cases of the corpus, and when each ran."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gemma4_dumps.errors import ExitCode
from gemma4_dumps.wording import number_of
from gemma4_triage.report.model.limits import MAX_ARMS, MAX_LINES, MAX_PROBES, pairs_of
from gemma4_triage.report.model.pictures import Lane, Span, Timeline
from gemma4_triage.report.model.records import Arm, Case, Check, Command, Run, Sighting, Status
from gemma4_triage.runs.corpus_record import CleanRecord, CorpusRun, FaultRecord
from gemma4_triage.runs.record import ArmRecord, ScenarioRun, checks_not_made
from gemma4_triage.runs.record_file import RunRecord

_STATUS: dict[int, Status] = {ExitCode.OK: "ok", ExitCode.NOTHING_CHECKED: "unchecked"}
_ROUNDING_S = 0.5
"""By how much the times of arms that ran one after the other may exceed the run's: each is rounded."""


def scenario_part(record: ScenarioRun) -> Run:
    """Return a scenario's run, its arms in the order in which they ran."""
    return Run(
        name=record.scenario,
        symptom=record.symptom,
        arms=tuple(_arm(arm) for arm in record.arms[:MAX_ARMS]),
        probes=(),
        cases=(),
        root_cause="" if record.root_cause is None else record.root_cause.text,
        repeat=f"gemma4-triage repro {record.scenario}",
        **facts_of(record),
    )


def corpus_part(record: CorpusRun) -> Run:
    """Return a run of the corpus, its cases in the order in which they ran."""
    probes = record.probes[:MAX_PROBES]
    cases = [_fault(case, probes) for case in record.faults] + [_clean(case, probes) for case in record.clean]
    return Run(
        name="corpus",
        symptom="every known fault injected, and clean loads, under all probes",
        arms=(),
        probes=probes,
        cases=tuple(cases[:MAX_ARMS]),
        root_cause="",
        repeat="gemma4-triage repro corpus",
        **facts_of(record),
    )


def facts_of(record: RunRecord) -> dict[str, Any]:
    """Return the fields of a report's run that are told alike for every kind."""
    status = _STATUS.get(record.exit_code, "bad")
    return {
        "kind": record.kind,
        "status": status,
        "exit_code": ExitCode.VIOLATION if status == "bad" else record.exit_code,
        "sglang_version": record.sglang_version,
        "duration_s": record.duration_s,
        "import_s": record.import_s,
        "stand_ins": pairs_of((one.id, one.title) for one in record.host_engine.stand_ins),
    }


def run_headline(run: Run) -> str:
    """Return one line: what ran, and whether it was as expected."""
    if run.kind == "corpus":
        faults = [case for case in run.cases if not case.clean]
        clean = [case for case in run.cases if case.clean]
        good = sum(case.good for case in run.cases)
        what = f"corpus: {good} of {number_of(len(run.cases), 'case')} as expected "
        what += f"({number_of(len(faults), 'fault')}, {number_of(len(clean), 'clean load')})"
    elif run.kind != "repro" and run.status != "unchecked":
        differ = sum(arm.status == "surprise" for arm in run.arms)
        of_all = f"{differ} of {number_of(len(run.arms), 'side')}"
        what = f"{run.name}: {f'{of_all} NOT as the reference' if differ else 'all as the reference'}"
    elif run.status == "unchecked":
        what = f"{run.name}: nothing was checked"
    else:
        what = f"{run.name}: {'as expected' if run.status == 'ok' else 'NOT as expected'}{_unchecked(run)}"
    return f"{what}, {run.duration_s:.0f} s, SGLang {run.sglang_version}"


def part_name(run: Run) -> str:
    """Return what one of its parts is called."""
    return {"repro": "arm", "corpus": "case"}.get(run.kind, "side")


def run_timeline(run: Run) -> Timeline | None:
    """Return how long the import and each arm or case took, one after the other as they ran.

    A run does not record when each began. Of one whose arms ran side by side, which take longer together than the run,
    each is shown from its own start.
    """
    parts = [(arm.id, arm.duration_s, arm.ending, arm.status != "surprise") for arm in run.arms]
    parts += [(case.id, case.duration_s, case.ending, case.good) for case in run.cases]
    if not parts:
        return None
    in_turn = run.import_s + sum(duration for _, duration, _, _ in parts) <= run.duration_s + _ROUNDING_S
    at, lanes = run.import_s, []
    if run.import_s:
        lanes.append(Lane(name="import of SGLang", spans=(Span(begin=0, end=at, label=f"{at:.1f} s", tone="neutral"),)))
    for name, duration, ending, good in parts:
        label = f"{duration:.1f} s, {ending}" if ending else f"{duration:.1f} s"
        begin = at if in_turn else 0.0
        span = Span(begin=begin, end=begin + duration, label=label, tone="ok" if good else "bad")
        lanes.append(Lane(name=name, spans=(span,)))
        at = max(at, begin + duration)
    end = max(at, run.duration_s if in_turn else 0.0, 0.001)
    origin = "the start of the run" if in_turn else "its own start"
    return Timeline(title="How long each took", unit="s", origin=origin, begin=0, end=end, lanes=tuple(lanes))


def run_commands(run: Run) -> list[Command]:
    """Return the whole run again, then each part alone."""
    parts = [(part.id, part.repeat) for part in (*run.arms, *run.cases) if part.repeat]
    return [
        *([Command(what="the whole run again", line=run.repeat)] if run.repeat else []),
        *(Command(what=f"{part_name(run)} {name} alone", line=line) for name, line in parts),
    ]


def _unchecked(run: Run) -> str:
    return checks_not_made([check.status for arm in run.arms for check in arm.checks]) if run.status == "ok" else ""


def _arm(entry: ArmRecord) -> Arm:
    ending = entry.ending
    if entry.signal or entry.exit_code:
        ending += f" ({entry.signal or f'exit {entry.exit_code}'})"
    if entry.problem:
        ending += f": {entry.problem}"
    return Arm(
        id=entry.id,
        title=entry.title,
        device_model=entry.device_model,
        status=entry.status,
        ending=ending,
        duration_s=entry.duration_s,
        checks=tuple(
            Check(expected=check.expected, observed=check.brief, status=check.status)
            for check in entry.checks[:MAX_LINES]
        ),
        numbers=pairs_of((name.replace("_", " "), _number(value)) for name, value in entry.numbers.items()),
        environment=pairs_of(entry.environment.items()),
        log_tail=tuple(entry.log_tail[-MAX_LINES:]),
        dump_count=len(entry.dumps),
        repeat=entry.repeat,
    )


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _fault(case: FaultRecord, probes: Sequence[str]) -> Case:
    return _case(case, probes, case.probes, case.origin.reference, cause=case.cause, unguarded=case.unguarded or "")


def _clean(case: CleanRecord, probes: Sequence[str]) -> Case:
    return _case(case, probes, [], "clean", cause="", unguarded="")


def _case(
    case: FaultRecord | CleanRecord,
    probes: Sequence[str],
    wanted: Sequence[str],
    origin: str,
    *,
    cause: str,
    unguarded: str,
) -> Case:
    return Case(
        id=case.id,
        title=case.title,
        origin=origin,
        clean=isinstance(case, CleanRecord),
        good=case.good,
        sightings=tuple(
            Sighting(probe=probe, dumps=case.fired.get(probe, 0), expected=probe in wanted) for probe in probes
        ),
        cause=cause,
        steps=case.steps_to_detection,
        ending=case.ending,
        unguarded=unguarded,
        duration_s=case.duration_s,
        objections=case.objections[:MAX_LINES],
        repeat=case.repeat,
    )
