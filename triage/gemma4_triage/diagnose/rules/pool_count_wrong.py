"""Every page of a pool is in one place, and what SGLang counts of the pool does not add up."""

from collections.abc import Iterator

from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import said
from gemma4_triage.diagnose.incident import LEAK, Incident
from gemma4_triage.diagnose.rule import LOSES_PAGES, Exclusion, Rule
from gemma4_triage.finding import Confidence, Finding

ID = "pool-count-wrong"
_PLACED = "every page is free, cached or held by one request"
_UNKNOWN = (
    "A count of tokens is wrong, of the prefix cache's evictable or protected ones or of the allocator's free ones: "
    f"{_PLACED}, and SGLang's sums are not the pool's size."
)
_ADMITS = "No page is lost, but SGLang admits requests by these counters, and its checker stops the server."
_OF_CACHE = "Look at what changes them: insertions, evictions and locks of the prefix cache, tombstones among them."
_OF_LISTS = "Look at what counts free tokens (available_size) beside the lists of free pages."

_EVICTABLE = "evictable where nodes without a lock"
_UNCOUNTED = ", as where what is put in is not counted"
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
    wrong = [one for name in ("full", "swa") for one in _wrong_counts(dump, name)]
    free, page = [off for name, off, _ in wrong if name == "available"], dump.manifest.page_size or 1
    only_free, known = bool(free) and len(free) == len(wrong), bool(wrong)
    shown = (name for name in _MEANINGS if dump.manifest.scalars.get(f"{pool}_{name}") is not None)
    cause = f"{'; '.join(text for _, _, text in wrong)}. The count is wrong and no page is lost: {_PLACED}."
    return Finding(
        rule=ID,
        cause=cause[0].upper() + cause[1:] if known else _UNKNOWN,
        defect=Defect.OFF_BY_ONE if only_free and {abs(off) for off in free} == {page} else None,
        confidence=Confidence.CERTAIN,
        evidence=(
            *(said(dump, f"scalars.{pool}_{name}", _MEANINGS[name]) for name in shown),
            said(dump, "step", "when an audit saw it first"),
        ),
        advice=(_ADMITS, *((_OF_LISTS,) if free else ()), *(() if only_free else (_OF_CACHE,))),
        next_commands=(commands.audit(dump), commands.serve(incident, "--debug trap")),
    )


def _wrong_counts(dump: Dump, pool: str) -> Iterator[tuple[str, int, str]]:
    """Yield each count of a pool that is not what its pages come to: its name, by how much, and a clause."""
    names = ("available", "listed", "evictable", "protected", "cached", "locked")
    scalars = dump.manifest.scalars
    available, listed, evictable, protected, cached, locked = (scalars.get(f"{pool}_{name}") for name in names)
    if not (isinstance(available, int) and isinstance(listed, int) and isinstance(cached, int)):
        return
    page = dump.manifest.page_size or 1
    if available != listed:
        off, way = available - listed, "more" if available > listed else "fewer"
        unit = f"{abs(off)} tokens{', a page,' if abs(off) == page > 1 else ''} {way}"
        yield "available", off, f"the {pool} pool's allocator counts {unit} than its lists have, {listed}"
    if not (isinstance(evictable, int) and isinstance(protected, int)):
        return
    counts = (
        ((protected, locked, "protected where locked nodes"), (evictable, cached - locked, _EVICTABLE))
        if isinstance(locked, int)
        else ((evictable + protected, cached, "evictable or protected where nodes"),)
    )
    for count, right, words in counts:
        if count != right:
            uncounted = _UNCOUNTED if words == _EVICTABLE and right - count == cached > 0 else ""
            clause = f"the prefix cache counts {count} tokens of the {pool} pool as {words} hold {right}{uncounted}"
            yield "cached", count - right, clause


RULE = Rule(
    ID,
    find,
    ruled_out_if=(Exclusion("the audit counts wrongly what requests hold beside the prefix cache"),),
    leads_to=LOSES_PAGES,
    fallback=True,
)
