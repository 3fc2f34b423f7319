"""A kernel of Triton was to compute in FP8 E4M3 on a GPU that has none.

Triton names the GPU's own types below the traceback's last line.
"""

from __future__ import annotations

from collections.abc import Iterator

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.rule import Rule, of_failure, of_settings, remarked

_HAS_NONE = pattern(r"fp8e4\w* (?:data type )?(?:is )?not supported")


def _explains(death: Death) -> bool:
    return death.type_name == "CompilationError" or _HAS_NONE.search(death.message) is not None


def _find(facts: LogFacts) -> Iterator[Finding]:
    death = next(filter(_explains, facts.failures), None)
    if death is None or not ("no_fp8_e4m3" in facts.remarks or _HAS_NONE.search(death.message)):
        return
    yield Finding(
        rule=RULE.id,
        cause="This GPU has no FP8 of the kind E4M3, which takes compute capability 8.9 (Ada, Hopper or later), and a "
        "kernel of Triton was to compute in it.",
        confidence=Confidence.LIKELY,
        evidence=(
            *of_failure(facts, death),
            *remarked(facts, "no_fp8_e4m3", "what Triton said"),
            *of_settings(facts, "quantization", "kv_cache_dtype", "model_path"),
        ),
        ruled_out_if=("nvidia-smi --query-gpu=compute_cap says 8.9 or more",),
        advice=(
            "another GPU, or a checkpoint in bfloat16, INT8, AWQ or GPTQ in place of one in FP8",
            "--kv-cache-dtype auto, or fp8_e5m2, if the KV cache alone is to be FP8",
        ),
        next_commands=("gemma4-triage doctor",),
    )


RULE = Rule("no-fp8", "a GPU has no FP8 E4M3", _find, _explains)
