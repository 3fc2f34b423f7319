"""Finished, and never released: request slots, their pages and their locks all stay."""

from gemma4_dumps.audit_findings import TABLE, Suspect, suspects
from gemma4_dumps.errors import DumpError
from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.census import lost_pages
from gemma4_triage.diagnose.evidence import cell, said
from gemma4_triage.diagnose.incident import LEAK, Incident
from gemma4_triage.diagnose.rule import LOSES_PAGES, Exclusion, Rule, in_dump
from gemma4_triage.finding import Confidence, Finding

ID = "finished-requests-not-released"
_PAGE, _OWNER = 0, 4


def find(incident: Incident) -> Finding | None:
    for dump in incident.of(rule=LEAK, verdict="pool_leak"):
        try:
            rows = suspects(dump)
        except DumpError:
            continue
        slot = next((row for row, suspect in enumerate(rows) if suspect.pool == "requests"), None)
        page = next(
            (row for row, suspect in enumerate(rows) if slot is not None and _belongs(suspect, rows[slot])), None
        )
        if slot is not None and page is not None:
            break
    else:
        return None
    locked = _is_locked(rows)
    return Finding(
        rule=ID,
        structure=Structure.FREE_CALL,
        defect=Defect.LOST,
        cause=(
            "Requests finished and were never released: their request slots, the pages of their tokens"
            f"{' and their locks in the prefix cache' if locked else ''} are all still taken."
        ),
        confidence=Confidence.CERTAIN if _counts_agree(dump, locked) else Confidence.LIKELY,
        evidence=(
            cell(dump, TABLE, (slot, _PAGE), "a request slot that belongs to nobody and is not free"),
            cell(dump, TABLE, (page, _PAGE), "a page that belongs to nobody and is not free"),
            cell(dump, TABLE, (page, _OWNER), "its last owner: that request slot"),
            said(dump, "scalars.requests_available", "request slots that are free"),
            said(dump, "scalars.requests_total", "request slots that there are"),
            said(dump, "scalars.full_protected", "tokens locked in the prefix cache, with no request left"),
        ),
        advice=(
            "Look for a result path that skips finished requests: V1 verify finishes them inside the forward, and an "
            "overlap scheduler takes them for released already.",
            "The pools stay smaller until a restart; SGLang's own check says only that tokens leaked.",
        ),
        next_commands=(commands.audit(dump), commands.corpus("double-bookkeeping"), commands.repro("mtp-v2-leak")),
        upstream=("SGLang 7130",),
    )


def _belongs(suspect: Suspect, slot: Suspect) -> bool:
    owner = None if suspect.owner is None else suspect.owner[0]
    return suspect.pool == "full" and suspect.fault == "nowhere" and owner == slot.page


def _is_locked(rows: list[Suspect]) -> bool:
    return any(suspect.fault == "locked_at_idle" for suspect in rows)


def _counts_agree(dump: Dump, locked: bool) -> bool:
    """Return whether the audit's own counts have a request slot taken, and tokens locked where a lock is left."""
    scalars = dump.manifest.scalars
    free, all_of_them = scalars.get("requests_available"), scalars.get("requests_total")
    taken = not isinstance(free, int) or not isinstance(all_of_them, int) or free < all_of_them
    protected = [scalars.get(f"{pool}_protected") for pool in ("full", "swa")]
    return taken and (not locked or any(isinstance(one, int) and one > 0 for one in protected))


def _was_released(dump: Dump) -> bool:
    """Return whether a page of such a slot was asked back after its hand-out."""
    rows = suspects(dump)
    slots = [suspect for suspect in rows if suspect.pool == "requests"]
    of_slots = [suspect for suspect in rows if any(_belongs(suspect, slot) for slot in slots)]
    return any((one.free_step or -1) >= (one.alloc_step or 0) for one in of_slots)


def _runs_in_row_0(dump: Dump) -> bool:
    """Return whether a request runs in the row for padding: then it may be the one that had such a slot."""
    return any(one.pool == "requests" and one.fault == "held_null" for one in lost_pages(dump))


def _one_path(dump: Dump) -> bool | None:
    """Return False where locks are left over too: the three together are what one release gives back."""
    return False if _is_locked(suspects(dump)) else None


RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion("the ledger saw a free of these pages since they were handed out", in_dump(_was_released)),
        Exclusion(
            "a request runs in row 0: then it may be the one whose slot is lost",
            lambda seen: any(map(_runs_in_row_0, seen.incident.of(rule=LEAK))),
        ),
        Exclusion("the pages were lost on some path, and the slots on another", in_dump(_one_path)),
    ),
    injected_by=("double-bookkeeping", "finish-inside-forward"),
    leads_to=LOSES_PAGES,
)
