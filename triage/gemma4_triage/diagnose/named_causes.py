"""What `diagnose` names of a server's dumps and log, in the words in which mutations are drawn."""

from __future__ import annotations

from pathlib import Path

from gemma4_dumps.audit_findings import TABLE
from gemma4_dumps.store import DumpStore
from gemma4_repro.mutations.score import Named
from gemma4_triage.diagnose.all_evidence import concluded, incidents_of
from gemma4_triage.diagnose.material import read_store
from gemma4_triage.finding import Finding, causes
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
    logs = [read_source(Source(str(log)), 2)] if log.exists() else []
    incidents = incidents_of(material, logs)
    return [_named(finding) for _, found in concluded(incidents) for finding in causes(found)]


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
        if (of_table or piece.field.endswith((".request_slot", ".by_request_slot"))) and isinstance(piece.value, int):
            return piece.value
    return None
