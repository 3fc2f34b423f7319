"""What `diagnose` names of a server's dumps and log, in the words in which mutations are drawn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gemma4_dumps.audit_findings import TABLE
from gemma4_dumps.store import DumpStore
from gemma4_repro.mutations.score import Named
from gemma4_triage.diagnose.assign_logs import assign_logs
from gemma4_triage.diagnose.conclude import conclude
from gemma4_triage.diagnose.material import read_store
from gemma4_triage.finding import Finding, causes
from gemma4_triage.logs.catalog import findings
from gemma4_triage.logs.read import read_source
from gemma4_triage.logs.source import Source

_OWNER_COLUMN = ", 4]"
"""Where a leak audit's table has a page's last owner."""


def named_causes(dumps: Path, log: Path) -> list[Named]:
    """Return the causes that `diagnose --dir DUMPS --log LOG` names, in its order; none if nothing is wrong.

    Args:
        dumps: A folder of dumps and guard manifests.
        log: The server's.

    Raises:
        DumpError: the folder cannot be listed.
    """
    material = read_store(DumpStore(dumps), None)
    logs = [facts for facts in [read_source(Source(str(log)), 2)] if facts.understood_lines] if log.exists() else []
    named = []
    for incident in assign_logs(material.incidents, logs):
        release = next((dump.manifest.versions.get("sglang") for dump in incident.dumps), None) or ""
        told = [facts if facts.release else replace(facts, release=release) for facts in incident.logs]
        found = conclude(incident, [one for facts in told for one in findings(facts)])
        named += [_named(finding) for finding in causes(found)]
    return named


def _named(finding: Finding) -> Named:
    return Named(
        rule=finding.rule,
        cause=finding.cause,
        structure=finding.structure,
        defect=finding.defect,
        confidence=finding.confidence.value,
        owner=_owner(finding),
    )


def _owner(finding: Finding) -> int | None:
    """Return the request slot that the evidence names first."""
    for piece in finding.evidence:
        of_table = piece.field.startswith(TABLE) and piece.field.endswith(_OWNER_COLUMN)
        if (of_table or piece.field.endswith(".request_slot")) and isinstance(piece.value, int):
            return piece.value
    return None
