"""Why some causes have no command to run next: what would help is done elsewhere, as their advice says."""

from __future__ import annotations

from collections.abc import Sequence

from gemma4_triage.finding import Finding

_REQUEST = "the remedy is in what clients send"
_ARGUMENT = "the remedy is an argument of the server, or another release of it"
_CHECKPOINT = "the remedy is in the checkpoint, or in the arguments that say what it is"
_HOST = "the remedy is on the host, in its container or in its network"
_UNKNOWN = "nothing here knows more than the advice says"
_ELSEWHERE = "the beginning is in another log or another process"

REASONS: dict[str, str] = {
    "answer-parser": _ARGUMENT,
    "bus-error": _HOST,
    "chat-template": _ARGUMENT,
    "collective-timeout": _ELSEWHERE,
    "device-fault": _HOST,
    "disk-full": _HOST,
    "draft-model": _ARGUMENT,
    "eager-decode": _ARGUMENT,
    "ended-with-requests": _ELSEWHERE,
    "expert-transport": _HOST,
    "flashinfer-nan": _ELSEWHERE,
    "flashinfer-call-unfinished": _ELSEWHERE,
    "foreign-message": _HOST,
    "graph-capture": _ARGUMENT,
    "grammar-request": _REQUEST,
    "host-limits": _HOST,
    "injected-fault": "the fault was injected on request: leave it out",
    "lora-refused": _ARGUMENT,
    "media-unreadable": _REQUEST,
    "other-crash": _UNKNOWN,
    "prefill-starves-decode": _ARGUMENT,
    "prefix-not-reused": _REQUEST,
    "probe-stopped": "the dump with the evidence is not here, and was perhaps not written",
    "quantised-kernel": _CHECKPOINT,
    "refused-by-check": _ARGUMENT,
    "router": _ELSEWHERE,
    "shared-memory": _HOST,
    "start-refused": _ARGUMENT,
    "start-stopped": _HOST,
    "storage-tier": _ARGUMENT,
    "unexplained-line": _UNKNOWN,
    "uneven-split": _ARGUMENT,
    "weight-names": _CHECKPOINT,
    "weights-missing": _CHECKPOINT,
}
"""By the rule of a finding that names no command; some name one in other cases."""


def why_nothing(findings: Sequence[Finding]) -> str:
    """Return why there is nothing to run for causes of which none names a command; "" if nothing says so."""
    return next((reason for one in findings if (reason := REASONS.get(one.rule))), "")
