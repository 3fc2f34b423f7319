"""One dump as a record of the report: what it says, and its picture if it has one."""

from __future__ import annotations

from datetime import datetime

from gemma4_dumps import reader
from gemma4_dumps.audit_findings import RULE as LEAK_AUDIT
from gemma4_dumps.errors import DumpError
from gemma4_dumps.schema import Manifest
from gemma4_triage.inspection.provenance_sentence import place, provenance_sentence
from gemma4_triage.report.model.ledger_part import ledger_part
from gemma4_triage.report.model.limits import MAX_ENTRIES, pairs_of
from gemma4_triage.report.model.page_grid import page_grid
from gemma4_triage.report.model.page_window import NoPicture
from gemma4_triage.report.model.records import Dump, Offence


def dump_part(dump: reader.Dump, number: int, begin: datetime, picture: bool) -> Dump:
    """number: in its incident, from 1. begin: of the incident. picture: whether to make one."""
    manifest = dump.manifest
    grid = ledger = None
    problems = [f"damaged: {problem}" for problem in dump.damage]
    if picture:
        try:
            if manifest.rule == LEAK_AUDIT:
                ledger = ledger_part(dump)
            else:
                grid = page_grid(dump)
        except DumpError as error:
            problems.append(f"its audit cannot be shown: {error}")
        except NoPicture as error:
            if manifest.tensors:
                problems.append(f"no page table is shown: {error}")
    # A leak audit's offences are its suspects.
    offences = () if manifest.rule == LEAK_AUDIT else manifest.offences[:MAX_ENTRIES]
    return Dump(
        number=number,
        id=manifest.dump_id,
        path=dump.place,
        created_utc=manifest.created_utc.isoformat(sep=" ", timespec="milliseconds"),
        after_s=round((manifest.created_utc - begin).total_seconds(), 3),
        host=manifest.host.hostname,
        rank=manifest.host.rank,
        pid=manifest.host.pid,
        rule=manifest.rule,
        verdict=manifest.verdict,
        action=manifest.action,
        site=manifest.site,
        place=place(manifest),
        step=manifest.step,
        summary=manifest.summary,
        sentence=provenance_sentence(manifest),
        offence_count=manifest.offence_count,
        entries=tuple(Offence.model_validate(offence.model_dump()) for offence in offences),
        facts=pairs_of(_facts(manifest).items()),
        repeat=manifest.repeat_command or "",
        grid=grid,
        ledger=ledger,
        problems=tuple(problems),
    )


def _facts(manifest: Manifest) -> dict[str, object]:
    graph = ("captured" if manifest.graph.captured else "eager") + (
        "" if manifest.graph.bucket is None else f", bucket {manifest.graph.bucket}"
    )
    origin = manifest.provenance
    found = {
        "backend": manifest.backend,
        "forward mode": manifest.forward_mode,
        "CUDA graph": graph,
        "page size": manifest.page_size,
        "table": f"{origin.table_space} ids, {origin.table_origin}" if origin.table_origin else None,
        "buffer": f"{origin.buffer_space} pool, {origin.buffer_origin}" if origin.buffer_origin else None,
        **{name.replace("_", " "): value for name, value in manifest.extents.items()},
    }
    missing = [f"{count} {name}" for name, count in manifest.dropped.model_dump().items() if count]
    cut = [f"{name}: {one.reason}" for name, one in manifest.truncated.items()]
    found |= {"not in this dump": ", ".join(missing) or None, "shortened tensors": "; ".join(cut) or None}
    return {name: value for name, value in found.items() if value is not None}
