"""One entry of a free list is not the page that the ledger knows to be free: replaced, taken away, or given wrongly."""

from gemma4_dumps.audit_findings import TABLE
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.census import (
    FREE_AND_HELD,
    HELD_TWICE,
    NOWHERE,
    OUT_OF_RANGE,
    Census,
    Listed,
    first_census,
    invalid_defect,
    single,
)
from gemma4_triage.diagnose.evidence import cell, said
from gemma4_triage.diagnose.freed_pages import listed_while_in_use, nothing_happened, stranger_defect, strangers
from gemma4_triage.diagnose.incident import LOST_PAGES, Incident
from gemma4_triage.diagnose.list_entries import made_too_short, several_entries
from gemma4_triage.diagnose.rule import FOLLOWS_FROM_AN_ENTRY, LEAVES_BUFFERS, LOSES_PAGES, Exclusion, Rule, Seen
from gemma4_triage.diagnose.where_wrong import free_list_of_pool
from gemma4_triage.finding import Confidence, Finding

ID = "free-list-entry-wrong"
_PAGE, _LAST_EVENT = 0, 11
_STALE = "stale_mapping"
_OF_A_HAND_OUT = (
    "A page that was free is no longer on the free list of the {pool} pool, and another was handed out in its place: "
    "the list named another page, or the call that hands out returned one. Which of them cannot be told from this."
)
_BY_THE_CALL = (
    "A call that hands out pages of the {pool} pool took a page off its free list and gave another, which was free and "
    "still is on the list: the call is wrong, and not the list."
)


def find(incident: Incident) -> Finding | None:
    """Return a finding where a page is missing from a free list that nobody took off it."""
    census = first_census(incident)
    if census is None:
        return listed_while_in_use(incident, ID)
    for pool in ("full", "swa"):
        beyond = census.of(pool, OUT_OF_RANGE)
        if beyond and nothing_happened(census):
            return _of_start(incident, pool, beyond[0])
        several = made_too_short(ID, incident, census, pool) or several_entries(ID, incident, census, pool)
        if several is not None:
            return several
        missing = single(one for one in census.of(pool, NOWHERE) if one.was_free)
        # More of them are lost by a call, and not by an entry.
        if missing is None or len(census.of(pool, NOWHERE)) > 1:
            continue
        strange = strangers(census, pool)
        if len(strange) <= 1:
            other = single(strange) or single(census.of(pool, HELD_TWICE, FREE_AND_HELD))
            given = other is not None and (other in strange or census.given_instead(other, missing))
            return _finding(incident, census, pool, missing, other if given else None)
    return None


def _of_start(incident: Incident, pool: str, first: Listed) -> Finding:
    return Finding(
        rule=ID,
        structure=free_list_of_pool(pool),
        defect=invalid_defect(first.page),
        cause=(
            f"The free list of the {pool} pool has a page that this pool has not, and nothing has been handed out or "
            "given back yet: the list was made with it, for a pool of another size, or was written since."
        ),
        confidence=Confidence.CERTAIN,
        evidence=(
            cell(first.dump, TABLE, (first.row, _PAGE), "the page"),
            said(first.dump, f"extents.pages_{pool}_pool", "pages of the pool"),
            said(first.dump, "scalars.events_seen", "calls of the allocators until then"),
            said(first.dump, "step", "the step of the audit"),
        ),
        advice=("Compare the allocator's num_pages with its size, and with the buffers: `resize` and `clear` too.",),
        next_commands=(commands.audit(first.dump), commands.serve(incident, "--preset debug", "--debug trap")),
    )


def _finding(incident: Incident, census: Census, pool: str, missing: Listed, strange: Listed | None) -> Finding:
    # Handed out since the audit before, the stranger may also be what a hand-out was turned into.
    given_now = strange is not None and census.given_instead(strange, missing)
    lost_in = f"{pool}_lost_in"
    # Of a call that is longer ago the lists are not known.
    told = missing.dump.manifest.scalars.get(lost_in) if strange is not None and census.given_now(strange) else None
    now, by_call, was_twice = given_now and told is None, told == "hand-out", told == "listed twice"
    other = () if strange is None else (cell(strange.dump, TABLE, (strange.row, _PAGE), "what the list has instead"),)
    return Finding(
        rule=ID,
        structure=None if now else Structure.ALLOCATION if by_call else free_list_of_pool(pool),
        defect=Defect.LOST if strange is None else stranger_defect(missing, strange, by_call, was_twice),
        cause=(_BY_THE_CALL if by_call else _OF_A_HAND_OUT).format(pool=pool)
        if now or by_call
        else (
            f"One entry of the free list of the {pool} pool is "
            + ("gone" if strange is None else "another than it was")
            + ": the page was free, nobody took it off the list, and it is no longer there."
        ),
        confidence=Confidence.POSSIBLE if now else Confidence.CERTAIN,
        evidence=(
            cell(missing.dump, TABLE, (missing.row, _PAGE), "the page that is nowhere"),
            cell(missing.dump, TABLE, (missing.row, _LAST_EVENT), f"its last event: {missing.suspect.last_event}"),
            *other,
            *(() if told is None else (said(missing.dump, f"scalars.{lost_in}", "what lost it, by the lists"),)),
            said(missing.dump, "step", "the step of the audit that saw it first"),
            *(said(one, "verdict", "it leads to that page") for one in census.dumps if one.manifest.verdict == _STALE),
        ),
        advice=(
            "Look at what writes free_pages beside alloc and free: restore_state, clear, merge_and_sort_free.",
            "What comes off the list later follows from it.",
        ),
        next_commands=(
            commands.audit(missing.dump),
            commands.serve(incident, "--preset debug", "--debug trap"),
        ),
    )


def _is_open(seen: Seen) -> bool | None:
    """Return False where the list has another entry in that one's place, and no hand-out of the step can be it."""
    at_start = any("events_seen" in piece.field for piece in seen.finding.evidence)
    return None if not at_start and (seen.finding.defect is Defect.LOST or seen.finding.structure is None) else False


RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion(
            "an allocator's dump says which call lost pages",
            lambda seen: seen.incident.first(rule=LOST_PAGES) is not None,
        ),
        Exclusion(
            "a call that the ledger does not see took the entry off the list, or the hand-out of this step did",
            _is_open,
        ),
    ),
    explains=FOLLOWS_FROM_AN_ENTRY,
    leads_to=(*LEAVES_BUFFERS, *LOSES_PAGES),
    follows_calls=True,
)
