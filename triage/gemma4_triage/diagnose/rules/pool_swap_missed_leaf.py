"""A pool swap that ends at a wrapper: a child of the draft's backend still holds the draft's dummy pool."""

from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import said
from gemma4_triage.diagnose.incident import PAGE_TABLE, Incident
from gemma4_triage.diagnose.rule import Exclusion, Rule, Seen
from gemma4_triage.diagnose.start_up import sides_agree, start_up_evidence
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


def _has_the_layer(seen: Seen) -> bool | None:
    """Return whether the pool in force is the one meant, or has pages of that layer."""
    agree = sides_agree(seen)
    looked_up = [dump.manifest.extents.get("pages_in_buffer") for dump in seen.incident.of(rule=PAGE_TABLE)]
    return agree if agree is not None else None if None in looked_up else any(looked_up)


def _is_a_child(seen: Seen) -> bool | None:
    """Return False where the backend that holds the pool is named below another, as `A.prefill_backend`."""
    places = [str(piece.value).partition(" on ")[2].partition(" inside ")[0] for piece in seen.finding.evidence]
    named = [place for place in places if place]
    return not any("." in place for place in named) if named else None


RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion("the pool that the draft's backend holds has the layers that the draft is bound to", _has_the_layer),
        Exclusion("the draft's backend has no children: then it holds that pool itself", _is_a_child),
    ),
    injected_by=("hybrid-pool-unswapped",),
    in_logs=("hybrid-draft-pool",),
)
