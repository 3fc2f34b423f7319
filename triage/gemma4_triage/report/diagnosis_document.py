"""A diagnosis as the JSON document of `diagnose --json`. The terminal view shows the same facts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gemma4_dumps.plain_json import plain
from gemma4_dumps.reader import Dump
from gemma4_triage.diagnose.finding import Finding
from gemma4_triage.diagnose.guards import Guards
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.diagnose.material import Material
from gemma4_triage.logs.facts import LogFacts


@dataclass(frozen=True)
class Diagnosis:
    """An incident and what it comes to; no findings: nothing is wrong in it."""

    incident: Incident
    findings: tuple[Finding, ...]


def diagnosis_document(diagnoses: Sequence[Diagnosis], material: Material, exit_code: int) -> dict[str, Any]:
    """Every incident, the newest first, with its findings, the most certain first."""
    return {
        "clean": exit_code == 0,
        "exit_code": exit_code,
        "incidents": [_incident(diagnosis) for diagnosis in diagnoses],
        "unreadable": [{"path": str(item.path), "problem": item.problem} for item in material.unreadable],
        "older_dumps_not_read": material.hidden,
    }


def notes(incident: Incident) -> list[str]:
    """What the start-up checks noted and is no defect of the server."""
    found = [note for guards in incident.guards for note in guards.start_up_findings() if note.severity == "note"]
    return list(dict.fromkeys(note.summary for note in found))


def _incident(diagnosis: Diagnosis) -> dict[str, Any]:
    incident = diagnosis.incident
    return {
        "findings": [finding.model_dump(mode="json") for finding in diagnosis.findings],
        "dumps": [_dump(dump) for dump in incident.dumps],
        "guards": [_guards(guards) for guards in incident.guards],
        "ledgers": [
            {"source": ledger.source, "balanced": ledger.fields.get("balanced")} for ledger in incident.ledgers
        ],
        "logs": [_log(facts) for facts in incident.logs],
        "notes": notes(incident),
    }


def _log(facts: LogFacts) -> dict[str, Any]:
    """What was read; `logs --json` has the rest."""
    return {
        "file": facts.name,
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
        "path": str(dump.path),
        "created_utc": manifest.created_utc.isoformat(),
        "host": manifest.host.hostname,
        "pid": manifest.host.pid,
        "rank": manifest.host.rank,
        "rule": manifest.rule,
        "verdict": manifest.verdict,
        "role": manifest.role,
        "step": manifest.step,
        "summary": manifest.summary,
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
