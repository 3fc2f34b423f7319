"""The sliding-window pool cannot admit any request."""

from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.diagnose.rule import Exclusion, Rule
from gemma4_triage.diagnose.start_up import sides_agree, start_up_evidence
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
        advice=("Raise --swa-full-tokens-ratio or --max-total-tokens, or lower --chunked-prefill-size.",),
        next_commands=(commands.serve(incident, "--debug trap", "--probes geometry"),),
    )


RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion("the pool has more slots than one window and one page", sides_agree),
        Exclusion(
            "a dump of this run is of a step, so that a request was served",
            lambda seen: any(dump.manifest.step for dump in seen.incident.dumps),
        ),
    ),
    leads_to=("no-slot",),
)
