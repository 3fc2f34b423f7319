"""Live pages of the full pool without an SWA page: where they stand in a row, and who gave the SWA page back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gemma4_dumps.audit_findings import TABLE, Suspect, suspects
from gemma4_dumps.errors import DumpError
from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.census import NOWHERE, TREE, first_census, lost_pages
from gemma4_triage.diagnose.evidence import cell, count_of, event, readable_events, said, tensor_or_none
from gemma4_triage.diagnose.incident import LEAK, Incident
from gemma4_triage.finding import Confidence, Finding

EVICTION = "evict_tree"
"""Who gives back what the prefix cache evicts, as events name it."""
_EDGES = "edges"


def of_events(incident: Incident, rule: str) -> Finding | None:
    """Return a finding where the sums agree, and the events have the free of an SWA page that is still counted on.

    An SWA page that is nowhere may have been meant: then this says nothing.
    """
    census = first_census(incident)
    if census is None or census.of("swa", NOWHERE):
        return None
    for dump in incident.of(rule=LEAK, verdict="null_page_live"):
        found = _given_back(dump)
        if found is None:
            continue
        number, holder, is_free = found
        of_node = holder == TREE and is_free and readable_events(dump)[number].get("site") == EVICTION
        who = "A node of the prefix cache" if holder == TREE else f"The request in slot {holder}"
        why = (
            "the cache's own eviction gave it back, and the node kept it"
            if of_node
            else "it was given back too early, or who gave it back did not count it"
        )
        return Finding(
            rule=rule,
            structure=Structure.TREE_NODE if of_node else None,
            defect=Defect.STALE if of_node else None,
            cause=f"{who} counts on an SWA page that the pool has back: {why}.",
            confidence=Confidence.CERTAIN if of_node else Confidence.POSSIBLE,
            evidence=(
                said(dump, "offence_count", "full pages of live tokens without an SWA slot"),
                cell(dump, TABLE, (0, 0), "the first of them"),
                cell(dump, TABLE, (0, 10), "the SWA page that it had"),
                event(dump, number, "site", "who gave that page back"),
                event(dump, number, "step", "when"),
                said(dump, "scalars.evicted", "tokens that each request counts as evicted, by slot"),
            ),
            advice=("Compare what was given to free_swa with what its owner notes of it in the same call.",),
            next_commands=(commands.audit(dump), commands.serve(incident, "--debug trap")),
        )
    return None


OF_A_WINDOW = (
    "unknown",
    "evict_swa",
    "alloc_for_extend",
    "alloc_for_decode",
    "spec_v2_decode",
    "cache_unfinished_req",
)
"""Who an event names that gives back what left a window; who closes a group of frees is not named."""


def given_back_by_the_window(dump: Dump) -> bool:
    """Return whether the events have each SWA page of those without one given back, and by no other than its window.

    Another is the cache's eviction, a release, or a call of another request's; a free that names fewer pages than it
    gave back may have given back any.
    """
    events = [one for one in readable_events(dump) if one.get("pool") == "swa"]
    lost = [page for page in lost_pages(dump) if page.fault == "unmapped"]
    return bool(lost) and all(_by_its_window(page, events) for page in lost)


def _by_its_window(page: Suspect, events: Sequence[Mapping[str, Any]]) -> bool:
    since, kinds = page.alloc_step or 0, ("free_asked", "freed")
    frees = [one for one in events if one.get("kind") in kinds and (one.get("step") or 0) >= since]
    of_page = [one for one in frees if page.peer in (one.get("first_pages") or ())]
    steps = {one.get("step") for one in of_page if one.get("kind") == "freed"}
    others = [one for one in frees if one.get("step") in steps and one.get("site") not in OF_A_WINDOW]
    whole = all(len(one.get("first_pages") or ()) == one.get("pages") for one in others)
    owner = None if page.owner is None else page.owner[0]
    return (
        bool(steps)
        and whole
        and all(one.get("site") in OF_A_WINDOW for one in of_page)
        and all(one.get("by_request_slot") in (None, owner) for one in of_page)
    )


def _given_back(dump: Dump) -> tuple[int, int, bool] | None:
    """Return the free of the first page's SWA page since it was handed out, who counts on it, and whether it is free.

    None where the events have no such free, or the page has not one holder.
    """
    try:
        first = suspects(dump)[0]
    except (DumpError, IndexError):
        return None
    events, table = readable_events(dump), tensor_or_none(dump, "holders")
    since = first.alloc_step
    of_peer = [
        number
        for number, one in enumerate(events)
        if one.get("pool") == "swa" and first.peer in (one.get("first_pages") or ())
    ]
    frees = [number for number in of_peer if events[number].get("kind") == "freed"]
    holders = set() if table is None else {int(row[1]) for row in table.tolist() if row[0] == first.page}
    if first.peer is None or since is None or len(holders) != 1 or not frees:
        return None
    if int(events[frees[-1]].get("step") or 0) < since:
        return None
    return frees[-1], holders.pop(), frees[-1] == of_peer[-1]


def places_in_row(dump: Dump) -> tuple[dict[int, tuple[int, int]], dict[int, int]] | None:
    """Return of the owner's row column and step of the free by page, and the step by column; None without `edges`."""
    table = tensor_or_none(dump, _EDGES)
    owners = {one.owner[0] for one in suspects(dump) if one.owner is not None}
    if table is None or table.ndim != 2 or table.shape[1] != 4 or len(owners) != 1:
        return None
    rows = [row for row in table.tolist() if row[0] in owners]
    return {page: (column, step) for _, column, page, step in rows}, {column: step for _, column, _, step in rows}


def of_a_count_that_fell(incident: Incident, rule: str) -> Finding | None:
    """Return a finding where the request of such pages counts fewer tokens as gone than at the audit before.

    None where a page is another's, or is not between the two counts.
    """
    for dump in incident.of(rule=LEAK, verdict="null_page_live"):
        found, page = [one for one in lost_pages(dump) if one.fault == "unmapped"], dump.manifest.page_size or 1
        slots = {None if one.owner is None else one.owner[0] for one in found}
        (slot,) = slots if len(slots) == 1 else (None,)
        before, now = (count_of(dump, name, slot) for name in ("evicted_before", "evicted"))
        if slot is None or before is None or now is None or len(found) != -(-before // page) - now // page:
            continue
        return Finding(
            rule=rule,
            structure=Structure.REQUEST_COUNTERS,
            defect=Defect.OFF_BY_ONE if before - now in (1, page) else None,
            cause=(
                f"The request in slot {slot} counts {now} tokens as gone from its sliding window (swa_evicted_seqlen), "
                f"and counted {before} at the audit before: that count only grows, and it went back. What lies between "
                "was given back already, and the next eviction, or the release, gives it back again by a mapping that "
                "leads nowhere."
            ),
            confidence=Confidence.CERTAIN,
            evidence=(
                said(dump, "offence_count", "full pages of live tokens without an SWA slot"),
                cell(dump, TABLE, (0, 0), "the first of them"),
                cell(dump, TABLE, (0, 4), "the request slot that owns them"),
                said(dump, "scalars.evicted_before", "what was counted as gone at the audit before, by slot"),
                said(dump, "scalars.evicted", "what is counted now"),
            ),
            advice=("Look at what sets that count: set_evicted_seqlen, clamp_evicted_seqlens, swa_evicted_seqlen.",),
            next_commands=(commands.audit(dump), commands.serve(incident, "--debug trap")),
        )
    return None
