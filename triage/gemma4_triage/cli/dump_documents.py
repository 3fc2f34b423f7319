"""The JSON documents of the `dumps` verbs. Keys carry their units."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gemma4_dumps.directory_name import short_id
from gemma4_dumps.included import sensitive
from gemma4_dumps.listing import ListedDump
from gemma4_dumps.plain_json import plain
from gemma4_dumps.reader import Dump
from gemma4_dumps.retention import Removal
from gemma4_dumps.verify import VerifyReport
from gemma4_triage.inspection.offending_rows import offending_rows
from gemma4_triage.inspection.provenance_sentence import provenance_sentence


def listing(root: Path, entries: Iterable[ListedDump], hidden: int, dropped: dict[str, int]) -> dict[str, Any]:
    """`dumps list --json`. hidden: how many older dumps the limit leaves out."""
    dumps = [_entry(entry) for entry in entries]
    return {"root": str(root), "dumps": dumps, "hidden": hidden, "dropped_dumps": dropped}


def dump(found: Dump, rows: int) -> dict[str, Any]:
    """`dumps show --json`."""
    # Here, because the rules of diagnose come with it, and a list has no use for them.
    from gemma4_triage.diagnose.next_steps import next_steps

    return {
        "path": str(found.path),
        "damage": list(found.damage),
        "not_hashed": list(found.not_hashed),
        "provenance_sentence": provenance_sentence(found.manifest),
        "included": list(sensitive(found.manifest)),
        "offending_rows": plain([asdict(row) for row in offending_rows(found, rows)]),
        "next_steps": next_steps(found),
        # A newer minor version may have brought fields with values that JSON has no word for.
        "manifest": plain(found.manifest.model_dump(mode="json")),
    }


def verification(report: VerifyReport) -> dict[str, Any]:
    """`dumps verify --json`."""
    return {"path": str(report.path), "ok": report.ok, "checks": [asdict(check) for check in report.checks]}


def removal(root: Path, removals: Sequence[Removal], dry_run: bool) -> dict[str, Any]:
    """`dumps prune --json`."""
    return {
        "root": str(root),
        "dry_run": dry_run,
        "size_bytes": sum(item.entry.size_bytes for item in removals),
        "removed": [{"dump_id": item.entry.dump_id, "reason": item.reason} for item in removals],
    }


def _entry(entry: ListedDump) -> dict[str, Any]:
    document: dict[str, Any] = {
        "dump_id": entry.dump_id,
        "short_id": short_id(entry.dump_id),
        "path": str(entry.path),
        "state": entry.state,
        "problem": entry.problem,
        "created_utc": entry.created_utc.isoformat(),
        "size_bytes": entry.size_bytes,
    }
    if entry.heading is not None:
        wanted = {"rule", "verdict", "summary", "action", "site", "layer", "role", "step", "offence_count"}
        document |= plain(entry.heading.model_dump(mode="json", include=wanted))
        document["included"] = list(sensitive(entry.heading))
    return document
