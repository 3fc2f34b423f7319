"""A free that looks the mapping up too late: it releases the SWA page that replaced the one it was asked to free."""

from gemma4_dumps.audit_findings import TABLE, Suspect
from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.census import exchange_of, lost_pages
from gemma4_triage.diagnose.evidence import cell, event, said, tensor_or_none
from gemma4_triage.diagnose.freed_by_number import freed_by_number
from gemma4_triage.diagnose.incident import LEAK, LOST_PAGES, Incident
from gemma4_triage.diagnose.lost_by_the_cache import freed_without, windows_taken_again
from gemma4_triage.diagnose.rule import LOSES_PAGES, Exclusion, Rule, calls_went_unseen, in_dump
from gemma4_triage.finding import Confidence, Finding

ID = "swa-page-replaced-before-free"
_EVICTS, _INSERTS = ("evict_tree",), ("cache_unfinished_req", "cache_finished_req")


def find(incident: Incident) -> Finding | None:
    for dump in incident.of(rule=LEAK, verdict="pool_leak"):
        lost = lost_pages(dump)
        # A page that was free when it got lost was lost by the free list.
        # The full page may be in use again by then, where the events have shown what became of it before.
        if lost and all(
            _stayed_behind(one) and (not _is_held(dump, one) or exchange_of(dump, one) or _left(dump, one) is not None)
            for one in lost
        ):
            break
    else:
        return None
    exchange = exchange_of(dump, lost[0])
    at = None if exchange or calls_went_unseen(dump) else _left(dump, lost[0])
    if at is not None:
        if (other := freed_by_number(ID, incident, dump, lost, at)) is not None:
            return other
        return _left_behind(dump, at, freed_without(dump, lost[0], *_INSERTS) is not None)
    # Where no other page was handed out and given back in its place, a free that left the SWA side out does the same.
    unseen = calls_went_unseen(dump) or not exchange
    return Finding(
        rule=ID,
        structure=None if unseen else Structure.SWA_MAPPING,
        defect=None if unseen else Defect.FOREIGN,
        cause=(
            "SWA pages are lost although their full pages were freed: the mapping led elsewhere by the time of the "
            "free, so the replacement was released and the page that was meant stayed behind"
            + ("; or the free was asked for fewer pages, or for others." if unseen else ".")
        ),
        confidence=Confidence.POSSIBLE if unseen else Confidence.CERTAIN,
        evidence=(
            said(dump, "offence_count", "SWA pages that belong to nobody and are not free; no full page is lost"),
            cell(dump, TABLE, (0, 0), "the first of them"),
            said(dump, "scalars.swa_available", "SWA tokens that are free"),
            said(dump, "scalars.swa_total", "the SWA pool: the parts are less"),
            *exchange,
            *(
                said(one, "offences.0.value", "the free that named it saw that it is on no list")
                for one in incident.of(rule=LOST_PAGES)
                if exchange and one.manifest.offences and one.manifest.offences[0].value == lost[0].page
            ),
        ),
        advice=(
            "Look for what writes the mapping of slots that wait in an open free group: tombstone recovery, or "
            "set_full_to_swa_mapping between free_group_begin and free_group_end.",
            "The pool stays smaller until a flush_cache or a restart.",
        ),
        next_commands=(commands.audit(dump), commands.corpus("deferred-free-after-replacement")),
        upstream=("SGLang 36081",),
    )


def _left(dump: Dump, lost: Suspect) -> int | None:
    """Return the event by which an eviction, or else what was put into the cache, gave back the full page alone."""
    at = freed_without(dump, lost, *_EVICTS)
    return freed_without(dump, lost, *_INSERTS) if at is None and not windows_taken_again(dump) else at


def _left_behind(dump: Dump, number: int, inserted: bool) -> Finding:
    return Finding(
        rule=ID,
        structure=Structure.FREE_CALL,
        defect=Defect.LOST,
        cause=(
            "SWA pages are lost whose full pages were given back as their request was put into the prefix cache, which "
            "has those tokens already (duplicates): of duplicates the SWA side was left out, or was to go to a node "
            "without a window (tombstone), which did not take it."
            if inserted
            else "SWA pages are lost whose full pages the prefix cache's eviction gave back: of an evicted node's "
            "window it gave back fewer pages than the node has, or none, then or as the window alone was evicted "
            "before."
        ),
        confidence=Confidence.CERTAIN,
        evidence=(
            said(dump, "offence_count", "SWA pages that belong to nobody and are not free; no full page is lost"),
            cell(dump, TABLE, (0, 0), "the first of them"),
            event(dump, number, "site", "who gave back its full page, and not it"),
            event(dump, number, "step", "when that was"),
        ),
        advice=(
            "Look at what an insert hands to free_segment, which gives back both sides, and to free_full_segment, "
            "which leaves the SWA page (_apply_insert_action, recover of the cache's sliding-window part)."
            if inserted
            else "Look at what an eviction hands to free_swa_segment (evict_component of the cache's sliding-window "
            "part): which of a node's slots, and how many.",
            "The pool stays smaller until a flush_cache or a restart.",
        ),
        next_commands=(commands.audit(dump),),
    )


def _is_held(dump: Dump, suspect: Suspect) -> bool:
    """Return whether somebody still holds the full page: then it was not freed, and another structure is wrong."""
    holders = tensor_or_none(dump, "holders")
    return holders is not None and holders.ndim == 2 and suspect.peer in holders[:, 0].tolist()


def _stayed_behind(suspect: Suspect) -> bool:
    return suspect.pool != "requests" and suspect.fault == "nowhere" and suspect.last_event not in ("cleared", "freed")


RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion(
            "full pages of the same owner are lost too: then nothing was freed at all",
            in_dump(lambda dump: any(one.pool == "full" for one in lost_pages(dump))),
        ),
        Exclusion(
            "the events show no other SWA page that was handed out and freed in its place",
            in_dump(lambda dump: False if exchange_of(dump, lost_pages(dump)[0]) else None),
        ),
    ),
    injected_by=("deferred-free-after-replacement",),
    leads_to=LOSES_PAGES,
    follows_calls=True,
)
