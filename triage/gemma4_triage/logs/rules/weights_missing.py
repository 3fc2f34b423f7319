"""The checkpoint cannot be read: it is not there, not allowed, or not complete."""

from __future__ import annotations

from gemma4_triage.finding import Confidence
from gemma4_triage.logs.rule import of_wordings

RULE = of_wordings(
    "weights-missing",
    "the checkpoint cannot be read",
    "weights_missing.toml",
    Confidence.LIKELY,
    ruled_out_if=("another process of the same user reads the same path",),
    alarms=("no-start", "panic"),
)
