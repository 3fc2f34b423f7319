"""A request's row or a node of the prefix cache has another page than the one that it was given."""

from gemma4_dumps.audit_findings import TABLE
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import census as audit
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.census import FREE_AND_HELD, HELD_TWICE, NOWHERE, TREE, Census, Holder, Listed, single
from gemma4_triage.diagnose.evidence import cell, said
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.diagnose.rule import FOLLOWS_FROM_AN_ENTRY, LEAVES_BUFFERS, LOSES_PAGES, Exclusion, Rule, Seen
from gemma4_triage.finding import Confidence, Finding

ID = "holder-entry-wrong"
HELD_OUT_OF_RANGE = "held_out_of_range"
_HOLDER = 1


def find(incident: Incident) -> Finding | None:
    """Return a finding where a page that was never given back is nowhere, and one holder has a stranger."""
    census = audit.first_census(incident)
    if census is None or not census.holders:
        return None
    lost = _lost(census)
    if lost is None:
        return None
    strangers = _strangers(census, lost)
    if len(strangers) != 1:
        return None
    return _finding(incident, census, lost, strangers[0])


def _strangers(census: Census, lost: Listed) -> list[Holder]:
    """Return the pages that a holder has and must not have, one row for each page."""
    holders = census.holders or ()
    found = {one.page: one for one in holders if not census.is_of_pool(one.page, "full")}
    for suspect in census.of("full", HELD_TWICE, FREE_AND_HELD):
        of_page = [one for one in holders if one.page == suspect.page]
        if suspect.suspect.fault == FREE_AND_HELD:
            found |= {one.page: one for one in of_page}
        elif (loser := _loser(census, lost, of_page)) is not None:
            found[suspect.page] = loser
    return list(found.values())


def _loser(census: Census, lost: Listed, of_page: list[Holder]) -> Holder | None:
    """Return which of a page's holders had the lost page; None if that cannot be told.

    The ledger says whether the prefix cache was given the page. Where it does not, a prompt's pages go to the cache,
    and what a request is given while it decodes stays its own; without a cache all of it does.
    """
    owner = census.slot_of(lost.suspect.owner)
    stays = lost.suspect.alloc_site in audit.OF_DECODES or not census.caches_prefixes
    of_request = not lost.is_of_cache and stays
    mine = owner if of_request else TREE
    return next((one for one in of_page if one.holder == mine), None)


def _finding(incident: Incident, census: Census, lost: Listed, stranger: Holder) -> Finding:
    dump, in_tree = census.dumps[0], stranger.holder == TREE
    what = "A node of the prefix cache" if in_tree else f"The row of request slot {stranger.holder} in req_to_token"
    # A cache takes what a row has: where nobody saw it take the right page, the row may have been wrong before. A row
    # with no page of the pool would have been seen by whoever follows it.
    from_row = in_tree and not lost.is_of_cache and census.is_of_pool(stranger.page, "full")
    which = "; whether its request's row was wrong when the cache took it is not known" if from_row else ""
    return Finding(
        rule=ID,
        structure=None if from_row else Structure.TREE_NODE if in_tree else Structure.REQUEST_ROW,
        defect=_defect(census, lost, stranger),
        cause=(
            f"{what} has another page than the one that {'its request' if from_row else 'it'} was given: that one is "
            f"nowhere, and nobody gave it back{which}."
        ),
        confidence=Confidence.POSSIBLE if from_row else Confidence.CERTAIN,
        evidence=(
            cell(lost.dump, TABLE, (lost.row, 0), "the page that nobody has"),
            cell(lost.dump, TABLE, (lost.row, 4), "the request slot that owned it"),
            cell(dump, "holders", (stranger.row, 0), "what stands in its place"),
            cell(dump, "holders", (stranger.row, _HOLDER), "who has that; 0: the prefix cache"),
            said(lost.dump, "step", "the step of the audit that saw it first"),
            *(said(one, "verdict", "the same page, as the holder's") for one in incident.of(verdict=HELD_OUT_OF_RANGE)),
        ),
        advice=(
            "Look at who wrote that place since the page was handed out: the node's value, or the request's row.",
            "Whoever reads the prefix or the row reads another's keys.",
        ),
        next_commands=(commands.audit(lost.dump), commands.serve(incident, "--debug trap")),
    )


def _lost(census: Census | None) -> Listed | None:
    found = () if census is None else census.of("full", NOWHERE)
    return single(one for one in found if one.was_taken and one.never_asked_back)


def _is_young(seen: Seen) -> bool:
    census = audit.first_census(seen.incident)
    lost = _lost(census)
    return census is not None and lost is not None and census.given_now(lost)


def _row_is_lost(seen: Seen) -> bool:
    """Return whether the request slot of the lost page's owner is nowhere too: nobody reads that row any more."""
    census = audit.first_census(seen.incident)
    lost = _lost(census)
    slot = None if census is None or lost is None else census.slot_of(lost.suspect.owner)
    return census is not None and slot in {one.page for one in census.of("requests", NOWHERE)}


def _is_inferred(seen: Seen) -> bool | None:
    """Return None where the loser is inferred, as of a page that two hold from where the lost one was given."""
    census = audit.first_census(seen.incident)
    lost = _lost(census)
    if census is None or lost is None:
        return None
    (stranger,) = _strangers(census, lost)
    twice = any(one.page == stranger.page for one in census.of("full", HELD_TWICE))
    owner = census.slot_of(lost.suspect.owner)
    return None if twice or stranger.holder not in (TREE, owner) else False


def _defect(census: Census, lost: Listed, stranger: Holder) -> Defect | None:
    if not census.is_of_pool(stranger.page, "full"):
        return audit.invalid_defect(stranger.page)
    if abs(stranger.page - lost.page) == 1:
        return Defect.OFF_BY_ONE
    if any(one.page == stranger.page for one in census.of("full", FREE_AND_HELD)):
        return Defect.STALE
    return audit.shared_defect(lost, single(one for one in census.of("full", HELD_TWICE) if one.page == stranger.page))


RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion(
            "the lost page was handed out in the step of the audit: then a length may be wrong, and not the place",
            _is_young,
        ),
        Exclusion("the whole row of its owner is out of use: then no place of it need be wrong", _row_is_lost),
        Exclusion("the other of the two that have the page had the lost one", _is_inferred),
    ),
    explains=FOLLOWS_FROM_AN_ENTRY,
    leads_to=(*LEAVES_BUFFERS, *LOSES_PAGES),
    follows_calls=True,
)
