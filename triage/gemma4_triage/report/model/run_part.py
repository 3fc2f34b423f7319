"""A run's verdict.json as the records of a report: arms of a scenario, cases of the corpus, and when each ran."""

from __future__ import annotations

from typing import Any

from gemma4_dumps.wording import number_of
from gemma4_triage.report.model.limits import MAX_ARMS, MAX_LINES, MAX_PROBES
from gemma4_triage.report.model.pairs import pairs_of
from gemma4_triage.report.model.pictures import Lane, Span, Timeline
from gemma4_triage.report.model.records import Arm, Case, Check, Command, Run, Sighting, Status
from gemma4_triage.report.model.verdict_file import ArmEntry, CaseEntry, VerdictFile

_CORPUS = "every known fault injected, and clean loads, under all probes"
_STATUS: dict[int, Status] = {0: "ok", 5: "unchecked"}


def run_part(file: VerdictFile) -> Run:
    """Arms or cases in the order in which they ran."""
    cases = [_case(entry, file.probes, False) for entry in file.faults]
    cases += [_case(entry, file.probes, True) for entry in file.clean]
    return Run(
        kind=file.kind,
        name=file.scenario if file.kind == "repro" else "corpus",
        symptom=file.symptom
        if file.kind == "repro"
        else "every known fault injected, and clean loads, under all probes",
        status=_STATUS.get(file.exit_code, "bad"),
        exit_code=file.exit_code if file.exit_code in _STATUS else 1,
        sglang_version=file.sglang_version,
        duration_s=file.duration_s,
        import_s=file.import_s,
        arms=tuple(_arm(entry) for entry in file.arms[:MAX_ARMS]),
        probes=tuple(file.probes[:MAX_PROBES]),
        cases=tuple(cases[:MAX_ARMS]),
        root_cause="" if file.root_cause is None else file.root_cause.text,
        repeat=f"gemma4-triage repro {file.scenario if file.kind == 'repro' else 'corpus'}",
        stand_ins=pairs_of((one.id, one.title) for one in file.host_engine.stand_ins),
    )


def run_headline(run: Run) -> str:
    """One line: what ran, and whether it was as expected."""
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
    """What one of its parts is called."""
    return {"repro": "arm", "corpus": "case"}.get(run.kind, "side")


def run_timeline(run: Run) -> Timeline | None:
    """The import and each arm or case, one after the other as they ran. What lies between them is not recorded."""
    names = [(arm.id, arm.duration_s, arm.ending, arm.status != "surprise") for arm in run.arms]
    names += [(case.id, case.duration_s, case.ending, case.good) for case in run.cases]
    if not names:
        return None
    at, lanes = run.import_s, []
    if run.import_s:
        lanes.append(Lane(name="import of SGLang", spans=(Span(begin=0, end=at, label=f"{at:.1f} s", tone="neutral"),)))
    for name, duration, ending, good in names:
        label = f"{duration:.1f} s, {ending}" if ending else f"{duration:.1f} s"
        span = Span(begin=at, end=at + duration, label=label, tone="ok" if good else "bad")
        lanes.append(Lane(name=name, spans=(span,)))
        at += duration
    end = max(at, run.duration_s, 0.001)
    return Timeline(
        title="How long each took", unit="s", origin="the start of the run", begin=0, end=end, lanes=tuple(lanes)
    )


def run_commands(run: Run) -> list[Command]:
    """The whole run again, then each part alone."""
    parts = [(part.id, part.repeat) for part in (*run.arms, *run.cases) if part.repeat]
    return [
        *([Command(what="the whole run again", line=run.repeat)] if run.repeat else []),
        *(Command(what=f"{part_name(run)} {name} alone", line=line) for name, line in parts),
    ]


def _unchecked(run: Run) -> str:
    checks = [check for arm in run.arms for check in arm.checks]
    count = sum(check.status == "not checked" for check in checks)
    if not count or run.status != "ok":
        return ""
    return (
        f" as far as checked: {count} of {number_of(len(checks), 'check')} {'was' if count == 1 else 'were'} not made"
    )


def _arm(entry: ArmEntry) -> Arm:
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
            Check(expected=check.expected, observed=check.observed.split(" [dump: ")[0], status=check.status)
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


def _case(entry: CaseEntry, probes: list[str], clean: bool) -> Case:
    wanted = {finding.probe for finding in entry.expected}
    sightings = [
        Sighting(probe=probe, dumps=entry.fired.get(probe, 0), expected=probe in wanted)
        for probe in probes[:MAX_PROBES]
    ]
    return Case(
        id=entry.id,
        title=entry.title,
        origin="clean" if clean else entry.origin.reference,
        clean=clean,
        good=entry.good,
        sightings=tuple(sightings),
        cause=entry.cause,
        steps=entry.steps_to_detection,
        ending=entry.ending,
        unguarded=entry.unguarded or "",
        duration_s=entry.duration_s,
        objections=tuple(entry.objections[:MAX_LINES]),
        repeat=entry.repeat,
    )
