"""The full-to-SWA mapping of a page leads to another SWA page than the one that was handed out with it."""

from collections.abc import Mapping, Sequence

from gemma4_dumps.audit_findings import TABLE
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.census import (
    HELD_TWICE,
    MAPPED_ELSEWHERE,
    STALE_MAPPING,
    Holder,
    Listed,
    first_census,
    lost_pages,
    mapped_defect,
)
from gemma4_triage.diagnose.earlier_calls import mapping_since
from gemma4_triage.diagnose.evidence import cell, said
from gemma4_triage.diagnose.freed_pages import was_freed
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.diagnose.places_in_page import led_apart, within_its_page
from gemma4_triage.diagnose.rule import FOLLOWS_FROM_AN_ENTRY, LEAVES_BUFFERS, LOSES_PAGES, Exclusion, Rule, Seen
from gemma4_triage.finding import Confidence, Finding

ID = "mapping-differs"
_HOLDER, _LEADS_TO = 1, 2
_CAUSE = (
    "The full-to-SWA mapping of a page that is in use leads elsewhere than to the SWA page that was handed out with it"
)
_TWO = ", which another full page has too: whether the hand-out or the mapping is wrong is not known."
_ADVICE = ("Look at who writes the mapping: set_full_to_swa_mapping, free_swa, tombstone recovery.",)


def find(incident: Incident) -> Finding | None:
    """Return a finding where the mapping is not that of the pairs that were handed out, as an audit or a free sees."""
    return _at_audit(incident) or _at_free(incident)


def _at_free(incident: Incident) -> Finding | None:
    dump = incident.first(verdict=("pool_alias", "stale_mapping", "free_out_of_range"))
    wrong = None if dump is None else mapping_since(dump)
    if dump is None or wrong is None or wrong.structure is None:
        return None
    return Finding(
        rule=ID,
        structure=wrong.structure,
        defect=wrong.defect,
        cause=_CAUSE + ".",
        confidence=Confidence.CERTAIN,
        evidence=(
            said(dump, "site", "the call that gives back, which saw it"),
            said(dump, "offences.0.value", "the SWA slot where the mapping leads"),
            said(dump, "offences.0.request_slot", "the request slot that had the full page last"),
            *wrong.proof,
        ),
        advice=_ADVICE,
        next_commands=(commands.show(dump), commands.serve(incident, "--debug trap", "--probes swa-allocator")),
    )


def _at_audit(incident: Incident) -> Finding | None:
    census = first_census(incident)
    if census is None or not census.holders:
        return None
    held = {one.page: one for one in reversed(census.holders)}
    # A free page there is the list's doing, or a free's, only if it is the page's own.
    elsewhere = [
        one
        for one in census.of("full", MAPPED_ELSEWHERE, STALE_MAPPING)
        if one.suspect.fault == MAPPED_ELSEWHERE or (one.page in held and held[one.page].leads_to != one.suspect.peer)
    ]
    first = next((one for one in elsewhere if one.page in held and one.suspect.peer is not None), None)
    if first is None:
        return None
    holder, own = held[first.page], first.suspect.peer or 0
    # Where two have the page that it was handed out with, the hand-out may be what was wrong.
    two = any(one.page == own for one in census.of("swa", HELD_TWICE))
    swapped = holder.leads_to != own and own in _turned(elsewhere, held)
    within = within_its_page(first) if holder.leads_to == own else None
    apart = next((told for one in elsewhere if (told := led_apart(one)) is not None), None)
    within = within or apart
    two = two and apart is None
    # Where one leads to the page of another that is out of place too, pages beside each other may have been exchanged.
    full = (one for one in census.listed if one.suspect.pool == "full" and one.page != first.page)
    others_too = any(one.suspect.peer == holder.leads_to for one in full)
    defect = None if others_too else mapped_defect(census, first, holder, own)
    defect = Defect.SWAPPED if swapped else defect
    cause = _CAUSE + (", which the mapping of another full page leads to." if swapped else _TWO if two else ".")
    listed = "led_apart" if apart is not None and within is apart else "out_of_place"
    return Finding(
        rule=ID,
        structure=None if two else Structure.SWA_MAPPING,
        defect=within.defect if within else defect,
        cause=within.cause if within else cause,
        confidence=Confidence.POSSIBLE if two else Confidence.CERTAIN,
        evidence=(
            cell(first.dump, TABLE, (first.row, 0), "the full page"),
            cell(first.dump, TABLE, (first.row, 10), "the SWA page that it was handed out with"),
            cell(census.dumps[0], "holders", (holder.row, _LEADS_TO), "where the mapping leads from it"),
            cell(census.dumps[0], "holders", (holder.row, _HOLDER), "the request slot that holds it; 0: the cache"),
            *(() if within is None else (said(first.dump, f"scalars.{listed}", "slot, where it leads, its own"),)),
            said(first.dump, "step", "the step of the audit that saw it first"),
        ),
        advice=_ADVICE,
        next_commands=(commands.audit(first.dump), commands.serve(incident, "--debug trap")),
    )


def _turned(elsewhere: Sequence[Listed], held: Mapping[int, Holder]) -> frozenset[int]:
    """Return the SWA pages that the mapping has in another order: each where another one of them belongs.

    Beginning with all that lead elsewhere, those are left out whose page none of the others leads to, or that lead to
    none of the others' pages, until all that are left have the same pages.
    """
    pairs = {(one.suspect.peer or 0, held[one.page].leads_to) for one in elsewhere if one.page in held}
    while pairs:
        own, led = {one for one, _ in pairs}, {to for _, to in pairs}
        left = {(one, to) for one, to in pairs if one in led and to in own}
        if left == pairs:
            return frozenset(own) if len(own) == len(pairs) == len(led) else frozenset()
        pairs = left
    return frozenset()


def _was_given_back(seen: Seen) -> bool:
    """Return whether the ledger saw a free of an audit's page since its hand-out; a free looks at the latest call."""
    dump, page = seen.dump, seen.finding.evidence[0].value
    return dump is not None and any(one.page == page and was_freed(one) for one in lost_pages(dump))


RULE = Rule(
    ID,
    find,
    ruled_out_if=(Exclusion("the full page was given back since: then its mapping need not be kept", _was_given_back),),
    explains=(*FOLLOWS_FROM_AN_ENTRY, "mapping-entry-wrong", "free-list-entry-wrong"),
    leads_to=(*LEAVES_BUFFERS, *LOSES_PAGES),
    follows_calls=True,
)
