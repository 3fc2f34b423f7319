"""Hardly one of a server's first drafts was accepted, and nothing else was found."""

from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import said
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.diagnose.rule import Exclusion, Rule
from gemma4_triage.finding import Confidence, Finding

ID = "no-draft-accepted"
_VERDICT = "no_draft_accepted"


def find(incident: Incident) -> Finding | None:
    """Return a finding where the probe saw it."""
    dump = incident.first(verdict=_VERDICT)
    if dump is None:
        return None
    return Finding(
        rule=ID,
        cause=(
            "Hardly one draft was ever accepted since this server started: the draft model is not of this target, or "
            "drafts read other keys than the target wrote, or the text is hard to guess at its temperature. Answers "
            "are right either way, since the target verifies every token."
        ),
        confidence=Confidence.POSSIBLE,
        evidence=(
            said(dump, "scalars.accepted", "drafts that a verification accepted on average, since the start"),
            said(dump, "scalars.verified", "of how many verifications"),
            said(dump, "step", "when it was seen"),
        ),
        advice=(
            "Send a prompt that is easy to go on with (a list of numbers) at temperature 0: a draft of this target "
            "gets some of it right.",
            "Compare --speculative-draft-model-path with the target: drafts are trained for one checkpoint.",
            "Look at what the draft reads: page tables and the mapping of its sliding layers.",
        ),
        next_commands=(
            commands.show(dump),
            commands.serve(incident, "--debug trap"),
            "gemma4-triage repro mtp-zero-accept",
        ),
        upstream=("SGLang 25103", "SGLang 26957"),
    )


RULE = Rule(
    ID,
    find,
    ruled_out_if=(Exclusion("drafts are accepted once another, easier text is asked for"),),
    in_logs=("drafts-never-accepted",),
    fallback=True,
)
