"""What of a start makes FlashInfer's workspace too small, beside the batch itself."""

from __future__ import annotations

from gemma4_triage.finding import Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern

_VARIABLE = "SGLANG_FLASHINFER_WORKSPACE_SIZE"
_SHORT = 4096  # tokens


def of_the_start(facts: LogFacts, found: Finding) -> tuple[str, ...]:
    """Return what to change of the start first, where a finding is of that workspace; empty if nothing stands out."""
    if "FlashInfer's workspace" not in found.cause:
        return ()
    asked = facts.arguments
    if facts.settings.get("enable_deterministic_inference") != "True":
        return ()
    size = asked.get("chunked_prefill_size", "")
    long = not size.isdecimal() or int(size) > _SHORT
    now = f" ({size} now)" if size.isdecimal() else ""
    told = f", as {asked[_VARIABLE]} here was" if _VARIABLE in asked else ""
    return (
        *((f"--chunked-prefill-size {_SHORT}{now}, so that one plan needs less",) if long else ()),
        "once without --enable-deterministic-inference, or with another backend that is deterministic (--attention-"
        f"backend fa3, triton): on FlashInfer some releases set the workspace themselves then, and {_VARIABLE} is "
        f"overwritten{told} (SGLang 30244); a later release",
    )


_FUSED = pattern(r"(?i)initialize FlashInfer workspace|allreduce[ _]fusion")


def of_fused_sums(facts: LogFacts, death: Death) -> tuple[str, tuple[str, ...]] | None:
    """Return cause and advice where memory ran out as the workspace of fused all-reduces was made; None elsewhere."""
    if _FUSED.search(death.message) is None:
        return None
    on = facts.settings.get("enable_flashinfer_allreduce_fusion") == "True"
    return (
        "The device's memory ran out where the workspace of fused all-reduces is made. A rank that does without it "
        "leaves the others waiting for it, so that a time-out of theirs follows from this.",
        (
            "lower --mem-fraction-static by 0.05, so that each rank has room for it",
            f"{'without --enable' if on else '--disable'}-flashinfer-allreduce-fusion meanwhile; then a later release, "
            "in which all ranks agree first. A longer time-out of collectives changes nothing",
        ),
    )
