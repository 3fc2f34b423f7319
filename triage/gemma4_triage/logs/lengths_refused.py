"""Requests that were refused for their length: by how much, and what to change by what the start was given."""

from __future__ import annotations

from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern

_TOO_LONG = pattern(
    r"longer than the (?:model's context length|maximum model length)|maximum context length|"
    r"exceeds the maximum allowed length|exceeds the maximum number of tokens"
)
_RAISED = frozenset({"", "Error", "ValueError", "BadRequestError", "HTTPException", "HTTPStatusError", "Exception"})
_COUNTS = pattern(r"\((\d+) tokens?\) is longer than the model's context length \((\d+)")
_FACTOR = pattern(r"\bfactor\W+(\d+(?:\.\d+)?)")
_ORIGINAL = pattern(r"original_max_position_embeddings\W+(\d+)")
_CUTS = "; --allow-auto-truncate cuts them instead"
_CUTS_NOTHING = (
    "; the start has --allow-auto-truncate, which this release does not heed in that check (a later one may)"
)


_SCHEDULES = pattern(r"scheduler\w*\.py:|schedule_\w+\.py:|.* (?:run_scheduler_process|event_loop\w*)$")


def is_of_length(facts: LogFacts, death: Death) -> bool:
    """Say whether an exception is the refusal of a request for its length, which ends whoever asked and no server."""
    if death.type_name not in _RAISED or not _TOO_LONG.search(death.message):
        return False
    # A scheduler that raises it has died of it.
    caught = any(error.place == death.place for error in facts.errors)
    inside = any(map(_SCHEDULES.match, death.frames)) or (not death.frames and not caught)
    return not inside and (caught or not death.rank)


def counted(said: str) -> str:
    """Return how long it was against what the server has, where the words of the refusal say so; else ""."""
    found = _COUNTS.search(said)
    return f" ({found[1]} tokens against {found[2]})" if found else ""


def advised(facts: LogFacts, advice: str) -> str:
    """Return the advice with what the start was given: a factor of positions alone, or a cut that is not made."""
    if facts.arguments.get("allow_auto_truncate") == "True":
        advice = advice.replace(_CUTS, _CUTS_NOTHING)
    given = facts.arguments.get("json_model_override_args", facts.arguments.get("hf_overrides", ""))
    factor, original = _FACTOR.search(given), _ORIGINAL.search(given)
    if factor is None or facts.settings.get("context_length", "None") != "None":
        return advice
    length = f"{int(float(factor[1]) * int(original[1]))}" if original else "of the lengthened context"
    return (
        f"--context-length {length} beside the override of rope_scaling, for this release takes the context from "
        "max_position_embeddings in config.json and does not lengthen it by the factor (else max_position_embeddings "
        f"in that override too; SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 where it refuses). Else {advice}"
    )
