"""Draft and target, or layers and pools, were put together from parts that do not fit."""

from gemma4_dumps.structures import Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.incident import GEOMETRY, Incident
from gemma4_triage.diagnose.rule import LEAVES_BUFFERS, Rule
from gemma4_triage.diagnose.start_up import start_up_evidence
from gemma4_triage.finding import Confidence, Finding

ID = "parts-disagree"


def find(incident: Incident) -> Finding | None:
    evidence = start_up_evidence(
        incident,
        "geometry_mismatch",
        # A pool that was left behind has a rule of its own.
        lambda summary: not summary.startswith("draft pool:"),
        "one side of the comparison",
    )
    if not evidence:
        return None
    return Finding(
        rule=ID,
        structure=Structure.DRAFT_BINDING if _is_of_draft_layers(incident) else None,
        cause="Parts of this server that must agree do not: a draft and its target, or layers and the pool they read.",
        confidence=Confidence.CERTAIN,
        evidence=evidence,
        ruled_out_if=("both sides name the same value",),
        advice=(
            "If a layer id, head count or head dim differs, draft and target are checkpoints of different models.",
            "Page size, context length and KV dtype come from the launch arguments: see launch_args in the dump.",
        ),
        next_commands=(commands.serve(incident, "--debug trap", "--probes geometry"), commands.DOCTOR),
    )


def _is_of_draft_layers(incident: Incident) -> bool:
    """Return whether what was compared is which layers of the target a draft reads."""
    dumps = incident.of(rule=GEOMETRY, verdict="geometry_mismatch")
    return any(dump.manifest.summary.startswith("draft layer_id") for dump in dumps)


RULE = Rule(ID, find, explains=("index-outside-buffer", "table-too-narrow"), leads_to=LEAVES_BUFFERS)
