"""A note beside a log says that KV no longer gets from a prefill to a decode server, which no line of it shows."""

from __future__ import annotations

from collections.abc import Iterator

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs import said_in_notes
from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.logs.rule import COLLECT, at, of_settings

OTHER_SIDE = (
    "the other server's log at the same time says why: it died, has no room, or its network does not answer",
    "both have to run the same release and page size",
)
"""What to look at wherever a transfer failed."""


def noted(facts: LogFacts) -> Iterator[Finding]:
    """Yield that transfers fail where a note alone says so."""
    note = facts.remarks.get(said_in_notes.TRANSFERS)
    asked = {**facts.arguments, **facts.settings}
    split = asked.get("disaggregation_mode", "null") not in ("null", "None")
    if note is None or not split or facts.deaths or facts.alarms:
        return
    used = asked.get("disaggregation_transfer_backend", "mooncake")
    other = "mooncake" if used == "nixl" else "nixl"
    yield Finding(
        rule="kv-transfer",
        cause="Unknown cause: a note beside the log says that KV does not get from the prefill to the decode server, "
        "and no line here shows it.",
        confidence=Confidence.POSSIBLE,
        evidence=(
            at(facts, note.place, note.text, "the note"),
            *of_settings(facts, "disaggregation_mode", "disaggregation_transfer_backend", "disaggregation_ib_device"),
        ),
        ruled_out_if=("the other server's log has an exception before it: then that is the beginning",),
        advice=(
            f"with --disaggregation-transfer-backend {other} on both servers, in place of {used}: another transport "
            "over the same network. If it then holds, the transport or its release is at fault",
            *OTHER_SIDE,
            "the first lines of the transport itself at that time, in both logs: they say why (memory that is not "
            "registered, a retry that was given up, a session that is held for dead)",
        ),
        next_commands=(COLLECT,),
    )
