"""The sliding-window pool cannot admit any request."""

from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.diagnose.rule import Rule
from gemma4_triage.diagnose.start_up import start_up_evidence
from gemma4_triage.finding import Confidence, Finding

ID = "swa-pool-too-small"


def find(incident: Incident) -> Finding | None:
    evidence = start_up_evidence(
        incident, "pool_too_small", lambda summary: summary.startswith("swa_slots:"), "slots of the SWA pool"
    )
    if not evidence:
        return None
    return Finding(
        rule=ID,
        cause=(
            "The sliding-window pool is smaller than one window and one page, so SGLang admits no request: all of them "
            "wait in the queue for ever."
        ),
        confidence=Confidence.CERTAIN,
        evidence=evidence,
        ruled_out_if=("a request was served since this start",),
        advice=("Raise --swa-full-tokens-ratio or --max-total-tokens, or lower --chunked-prefill-size.",),
        next_commands=(commands.serve(incident, "--debug trap", "--probes geometry"),),
    )


RULE = Rule(ID, find, leads_to=("no-slot",))
