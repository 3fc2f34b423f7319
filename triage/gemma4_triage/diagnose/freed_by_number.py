"""Evictions that take numbers of SWA slots for full slots: they free the SWA pages of full pages so numbered."""

from gemma4_dumps.audit_findings import TABLE, Suspect, suspects
from gemma4_dumps.errors import DumpError
from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import cell, event, readable_events, said
from gemma4_triage.diagnose.incident import LEAK, Incident
from gemma4_triage.finding import Confidence, Finding


def freed_by_number(rule: str, incident: Incident, dump: Dump, lost: list[Suspect], number: int) -> Finding | None:
    """Return the finding where full pages with the numbers of the lost SWA pages have lost theirs to an eviction.

    Args:
        rule: Whose finding it is.
        incident: Where the audit may have seen these.
        dump: Of the audit that found the lost ones.
        lost: The lost SWA pages.
        number: The event by which the eviction gave back the full page of the first, and not that one.
    """
    for other in incident.of(rule=LEAK, verdict="null_page_live"):
        try:
            robbed = suspects(other)
        except DumpError:
            continue
        pages = {one.page for one in robbed if one.pool == "full"}
        if other.manifest.step != dump.manifest.step or pages != {one.page for one in lost}:
            continue
        freed = _evicted(dump)
        if all(one.peer in freed for one in robbed):
            return _finding(rule, dump, other, number)
    return None


def _evicted(dump: Dump) -> set[int]:
    """Return the SWA pages that evictions of the prefix cache gave back, by the events; of many the first ones."""
    found: set[int] = set()
    for one in readable_events(dump):
        pages = one.get("first_pages")
        if (one.get("kind"), one.get("pool"), one.get("site")) == ("freed", "swa", "evict_tree") and isinstance(
            pages, list
        ):
            found.update(page for page in pages if isinstance(page, int))
    return found


def _finding(rule: str, dump: Dump, other: Dump, number: int) -> Finding:
    return Finding(
        rule=rule,
        structure=Structure.FREE_CALL,
        defect=Defect.OTHER_SPACE,
        cause=(
            "An eviction of the prefix cache frees SWA pages that are none of its node's, and those of the node are "
            "lost: the numbers of the lost SWA pages are those of the full pages whose SWA pages it freed. It hands "
            "over SWA slots where full slots belong."
        ),
        confidence=Confidence.CERTAIN,
        evidence=(
            cell(dump, TABLE, (0, 0), "the first SWA page that is lost"),
            cell(other, TABLE, (0, 0), "a full page of that number, which a holder needs: its SWA page was freed"),
            said(other, "offences.0.request_slot", "its last owner's request slot"),
            event(dump, number, "site", "who freed it"),
            event(dump, number, "step", "when that was"),
        ),
        advice=(
            "Look at what an eviction hands to free_swa_segment (evict_component of the cache's sliding-window part): "
            "it takes full slots, the node's own, and looks the SWA slots up.",
            "The pool stays smaller until a flush_cache or a restart.",
        ),
        next_commands=(commands.audit(dump),),
    )
