"""Pages that are free and held, or on no list: who freed and holds them, what replaced them, which lives they had."""

from __future__ import annotations

from collections.abc import Sequence

from gemma4_dumps.allocator_calls import START_MAPPING
from gemma4_dumps.audit_findings import LIVES, TABLE, Life, Suspect, lives, suspects
from gemma4_dumps.errors import DumpError
from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.census import (
    FREE_AND_HELD,
    HELD_TWICE,
    NOWHERE,
    OUT_OF_RANGE,
    TAKEN,
    TREE,
    TWICE_FREE,
    Census,
    Listed,
    first_census,
    invalid_defect,
)
from gemma4_triage.diagnose.earlier_calls import freed_before
from gemma4_triage.diagnose.evidence import cell, readable_events, said, tensor_or_none
from gemma4_triage.diagnose.hand_out import is_what_the_pool_gave
from gemma4_triage.diagnose.incident import LEAK, REQUEST_ROWS, Incident
from gemma4_triage.diagnose.rule import calls_went_unseen
from gemma4_triage.diagnose.unmapped_pages import EVICTION
from gemma4_triage.diagnose.where_wrong import Wrong
from gemma4_triage.finding import Confidence, Evidence, Finding

_GOES_ON = (
    "A request goes on in a page that had been given back since it got its newest slot there: a free came too early."
)
_GOES_ON_SOMEWHERE = (
    "A page was given back and handed out again while somebody counts on it: the free came too early, or whoever "
    "counts on it was led to a page that is not its own. Which of them the dumps do not say."
)


def free_and_held(dump: Dump) -> list[Suspect]:
    """Return what the audit knows of the pages that are free and held; none if its table cannot be read."""
    try:
        return [page for page in suspects(dump) if page.fault == FREE_AND_HELD]
    except DumpError:
        return []


def of_request_slots(dump: Dump, fault: str) -> bool:
    """Return whether all that an audit found so are request slots, rows of req_to_token, and no pages."""
    try:
        pools = {one.pool for one in suspects(dump) if one.fault == fault}
    except DumpError:
        return False
    return pools == {"requests"}


def was_freed(page: Suspect) -> bool:
    """Return whether the ledger saw a free of the page since it was handed out last.

    Of a free and a hand-out in one step the last event is the later one.
    """
    if page.free_step is None or page.alloc_step is None:
        return page.free_step is not None
    later = page.free_step == page.alloc_step and page.last_event not in TAKEN
    return later or page.free_step > page.alloc_step


def holder_has_ended(dump: Dump) -> bool | None:
    """Return whether no request that runs, nor the cache, holds such a page; None where the dump does not say.

    A hand-out is for a request that runs.
    """
    if dump.manifest.rule != LEAK:
        return False
    table, running = tensor_or_none(dump, "holders"), dump.manifest.scalars.get("running")
    if isinstance(running, str) and of_request_slots(dump, FREE_AND_HELD):
        return not {str(slot.page) for slot in free_and_held(dump)} & set(running.split(","))
    pages = {page.page for page in free_and_held(dump) if page.pool == "full"}
    if table is None or table.shape[1] != 3 or not isinstance(running, str):
        return None
    alive = {str(TREE), *running.split(",")}
    holders = [str(int(holder)) for page, holder, _ in table.tolist() if page in pages]
    return not alive & set(holders) if holders else None


def lost_by_a_count(incident: Incident) -> Dump | None:
    """Return the audit that misses pages which a running request has, because its own counts do not reach them.

    That is so where `request-rows` found a count of that request wrong in the audit's step or in the next. None else.
    """
    rows, audit = incident.first(rule=REQUEST_ROWS), incident.first(rule=LEAK, verdict="pool_leak")
    if rows is None or audit is None or rows.manifest.scalars.get("structure") != Structure.REQUEST_COUNTERS:
        return None
    try:
        owners = {one.owner and one.owner[0] for one in suspects(audit) if one.pool == "full" and one.fault == NOWHERE}
    except DumpError:
        return None
    later = (rows.manifest.step or 0) - (audit.manifest.step or 0)
    return audit if owners == {rows.manifest.scalars.get("request_slot")} and later in (0, 1) else None


def others_are_lost(incident: Incident, pool: str) -> bool:
    """Return whether an audit misses pages of this pool, and nobody looked at calls."""
    census = first_census(incident)
    return census is not None and bool(census.of(pool, NOWHERE)) and calls_went_unseen(census.dumps[0])


def entry_names_another(incident: Incident, held: Sequence[Suspect]) -> bool:
    """Return whether the prefix cache alone holds such a page of the full pool, and one is lost that nobody freed.

    Then the free may be its owner's own, and the node names it in the place of the lost one.
    """
    census = first_census(incident)
    if census is None or not any(one.never_asked_back for one in census.of("full", NOWHERE)):
        return False
    pages = {one.page for one in held if one.pool == "full"}
    holders = [one.holder for one in census.holders or () if one.page in pages]
    return bool(holders) and set(holders) == {TREE}


def was_handed_out_before(dump: Dump, held: Sequence[Suspect]) -> bool:
    """Return whether such a page had an owner before, and may have been given back twice then."""
    try:
        past = lives(dump)
    except DumpError:
        return False
    return calls_went_unseen(dump) and any(len(past.get((one.pool, one.page), ())) > 1 for one in held)


def nothing_happened(census: Census) -> bool:
    """Return whether the ledger had seen no call of an allocator when the audit ran, and knows of all that there were.

    Nothing was handed out or given back then: what a list has is what it was made with, or was written into it.
    """
    scalars = census.dumps[0].manifest.scalars
    return scalars.get("events_seen") == 0 and not census.step


def strangers(census: Census, pool: str) -> list[Listed]:
    """Return what a free list has that does not belong there, and that nobody asked to give back."""
    listed = census.of(pool, OUT_OF_RANGE, TWICE_FREE, FREE_AND_HELD)
    return [one for one in listed if one.suspect.fault != FREE_AND_HELD or one.never_asked_back]


def stranger_defect(missing: Listed, strange: Listed, by_call: bool, was_twice: bool) -> Defect:
    """Return in which way an entry of a free list, or what a call made of it, is another page than the missing one.

    Args:
        missing: The page that is gone.
        strange: The page that stands in its place.
        by_call: Whether a call that hands out is wrong, and not the list.
        was_twice: Whether the list named the strange page twice before it was handed out.
    """
    if strange.suspect.fault == OUT_OF_RANGE:
        return invalid_defect(strange.page)
    if abs(strange.page - missing.page) == 1:
        return Defect.OFF_BY_ONE
    if by_call:
        return Defect.STALE
    return Defect.DUPLICATE if was_twice or strange.suspect.fault == TWICE_FREE else Defect.FOREIGN


def listed_while_in_use(incident: Incident, rule: str) -> Finding | None:
    """Return a finding of a rule where, by a dump of a free, the SWA list had a page in use in another's place."""
    at_free = incident.first(rule="swa-stale-mapping")
    missing = None if at_free is None else missing_for_one_in_use(at_free)
    if at_free is None or missing is None:
        return None
    return Finding(
        rule=rule,
        structure=Structure.SWA_FREE_LIST,
        defect=Defect.FOREIGN,
        cause=(
            "The free list of the SWA pool had a page in use before anybody gave it back, and another, "
            f"{missing}, is neither listed nor in use: one entry of the list is another than it was."
        ),
        confidence=Confidence.LIKELY,
        evidence=(
            said(at_free, "offences.0.value", "an SWA slot of the page that is listed and in use"),
            cell(at_free, "start_free_swa", (0, 0), "begins the list of before the first call that the dump has"),
            said(at_free, "site", "the call that gave the page back"),
        ),
        advice=("Look at what writes free_pages beside alloc and free: restore_state, clear, merge_and_sort_free.",),
        next_commands=(commands.serve(incident, "--preset debug", "--debug trap"),),
    )


_LARGEST = 1 << 31
"""Pages of a pool: a manifest may name more, and no server has them."""


def missing_for_one_in_use(dump: Dump) -> int | None:
    """Return the SWA page that was neither free nor in use while a stale mapping's was both; None if none was.

    That is by the state before the first call of the dump; of its calls the last alone concerned the page, as its free.
    """
    if ".free" not in dump.manifest.site:
        return None
    lists = [tensor_or_none(dump, name) for name in ("start_free_swa", "start_released_swa")]
    mapping = tensor_or_none(dump, START_MAPPING)
    count, size = dump.manifest.extents.get("pages_swa_pool"), dump.manifest.page_size
    if any(one is None or one.ndim != 2 or one.shape[1] != 3 for one in lists) or not dump.manifest.offences:
        return None
    if mapping is None or mapping.ndim != 2 or mapping.shape[1] != 2 or not count or not size:
        return None
    if count > _LARGEST:
        return None
    page = dump.manifest.offences[0].value // size
    free = {
        start + number * step
        for runs in lists
        if runs is not None
        for start, length, step in runs.tolist()
        for number in range(min(max(length, 0), count))
    }
    used = set((mapping[:, 1] // size).tolist())
    calls = readable_events(dump)
    if page not in free & used or any(_touches(call.get("swa"), page, size) for call in calls[:-1]):
        return None
    missing = set(range(1, count)) - free - used
    return missing.pop() if len(missing) == 1 else None


def _touches(runs: object, page: int, size: int) -> bool:
    """Return whether slots of a call, as runs, are of this page; True where they are no runs."""
    if not isinstance(runs, list):
        return runs is not None
    first, end = page * size, (page + 1) * size
    for run in runs:
        if not (isinstance(run, list) and len(run) > 1 and all(isinstance(number, int) for number in run)):
            return True
        if run[0] < end and run[0] + (run[1] if len(run) < 3 else 1) > first:
            return True
    return False


def handed_out_in_use(dump: Dump, held: Sequence[Suspect]) -> int | None:
    """Return the row in `lives` of the first life of such a page that did not end before the next began; None if none.

    It is in use since: whoever freed it later freed what they were given.
    """
    try:
        past = lives(dump)
    except DumpError:
        return None
    wanted, number = {(one.pool, one.page) for one in held}, 0
    for page, of_page in past.items():
        for at, life in enumerate(of_page):
            if page in wanted and at + 1 < len(of_page) and life.free_step is None:
                return number + at
        number += len(of_page)
    return None


def given_in_use(incident: Incident, dump: Dump, number: int, rule: str) -> Finding:
    """Return the finding about a page whose first life without an end is row `number` of `lives`."""
    return Finding(
        rule=rule,
        cause=(
            "A page that was in use was handed out again, and nobody had given it back: its free list had it, or the "
            "hand-out was wrong. Whoever freed it since freed what they had been given."
        ),
        confidence=Confidence.POSSIBLE,
        evidence=(
            cell(dump, LIVES, (number, 0), "the page"),
            cell(dump, LIVES, (number, 2), "the request slot that was given it first, and that never gave it back"),
            cell(dump, LIVES, (number + 1, 2), "the request slot that was given it while that one had it"),
            said(dump, "offence_count", "pages that are free and held"),
            said(dump, "step", "the step of the audit"),
        ),
        advice=("Audit every few steps: GEMMA4_TRIAGE_LEAK_EVERY=8 shows the step at which the list had it.",),
        next_commands=(commands.audit(dump), commands.serve(incident, "--debug trap", "--probes swa-allocator")),
    )


def handed_out_since(incident: Incident, rule: str) -> Finding | None:
    """Return a finding where a hand-out was seen of a page that calls or events show to have been given back before."""
    dump = incident.first(verdict="alloc_overlap")
    freed = None if dump is None else freed_before(incident, dump)
    if dump is None or freed is None or is_what_the_pool_gave(dump) is False:
        # Where the mapping leads elsewhere than the pool gave, nothing of it was given back too early.
        return None
    return of_hand_out(incident, dump, rule, freed, _GOES_ON if freed.structure else _GOES_ON_SOMEWHERE)


def of_hand_out(
    incident: Incident, dump: Dump, rule: str, wrong: Wrong, cause: str, state: tuple[Evidence, ...] = ()
) -> Finding:
    """Return the finding about a page that was handed out while in use.

    Args:
        incident: Whose dumps are read.
        dump: The one that tells the hand-out.
        rule: The name of the rule that speaks.
        wrong: Where the hand-out went wrong, with its proof.
        cause: The finding's sentence.
        state: What is known of the page before.
    """
    return Finding(
        rule=rule,
        structure=wrong.structure,
        defect=wrong.defect,
        cause=cause,
        confidence=Confidence.CERTAIN if wrong.structure else Confidence.POSSIBLE,
        evidence=(
            said(dump, "site", "who handed it out, or noticed"),
            said(dump, "offences.0.value", "the slot, or in an audit the number of places"),
            said(dump, "pool_kind", "of which pool"),
            *state,
            *wrong.proof,
        ),
        advice=("Trust no output since. A server in trap mode stops at the free that came too early.",),
        next_commands=(commands.serve(incident, "--debug trap", "--probes swa-allocator"), commands.show(dump)),
    )


def lost_request_slots(dump: Dump, rule: str) -> Finding:
    """Return the finding about request slots that are nowhere."""
    return Finding(
        rule=rule,
        defect=Defect.LOST,
        cause=(
            "Request slots belong to no request and are not on the list of free ones, so that fewer requests can run: "
            "whether they were never given back or are gone from the list is not known."
        ),
        confidence=Confidence.POSSIBLE,
        evidence=(
            said(dump, "offence_count", "request slots that are lost"),
            said(dump, "step", "when it was seen"),
            cell(dump, TABLE, (0, 0), "the first of them"),
        ),
        advice=(
            "The ledger keeps no history of request slots: look at who calls ReqToTokenPool.free, and who does not.",
        ),
        next_commands=(commands.audit(dump),),
    )


def freed_beside_eviction(incident: Incident, rule: str) -> Finding | None:
    """Return a finding where pages of the prefix cache were freed beside its eviction, and have two holders since."""
    census = first_census(incident)
    if census is None or not (twice := census.of("full", HELD_TWICE)):
        return None
    dump = twice[0].dump
    try:
        of_page = lives(dump)
    except DumpError:
        return None
    past = [_freed_from_cache(of_page.get((one.suspect.pool, one.page), [])) for one in twice]
    if not past[0] or not all(past):
        return None
    return Finding(
        rule=rule,
        structure=Structure.FREE_CALL,
        defect=Defect.EARLY,
        cause=(
            f"Pages of the prefix cache were given back by {past[0].free_site} at step {past[0].free_step}, which is "
            "no eviction, and handed out again: both owners hold them since."
        ),
        confidence=Confidence.CERTAIN,
        evidence=(
            said(dump, "offence_count", "pages with two holders"),
            cell(dump, TABLE, (twice[0].row, 0), "the first of them"),
            cell(dump, TABLE, (twice[0].row, 7), "the step at which it was handed out again"),
            said(dump, "step", "the step of the audit"),
            *peers_lost(census, {one.page for one in twice}),
        ),
        advice=("The audit has the page's earlier lives: look at what gave it back while the cache had it.",),
        next_commands=(commands.audit(dump), commands.serve(incident, "--debug trap", "--probes swa-allocator")),
    )


def _freed_from_cache(past: Sequence[Life]) -> Life | None:
    """Return the life before the latest, if the cache had the page and something else than its eviction freed it."""
    if len(past) < 2 or past[-2].given_step is None or past[-2].free_step is None:
        return None
    return None if past[-2].free_site == EVICTION else past[-2]


def peers_lost(census: Census, twice: set[int]) -> tuple[Evidence, ...]:
    """Return what says that the SWA pages of those pages are lost, if no others are: they went as those were mapped."""
    gone = census.of("swa", NOWHERE)
    if not gone or census.of("full", NOWHERE) or not all(one.suspect.peer in twice for one in gone):
        return ()
    return (cell(gone[0].dump, TABLE, (gone[0].row, 10), "the full page that a lost SWA page served"),)


def cache_has_the_full_page(dump: Dump) -> bool:
    """Return whether SWA pages alone are lost, and the mapping leads to each from a page of the prefix cache."""
    table = tensor_or_none(dump, "holders")
    try:
        lost = [one for one in suspects(dump) if one.fault == "nowhere"]
    except DumpError:
        return False
    if table is None or table.ndim != 2 or table.shape[1] != 3 or not lost or any(one.pool != "swa" for one in lost):
        return False
    led = {int(to) for _, holder, to in table.tolist() if holder == TREE}
    return all(one.page in led for one in lost)


def stands_twice(dump: Dump) -> bool:
    """Return whether the audit found another page in two places: one of them may be where a lost one belongs."""
    holders = tensor_or_none(dump, "holders")
    if holders is None or holders.ndim != 2:
        return False
    held = [tuple(one[:2]) for one in holders.tolist()]
    return len(set(held)) < len(held)


def was_given_now(incident: Incident, page: Suspect) -> bool:
    """Return whether the page may have been handed out in another's place since the audit before.

    That one was free, and is nowhere: the list named another page, or the hand-out did.
    """
    census = first_census(incident)
    missing = () if census is None else [one for one in census.of(page.pool, NOWHERE) if one.was_free]
    if census is None or not missing:
        return False
    held = [one for one in census.of(page.pool, FREE_AND_HELD) if one.page == page.page]
    return any(census.given_instead(one, other) for one in held for other in missing)
