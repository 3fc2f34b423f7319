"""A pool swap that ends at a wrapper: a child of the draft's backend still holds the draft's dummy pool."""

from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import said
from gemma4_triage.diagnose.incident import PAGE_TABLE, Incident
from gemma4_triage.diagnose.rule import Rule
from gemma4_triage.diagnose.start_up import start_up_evidence
from gemma4_triage.finding import Confidence, Finding

ID = "pool-swap-missed-leaf"


def find(incident: Incident) -> Finding | None:
    dumps = tuple(incident.of(rule=PAGE_TABLE, verdict="wrong_space", role="draft", buffer_space="unknown"))
    left_behind = start_up_evidence(
        incident,
        "geometry_mismatch",
        lambda summary: summary.startswith("draft pool:"),
        "the pool that a node of the draft's backend holds inside the swap",
    )
    if not dumps and not left_behind:
        return None
    return Finding(
        rule=ID,
        structure=Structure.DRAFT_BINDING,
        defect=Defect.STALE,
        cause=(
            "The pool swap of the draft stopped at a wrapper: a child of its attention backend still holds the "
            "draft's own dummy pool, which has no layer with the target's layer ids."
        ),
        # Both compare the very pool objects, or look a layer up in one.
        confidence=Confidence.CERTAIN,
        evidence=(
            *left_behind,
            *(
                evidence
                for dump in dumps
                for evidence in (
                    said(dump, "layer.id", "the layer that the draft is bound to, as the target counts"),
                    said(dump, "provenance.buffer_origin", "where it is looked up"),
                    said(dump, "provenance.buffer_space", "no pool of the target's: the lookup finds nothing"),
                )
            ),
        ),
        ruled_out_if=("the draft's backend has no children (see backend, and found above)",),
        advice=(
            "Without the fix SGLang dies of `IndexError: list index out of range` at the first draft step or capture.",
            "Without our runtime: --speculative-draft-attention-backend trtllm_mha gives the draft a backend "
            "without children.",
        ),
        next_commands=(
            commands.serve(incident, "--patches default", "--debug 1"),
            commands.corpus("hybrid-pool-unswapped"),
        ),
        fix="swa-state-swap",
        upstream=("SGLang 26966",),
    )


RULE = Rule(ID, find, injected_by=("hybrid-pool-unswapped",), in_logs=("hybrid-draft-pool",))
