"""Triton could not compile a kernel for the types, the shapes or the GPU that it was called with."""

from __future__ import annotations

import re

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.rule import of_death, of_failure, of_settings
from gemma4_triage.logs.suspects import of_files
from gemma4_triage.logs.switched_on import NAMED, features

_TYPES = frozenset(
    {"CompilationError", "CompileTimeAssertionFailure", "UnsupportedLanguageConstruct", "MLIRCompilationError"}
)
_PASSES = pattern(r"PassManager::run failed|Triton Error|error encountered during parsing|failed to translate module")
LAUNCHED = pattern(
    r"invalid configuration argument|"
    r"Triton Error \[\w+\]: .{0,40}(?:invalid argument|illegal|misaligned|context|unspecified|launch|out of memory)"
)
_DTYPES = pattern(r"(?i)mismatched type|(?:dtype|type)s? (?:do not|don't) match|both operands must|must be same type")
_MIXED = pattern(r"\b(bf16|fp16|fp32|fp8\w*)\b.*\b(?!\1\b)(bf16|fp16|fp32|fp8\w*)\b", re.DOTALL)


_ON_NPU = "the triton-ascend and CANN of SGLang's image for this NPU, of one release with SGLang; rm -r ~/.triton/cache"


def _explains(death: Death) -> bool:
    # These compiled: one was started over no rows or over too many, the others met what the GPU reported.
    if LAUNCHED.search(death.message):
        return False
    return death.type_name in _TYPES or _PASSES.search(death.message) is not None


def _tell(facts: LogFacts, death: Death) -> Finding:
    mixed = _MIXED.search(death.message) if _DTYPES.search(death.message) else None
    part = of_files(frame for frame in death.frames if not re.match(r"(?:jit|compiler|code_generator)\.py:", frame))
    if mixed:
        cause = (
            f"A Triton kernel was given {mixed[1]} and {mixed[2]} at once and does not compile for both: weights or "
        )
        cause += "states of this model are of another type than its activations."
        advice: tuple[str, ...] = (
            "one type for all: --dtype bfloat16, then --dtype float16 (GPTQ and AWQ checkpoints are mostly float16)",
            *(("states too: --mamba-ssm-dtype of the same type",) if "mamba" in " ".join(death.frames) else ()),
            "a later release, or the publisher's own checkpoint",
        )
    else:
        cause = "A Triton kernel does not compile for what it was called with: these types and shapes, on this GPU, "
        cause += "with this Triton. Memory is not at fault."
        advice = (
            *(f"once {one.without}: {NAMED}" for one in features(facts) if one.is_named(death)),
            *((f"once without {part.without}",) if part is not None else ()),
            _ON_NPU
            if facts.settings.get("device") == "npu" or "bishengir" in death.message
            else "the triton that the installed torch pins (pip show triton torch); rm -r ~/.triton/cache",
            "then a later release",
        )
    return Finding(
        rule=RULE.id,
        cause=cause,
        confidence=Confidence.LIKELY,
        evidence=(*of_failure(facts, death), *of_settings(facts, "dtype", "quantization", "attention_backend")),
        ruled_out_if=("the same kernel compiles with the same types in a fresh environment",),
        advice=advice,
        next_commands=("gemma4-triage doctor",),
    )


RULE = of_death("triton-compile", "Triton could not compile a kernel", _explains, _tell)
