"""A probe stopped the eviction of a request's window: what it gives back is no page, or has no SWA side."""

from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import by_eviction, said, tensor_or_none
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.diagnose.rule import Exclusion, Rule
from gemma4_triage.finding import Confidence, Finding

ID = "eviction-names-no-page"
_WORDS = {
    Defect.ZERO: "it names page 0, which no request has",
    Defect.NEGATIVE: "it names a slot below the pool",
    Defect.PAST_END: "it names a slot beyond the pool",
    None: "it names a page that has no SWA side, so that page 0 would go to the free list",
}


def find(incident: Incident) -> Finding | None:
    """Return a finding about a call of the eviction that a probe stopped before it was made."""
    dump = incident.first(rule="swa-free-range", verdict="free_out_of_range")
    slot = None if dump is None or not by_eviction(dump) else _full_slot(dump)
    if dump is None or slot is None:
        return None
    manifest, defect = dump.manifest, _defect(dump, slot)
    owner, by = manifest.offences[0].request_slot, manifest.scalars.get("by_request_slot")
    # Of its own page whose SWA side is gone the request may have counted too little.
    own = defect is None and not _is_free(dump) and (None in (owner, by) or owner == by)
    return Finding(
        rule=ID,
        structure=None if own else Structure.WINDOW_EVICTION,
        defect=defect,
        cause=f"The eviction of a request's window gives back what it must not: {_WORDS[defect]}.",
        confidence=Confidence.POSSIBLE if own else Confidence.CERTAIN,
        evidence=(
            said(dump, "offences.0.value", "the slot that would be freed"),
            said(dump, "pool_kind", "of which pool"),
            said(dump, "scalars.call_site", "who gives it back"),
            said(dump, "scalars.by_request_slot", "the request whose window it is"),
            *(
                ()
                if owner is None
                else (said(dump, "offences.0.request_slot", "whose the full page is, by the ledger"),)
            ),
        ),
        advice=("Compare the call with the request's row, and with what it counts as evicted (swa_evicted_seqlen).",),
        next_commands=(commands.show(dump), commands.serve(incident, "--debug trap", "--probes swa-allocator")),
    )


def _full_slot(dump: Dump) -> int | None:
    """Return the full slot that the call names at its first offence."""
    slots, bad = tensor_or_none(dump, "slots"), dump.manifest.offences[:1]
    if slots is None or slots.ndim != 2 or not bad or not 0 <= bad[0].row < len(slots):
        return None
    return int(slots[bad[0].row, 0])


def _is_free(dump: Dump) -> bool:
    """Return whether the full page that the call names is free: then it is no page of the request."""
    states, row = tensor_or_none(dump, "page_states"), dump.manifest.offences[0].row
    return states is not None and states.ndim == 2 and row < len(states) and int(states[row, 0]) == 0


def _defect(dump: Dump, slot: int) -> Defect | None:
    if slot < 0:
        return Defect.NEGATIVE
    if slot >= dump.manifest.extents.get("slots_full_pool", slot + 1):
        return Defect.PAST_END
    return Defect.ZERO if slot < (dump.manifest.page_size or 1) else None


RULE = Rule(
    ID,
    find,
    ruled_out_if=(Exclusion("the request's row has the same slot: then the row is wrong, which the eviction reads"),),
    explains=("unset-slot-freed", "null-page-in-live-column", "page-given-twice"),
    leads_to=("pool-leak",),
)
