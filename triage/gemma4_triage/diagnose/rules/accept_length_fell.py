"""Drafts are accepted far less than before, and nothing else was found."""

from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import said
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.diagnose.rule import Exclusion, Rule
from gemma4_triage.finding import Confidence, Finding

ID = "accept-length-fell"
_VERDICT = "accept_length_fell"


def find(incident: Incident) -> Finding | None:
    """Return a finding where the probe saw it."""
    dump = incident.first(verdict=_VERDICT)
    if dump is None:
        return None
    return Finding(
        rule=ID,
        cause=(
            "Drafts are accepted far less than before: they read other keys than the target wrote, or the text became "
            "harder to guess. Answers are right either way, since the target verifies every token."
        ),
        confidence=Confidence.POSSIBLE,
        evidence=(
            said(dump, "scalars.accepted_before", "drafts that a verification accepted before, on average"),
            said(dump, "scalars.verified_before", "of how many verifications"),
            said(dump, "scalars.accepted_recently", "drafts accepted in the latest ones, on average"),
            said(dump, "step", "when it was seen"),
        ),
        advice=(
            "Send prompts that were accepted well before: if they still are, the text is what changed. Where the "
            "tensor `recent` has one request slot only, it is that request's text.",
            "Look at what the draft reads: page tables and the mapping of its sliding layers.",
        ),
        next_commands=(commands.show(dump), commands.serve(incident, "--debug trap")),
        upstream=("SGLang 25103", "SGLang 26957"),
    )


RULE = Rule(
    ID,
    find,
    ruled_out_if=(Exclusion("the prompts changed in kind at that time"),),
    in_logs=("accept-length-drop",),
    fallback=True,
)
