"""The full-to-SWA mapping still leads to SWA pages that were given back."""

from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.census import are_mapped_and_free
from gemma4_triage.diagnose.evidence import cell, readable_events, said, tensor_or_none
from gemma4_triage.diagnose.freed_pages import missing_for_one_in_use
from gemma4_triage.diagnose.hand_out import strayed_hand_out
from gemma4_triage.diagnose.incident import LEAK, Incident
from gemma4_triage.diagnose.rule import Exclusion, Rule, calls_went_unseen, in_dump
from gemma4_triage.diagnose.stale_mapping import (
    are_missing,
    counted_as_gone,
    evictions_left_pages,
    leads_to_pages_of_nobodys_free,
    of_its_owner_before,
)
from gemma4_triage.diagnose.where_wrong import are_free
from gemma4_triage.finding import Confidence, Evidence, Finding

ID = "mapping-outlives-page"


_STILL_THERE = (
    "SWA pages were given back while the full-to-SWA mapping still leads to them; whoever frees these full slots frees "
    "the SWA pages again, which by then may serve another request."
)
_LEFT = (
    "The full-to-SWA mapping still leads from full pages that are free to SWA pages that are free: a free, or a reset "
    "of the allocators, did not clear its entries. A hand-out writes them anew; until then they are stale."
)
_MISSING = (
    "The full-to-SWA mapping leads to SWA pages that nobody counts as held, and as many are missing from that pool: "
    "they were lost as they were given back, or their request counts them as gone from its window and nobody freed "
    "them."
)


def find(incident: Incident) -> Finding | None:
    at_free = incident.first(rule="swa-stale-mapping") if strayed_hand_out(incident) is None else None
    if at_free is not None and missing_for_one_in_use(at_free) is not None:
        # The list is wrong, and not the mapping.
        at_free = None
    at_audit = incident.first(rule=LEAK, verdict="stale_mapping")
    if at_audit is not None and leads_to_pages_of_nobodys_free(incident):
        at_audit = None
    evidence: list[Evidence] = []
    if at_free is not None:
        evidence += [
            said(at_free, "site", "the call after which the mapping was wrong"),
            said(at_free, "offences.0.value", "an SWA slot of a page that is free"),
        ]
        slots = tensor_or_none(at_free, "slots")
        if slots is not None and slots.ndim == 2 and slots.size:
            evidence.append(cell(at_free, "slots", (0, 0), "the full slot that still maps to it"))
        evidence.append(said(at_free, "offence_count", "so many slots do"))
    if at_audit is not None:
        evidence += [
            said(at_audit, "verdict", "the audit saw it too, later"),
            said(at_audit, "offence_count", "full pages with such entries"),
        ]
    if not evidence:
        return None
    continued = at_audit is None and at_free is not None and ".alloc" in at_free.manifest.site
    if continued:
        # Nobody is seen to free the page in this call: its list may have it by mistake, or a free was too early.
        return Finding(
            rule=ID,
            cause="A request goes on in an SWA page that is free: it was given back too early, or is on the list by "
            "mistake. Which of them the dump does not say.",
            confidence=Confidence.POSSIBLE,
            evidence=tuple(evidence),
            next_commands=(commands.serve(incident, "--debug trap"),),
        )
    if at_free is None and at_audit is not None and not are_mapped_and_free(at_audit) and are_missing(at_audit):
        return Finding(
            rule=ID,
            cause=_MISSING,
            confidence=Confidence.POSSIBLE,
            evidence=(*evidence, *counted_as_gone(at_audit)),
            next_commands=(commands.serve(incident, "--debug trap", "--probes swa-allocator"),),
        )
    left = at_free is None and at_audit is not None and are_mapped_and_free(at_audit)
    # What a step did wrong before, with pages of the same request, may have left it so, or a call that nobody saw.
    follows = (
        at_free is None
        and at_audit is not None
        and (of_its_owner_before(incident, at_audit) or calls_went_unseen(at_audit) or evictions_left_pages(incident))
    )
    return Finding(
        rule=ID,
        structure=None if follows else Structure.SWA_MAPPING,
        defect=None if follows else Defect.STALE,
        cause=_LEFT if left else _STILL_THERE,
        confidence=Confidence.POSSIBLE if follows else Confidence.CERTAIN,
        evidence=tuple(evidence),
        advice=("Look at what clears entries: free_swa, clear_full_to_swa_mapping, and clear of the allocator.",)
        if left
        else (
            "SGLang 0.5.13 releases SWA pages whole and clears only the mapping entries that it was given; from 0.5.14 "
            "on the whole page is cleared. Look for a caller of free_swa that names part of a page.",
            "In SGLang's own log this ends as more SWA slots free than the pool has, many requests later.",
        ),
        next_commands=(
            commands.serve(incident, "--debug trap", "--probes swa-allocator"),
            commands.corpus("stale-mapping"),
        ),
        upstream=("SGLang 25805",),
    )


def _is_not_free(dump: Dump) -> bool | None:
    if any(record.get("grouped") is True for record in readable_events(dump)[-1:]):
        # The call gave the page back, and the list gets it when its group ends.
        return False
    free = are_free(dump)
    return None if free is None else not free


def _not_at_release(dump: Dump) -> bool | None:
    """Return False where the probe compared the mapping with the pages that this very call released."""
    return False if dump.manifest.site.endswith(".free_swa") else None


RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion("the page of the SWA slot is not in free_pages_swa", in_dump(_is_not_free)),
        Exclusion("another call than the one that released the page left the mapping", in_dump(_not_at_release)),
    ),
    injected_by=("stale-mapping",),
    explains=("page-freed-twice", "page-given-twice", "swa-page-shared"),
    leads_to=("pool-leak",),
)
