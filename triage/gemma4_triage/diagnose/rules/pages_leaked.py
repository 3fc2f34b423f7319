"""Pages that belong to nobody, on a path that no rule knows: the ledger names the last owner and the sites."""

from gemma4_dumps.audit_findings import TABLE, suspects
from gemma4_dumps.errors import DumpError
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.census import NOWHERE, keeps_prefixes, may_be_held
from gemma4_triage.diagnose.counted_beyond import counted_beyond_its_frees
from gemma4_triage.diagnose.dropped_pages import DROPPED, dropped_by_a_hand_out
from gemma4_triage.diagnose.evidence import cell, has_ended, said
from gemma4_triage.diagnose.freed_pages import (
    cache_has_the_full_page,
    lost_by_a_count,
    lost_request_slots,
    of_request_slots,
    stands_twice,
)
from gemma4_triage.diagnose.incident import LEAK, Incident
from gemma4_triage.diagnose.lost_by_the_cache import (
    DUPLICATES,
    EMPTIED,
    EVICTED,
    LOST,
    PROMPTS,
    RECOVERED,
    RELEASED,
    SWA_SIDE,
    an_eviction_was_near,
    are_of_prompts,
    is_empty,
    left_by_a_release,
    left_of_duplicates,
    lost_by_own_count,
    may_be_an_eviction,
    were_given,
    why_lost,
    windows_taken_again,
)
from gemma4_triage.diagnose.rule import LOSES_PAGES, Exclusion, Rule, Seen, calls_went_unseen, in_dump
from gemma4_triage.diagnose.stale_mapping import led_to_lost_pages
from gemma4_triage.diagnose.window_left_out import left_out_by_an_insert
from gemma4_triage.finding import Confidence, Finding

ID = "pages-leaked"


def find(incident: Incident) -> Finding | None:
    dump = incident.first(rule=LEAK, verdict="pool_leak")
    if dump is None:
        return None
    if of_request_slots(dump, NOWHERE):
        return lost_request_slots(dump, ID)
    told = dropped_by_a_hand_out(ID, incident, dump) or lost_by_own_count(ID, dump)
    if (told := told or counted_beyond_its_frees(ID, dump)) is not None:
        return told
    try:
        first = suspects(dump)[0]
    except (DumpError, IndexError):
        first, where, rows = None, "", ()
    else:
        where = f", handed out by {first.alloc_site}" if first.alloc_step is not None else ""
        rows = (
            cell(dump, TABLE, (0, 0), "the first page"),
            *((cell(dump, TABLE, (0, 4), "the request slot that owned it last"),) if first.owner is not None else ()),
            cell(dump, TABLE, (0, 7), f"the step at which {first.alloc_site} handed it out"),
        )
    ended = None if first is None or first.owner is None else has_ended(dump, first.owner)
    known = (
        ended is not False
        and first is not None
        and first.owner is not None
        and first.last_event in ("owned", "handed_out")
        # A row, a count or a free in its place may be wrong as well, or what names another page twice.
        and not (calls_went_unseen(dump) or stands_twice(dump))
    )
    given = were_given(dump)
    evicted = given and an_eviction_was_near(dump)
    of_cache = given or (keeps_prefixes(dump) and known and ended is True and are_of_prompts(dump))
    emptied = given and is_empty(dump)
    if left := known and not given and left_by_a_release(dump):
        of_cache = False
    if beside := cache_has_the_full_page(dump):
        given = evicted = of_cache = known = emptied = False
    left_out = left_out_by_an_insert(dump)
    twice = ended is False and left_of_duplicates(dump)
    known &= not (again := windows_taken_again(dump))
    windows, gone = (
        ((left_out, left_out), (beside, SWA_SIDE), (again, RECOVERED)),
        ((emptied, EMPTIED), (evicted, EVICTED)),
    )
    words = (*windows, (twice, DUPLICATES), (left, RELEASED), *gone, (given, LOST), (of_cache, PROMPTS))
    why = next((said_so for holds, said_so in words if holds), "")
    return Finding(
        rule=ID,
        structure=None
        if evicted or emptied
        else Structure.TREE_NODE
        if of_cache or again or left_out
        else Structure.FREE_CALL
        if known or twice
        else None,
        defect=Defect.LOST,
        cause=f"Pages belong to nobody and are not free{where}: {why or why_lost(known, ended)}.",
        confidence=Confidence.LIKELY
        if emptied or again or twice or left or left_out
        else Confidence.CERTAIN
        if known or (given and not evicted)
        else Confidence.POSSIBLE,
        evidence=(
            said(dump, "offence_count", "pages that are lost"),
            said(dump, "step", "when it was seen"),
            *rows,
            *led_to_lost_pages(incident),
        ),
        advice=(
            "Nobody will free these pages: look at what that site does when its request ends, is aborted or retracted.",
            "Audit every few steps to catch the step at which it happens: GEMMA4_TRIAGE_LEAK=raise "
            "GEMMA4_TRIAGE_LEAK_EVERY=8.",
            "The pool stays smaller until a flush_cache or a restart.",
        ),
        next_commands=(commands.audit(dump),),
        upstream=("SGLang 11970", "SGLang 7130"),
    )


def _may_be_open(seen: Seen) -> bool | None:
    """Return False of request slots, which no row and no count has, and of what no request was given."""
    return False if seen.finding.structure in DROPPED or (seen.dump and of_request_slots(seen.dump, NOWHERE)) else None


RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion("a session or a disaggregated transfer still holds them", in_dump(may_be_held)),
        Exclusion(
            "their last owner still runs, and a count of its own does not reach them",
            lambda seen: lost_by_a_count(seen.incident) is not None,
        ),
        Exclusion("an eviction of all that the cache had left out its free", may_be_an_eviction),
        Exclusion("the row or the counts of who held them had lost them before it gave back what it had", _may_be_open),
    ),
    leads_to=LOSES_PAGES,
    fallback=True,
)
