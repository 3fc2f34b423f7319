"""The server refused its arguments or its port, before it loaded anything."""

from __future__ import annotations

from gemma4_triage.finding import Confidence
from gemma4_triage.logs.rule import of_wordings

RULE = of_wordings(
    "start-refused",
    "the server refused its arguments or its port",
    "start_refused.toml",
    Confidence.CERTAIN,
    what="what the start said",
    alarms=("no-start",),
)
