"""The pool that a draft reads ends before the allocator's: the target's slots lead beyond it."""

from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import said
from gemma4_triage.diagnose.incident import PAGE_TABLE, Incident
from gemma4_triage.diagnose.rule import LEAVES_BUFFERS, SPOILS_DRAFTS, Exclusion, Rule
from gemma4_triage.diagnose.start_up import sides_agree, start_up_evidence
from gemma4_triage.finding import Confidence, Finding

ID = "draft-pool-too-small"


def find(incident: Incident) -> Finding | None:
    sizes = start_up_evidence(
        incident,
        "pool_too_small",
        lambda summary: summary.startswith("draft slots_"),
        "slots of the pool that the draft reads",
    )
    if not sizes:
        return None
    beyond = incident.first(rule=PAGE_TABLE, verdict="out_of_range", role="draft")
    crossed = beyond is not None and beyond.manifest.provenance.table_space == beyond.manifest.provenance.buffer_space
    reads = (
        (
            said(beyond, "offences.0.value", "a page that the draft was about to read"),
            said(beyond, "extents.pages_in_buffer", "pages of the buffer that it has"),
        )
        if beyond is not None and crossed
        else ()
    )
    return Finding(
        rule=ID,
        cause=(
            "The pool that the draft reads has fewer slots than the allocator hands out, so the target's slots lead "
            "beyond its end under load."
        ),
        confidence=Confidence.CERTAIN,
        evidence=(*sizes, *reads),
        advice=(
            "Do not serve like this: what the draft reads beyond its pool is some other tensor.",
            "Size the draft's pool after the target's, with --max-total-tokens set for both, or without a draft.",
        ),
        next_commands=(commands.serve(incident, "--debug trap"), commands.corpus("draft-pool-too-small")),
        upstream=("SGLang 17630",),
    )


RULE = Rule(
    ID,
    find,
    ruled_out_if=(Exclusion("the draft's pool has at least as many slots as the allocator", sides_agree),),
    injected_by=("draft-pool-too-small",),
    explains=("page-past-pool-end", "index-outside-buffer"),
    leads_to=(*LEAVES_BUFFERS, *SPOILS_DRAFTS),
)
