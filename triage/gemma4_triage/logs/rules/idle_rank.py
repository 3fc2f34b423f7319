"""A rank of attention data parallelism without a request took part in a step, and code failed on no tokens."""

from __future__ import annotations

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.rule import of_death, of_failure, of_settings
from gemma4_triage.logs.suspects import of_files
from gemma4_triage.logs.switched_on import features

_EMPTY = pattern(
    r"(?i)numel\(\) ?== ?0|\bsize 0\b|\b0 elements|(?:is|are) empty|empty (?:tensor|batch|sequence|list)|"
    r"non-?(?:empty|zero)|\bidle\b|Triton Error .*invalid (?:configuration )?argument"
)
_IDLES = pattern(r".* \w*(?:forward_idle|idle_batch|prepare_(?:for_)?idle|idle_input|execute_idle)\w*$")
_AGREE = pattern(r".* prepare_mlp_sync_batch\w*$")
"""Where ranks tell each other what they run; one that idles has a batch without most of what the others' have."""
_PARALLEL = pattern(r"\bDP\d")


def _explains(death: Death) -> bool:
    raised = death.type_name not in ("", "OutOfMemoryError", "AcceleratorError")
    if not raised or "CUDA error" in death.message:
        return False
    idles = any(map(_IDLES.match, death.frames))
    lacks = "NoneType" in death.message and any(map(_AGREE.match, death.frames[-2:]))
    return idles or lacks or (_PARALLEL.search(death.rank) is not None and _EMPTY.search(death.message) is not None)


def _was_busy(facts: LogFacts, death: Death) -> bool:
    """Say whether a kernel was not started on a rank that reports batches of its own: it may have had too many rows."""
    busy = any(rank.rank == death.rank and rank.prefill_lines + rank.decode_lines for rank in facts.ranks)
    return busy and "Triton Error" in death.message


def _tell(facts: LogFacts, death: Death) -> Finding:
    named = [one for one in features(facts) if one.is_named(death) and one.setting != "enable_dp_attention"]
    part = of_files(death.frames[-3:])
    return Finding(
        rule=RULE.id,
        cause="A rank without a request of its own took part in a step of the others, with no tokens, and code that "
        f"knows no such step failed on it{', in ' + death.frame if death.frame else ''}. It comes of attention data "
        "parallelism (--dp), not of a request, and is a defect of the release.",
        confidence=Confidence.POSSIBLE if _was_busy(facts, death) else Confidence.LIKELY,
        evidence=(
            *of_failure(facts, death),
            *of_settings(facts, "enable_dp_attention", "dp_size", *(one.setting for one in named)),
        ),
        ruled_out_if=("it happens as well while every rank has requests",),
        advice=(
            "once without --enable-dp-attention (--dp); then a later release",
            *(f"or once {one.without}: the exception names it" for one in named),
            *((f"or once without {part.without}",) if part is not None and not named else ()),
            "or once without the graph of prefills (--cuda-graph-backend-prefill=disabled; in earlier releases "
            "--disable-piecewise-cuda-graph)",
        ),
    )


RULE = of_death("idle-rank", "a rank without requests failed in a step of the others", _explains, _tell)
