"""Every page of a pool is in one place, and what SGLang counts of the pool does not add up."""

from collections.abc import Iterator

from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import counted_by_the_pair, said
from gemma4_triage.diagnose.incident import LEAK, Incident
from gemma4_triage.diagnose.rule import LOSES_PAGES, Exclusion, Rule, in_dump
from gemma4_triage.finding import Confidence, Finding

ID = "pool-count-wrong"
_PLACED = "Every page is free, cached or held by one request, and SGLang's sums are not the pool's size."
_UNKNOWN = "A count of tokens is wrong, of the prefix cache's evictable or protected ones or of the allocator's free"
_ADMITS = "No page is lost, but SGLang admits requests by these counters, and its checker stops the server."
_OF_CACHE = "Look at what changes them: insertions, evictions and locks of the prefix cache, tombstones among them."
_OF_LISTS = "Look at what counts free tokens (available_size) beside the lists of free pages."
_OF_PAIR = (
    "Every page is free, cached or held by one request, and the allocator of both pools counts {counted} tokens as "
    "free (available_size) where the pool with fewer, {pool}, has {least}: whoever asks it before allocating, as the "
    "check of a decode's room does, is told of {way}."
)
_MEANINGS = {
    "available": "what the allocator says is free",
    "evictable": "what the prefix cache says it can evict",
    "protected": "what it says is held of it",
    "uncached": "what requests hold beside it",
    "total": "what all sides have to add up to",
    "listed": "what the lists of free pages have",
    "cached": "what nodes of the prefix cache hold",
    "locked": "what locked nodes hold of that",
}


def find(incident: Incident) -> Finding | None:
    """Return a finding where an audit found that alone."""
    dump = incident.first(rule=LEAK, verdict="pool_unbalanced")
    if dump is None:
        return None
    pool = "swa" if dump.manifest.pool_kind == "swa" else "full"
    counted, least = counted_by_the_pair(dump) or (0, 0)
    wrong = [one for name in ("full", "swa") for one in _wrong_counts(dump, name)]
    free, page = [off for off, _ in wrong if off], dump.manifest.page_size or 1
    only_free = bool(free) and len(free) == len(wrong)
    if counted != least and not wrong:
        return _of_pair(dump, pool, counted, least)
    shown = (name for name in _MEANINGS if dump.manifest.scalars.get(f"{pool}_{name}") is not None)
    told = ". ".join(text for _, text in wrong)
    return Finding(
        rule=ID,
        cause=f"{told or _UNKNOWN}. {_PLACED}",
        defect=Defect.OFF_BY_ONE if only_free and {abs(off) for off in free} == {page} else None,
        confidence=Confidence.CERTAIN,
        evidence=(
            *(said(dump, f"scalars.{pool}_{name}", _MEANINGS[name]) for name in shown),
            said(dump, "step", "when an audit saw it first"),
        ),
        advice=(_ADMITS, *((_OF_LISTS,) if free else ()), *(() if only_free else (_OF_CACHE,))),
        next_commands=(commands.audit(dump), commands.serve(incident, "--debug trap")),
    )


def _of_pair(dump: Dump, pool: str, counted: int, least: int) -> Finding:
    """Return the finding of an audit in which the count of both pools together is wrong alone."""
    way = "room that there is not" if counted > least else "less room than there is"
    advice = "Look at available_size of the allocator of both pools: it has to be that of the pool with fewer free."
    return Finding(
        rule=ID,
        cause=_OF_PAIR.format(counted=counted, pool=pool, least=least, way=way),
        confidence=Confidence.CERTAIN,
        evidence=(
            said(dump, "scalars.pair_available", "what the allocator of both pools says is free"),
            *(
                said(dump, f"scalars.{name}_available", f"what that of the {name} pool says")
                for name in ("full", "swa")
            ),
            said(dump, "step", "when an audit saw it first"),
        ),
        advice=(advice,),
        next_commands=(commands.audit(dump),),
    )


def _wrong_counts(dump: Dump, pool: str) -> Iterator[tuple[int, str]]:
    """Yield each count of a pool that is not what its pages come to: by how much, of free tokens, and a clause."""
    names = ("available", "listed", "evictable", "protected", "cached", "locked")
    found = [one for name in names if isinstance(one := dump.manifest.scalars.get(f"{pool}_{name}"), int)]
    if len(found) < len(names) - 1:
        return
    available, listed, evictable, protected, cached = found[:5]
    if off := available - listed:
        words = "a page, " if abs(off) == dump.manifest.page_size else ""
        way = "more" if off > 0 else "fewer"
        yield off, f"The {pool} allocator counts {abs(off)} tokens, {words}{way} than its lists have, {listed}"
    counts = ((evictable + protected, cached, "evictable or protected", "nodes"),)
    # Of the sliding window nobody says which nodes are locked.
    for locked in found[5:]:
        own = (evictable, cached - locked, "evictable", "nodes without a lock")
        counts = ((protected, locked, "protected", "locked nodes"), own)
    for count, right, words, nodes in counts:
        if count != right:
            none_is_counted = words != "protected" and right - count == cached > 0
            uncounted = ", as where what is put in is not counted" if none_is_counted else ""
            yield 0, f"The prefix cache counts {count} {pool} tokens as {words} where {nodes} hold {right}{uncounted}"


def _may_be_the_audit(dump: Dump) -> bool | None:
    """Return False where the allocators alone contradict each other: what requests hold has no part in that."""
    counted, least = counted_by_the_pair(dump) or (0, 0)
    return False if counted != least else None


RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion("the audit counts wrongly what requests hold beside the prefix cache", in_dump(_may_be_the_audit)),
    ),
    leads_to=LOSES_PAGES,
    fallback=True,
)
