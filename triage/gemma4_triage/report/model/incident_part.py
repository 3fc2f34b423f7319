"""An incident and its findings as a record of the report, with when its dumps were written."""

from __future__ import annotations

from gemma4_dumps import reader
from gemma4_triage.diagnose.timeline import joint_timeline
from gemma4_triage.report.diagnosis_document import Diagnosis, notes
from gemma4_triage.report.model.dump_part import dump_part
from gemma4_triage.report.model.environment import incident_environment
from gemma4_triage.report.model.finding_part import finding_part
from gemma4_triage.report.model.limits import MAX_DUMPS, MAX_LINES, MAX_MARKS, MAX_PICTURES, first
from gemma4_triage.report.model.pictures import Lane, Mark, Timeline
from gemma4_triage.report.model.records import Event, Incident

MAX_LANES = 24


def incident_part(diagnosis: Diagnosis, label: str, expected: bool, pictures: int) -> Incident:
    """label, expected: of the arm that it is of. pictures: how many the report still has room for."""
    incident = diagnosis.incident
    shown, left = first(incident.dumps, MAX_DUMPS, "dump", "; gemma4-triage dumps list names them")
    by_id = {dump.manifest.dump_id: dump for dump in incident.dumps}
    numbers = {dump.manifest.dump_id: number for number, dump in enumerate(shown, start=1)}
    pictured = _first_of_each_kind(shown)[: min(pictures, MAX_PICTURES)]
    return Incident(
        label=label,
        title=_title(diagnosis),
        expected=expected,
        findings=tuple(finding_part(found, by_id, numbers) for found in diagnosis.findings),
        dumps=tuple(
            dump_part(dump, number, shown[0].manifest.created_utc, number in pictured)
            for number, dump in enumerate(shown, start=1)
        ),
        timeline=_timeline(incident.dumps),
        environment=incident_environment(incident),
        notes=tuple(notes(incident)[:MAX_LINES]),
        open_end=diagnosis.open_end,
        readings=tuple(_readings(diagnosis)[:MAX_LINES]),
        events=tuple(
            Event(
                time_utc=entry.time_utc,
                source=f"dump {numbers[entry.source]}" if entry.source in numbers else entry.source,
                text=entry.text,
            )
            for entry in joint_timeline(incident)
        ),
        left_out=left,
    )


def _readings(diagnosis: Diagnosis) -> list[str]:
    """Say what other files there are, and how each stands to the incident, a line each."""
    incident = diagnosis.incident
    pairs = zip(incident.readings, incident.reading_links, strict=True)
    return [f"{read.name}: {read.title}" + (f"; {link.text}" if link.text else "") for read, link in pairs]


def _first_of_each_kind(dumps: tuple[reader.Dump, ...]) -> list[int]:
    """Numbers of those worth a picture: the same again at a later step shows the same."""
    kinds: dict[tuple, int] = {}
    for number, dump in enumerate(dumps, start=1):
        manifest = dump.manifest
        tables = tuple(sorted({offence.table for offence in manifest.offences}))
        kind = manifest.rule, manifest.verdict, manifest.role, manifest.layer.type, manifest.pool_kind, tables
        kinds.setdefault(kind if manifest.tensors else (), number)
    kinds.pop((), None)
    return list(kinds.values())


def _title(diagnosis: Diagnosis) -> str:
    incident = diagnosis.incident
    if not incident.dumps:
        processes = len(incident.guards)
        if not processes and incident.readings:
            return incident.readings[0].title
        return f"{processes} guarded process{'es' * (processes != 1)}, no dump"
    first_one = incident.dumps[0].manifest
    ranks = sorted({dump.manifest.host.rank for dump in incident.dumps})
    count = len(incident.dumps)
    when = first_one.created_utc.isoformat(sep=" ", timespec="seconds")
    where = f"{first_one.host.hostname}, rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
    return f"{count} dump{'s' * (count != 1)} of {where}, from {when}"


def _timeline(dumps: tuple[reader.Dump, ...]) -> Timeline | None:
    """Return a lane per rank and rule; None for a single dump."""
    if len(dumps) < 2:
        return None
    begin = dumps[0].manifest.created_utc
    lanes: dict[str, list[Mark]] = {}
    for dump in dumps:
        manifest = dump.manifest
        at = round((manifest.created_utc - begin).total_seconds(), 3)
        step = "" if manifest.step is None else f", step {manifest.step}"
        label = f"{at:.1f} s{step}: {manifest.verdict} ({manifest.action})"
        name = f"rank {manifest.host.rank}, {manifest.rule}"
        lanes.setdefault(name, []).append(Mark(at=at, label=label, tone="bad"))
    hidden = sum(max(len(marks) - MAX_MARKS, 0) for marks in lanes.values())
    return Timeline(
        title="When the dumps were written",
        unit="s",
        origin="the first dump",
        begin=0,
        end=max(round((dumps[-1].manifest.created_utc - begin).total_seconds(), 3), 0.001),
        lanes=tuple(Lane(name=name, marks=tuple(lanes[name][:MAX_MARKS])) for name in sorted(lanes)[:MAX_LANES]),
        left_out=(f"{hidden} later marks",) if hidden else (),
    )
