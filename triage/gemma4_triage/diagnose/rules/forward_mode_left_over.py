"""A batch is of another kind behind its forward than it was run as: its result goes to who looks at that kind's."""

from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import said
from gemma4_triage.diagnose.incident import REQUEST_ROWS, Incident
from gemma4_triage.diagnose.rule import LOSES_PAGES, Rule
from gemma4_triage.finding import Confidence, Finding

ID = "forward-mode-left-over"
_AS_PREFILL = (
    " That of a decode is taken for a prefill's then: of a verification each request gets one token, which "
    "may be another's, what it has committed is not counted, and its window is given back at another time."
)


def find(incident: Incident) -> Finding | None:
    dump = incident.first(rule=REQUEST_ROWS, verdict="mode_left")
    if dump is None:
        return None
    scalars = dump.manifest.scalars
    ran, left, requests = (scalars.get(name) for name in ("ran_as", "left_as", "requests"))
    as_prefill = ran == "DECODE" and str(left).startswith(("TARGET_VERIFY", "DRAFT_EXTEND", "EXTEND"))
    return Finding(
        rule=ID,
        cause=(
            f"A batch of {requests} requests was run as {ran}, and its forward left {left} at it (forward_mode), by "
            f"which process_batch_result chooses who looks at its result.{_AS_PREFILL if as_prefill else ''}"
        ),
        confidence=Confidence.CERTAIN,
        evidence=(
            said(dump, "scalars.ran_as", "its kind before the forward"),
            said(dump, "scalars.left_as", "its kind behind it"),
            said(dump, "scalars.requests", "requests of the batch"),
            said(dump, "site", "where it was looked at"),
        ),
        advice=(
            "A speculative worker sets the mode while it drafts and verifies. Look at what takes that back: "
            "_forward_isolation in 0.5.23, the worker's verify and draft in 0.5.13.",
        ),
        next_commands=(commands.show(dump), commands.serve(incident, "--debug trap", "--probes request-rows")),
    )


RULE = Rule(ID, find, leads_to=LOSES_PAGES)
