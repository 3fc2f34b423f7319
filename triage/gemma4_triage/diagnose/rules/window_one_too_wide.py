"""W1: SGLang up to 0.5.22 shows Gemma-4's sliding layers one key more than the model's window holds."""

from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.finding import Confidence, Finding
from gemma4_triage.diagnose.incident import GEOMETRY, Incident
from gemma4_triage.diagnose.rule import Rule
from gemma4_triage.diagnose.start_up import start_up_evidence

ID = "window-one-too-wide"


def find(incident: Incident) -> Finding | None:
    evidence = start_up_evidence(
        incident, "window_width", _is_one_more, "keys before its own that a sliding layer shows (window_left)"
    )
    if not evidence:
        return None
    return Finding(
        rule=ID,
        cause=(
            "Sliding layers see one key more than the model's window holds, as this SGLang release ships it: outputs "
            "differ slightly from transformers' once a sequence is longer than the window."
        ),
        confidence=_confidence(incident),
        evidence=evidence,
        ruled_out_if=("found is not expected + 1: then somebody else sets the window",),
        advice=(
            "It crashes nothing and leaks nothing. The fix is off by default, because it changes shipped outputs.",
        ),
        next_commands=(
            commands.serve(incident, "--patches default,+swa-window-width"),
            commands.corpus("window-one-too-wide"),
        ),
        fix="swa-window-width",
        upstream=("SGLang 26147",),
    )


def _is_one_more(summary: str) -> bool:
    """`target window_left, layers 0, 1: found 32, expected 31`."""
    found, _, expected = summary.partition("found ")[2].partition(", expected ")
    return found.isdecimal() and expected.isdecimal() and int(found) == int(expected) + 1


def _confidence(incident: Incident) -> Confidence:
    """Certain as the cause of slightly different outputs; not of what other dumps are about."""
    about_windows = len(tuple(incident.of(rule=GEOMETRY, verdict="window_width")))
    return Confidence.POSSIBLE if incident.crashed or len(incident.dumps) > about_windows else Confidence.CERTAIN


RULE = Rule(ID, find)
