"""A page on the free list that a request or the prefix cache still holds: freed too early, or never freed at all."""

from gemma4_dumps.audit_findings import Suspect, suspects
from gemma4_dumps.errors import DumpError
from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.census import FREE_AND_HELD, NOWHERE, TAKEN, TREE, first_census
from gemma4_triage.diagnose.concerned import free_list_of_pool
from gemma4_triage.diagnose.evidence import said, tensor_or_none
from gemma4_triage.diagnose.incident import LEAK, Incident
from gemma4_triage.diagnose.rule import Exclusion, Rule, in_dump
from gemma4_triage.finding import Confidence, Evidence, Finding

ID = "freed-while-held"


def find(incident: Incident) -> Finding | None:
    dump = incident.first(rule=LEAK, verdict="freed_in_use")
    if dump is None:
        return None
    held = _held(dump)
    if held and not any(_was_freed(page) for page in held):
        return _never_freed(incident, dump, held[0])
    return Finding(
        rule=ID,
        structure=Structure.FREE_CALL,
        defect=Defect.EARLY,
        cause=(
            "Pages are free although a request or the prefix cache still reads them, so the next owner overwrites "
            "them: somebody freed more than was his."
        ),
        confidence=Confidence.CERTAIN,
        evidence=_evidence(dump),
        advice=("The audit names who freed each page and when: start with free_site of the first row.",),
        next_commands=(commands.audit(dump), commands.serve(incident, "--debug trap", "--probes swa-allocator")),
    )


def _never_freed(incident: Incident, dump: Dump, first: Suspect) -> Finding:
    now = _was_given_now(incident, first)
    return Finding(
        rule=ID,
        structure=None if now else free_list_of_pool(first.pool),
        cause=(
            f"The free list of the {first.pool} pool holds pages that a request or the prefix cache still reads, and "
            "nobody gave them back since they were handed out: what is wrong is the list, "
            + ("or the hand-out of this very step." if now else "not a free.")
        ),
        confidence=Confidence.POSSIBLE if now else Confidence.CERTAIN,
        evidence=_evidence(dump),
        advice=("Look at what writes free_pages beside free and alloc: restore_state, clear, a resized pool.",),
        next_commands=(commands.audit(dump), commands.serve(incident, "--debug trap", "--probes swa-allocator")),
    )


def _was_given_now(incident: Incident, page: Suspect) -> bool:
    """Return whether the page may have been handed out in another's place, in the step of the audit.

    That one was free, and is nowhere: the list named another page, or the hand-out did.
    """
    census = first_census(incident)
    if census is None or not any(one.was_free for one in census.of(page.pool, NOWHERE)):
        return False
    return any(one.page == page.page and census.given_now(one) for one in census.of(page.pool, FREE_AND_HELD))


def _evidence(dump: Dump) -> tuple[Evidence, ...]:
    return (
        said(dump, "offence_count", "pages that are free and held"),
        said(dump, "offences.0.value", "in how many places the first one is"),
        said(dump, "offences.0.request_slot", "its last owner's request slot"),
        said(dump, "step", "the step of the audit"),
    )


def _held(dump: Dump) -> list[Suspect]:
    """Return what the audit knows of the pages that are free and held; none if its table cannot be read."""
    try:
        return [page for page in suspects(dump) if page.fault == FREE_AND_HELD]
    except DumpError:
        return []


def _was_freed(page: Suspect) -> bool:
    """Return whether the ledger saw a free of the page since it was handed out last.

    Of a free and a hand-out in one step the last event is the later one.
    """
    if page.free_step is None or page.alloc_step is None:
        return page.free_step is not None
    later = page.free_step == page.alloc_step and page.last_event not in TAKEN
    return later or page.free_step > page.alloc_step


def _has_ended(dump: Dump) -> bool | None:
    """Return whether no request that runs, nor the cache, holds such a page; None where the dump does not say."""
    table, running = tensor_or_none(dump, "holders"), dump.manifest.scalars.get("running")
    pages = {page.page for page in _held(dump) if page.pool == "full"}
    if table is None or table.ndim != 2 or not isinstance(running, str):
        return None
    alive = {str(TREE), *running.split(",")}
    holders = [str(int(holder)) for page, holder, _ in table.tolist() if page in pages]
    return not alive & set(holders) if holders else None


RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion(
            "the holder is a request that has ended: then it was not released, and nothing reads", in_dump(_has_ended)
        ),
        Exclusion(
            "the audit's table of the page shows another free, or none",
            in_dump(lambda dump: False if _held(dump) else None),
        ),
        Exclusion(
            "the pages were freed beside the allocator's own calls, which the ledger does not see",
            lambda seen: False if seen.finding.structure is Structure.FREE_CALL else None,
        ),
    ),
    explains=("page-given-twice",),
    leads_to=("pool-leak",),
)
