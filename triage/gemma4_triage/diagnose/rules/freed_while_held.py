"""A page on the free list that a request or the prefix cache still holds: freed too early, or never freed at all."""

from gemma4_dumps.audit_findings import Suspect, suspects
from gemma4_dumps.errors import DumpError
from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.census import FREE_AND_HELD, NOWHERE, first_census
from gemma4_triage.diagnose.concerned import free_list_of_pool
from gemma4_triage.diagnose.evidence import said
from gemma4_triage.diagnose.incident import LEAK, Incident
from gemma4_triage.diagnose.rule import Rule
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
        # Without a row of such a page nothing shows that a free took place.
        confidence=Confidence.CERTAIN if held else Confidence.LIKELY,
        evidence=_evidence(dump),
        ruled_out_if=("the holder is a request that has ended: then it was not released, and nothing reads",),
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
        # The ledger sees the frees that go through the allocator's own calls.
        confidence=Confidence.POSSIBLE if now else Confidence.LIKELY,
        evidence=_evidence(dump),
        ruled_out_if=("the audit names a free of the page after its hand-out",),
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
    """Return whether the ledger saw a free of the page since it was handed out last."""
    return page.free_step is not None and (page.alloc_step is None or page.free_step >= page.alloc_step)


RULE = Rule(ID, find, explains=("page-given-twice",), leads_to=("pool-leak",))
