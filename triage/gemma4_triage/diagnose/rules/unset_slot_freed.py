"""A caller frees slots of the dummy page 0: an entry of a row that was never written."""

from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import said
from gemma4_triage.diagnose.finding import Confidence, Finding
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.diagnose.rule import Rule

ID = "unset-slot-freed"


def find(incident: Incident) -> Finding | None:
    for dump in incident.of(rule="swa-free-range", verdict="free_out_of_range"):
        offences, page = dump.manifest.offences, dump.manifest.page_size or 1
        if offences and all(0 <= offence.value < page for offence in offences):
            break
    else:
        return None
    return Finding(
        rule=ID,
        cause=(
            "Somebody frees a slot of page 0, which no allocator ever hands out: an unset entry of a request's row "
            "holds 0, and so does the mapping of a slot without an SWA peer."
        ),
        confidence=Confidence.LIKELY,
        evidence=(
            said(dump, "offences.0.value", "the slot that is to be freed"),
            said(dump, "offences.0.lower", "the first slot that the pool hands out"),
            said(dump, "site", "the call that frees it"),
            said(dump, "pool_kind", "of which pool"),
        ),
        ruled_out_if=("slots above page 0 are listed too: then the list itself is wrong",),
        advice=(
            "Released, page 0 would be handed out as a normal page, while padded tokens keep writing to it.",
            "Look at the caller's row: it frees more of it than the request wrote (kv_allocated_len, evicted prefix).",
        ),
        next_commands=(
            commands.serve(incident, "--debug trap", "--probes swa-allocator"),
            commands.corpus("free-of-page-zero"),
        ),
        upstream=("SGLang 38519",),
    )


RULE = Rule(ID, find, injected_by=("free-of-page-zero",), leads_to=("pool-leak",))
