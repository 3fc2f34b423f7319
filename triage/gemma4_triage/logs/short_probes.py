"""A health check that timed out at whoever asks, of a server that had worked: it stands, or the limit is short."""

from __future__ import annotations

from collections.abc import Iterable

from gemma4_triage.logs.facts import Alarm, LogFacts
from gemma4_triage.logs.late_pattern import pattern

_LATE = pattern(
    r"(?i)(?=.{0,400}(?:/health|health ?check|liveness|readiness|startup probe))"
    r".{0,400}(?:deadline exceeded|Client\.Timeout)"
)
_WHAT = (
    "whoever checks its health gave up before an answer came: the server, which had worked before, stands since, or "
    "their limit of time is too short"
)
_LOOK = (
    "curl -w '%{time_total}' of /health on the server's host: it runs a small generation, which takes a second and "
    "more under load. If it answers, give whoever checks (probe, gateway, llama-swap) more time than that, or a path "
    "that only answers (/model_info, /v1/models); SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION=false makes /health one of "
    "those",
)


def gave_up(facts: LogFacts, alarms: Iterable[Alarm]) -> tuple[str, tuple[str, ...]] | None:
    """Return what is said of a check that timed out, and what to do first, of a server that had worked; else None.

    Args:
        facts: of the log.
        alarms: of which one may be of a client whose check timed out.
    """
    works = ("answer" in facts.understood or facts.served) and not facts.deaths
    return (_WHAT, _LOOK) if works and any(_LATE.match(one.text) for one in alarms) else None
