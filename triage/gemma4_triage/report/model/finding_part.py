"""Findings of `diagnose` and `logs` as records of a report."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from gemma4_dumps import reader
from gemma4_triage import finding as diagnosed
from gemma4_triage.diagnose.next_steps import fix_line
from gemma4_triage.report.model.limits import MAX_EVIDENCE, MAX_LINES, first
from gemma4_triage.report.model.records import Evidence, Finding


def finding_part(found: diagnosed.Finding, dumps: Mapping[str, reader.Dump], numbers: Mapping[str, int]) -> Finding:
    """dumps: of the incident, by id. numbers: of those that the report shows."""
    evidence, left = first(found.evidence, MAX_EVIDENCE, "piece", " of evidence")
    return Finding(
        rule=found.rule,
        kind=found.kind.value,
        confidence=found.confidence.value,
        cause=found.cause,
        evidence=tuple(
            Evidence(
                source=piece.source,
                number=numbers.get(piece.source),
                field=piece.field,
                value="not there" if piece.value is None else str(piece.value),
                meaning=piece.meaning,
            )
            for piece in evidence
        ),
        ruled_out_if=found.ruled_out_if[:MAX_LINES],
        advice=(*found.advice, *((fix_line(found),) if found.fix else ()))[:MAX_LINES],
        commands=found.next_commands[:MAX_LINES],
        upstream=found.upstream[:MAX_LINES],
        fingerprint=_fingerprint(found, dumps),
        left_out=left,
    )


def _fingerprint(found: diagnosed.Finding, dumps: Mapping[str, reader.Dump]) -> str:
    """Digest the rule and the kinds of dumps that it rests on; no time, path, host or page is in it."""
    kinds = set()
    for piece in found.evidence:
        dump = dumps.get(piece.source)
        if dump is not None and not piece.field.startswith("guards."):
            manifest = dump.manifest
            spaces = manifest.provenance.table_space, manifest.provenance.buffer_space
            kinds.add(
                (manifest.rule, manifest.verdict, manifest.role, manifest.layer.type, manifest.pool_kind, *spaces)
            )
    text = repr((found.rule, sorted(map(repr, kinds))))
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:32]
