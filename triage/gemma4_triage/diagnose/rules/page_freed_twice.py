"""Two owners of one page, or one owner that frees it on two paths."""

from gemma4_dumps.audit_findings import TABLE
from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands, freed_again
from gemma4_triage.diagnose.census import FREE_AND_HELD, NOWHERE, TWICE_FREE, Listed, first_census, lost_pages, single
from gemma4_triage.diagnose.cut_pages import cut_to
from gemma4_triage.diagnose.evidence import by_eviction, cell, said
from gemma4_triage.diagnose.freed_pages import of_request_slots
from gemma4_triage.diagnose.incident import LEAK, Incident
from gemma4_triage.diagnose.rule import Exclusion, Rule, Seen, calls_went_unseen, in_dump
from gemma4_triage.finding import Confidence, Finding

ID = "page-freed-twice"
_PAGE = (
    "A page was freed that is free already: two owners believe that they hold it, or one owner frees it on two paths."
)
_NEIGHBOUR = "A page was freed that is free already, and the one beside it is lost: the call named the wrong one."
_REQUEST_SLOT = (
    "A request slot stands twice on the list of free request slots, so that two requests may get the same row of "
    "req_to_token: it was given back twice, or something else wrote the list."
)


def find(incident: Incident) -> Finding | None:
    dump = incident.first(verdict="double_free")
    if dump is None:
        return None
    meant, of_slots, cut = _meant(incident, dump), of_request_slots(dump, TWICE_FREE), cut_to(incident)
    if meant is None and not cut and (listed := freed_again.listed_twice(ID, incident, dump)) is not None:
        return listed
    # An audit has the page alone: an eviction, a row or the mapping may have led either free to it.
    unseen = dump.manifest.rule == LEAK and calls_went_unseen(dump)
    freed_by = Structure.WINDOW_EVICTION if by_eviction(dump) else Structure.FREE_CALL
    return Finding(
        rule=ID,
        structure=None if of_slots or unseen else freed_by,
        defect=Defect.DUPLICATE if meant is None else Defect.OFF_BY_ONE,
        cause=_REQUEST_SLOT if of_slots else cut or _PAGE if meant is None else _NEIGHBOUR,
        confidence=Confidence.POSSIBLE if unseen else Confidence.CERTAIN,
        evidence=(
            said(dump, "site", "the second free, or the audit that saw it"),
            *(freed_again.of_slots(dump) if of_slots else freed_again.of_pages(dump)),
            *((said(dump, "scalars.call_site", "who asked for it"),) if by_eviction(dump) else ()),
            *(() if meant is None else (cell(meant.dump, TABLE, (meant.row, 0), "the page that is lost"),)),
        ),
        advice=(
            "Compare the slots with the prefix cache's insert and the request's release (release_kv_cache).",
            "SGLang hides a double free within one call or one free_group: it frees every page once.",
        ),
        next_commands=(
            commands.serve(incident, "--debug trap", "--probes swa-allocator"),
            "gemma4-triage audit --live",
        ),
        upstream=("SGLang 25805",),
    )


def _meant(incident: Incident, dump: Dump) -> Listed | None:
    """Return the page that a free was to name instead of its neighbour; None where an audit does not say so."""
    census = first_census(incident)
    if dump.manifest.rule != LEAK or census is None:
        return None
    pool = dump.manifest.pool_kind or "full"
    twice = single(census.of(pool, TWICE_FREE))
    lost = single(one for one in census.of(pool, NOWHERE) if one.was_taken and one.never_asked_back)
    return lost if twice is not None and lost is not None and abs(twice.page - lost.page) == 1 else None


def _nobody_freed(dump: Dump) -> bool | None:
    """Return whether an audit saw them twice and the ledger saw no free of them: then the list alone is wrong.

    None of request slots, of which the ledger keeps no history.
    """
    if dump.manifest.rule != LEAK:
        return False
    if of_request_slots(dump, TWICE_FREE):
        return None
    listed = lost_pages(dump)
    return bool(listed) and all(one.free_step is None for one in listed)


def _is_still_held(seen: Seen) -> bool | None:
    """Return whether the audit that saw the page freed twice saw it held, too; None of another dump."""
    census, dump = first_census(seen.incident), seen.dump
    if census is None or dump is None or dump.manifest.rule != LEAK:
        return None
    pool = _pool_of(dump)
    twice, held = ({one.page for one in census.of(pool, fault)} for fault in (TWICE_FREE, FREE_AND_HELD))
    return bool(twice & held) if twice else None


def _took_anothers_place(seen: Seen) -> bool | None:
    """Return whether the page is on the list in the place of one that was free, or was to be freed before it was.

    None of another dump than an audit's. A list to which a page is given back once more is longer, and none is missing.
    """
    census, dump = first_census(seen.incident), seen.dump
    if census is None or dump is None or dump.manifest.rule != LEAK:
        return None
    pool = _pool_of(dump)
    if of_request_slots(dump, TWICE_FREE):
        return None if census.of(pool, NOWHERE) else False
    twice, gone = census.of(pool, TWICE_FREE), census.of(pool, NOWHERE)
    freed = min((one.suspect.free_step or 0 for one in twice), default=-1)
    asked = (one.was_asked_back and (one.suspect.free_step or 0) <= freed for one in gone)
    return bool(twice) and (any(asked) or any(one.was_free for one in gone))


def _pool_of(dump: Dump) -> str:
    return "requests" if of_request_slots(dump, TWICE_FREE) else dump.manifest.pool_kind or "full"


RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion(
            "the ledger of the audit that saw it saw no free of the page: then the list alone is wrong",
            in_dump(_nobody_freed),
        ),
        Exclusion("the earlier free was the wrong one: then somebody still holds the page", _is_still_held),
        Exclusion(
            "the one call that gave it back was given it twice",
            lambda seen: (
                None if seen.finding.structure in (Structure.FULL_FREE_LIST, Structure.SWA_FREE_LIST) else False
            ),
        ),
        Exclusion(
            "a page that was free, or was to be, is nowhere: then this one stands in its place", _took_anothers_place
        ),
    ),
    explains=("page-given-twice", "freed-while-held", "swa-page-shared"),
    leads_to=("pool-leak",),
    follows_calls=True,
)
