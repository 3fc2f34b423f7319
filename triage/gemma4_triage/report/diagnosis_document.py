"""A diagnosis as the JSON document of `diagnose --json`. The terminal view shows the same facts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gemma4_dumps.errors import ExitCode
from gemma4_dumps.plain_json import plain
from gemma4_dumps.reader import Dump
from gemma4_dumps.wording import number_of
from gemma4_triage.diagnose import failed_rule
from gemma4_triage.diagnose.conclude import rests_on_damage
from gemma4_triage.diagnose.guards import Guards
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.diagnose.plan import first_step, plan
from gemma4_triage.diagnose.process_state import has_unknown_end, state_of_incident
from gemma4_triage.diagnose.sources import Evidence
from gemma4_triage.diagnose.timeline import timeline
from gemma4_triage.diagnose.unread import Unread
from gemma4_triage.finding import Confidence, Finding, causes
from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.readers.reading import Reading

NOTHING_WRONG = "nothing wrong"
MAY_NOT_BE_ALL = "nothing was found, which may not be all"
"""What is said of a run without a cause of which nothing says how it ended."""
MOST_DAMAGED_SHOWN = 3
"""How many lines in a terminal say the same of as many dumps; of more there is a count and one example."""


@dataclass(frozen=True)
class Diagnosis:
    """An incident and what it comes to; no findings but notes: nothing is wrong in it."""

    incident: Incident
    findings: tuple[Finding, ...]

    @property
    def causes(self) -> tuple[Finding, ...]:
        """The findings that are no notes."""
        return causes(self.findings)

    @property
    def open_end(self) -> str:
        """Return what is not known of the end of a run without a cause, as a clause; "" of any other.

        Whose processes may have been killed for all that can be seen is not said to be well.
        """
        is_open = not self.causes and has_unknown_end(self.incident)
        return state_of_incident(self.incident).value if is_open else ""

    @property
    def damaged(self) -> tuple[Dump, ...]:
        """The dumps whose files are not what their manifests say."""
        return tuple(dump for dump in self.incident.dumps if dump.damage)

    @property
    def rests_on_damage(self) -> bool:
        """Return whether a finding has evidence from such a dump, or from a file that was read in part."""
        torn = {reading.name for reading in self.incident.readings if reading.problem}
        return any(
            piece.source in torn or rests_on_damage(piece, self.incident)
            for finding in self.findings
            for piece in finding.evidence
        )


def is_damaged(diagnoses: Iterable[Diagnosis], unread: Unread) -> bool:
    """Return whether any evidence is damaged or cannot be read, whatever is found in the rest."""
    return bool(unread.unreadable) or any(one.damaged or one.rests_on_damage for one in diagnoses)


def exit_code(diagnoses: Sequence[Diagnosis], unread: Unread) -> ExitCode:
    """Return what the command ends with: where a rule broke off, that of a defect of ours, whatever else is found."""
    if any(finding.rule == failed_rule.ID for one in diagnoses for finding in one.findings):
        return ExitCode.BUG
    if is_damaged(diagnoses, unread):
        return ExitCode.DUMP_UNREADABLE
    if any(diagnosis.causes for diagnosis in diagnoses):
        return ExitCode.VIOLATION
    return ExitCode.DUMP_UNREADABLE if unread.is_a_lack else ExitCode.OK


@dataclass(frozen=True)
class Summary:
    """How many incidents there are, by how certain the first cause of each is, and what to do first.

    Attributes:
        certainty: how many incidents there are of each confidence, the most certain first.
        clean: how many runs have no cause.
        next_command: for the first cause of the first incident; "" if there is none.
        not_read: what says nothing of it all, as a clause; "" if everything was read.
        open_ends: how many runs without a cause may have ended in any way.
    """

    certainty: dict[Confidence, int]
    clean: int
    next_command: str
    not_read: str = ""
    open_ends: int = 0

    @property
    def text(self) -> str:
        """Return one line, as "3 incidents: 2 certain, 1 likely; next: ..."."""
        count = sum(self.certainty.values())
        if not count:
            runs = number_of(self.clean, "run")
            if self.not_read:
                return f"no incident found in what was read of {runs}: {self.not_read}"
            if self.open_ends:
                return f"no incident found in {runs}; of {self.open_ends} nothing says how it ended"
            return f"no incident: {NOTHING_WRONG} in {runs}"
        parts = ", ".join(f"{number} {confidence.value}" for confidence, number in self.certainty.items() if number)
        clean = f"; {number_of(self.clean, 'run')} without a cause" if self.clean else ""
        clean += f"; {self.not_read}" if self.not_read else ""
        following = f"; next: {self.next_command}" if self.next_command else ""
        return f"{number_of(count, 'incident')}: {parts}{clean}{following}"

    @property
    def document(self) -> dict[str, Any]:
        """Return the field `summary`."""
        return {
            "incidents": sum(self.certainty.values()),
            **{confidence.value: number for confidence, number in self.certainty.items()},
            "runs_without_a_cause": self.clean,
            "runs_of_unknown_end": self.open_ends,
            "not_read": self.not_read or None,
            "next": self.next_command or None,
        }


def summary(diagnoses: Sequence[Diagnosis], unread: Unread) -> Summary:
    """Return the last line of `diagnose`: what there is, what of it was not read, and what to do first."""
    bad = [diagnosis for diagnosis in diagnoses if diagnosis.causes]
    certainty = {one: sum(diagnosis.causes[0].confidence is one for diagnosis in bad) for one in Confidence}
    commands = (command for diagnosis in bad if (command := first_step(diagnosis.findings)))
    open_ends = sum(bool(one.open_end) for one in diagnoses)
    return Summary(certainty, len(diagnoses) - len(bad), next(commands, ""), unread.text, open_ends)


def damage_line(dump: Dump, name: str = "") -> str:
    """Say what is damaged, and what that does to the findings, in one line. name: of the dump, if not its id."""
    first, *others = dump.damage
    more = f" (and {len(others)} more)" if others else ""
    return (
        f"damaged: {name or dump.manifest.dump_id}: {first}{more}. Nothing that rests on it is certain; "
        "`gemma4-triage dumps verify` shows every check"
    )


def damage_lines(dumps: Sequence[Dump]) -> list[str]:
    """Return a line for each damaged dump; of more than a few, one for the first and one that counts the others."""
    if len(dumps) <= MOST_DAMAGED_SHOWN:
        return [damage_line(dump) for dump in dumps]
    return [damage_line(dumps[0]), f"damaged: {len(dumps) - 1} more dumps; --json has them all"]


def diagnosis_document(
    diagnoses: Sequence[Diagnosis], evidence: Evidence, unread: Unread, exit_code: int
) -> dict[str, Any]:
    """Return every incident, the newest first, with its findings, the most certain first.

    Args:
        diagnoses: of the incidents that are shown.
        evidence: what was read.
        unread: what was not.
        exit_code: of the command.
    """
    return {
        "clean": exit_code == 0,
        "exit_code": exit_code,
        "summary": summary(diagnoses, unread).document,
        "incidents": [_incident(diagnosis) for diagnosis in diagnoses],
        "damaged": damaged_document([dump for diagnosis in diagnoses for dump in diagnosis.damaged]),
        "unreadable": [{"path": item.place, "problem": item.problem} for item in evidence.material.unreadable],
        "older_dumps_not_read": evidence.material.hidden,
        "files_left_alone": evidence.left_alone,
        "files_not_read": unread.beyond,
        "files_read_in_part": unread.in_part,
    }


def damaged_document(dumps: Iterable[Dump]) -> list[dict[str, Any]]:
    """Return the field `damaged`: those of `dumps` whose files are not what their manifests say."""
    return [
        {"dump_id": dump.manifest.dump_id, "path": dump.place, "problems": list(dump.damage)}
        for dump in dumps
        if dump.damage
    ]


def notes(incident: Incident) -> list[str]:
    """Return what the start-up checks noted and is no defect of the server."""
    found = [note for guards in incident.guards for note in guards.start_up_findings() if note.severity == "note"]
    return list(dict.fromkeys(note.summary for note in found))


def _incident(diagnosis: Diagnosis) -> dict[str, Any]:
    incident = diagnosis.incident
    return {
        "findings": [finding.model_dump(mode="json") for finding in diagnosis.findings],
        "plan": [{"command": step.command, "rules": list(step.rules)} for step in plan(diagnosis.findings)],
        "dumps": [_dump(dump) for dump in incident.dumps],
        "guards": [_guards(guards) for guards in incident.guards],
        "ledgers": [
            {"source": ledger.source, "balanced": ledger.fields.get("balanced")} for ledger in incident.ledgers
        ],
        "logs": [_log(facts, incident) for facts in incident.logs],
        "suspects": [] if diagnosis.causes else [one for facts in incident.logs for one in _suspects_of(facts)],
        "notes": notes(incident),
        "readings": [_reading(reading, incident) for reading in incident.readings],
        "timeline": [
            {"time_utc": entry.time_utc, "source": entry.source, "text": entry.text} for entry in timeline(incident)
        ],
    }


def _reading(reading: Reading, incident: Incident) -> dict[str, Any]:
    """Return what a file that is neither dump nor log says, and why it stands here."""
    link = next((link for link in incident.reading_links if link.log == reading.name), None)
    return {
        "file": reading.name,
        "kind": reading.kind,
        "title": reading.title,
        "relation": "alone" if link is None else link.relation,
        "guess": link is not None and link.relation == "guess",
        "related_to": None if link is None else link.incident or None,
        "reasons": [] if link is None else list(link.reasons),
        "pids": list(reading.identity.pids),
        "host": reading.identity.host or None,
        "facts": dict(reading.facts),
        "problem": reading.problem or None,
    }


def _log(facts: LogFacts, incident: Incident) -> dict[str, Any]:
    """Return what was read, and why it stands here; `logs --json` has the rest."""
    link = next((link for link in incident.log_links if link.log == facts.name), None)
    return {
        "file": facts.name,
        "relation": "alone" if link is None else link.relation,
        "guess": link is not None and link.relation == "guess",
        "related_to": None if link is None else link.incident or None,
        "reasons": [] if link is None else list(link.reasons),
        "size_bytes": facts.size_bytes,
        "lines": facts.lines,
        "understood_lines": facts.understood_lines,
        "problem": facts.problem,
        "first_time": facts.first_time,
        "last_time": facts.last_time,
        "server_starts": facts.starts,
        "injected_faults": list(facts.faults),
        "death_count": facts.death_count,
        "probe_line_count": facts.guard_count,
    }


def _dump(dump: Dump) -> dict[str, Any]:
    manifest = dump.manifest
    return {
        "dump_id": manifest.dump_id,
        "path": dump.place,
        "created_utc": manifest.created_utc.isoformat(),
        "host": manifest.host.hostname,
        "pid": manifest.host.pid,
        "rank": manifest.host.rank,
        "rule": manifest.rule,
        "verdict": manifest.verdict,
        "role": manifest.role,
        "step": manifest.step,
        "summary": manifest.summary,
        "damage": list(dump.damage),
    }


def _guards(guards: Guards) -> dict[str, Any]:
    attached = [row["id"] for _, row in guards.rows() if row.get("attached") is True]
    return plain(
        {
            "source": guards.source,
            "pid": guards.pid,
            "verified": guards.fields.get("verified"),
            "attached": attached,
            "faults": guards.faults,
        }
    )


def _suspects_of(facts: LogFacts) -> list[dict[str, Any]]:
    # Most dumps come without a log, and what reads those takes time to import.
    from gemma4_triage.report.logs_document import suspects_document

    return suspects_document(facts)
