"""torch.compile could not compile the model's code, or its compiler failed."""

from __future__ import annotations

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.rule import of_death, of_failure, of_settings
from gemma4_triage.logs.rules.sizes_differ import MISFIT

_TYPES = frozenset(
    {"InternalTorchDynamoError", "BackendCompilerFailed", "InductorError", "TorchRuntimeError", "Unsupported"}
    | {"UserError", "CppCompileError", "FailOnRecompileLimitHit", "UncapturedHigherOrderOpError", "LoweringException"}
)
_WORDS = pattern(r"torch\._(?:dynamo|inductor)|(?i:dynamo|inductor) (?:failed|error)|recompile_limit")


def _explains(death: Death) -> bool:
    # Shapes that do not fit are the model's own, whoever runs its code.
    if "with fake tensors" in death.message and MISFIT.search(death.message):
        return False
    return death.type_name in _TYPES or _WORDS.search(death.message) is not None


def _tell(facts: LogFacts, death: Death) -> Finding:
    asked = facts.settings.get("enable_torch_compile") == "True"
    return Finding(
        rule=RULE.id,
        cause="torch.compile could not compile code of this model in this release of SGLang and torch"
        f"{', which --enable-torch-compile asked for' if asked else ''}. Neither memory nor weights are at fault.",
        confidence=Confidence.LIKELY,
        evidence=(*of_failure(facts, death), *of_settings(facts, "enable_torch_compile", "attention_backend")),
        ruled_out_if=("it dies alike with TORCH_COMPILE_DISABLE=1",),
        advice=(
            "without --enable-torch-compile: CUDA graphs alone bring most of the speed"
            if asked
            else "--disable-piecewise-cuda-graph, which compiles prefills; TORCH_COMPILE_DISABLE=1 says if that is all",
            "take torch and triton of the releases that SGLang pins; then a later release; rm -r of the caches "
            "(TORCHINDUCTOR_CACHE_DIR, ~/.triton) if it worked before",
        ),
        next_commands=("gemma4-triage doctor",),
    )


RULE = of_death("torch-compile", "torch.compile failed", _explains, _tell, alarms=("no-start",))
