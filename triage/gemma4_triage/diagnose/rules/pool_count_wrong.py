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
_ADMITS = "No page is lost, but SGLang admits requests by these counters, and its own checker stops the server."
_OF_CACHE = "Look at what changes them: insertions, evictions and locks of the prefix cache, tombstones among them."
_OF_LISTS = "Look at what counts free tokens (available_size), and at what else it adds than the lists of free pages."


def find(incident: Incident) -> Finding | None:
    """Return a finding where an audit found nothing but that."""
    dump = incident.first(rule=LEAK, verdict="pool_unbalanced")
    if dump is None:
        return None
    pool = "swa" if dump.manifest.pool_kind == "swa" else "full"
    wrong = [one for name in ("full", "swa") for one in _wrong_counts(dump, name)]
    free, page = [off for name, off, _ in wrong if name == "available"], dump.manifest.page_size or 1
    only_free, known = bool(free) and len(free) == len(wrong), bool(wrong)
    known_names = ("listed", "cached", "locked") if known else ()
    shown = (name for name in known_names if dump.manifest.scalars.get(f"{pool}_{name}") is not None)
    meanings = {
        "listed": "what the lists of free pages have",
        "cached": "what nodes of the prefix cache hold",
        "locked": "what locked nodes hold of that",
    }
    cause = f"{'; '.join(text for _, _, text in wrong)}. The count is wrong and no page is lost: {_PLACED}."
    return Finding(
        rule=ID,
        cause=cause[0].upper() + cause[1:] if known else _UNKNOWN,
        defect=Defect.OFF_BY_ONE if only_free and {abs(off) for off in free} == {page} else None,
        confidence=Confidence.CERTAIN,
        evidence=(
            said(dump, f"scalars.{pool}_available", "what the allocator says is free; compare it with its lists"),
            said(dump, f"scalars.{pool}_evictable", "what the prefix cache says that it can evict"),
            said(dump, f"scalars.{pool}_protected", "what it says that requests hold of it"),
            said(dump, f"scalars.{pool}_uncached", "what requests hold beside it, as the audit counted"),
            said(dump, f"scalars.{pool}_total", "what all sides have to add up to"),
            *(said(dump, f"scalars.{pool}_{name}", meanings[name]) for name in shown),
            said(dump, "step", "the step of the audit that saw it first"),
        ),
        advice=(_ADMITS, *((_OF_LISTS,) if free else ()), *(() if only_free else (_OF_CACHE,))),
        next_commands=(commands.audit(dump), commands.serve(incident, "--debug trap")),
    )


def _wrong_counts(dump: Dump, pool: str) -> Iterator[tuple[str, int, str]]:
    """Yield each counter of a pool that is not what its pages come to: its name, by how much, and that as a clause."""
    names = ("available", "listed", "evictable", "protected", "cached", "locked")
    scalars = dump.manifest.scalars
    available, listed, evictable, protected, cached, locked = (scalars.get(f"{pool}_{name}") for name in names)
    if not (isinstance(available, int) and isinstance(listed, int) and isinstance(cached, int)):
        return
    page = dump.manifest.page_size or 1
    if available != listed:
        unit = f"{abs(available - listed)} tokens{', a page,' if abs(available - listed) == page > 1 else ''}"
        way = "more than its lists have" if available > listed else "fewer than its lists have"
        yield "available", available - listed, f"the {pool} pool's allocator counts {unit} {way}, {listed}"
    if not (isinstance(evictable, int) and isinstance(protected, int)):
        return
    if not isinstance(locked, int):
        if (off := evictable + protected - cached) != 0:
            yield "cached", off, f"the prefix cache counts {evictable} + {protected} tokens where nodes hold {cached}"
        return
    counts = (("protected", protected, locked), ("evictable", evictable, cached - locked))
    for name, count, right in counts:
        if count != right:
            nodes = "locked nodes" if name == "protected" else "nodes without a lock"
            clause = f"the prefix cache counts {count} tokens of the {pool} pool as {name} where {nodes} hold {right}"
            uncounted = name == "evictable" and right - count == cached > 0
            yield name, count - right, clause + (", as where what is put in is not counted" if uncounted else "")


RULE = Rule(
    ID,
    find,
    ruled_out_if=(Exclusion("the audit counts wrongly what requests hold beside the prefix cache"),),
    leads_to=LOSES_PAGES,
    fallback=True,
)
