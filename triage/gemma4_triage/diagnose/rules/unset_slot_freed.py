"""A caller frees slots of the dummy page 0: an entry of a row that was never written.

The allocator probe sees the call. In `contain` there is none, and the leak audit finds page 0 on the free list later.
"""

from gemma4_dumps.audit_findings import TABLE, suspects
from gemma4_dumps.errors import DumpError
from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import cell, event, readable_events, said
from gemma4_triage.diagnose.incident import LEAK, Incident
from gemma4_triage.diagnose.rule import Exclusion, Rule
from gemma4_triage.finding import Confidence, Evidence, Finding

ID = "unset-slot-freed"
_OF_A_FREE = {
    "by_request_slot": "the request that was released",
    "slots": "how many slots of page 0: a row that was never written has one, over and over",
}


def find(incident: Incident) -> Finding | None:
    at_free = _at_free(incident)
    at_audit, _ = _at_audit(incident)
    if not at_free and not at_audit:
        return None
    by_call = any("events" in piece.field for piece in at_audit)
    return Finding(
        rule=ID,
        # A row that was never written holds 0 everywhere; slots 0 to 15 are those of a page that somebody named.
        structure=Structure.FREE_CALL if _names_a_page(incident) else None,
        defect=Defect.ZERO,
        cause=(
            "Somebody frees a slot of page 0, which no allocator ever hands out: an unset entry of a request's row "
            "holds 0, and so does the mapping of a slot without an SWA peer."
        ),
        # Without a call that freed it the list may have been overwritten.
        confidence=Confidence.CERTAIN if at_free or by_call else Confidence.POSSIBLE,
        evidence=(*at_free, *at_audit),
        advice=(
            "Released, page 0 is handed out as a normal page, while padded tokens keep writing to it.",
            "Look at the caller's row: it frees more of it than the request wrote (kv_allocated_len, evicted prefix).",
        ),
        next_commands=(
            commands.serve(incident, "--debug trap", "--probes swa-allocator"),
            commands.corpus("free-of-page-zero"),
        ),
        upstream=("SGLang 38519",),
    )


def _at_free(incident: Incident) -> tuple[Evidence, ...]:
    for dump in incident.of(rule="swa-free-range", verdict="free_out_of_range"):
        offences, page = dump.manifest.offences, dump.manifest.page_size or 1
        if offences and all(0 <= offence.value < page for offence in offences):
            return (
                said(dump, "offences.0.value", "the slot to be freed"),
                said(dump, "offences.0.lower", "the first slot that the pool hands out"),
                said(dump, "site", "the call that frees it"),
                said(dump, "pool_kind", "of which pool"),
            )
    return ()


def _names_a_page(incident: Incident) -> bool:
    dump = incident.first(rule="swa-free-range", verdict="free_out_of_range")
    if dump is not None:
        return len({offence.value for offence in dump.manifest.offences}) > 1
    audit = _audit(incident)
    number = None if audit is None else _free_of_no_page(audit)
    return audit is not None and number is not None and "slots" in readable_events(audit)[number]


def _at_audit(incident: Incident) -> tuple[tuple[Evidence, ...], bool]:
    """Return also whether other pages are listed beside page 0."""
    dump = _audit(incident)
    if dump is None:
        return (), False
    pages = _pages(dump)
    evidence = (
        cell(dump, TABLE, (pages.index(0), 0), "a page on the free list that the pool never hands out"),
        said(dump, "pool_kind", "of which pool"),
        said(dump, "step", "when the audit saw it"),
        said(dump, f"scalars.{dump.manifest.pool_kind}_available", "tokens free in that pool, with page 0's"),
        *_freed_by(dump),
    )
    return evidence, any(pages)


def _audit(incident: Incident) -> Dump | None:
    """Return the first audit that has page 0 on a free list."""
    return next((dump for dump in incident.of(rule=LEAK, verdict="free_out_of_range") if 0 in _pages(dump)), None)


def _freed_by(dump: Dump) -> tuple[Evidence, ...]:
    number = _free_of_no_page(dump)
    if number is None:
        return ()
    known = [name for name in ("by_request_slot", "slots") if readable_events(dump)[number].get(name) is not None]
    return (
        event(dump, number, "site", "the first free of no page of the pool"),
        event(dump, number, "step", "when that was"),
        *(event(dump, number, name, _OF_A_FREE[name]) for name in known),
    )


def _free_of_no_page(dump: Dump) -> int | None:
    """Return the first free whose slots are of no page of the pool, if it is among the events that the audit kept."""
    for number, record in enumerate(readable_events(dump)):
        freed = record.get("kind") in ("free_asked", "freed") and record.get("pool") == dump.manifest.pool_kind
        if freed and record.get("pages") == 0:
            return number
    return None


def _pages(dump: Dump) -> list[int]:
    try:
        listed = suspects(dump)
    except DumpError:
        return []
    # Request slot 0 is no page.
    return [suspect.page if suspect.pool in ("full", "swa") else -1 for suspect in listed]


# Handed out, page 0 stands in live tables; several requests hold it, overwrite its mapping, and free it in turn.
_FOLLOWS = ("null-page-in-live-column", "page-freed-twice", "page-given-twice", "swa-page-shared")
_ALSO = ("swa-page-replaced-before-free",)
RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion(
            "slots above page 0 are listed too: then the list itself is wrong",
            lambda seen: not _at_free(seen.incident) and _at_audit(seen.incident)[1],
        ),
        Exclusion("the row was written, and its slots were overwritten with those of page 0"),
    ),
    injected_by=("free-of-page-zero",),
    explains=(*_FOLLOWS, *_ALSO),
    leads_to=("pool-leak",),
)
