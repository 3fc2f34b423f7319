"""W1: SGLang up to 0.5.22 shows Gemma-4's sliding layers one key more than the model's window holds."""

from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.diagnose.process_state import ships_right_windows
from gemma4_triage.diagnose.rule import Exclusion, Rule
from gemma4_triage.diagnose.start_up import start_up_evidence
from gemma4_triage.finding import Confidence, Finding, Kind
from gemma4_triage.logs.rules.probe_stopped import shows_one_key_more

ID = "window-one-too-wide"


def find(incident: Incident) -> Finding | None:
    evidence = start_up_evidence(
        incident, "window_width", shows_one_key_more, "keys before its own that a sliding layer shows (window_left)"
    )
    if not evidence:
        return None
    return Finding(
        rule=ID,
        kind=Kind.NOTE,
        cause=(
            "Sliding layers see one key more than the model's window holds, as this SGLang release ships it: outputs "
            "differ slightly from transformers' once a sequence is longer than the window."
        ),
        confidence=Confidence.CERTAIN,
        evidence=evidence,
        advice=(
            "It crashes nothing and leaks nothing. The fix is off by default, because it changes shipped outputs.",
            "A decode on Triton attention sees one key too few in this release, for which `triton-decode-window` is "
            "the fix: with both, outputs are those of transformers.",
        ),
        next_commands=(
            commands.serve(incident, "--patches default,+swa-window-width,+triton-decode-window"),
            commands.corpus("window-one-too-wide"),
        ),
        fix="swa-window-width",
        upstream=("SGLang 26147",),
    )


RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion(
            "the release is newer than 0.5.22, whose window is right: then a part is wrong",
            lambda seen: ships_right_windows(seen.incident),
        ),
    ),
)
