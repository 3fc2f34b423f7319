"""An audit as the JSON document of `audit --json`: from dumps, or from a live run."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gemma4_dumps.audit_findings import Lost, PoolEquation, Suspect, equations, lives, lost, suspects
from gemma4_dumps.reader import Dump
from gemma4_triage.report.diagnosis_document import damaged_document

if TYPE_CHECKING:
    from gemma4_repro.live_audit import LiveAudit


def dumps_document(dumps: Sequence[Dump], skipped: Sequence[Dump]) -> dict[str, Any]:
    """`audit DUMP…`. skipped: dumps of another rule."""
    return {
        "leak": bool(dumps),
        "audits": [_audit(dump) for dump in dumps],
        "skipped": [{"dump": dump.manifest.dump_id, "rule": dump.manifest.rule} for dump in skipped],
        "damaged": damaged_document(dumps),
    }


def live_document(live: "LiveAudit", dumps: Sequence[Dump]) -> dict[str, Any]:
    """`audit --live`. equations: as of the last audit, after the flush."""
    tally = live.tally
    return {
        "leak": bool(dumps),
        "run_folder": str(live.folder),
        "faults": list(live.faults),
        "requests": live.requests,
        "audits_run": tally.audits,
        "steps": tally.steps,
        "events": tally.events,
        "pages": tally.pages,
        "page_size": tally.page_size,
        "equations": tally.equations,
        "let_pass": tally.let_pass,
        "audits": [_audit(dump) for dump in dumps],
    }


def _audit(dump: Dump) -> dict[str, Any]:
    manifest = dump.manifest
    found = suspects(dump)
    return {
        "dump": manifest.dump_id,
        "path": dump.place,
        "verdict": manifest.verdict,
        "site": manifest.site,
        "step": manifest.step,
        "summary": manifest.summary,
        "page_size": manifest.page_size,
        "equations": [_equation(equation) for equation in equations(dump)],
        "lost": [_lost(one) for one in lost(found)],
        "suspect_count": manifest.offence_count,
        "suspects": [_suspect(suspect) for suspect in found],
        "lives": [
            {"pool": pool, "page": page, "lives": [asdict(life) | {"owner": _owner(life.owner)} for life in of_page]}
            for (pool, page), of_page in lives(dump).items()
        ],
    }


def _equation(equation: PoolEquation) -> dict[str, Any]:
    return {
        "pool": equation.pool,
        **equation.sides,
        "accounted": equation.accounted,
        "total": equation.total,
        "holds": equation.holds,
    }


def _lost(one: Lost) -> dict[str, Any]:
    return {
        "pool": one.pool,
        "owner": _owner(one.owner),
        "pages": one.pages,
        "handed_out": [{"site": site, "step": step, "pages": pages} for site, step, pages in one.handed_out],
    }


def _suspect(suspect: Suspect) -> dict[str, Any]:
    return asdict(suspect) | {"owner": _owner(suspect.owner)}


def _owner(owner: tuple[int, int] | None) -> dict[str, int] | None:
    return None if owner is None else {"request_slot": owner[0], "generation": owner[1]}
