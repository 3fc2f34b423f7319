"""Weights that a trainer sent into a running server, of which one has another size than its place."""

from __future__ import annotations

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts, Remark
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.rule import at, of_failure, of_settings

_COMPARES = pattern(r"assert .*(?:size\(\)|shape).*==.*(?:size\(\)|shape)")
_QUANTISED_COPY = pattern(r"(?i)fp8|fp4|int8|int4|awq|gptq|w8a8|w4a|marlin|\b[48]bit")


def _has_a_form(facts: LogFacts) -> bool:
    """Say whether the start, or the name of the model, tells of weights that are turned into a form of kernels."""
    named = facts.settings.get("quantization", "None") != "None"
    return named or _QUANTISED_COPY.search(facts.settings.get("model_path", "")) is not None


def is_of_another_size(facts: LogFacts, death: Death) -> bool:
    """Say whether sizes of experts, or of what was fused, were compared, and nothing says of a form of kernels."""
    if _COMPARES.search(death.statement) is None or _has_a_form(facts):
        return False
    return _has_experts(facts, death) or _FUSED.search(death.statement) is not None


_FUSED = pattern(r"(?i)fused|expert")


def _has_experts(facts: LogFacts, death: Death) -> bool:
    return facts.settings.get("ep_size", "1") not in ("1", "None") or "EP" in death.rank


def of_another_size(facts: LogFacts, death: Death, updated: Remark) -> Finding:
    """Return that a weight which a trainer sent has another size than its place, of which the log says no more."""
    return Finding(
        rule="weight-names",
        cause="The weights of a running server were replaced, and one that was sent has another size than its place: "
        "it is not cut, packed or fused as the loader of this release takes it, which the log does not say more of "
        "(shared experts that are fused with routed ones, parts of experts or heads, a quantised form).",
        confidence=Confidence.LIKELY,
        evidence=(
            at(facts, updated.place, updated.text, "the update that it was in"),
            *of_failure(facts, death),
            *of_settings(facts, "tp_size", "ep_size", "quantization", "model_path"),
        ),
        ruled_out_if=("a server that is started with those weights dies alike",),
        advice=(
            *(
                ("once with --ep 1 (ep_size 1), then with --disable-shared-experts-fusion",)
                if _has_experts(facts, death)
                else ()
            ),
            "start a server with the new weights on disk: if it loads them, the fault is in how this release takes an "
            "update: another release of the server, the one before or a later one",
            "names, shapes, dtype and parallelism that a trainer sends have to be the server's",
        ),
    )
