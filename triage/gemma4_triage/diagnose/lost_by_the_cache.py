"""What the prefix cache was given and has no more: lost, evicted without a free, emptied at once, freed by others."""

from gemma4_dumps.audit_findings import lives, suspects
from gemma4_dumps.errors import DumpError
from gemma4_dumps.reader import Dump
from gemma4_triage.diagnose.census import GIVEN, lost_pages
from gemma4_triage.diagnose.evidence import readable_events
from gemma4_triage.diagnose.freed_pages import places_in_row
from gemma4_triage.diagnose.rule import Seen

LOST = (
    "the prefix cache was given all of them, nobody has asked for them back, and none of its nodes has them, so it is "
    "the cache that has lost them"
)
EVICTED = (
    "the prefix cache was given all of them, and has them no more: it has lost them, or an eviction, of which there "
    "was one shortly before, took them out of it and left out their free"
)
EMPTIED = (
    "the prefix cache was given all of them, and it is empty: it was emptied (flush_cache, a reset of its tree), and "
    "the allocators were not told"
)
SWA_SIDE = (
    "the prefix cache has their full pages, which still lead to them, and counts them as evicted: an eviction left out "
    "their free, or whoever gave the cache these pages counted too many as evicted"
)
PROMPTS = (
    "all of them are of prompts, which the prefix cache takes over, and what their owners were given for their answers "
    "was freed, so it is the cache that has lost them"
)
OF_THE_CACHE = (
    " They were the cache's before: the eviction of a request's window gave back what lies ahead of its own pages "
    "(cache_protected_len)."
)


def were_given(dump: Dump) -> bool:
    """Return whether the cache was given all that is lost of the full pool, and nobody asked for any of it back."""
    lost = [one for one in lost_pages(dump) if one.fault == "nowhere" and one.pool == "full"]
    return bool(lost) and all(one.last_event == GIVEN for one in lost)


def an_eviction_was_near(dump: Dump) -> bool:
    """Return whether the last events before the audit have an eviction of the cache."""
    return any(record.get("site") == "evict_tree" for record in readable_events(dump))


def is_empty(dump: Dump) -> bool:
    """Return whether the cache has nothing any more of several pages, and what is lost is all that the pool lacks."""
    scalars, page = dump.manifest.scalars, dump.manifest.page_size or 1
    sides = [scalars.get(f"full_{side}") for side in ("total", "available", "evictable", "protected")]
    if not all(isinstance(side, int) for side in sides):
        return False
    total, available, evictable, protected = (int(side or 0) for side in sides)
    lost = sum(one.fault == "nowhere" and one.pool == "full" for one in lost_pages(dump))
    return evictable == protected == 0 and lost > 1 and total - available == lost * page


def are_of_prompts(dump: Dump) -> bool:
    """Return whether all that is lost was handed out for prompts; who was never released leaves its answer's too."""
    return all(one.alloc_site == "alloc_for_extend" for one in suspects(dump) if one.fault == "nowhere")


def may_be_an_eviction(seen: Seen) -> bool | None:
    """Return None where a cache is empty: an eviction may have been asked for all that it had."""
    return None if EMPTIED in seen.finding.cause else False


def were_the_caches_before(dump: Dump) -> bool:
    """Return whether each page without its SWA page was the prefix cache's in a step before that of its SWA free."""
    places = places_in_row(dump)
    try:
        past, found = lives(dump), [one.page for one in suspects(dump) if one.fault == "unmapped"]
    except DumpError:
        return False
    if places is None or not found:
        return False
    given = (past["full", page][-1].given_step if ("full", page) in past else None for page in found)
    freed = (places[0].get(page, (0, -1))[1] for page in found)
    return all(step is not None and at > step for at, step in zip(freed, given, strict=True))
