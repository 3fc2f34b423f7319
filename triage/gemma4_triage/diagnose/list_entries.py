"""Several entries of one free list that are others than they were, or that it was made without."""

from gemma4_dumps.audit_findings import TABLE
from gemma4_dumps.structures import Defect
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.census import (
    FREE_AND_HELD,
    HELD_TWICE,
    NOWHERE,
    OUT_OF_RANGE,
    TWICE_FREE,
    Census,
    Listed,
    invalid_defect,
)
from gemma4_triage.diagnose.evidence import cell, readable_events, said
from gemma4_triage.diagnose.freed_pages import strangers
from gemma4_triage.diagnose.guards import Guards
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.diagnose.where_wrong import free_list_of_pool
from gemma4_triage.finding import Confidence, Finding

_PAGE, _LAST_EVENT = 0, 11
_SHOWN = 4


def several_entries(rule: str, incident: Incident, census: Census, pool: str) -> Finding | None:
    """Return the finding where several free pages are gone, and as many places of the list have what is none's to have.

    A call that took them off would leave the list shorter, one that put others onto it longer. What was given back in
    the step of the audit may have been written down as another page by that call.
    """
    missing = census.of(pool, NOWHERE)
    if len(missing) < 2 or not all(one.was_free for one in missing):
        return None
    strange = [one for one in strangers(census, pool) if not census.given_now(one)]
    surplus = sum(1 if one.suspect.fault == OUT_OF_RANGE else one.suspect.places - 1 for one in strange)
    if surplus != len(missing):
        return None
    every = Guards("", "guards.", census.dumps[0].manifest.guards).setting("leak_every")
    since = census.step - (every if isinstance(every, int) and every else census.step)
    given_back = any((one.suspect.free_step or 0) >= since for one in missing if one.suspect.free_step is not None)
    ways = {invalid_defect(one.page) if one.suspect.fault == OUT_OF_RANGE else _way(one) for one in strange}
    return Finding(
        rule=rule,
        structure=None if given_back else free_list_of_pool(pool),
        defect=ways.pop() if len(ways) == 1 else None,
        cause=(
            f"{len(missing)} entries of the free list of the {pool} pool are others than they were: as many free pages "
            "are nowhere, and the list has others in their places."
            + (" The list was written, or a call that gave pages back wrote down others." if given_back else "")
        ),
        confidence=Confidence.POSSIBLE if given_back else Confidence.LIKELY,
        evidence=(
            *(cell(one.dump, TABLE, (one.row, _PAGE), "a page that is nowhere") for one in missing[:_SHOWN]),
            *(cell(one.dump, TABLE, (one.row, _PAGE), "what the list has instead") for one in strange[:_SHOWN]),
            cell(missing[0].dump, TABLE, (missing[0].row, _LAST_EVENT), f"last event: {missing[0].suspect.last_event}"),
            said(missing[0].dump, "step", "the step of the audit that saw it first"),
        ),
        advice=("Look at what writes free_pages beside alloc and free: restore_state, clear, merge_and_sort_free.",),
        next_commands=(commands.audit(missing[0].dump), commands.serve(incident, "--preset debug", "--debug trap")),
    )


def made_too_short(rule: str, incident: Incident, census: Census, pool: str) -> Finding | None:
    """Return the finding where a pool's last pages are nowhere, and nothing became of them since the lists were made.

    Emptying the allocator (`clear`) makes its list of as many pages as it says it has.
    """
    missing, pages = census.of(pool, NOWHERE), census.pages(pool)
    gone = sorted(one.page for one in missing)
    if not gone or pages is None or gone != list(range(pages - len(gone) + 1, pages + 1)):
        return None
    if any(one.suspect.last_event != "cleared" for one in missing):
        return None
    # What stands on the list in a page's place, or twice, says that the list was written after it was made.
    if strangers(census, pool) or census.of(pool, OUT_OF_RANGE, HELD_TWICE, FREE_AND_HELD, TWICE_FREE):
        return None
    number = "its last page" if len(gone) == 1 else f"its last {len(gone)} pages"
    made = (
        f"When the {pool} allocator was emptied (clear, as in a flush), its free list was made anew without "
        f"{number}: it counts fewer pages (num_pages) than its pool has, or clear ends the list too early, or its "
        "end was cut off since."
    )
    cut = (
        f"The free list of the {pool} pool lost {number} since the audit before, and the allocator was not emptied in "
        "between: the end of the list was cut off, as where a slice ends too early, or was taken off by a call that "
        "gave it to nobody."
    )
    was_whole = _was_whole_before(census, pool)
    return Finding(
        rule=rule,
        structure=free_list_of_pool(pool),
        defect=Defect.LOST,
        cause=cut if was_whole else made,
        confidence=Confidence.CERTAIN,
        evidence=(
            *(cell(one.dump, TABLE, (one.row, _PAGE), "a page that is nowhere") for one in missing[:_SHOWN]),
            said(missing[0].dump, f"extents.pages_{pool}_pool", "pages of the pool"),
            cell(missing[0].dump, TABLE, (missing[0].row, _LAST_EVENT), f"last event: {missing[0].suspect.last_event}"),
            said(missing[0].dump, "step", "the step of the audit that saw it first"),
        ),
        advice=(
            "Look at what writes free_pages beside alloc and free: merge_and_sort_free, restore_state."
            if was_whole
            else "Look at what writes num_pages and size of the allocator since the start, and at clear.",
        ),
        next_commands=(commands.audit(missing[0].dump), commands.serve(incident, "--preset debug", "--debug trap")),
    )


def _was_whole_before(census: Census, pool: str) -> bool:
    """Return whether an audit before this one found nothing, and the pool was not emptied since then."""
    dump = census.dumps[0]
    guards, events = Guards("", "guards.", dump.manifest.guards), readable_events(dump)
    every, pool_seed = guards.setting("leak_every"), guards.setting("pool_seed") or 0
    steps = [one.get("step") for one in events]
    if not isinstance(every, int) or not every or census.step <= every or not steps:
        return False
    known = [step for step in steps if isinstance(step, int)]
    if len(known) < len(steps) or not isinstance(pool_seed, int) or pool_seed:
        # In a list that was shuffled the last page is not the last entry.
        return False
    begins = min(known)
    return begins <= census.step - every and not any(
        (one.get("kind"), one.get("pool")) == ("cleared", pool) for one in events
    )


def _way(one: Listed) -> Defect:
    return Defect.DUPLICATE if one.suspect.fault == TWICE_FREE else Defect.FOREIGN
