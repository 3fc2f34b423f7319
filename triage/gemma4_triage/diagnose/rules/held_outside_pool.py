"""A request or the prefix cache holds page 0, or what is no page of the pool, and nothing else says why."""

from gemma4_dumps.audit_findings import TABLE
from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.census import NOWHERE, TREE, Census, Listed, first_census, invalid_defect
from gemma4_triage.diagnose.evidence import cell, said
from gemma4_triage.diagnose.guards import Guards
from gemma4_triage.diagnose.incident import LEAK, Incident
from gemma4_triage.diagnose.rule import LEAVES_BUFFERS, Exclusion, Rule, Seen, in_dump
from gemma4_triage.diagnose.rules.holder_entry_wrong import HELD_OUT_OF_RANGE
from gemma4_triage.diagnose.stray_entries import leave_no_other, stray_entries
from gemma4_triage.diagnose.written_by import where_to_look
from gemma4_triage.finding import Confidence, Finding

ID = "held-outside-pool"
_ENTRIES = "request slot, first token without a page, how many there are, how many with one follow"


def find(incident: Incident) -> Finding | None:
    """Return a finding where an audit saw such a page held."""
    dump = incident.first(rule=LEAK, verdict=HELD_OUT_OF_RANGE)
    if dump is None:
        return None
    census = first_census(incident)
    held = _held(census)
    holder = None if held is None or census is None else _holder(census, held.page)
    lost = census is not None and bool(census.of("full", NOWHERE))
    entries = None if holder is None else stray_entries(dump, holder)
    # Only what its row was not given ends it: an entry before others of pages was written, or not taken over.
    inside = entries is not None and entries[2] > 0
    counted = holder not in (None, TREE) and not lost and entries is not None and not inside and entries[1] > 1
    certain = entries is not None and leave_no_other(dump, entries)
    told = counted or inside or holder == TREE or lost
    return Finding(
        rule=ID,
        structure=(Structure.REQUEST_ROW if inside else _structure(holder, lost)) if told else None,
        # Which of its counters is too large, and by how much, the page does not say.
        defect=None if counted or held is None else invalid_defect(held.page),
        cause=_cause(held, holder, lost, entries, certain),
        confidence=(
            (Confidence.CERTAIN if certain else Confidence.LIKELY) if counted or inside else Confidence.POSSIBLE
        ),
        evidence=(
            said(dump, "summary", "what the audit found"),
            said(dump, "step", "the step of the audit that saw it first"),
            *(() if held is None else (cell(held.dump, TABLE, (held.row, 0), "the page that is held"),)),
            *((said(dump, "scalars.stray_entries", _ENTRIES),) if entries is not None else ()),
        ),
        advice=(
            "Whoever reads that place reads the padding's keys, and who gives it back puts it on the free list.",
            where_to_look(Structure.REQUEST_ROW)
            if inside
            else "Compare the request's kv_allocated_len with how many slots its row was given.",
        ),
        next_commands=(commands.audit(dump), commands.serve(incident, "--debug trap")),
    )


def _held(census: Census | None) -> Listed | None:
    listed = () if census is None else census.of("full", "held_null", "held_outside")
    return listed[0] if listed else None


def _holder(census: Census, page: int) -> int | None:
    """Return who holds the page, if it is one alone."""
    holders = {one.holder for one in census.holders or () if one.page == page}
    return holders.pop() if len(holders) == 1 else None


def _structure(holder: int | None, lost: bool) -> Structure | None:
    if holder is None:
        return None
    if holder == TREE:
        return Structure.TREE_NODE
    return Structure.REQUEST_ROW if lost else Structure.REQUEST_COUNTERS


def _counts_may_be_wrong(seen: Seen) -> bool | None:
    """Return False where the finding is certain, as it is of entries that one cause alone leaves (leave_no_other)."""
    holders = str(seen.dump.manifest.scalars.get("stray_entries") or "") if seen.dump is not None else ""
    return False if holders and seen.finding.confidence is Confidence.CERTAIN else None


def _cause(
    held: Listed | None, holder: int | None, lost: bool, entries: tuple[int, int, int] | None, certain: bool
) -> str:
    what = "an index that is no page of its pool" if held is None or held.page else "page 0, which is for padding,"
    if holder is None:
        return f"Somebody holds {what} as if it were a page."
    if holder == TREE:
        return f"A node of the prefix cache holds {what} as if it were a page of a prompt."
    if lost:
        return f"The row of request slot {holder} has {what} where a page of its own was."
    if entries is not None and entries[2]:
        return (
            f"The row of request slot {holder} has {what} at token {entries[0]}, {entries[1]} of its entries in all, "
            f"and slots of pages at {entries[2]} tokens behind that: no page is lost, the entry was overwritten, or "
            "was not written with those around it."
        )
    if entries is None or entries[1] == 1:
        where = "" if entries is None else f"at its last token, {entries[0]}, alone, "
        return (
            f"The request in slot {holder} counts {what} {where}as its own, and no page is lost: it counts more tokens "
            "than its row was given, or an entry of its row was overwritten."
        )
    or_else = "" if certain else ", or slots of a page that it has were given and not written there"
    return (
        f"The request in slot {holder} counts {what} as its own, and no page is lost: it counts more tokens as "
        f"allocated than its row was given{or_else}."
    )


def _may_be_handed_out(dump: Dump) -> bool | None:
    """Return False where such entries begin within a page, or hand-outs are looked at as they are made."""
    page = dump.manifest.page_size or 1
    told = [one.split(":") for one in str(dump.manifest.scalars.get("stray_entries") or "").split(",")]
    within = all(len(one) == 4 and one[1].isdecimal() and int(one[1]) % page for one in told)
    guards = Guards(dump.manifest.dump_id, "guards.", dump.manifest.guards)
    return False if within or guards.attached("swa-allocator") is not None else None


RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion(
            "the request's row was written there since: then its counters are right, and the row is not",
            _counts_may_be_wrong,
        ),
        Exclusion("that page was handed out: then the free list or the call is wrong", in_dump(_may_be_handed_out)),
    ),
    leads_to=LEAVES_BUFFERS,
    fallback=True,
)
