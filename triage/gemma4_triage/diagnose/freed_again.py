"""Pages that stand twice on a free list: whether they were given back twice, and what is shown of them."""

from collections.abc import Sequence

from gemma4_dumps.audit_findings import TABLE, Suspect, suspects
from gemma4_dumps.errors import DumpError
from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.census import TWICE_FREE
from gemma4_triage.diagnose.evidence import cell, event, readable_events, said
from gemma4_triage.diagnose.guards import Guards
from gemma4_triage.diagnose.incident import LEAK, Incident
from gemma4_triage.diagnose.where_wrong import free_list_of_pool
from gemma4_triage.finding import Confidence, Evidence, Finding

_BACK = ("freed", "free_asked")
_GIVEN = ("handed_out", "owned", "given")
_ONCE = "of the pages that stand there twice, those that one call alone gave back, and all"
_TIMES = ("first", "again")


def freed_again_and_given(rule: str, incident: Incident, dump: Dump, held: Sequence[Suspect]) -> Finding | None:
    """Return the finding where pages were given back twice with nobody having them in between, and handed out since.

    By the audit's latest events: each has two frees of each page, and no hand-out of it between them.
    """
    told = {one.page: _two_frees(dump, one) for one in held}
    first = next(iter(told.values()), None)
    if first is None or None in told.values():
        return None
    sites = [str(readable_events(dump)[number].get("site")) for number in first]
    how = f"both times by {sites[0]}" if sites[0] == sites[1] else f"by {sites[0]}, and again by {sites[1]}"
    pages = ", ".join(map(str, sorted(told)))
    return Finding(
        rule=rule,
        structure=Structure.FREE_CALL,
        defect=Defect.DUPLICATE,
        cause=(
            f"Pages of the {held[0].pool} pool ({pages}) were given back twice, {how}, with nobody having them in "
            "between: they stood on the free list twice, and it has them still, though they were handed out since."
        ),
        confidence=Confidence.CERTAIN,
        evidence=(
            said(dump, "offence_count", "pages that are free and held"),
            *(
                event(dump, number, "site", f"who gave it back, {which}")
                for number, which in zip(first, _TIMES, strict=True)
            ),
            *(
                event(dump, number, "step", f"in which step, {which}")
                for number, which in zip(first, _TIMES, strict=True)
            ),
            *of_pages(dump),
        ),
        advice=(
            "Look at what the second call hands over: an eviction frees each node's slots once (_evict_component, "
            "device_frees), a release those that its request alone has.",
        ),
        next_commands=(commands.audit(dump), commands.serve(incident, "--debug trap", "--probes swa-allocator")),
    )


def _two_frees(dump: Dump, page: Suspect) -> tuple[int, int] | None:
    """Return the events that gave a page back twice; None where they do not show it, or a hand-out stands between."""
    frees: list[int] = []
    for number, one in enumerate(readable_events(dump)):
        named = one.get("first_pages") or ()
        if one.get("pool") != page.pool:
            continue
        if page.page not in named:
            if len(frees) == 1 and one.get("kind") in _GIVEN and one.get("pages") != len(named):
                # It may be among those that are not named.
                return None
            continue
        if one.get("kind") == "freed":
            frees.append(number)
        elif one.get("kind") in _GIVEN:
            if len(frees) > 1:
                break
            frees.clear()
    return (frees[0], frees[1]) if len(frees) > 1 else None


def listed_twice(rule: str, incident: Incident, dump: Dump) -> Finding | None:
    """Return the finding where each of these pages was given back by one call alone since it was handed out.

    Where `swa-allocator` looks at every call, it reports one that frees a free page before an audit can see it.
    """
    pool = dump.manifest.pool_kind
    try:
        pages = {one.page for one in suspects(dump) if one.fault == TWICE_FREE}
    except DumpError:
        return None
    if not Guards(dump.manifest.dump_id, "guards.", dump.manifest.guards).attached("swa-allocator"):
        # A free that the ledger does not see may be the second.
        return None
    counted = dump.manifest.scalars.get(f"{pool}_freed_once")
    numbers = [_only_free(dump, pool, page) for page in sorted(pages)]
    if dump.manifest.rule != LEAK or pool is None or not numbers:
        return None
    by_count = counted == f"{len(pages)}:{len(pages)}"
    if None in numbers and not by_count:
        return None
    return Finding(
        rule=rule,
        structure=free_list_of_pool(pool),
        defect=Defect.DUPLICATE,
        cause=(
            f"A page stands twice on the free list of the {pool} pool, and was given back once since it was handed "
            "out: the call that put it there did so twice, or the list was written beside it."
        ),
        confidence=Confidence.CERTAIN,
        evidence=(
            said(dump, "site", "the audit that saw it"),
            *of_pages(dump),
            cell(dump, TABLE, (0, 0), "the page"),
            *(event(dump, number, "step", "when it was given back") for number in numbers[:1] if number is not None),
            *(said(dump, f"scalars.{pool}_freed_once", _ONCE) for _ in range(by_count)),
        ),
        advice=(
            "Look at what writes free_pages: free, free_group_end and merge_and_sort_free, and restore_state.",
            "What comes off the list later follows from it.",
        ),
        next_commands=(commands.audit(dump), commands.serve(incident, "--debug trap", "--probes swa-allocator")),
    )


def _only_free(dump: Dump, pool: str | None, page: int) -> int | None:
    """Return the number of the only event since a page's hand-out by which it was to be given back; None if not known.

    A group's frees are asked for first, and come in at its end.
    """
    found: dict[str, list[int]] = {kind: [] for kind in _BACK}
    events = readable_events(dump)
    for number in reversed(range(len(events))):
        one = events[number]
        if one.get("pool") != pool or one.get("kind") not in (*_BACK, "handed_out"):
            continue
        named = one.get("first_pages")
        if not isinstance(named, list):
            return None
        if page in named:
            if one["kind"] == "handed_out":
                of_all = [*found["free_asked"], *found["freed"]]
                return min(of_all) if of_all and all(len(numbers) < 2 for numbers in found.values()) else None
            found[one["kind"]].append(number)
        elif one.get("pages") != len(named):
            return None
    return None


def of_pages(dump: Dump) -> tuple[Evidence, ...]:
    """Return what a dump says of pages that are freed again."""
    return (
        said(dump, "offences.0.value", "the slot, or in an audit the number of places"),
        said(dump, "offence_count", "so many are freed again"),
        said(dump, "pool_kind", "of which pool"),
    )


def of_slots(dump: Dump) -> tuple[Evidence, ...]:
    """Return what a dump says of request slots that are."""
    return (
        cell(dump, TABLE, (0, 0), "the request slot"),
        said(dump, "offences.0.value", "how often the list has it"),
        said(dump, "offence_count", "request slots that stand there more than once"),
    )
