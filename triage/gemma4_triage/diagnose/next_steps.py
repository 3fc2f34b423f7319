"""What to do about one dump, as lines: the diagnosis of that dump alone, in short."""

from __future__ import annotations

from collections.abc import Sequence

from gemma4_dumps.reader import Dump
from gemma4_triage.diagnose.commands import patches_with, path_of
from gemma4_triage.diagnose.conclude import conclude
from gemma4_triage.diagnose.grouping import group
from gemma4_triage.diagnose.plan import completed
from gemma4_triage.finding import Finding

PROGRAM = "gemma4-triage"


def first_finding(dump: Dump) -> Finding:
    """Return the likeliest cause of a single dump. There is always one: the last fallback takes every dump."""
    (incident,) = group((dump,))
    return completed(conclude(incident)[:1], incident)[0]


def next_steps(dump: Dump, on_screen: str = "dumps show") -> list[str]:
    """Return the lines to show under "what to do next", most useful first; `on_screen` is the verb that shows them."""
    found, path = first_finding(dump), path_of(dump)
    return [
        f"{found.cause} ({found.label})",
        *found.advice,
        *([fix_line(found)] if found.fix else []),
        *(f"Run: {command}" for command in found.next_commands if not command.startswith(f"{PROGRAM} {on_screen} ")),
        f"The evidence, field by field: {PROGRAM} diagnose {path}",
        f"Make sure that this dump is whole: {PROGRAM} dumps verify {path}",
    ]


def fix_line(found: Finding) -> str:
    """Say which patch of ours repairs it, and how to attach it."""
    return f"The fix is `{found.fix}`: serve with GEMMA4_TRIAGE_PATCHES={patches_with(found.fix or '')}"


_REQUEST = "the remedy is in what clients send"
_ARGUMENT = "the remedy is an argument of the server, or another release of it"
_CHECKPOINT = "the remedy is in the checkpoint, or in the arguments that say what it is"
_HOST = "the remedy is on the host, in its container or in its network"
_UNKNOWN = "nothing here knows more than the advice says"
_ELSEWHERE = "the beginning is in another log or another process"

REASONS: dict[str, str] = {
    "answer-parser": _ARGUMENT,
    "batch-of-nan": _UNKNOWN,
    "blocks-kept": _ELSEWHERE,
    "bus-error": _HOST,
    "busy-session": _ARGUMENT,
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
    "grammar-waits": _ELSEWHERE,
    "host-limits": _HOST,
    "injected-fault": "the fault was injected on request: leave it out",
    "kv-transfer-waits": _ELSEWHERE,
    "lora-refused": _ARGUMENT,
    "media-unreadable": _REQUEST,
    "memory-grows": _ELSEWHERE,
    "one-waits": _ARGUMENT,
    "noted-silence": _UNKNOWN,
    "noted-trouble": _UNKNOWN,
    "orphaned-requests": _ELSEWHERE,
    "other-crash": _UNKNOWN,
    "prefill-starves-decode": _ARGUMENT,
    "prefix-not-reused": _REQUEST,
    "probe-stopped": "the dump with the evidence is not here, and was perhaps not written",
    "quantised-kernel": _CHECKPOINT,
    "refused-by-check": _ARGUMENT,
    "request-values": _REQUEST,
    "requests-held-back": _ARGUMENT,
    "router": _ELSEWHERE,
    "shared-memory": _HOST,
    "start-refused": _ARGUMENT,
    "start-stopped": _HOST,
    "storage-tier": _ARGUMENT,
    "starts-again": _UNKNOWN,
    "unexplained-line": _UNKNOWN,
    "uneven-ranks": _ARGUMENT,
    "uneven-split": _ARGUMENT,
    "weight-names": _CHECKPOINT,
    "workers-stand": _HOST,
    "weights-missing": _CHECKPOINT,
}
"""By the rule of a finding that names no command; some name one in other cases."""


def why_nothing(findings: Sequence[Finding]) -> str:
    """Return why there is nothing to run for causes of which none names a command; "" if nothing says so."""
    return next((reason for one in findings if (reason := REASONS.get(one.rule))), "")
