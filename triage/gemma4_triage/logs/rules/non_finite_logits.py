"""Logits became NaN or infinite; sampling noticed it."""

from __future__ import annotations

from dataclasses import replace

from gemma4_triage.finding import Confidence, Evidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts, Place
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.looked_at_first import weights_left_out
from gemma4_triage.logs.rule import (
    at,
    last_sign_of_life,
    of_death,
    of_failure,
    of_settings,
    on_rank,
    remarked,
)
from gemma4_triage.logs.rules import library_kernel
from gemma4_triage.logs.started import Started

_WORDS = pattern(
    r"invalid eagle tree|contains either `inf`, `nan`|(?i:nan in the (?:logits|prob))|[Dd]etected (?:NaN|nan|inf)\b|"
    r"\b(?:NaN|nan|inf) (?:values? )?(?:was |were )?(?:detected|found|happened)|"
    r"logits (?:are|is|became|contain) (?:all )?(?:NaN|nan|inf)"
)
_SUSPECTS = (
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "attention_backend",
    "enable_hierarchical_cache",
    "speculative_algorithm",
)

_OF_A_BENCHMARK = (
    "A benchmark without a server asked for them, which feeds token ids that are no text: what a model makes of those "
    "says nothing of its answers, and may be harmless."
)


def _explains(death: Death) -> bool:
    return _WORDS.search(death.message) is not None


def _tell(facts: LogFacts, death: Death) -> Finding:
    alarm = next((alarm for alarm in facts.alarms if alarm.kind == "nan"), None)
    place = death.place if alarm is None or alarm.place.line > death.place.line else alarm.place
    evidence = of_failure(facts, death, "what sampling saw first")
    if alarm is not None and alarm.count > 1:
        who = ", ".join(filter(None, (alarm.rank, *alarm.ranks)))
        evidence.append(at(facts, alarm.place, alarm.count, f"such lines{f', of {who}' if who else ''}"))
    evidence += last_sign_of_life(facts, place)
    if "eagle tree" in death.message:
        return Finding(
            rule=_OF_DEATH.id,
            cause="The tree of a draft has a token without a parent, as it has where the draft's own log probabilities "
            "are NaN: the draft computes nonsense, and its tokens are thrown away.",
            confidence=Confidence.LIKELY,
            evidence=(*evidence, *of_settings(facts, *_SUSPECTS)),
            advice=(
                "serve without --speculative-algorithm, or with a draft that was made for this very model",
                *_advice(facts),
            ),
        )
    failed, looks = _kernel_before(facts, place)
    masked = "probability tensor" in death.message and _may_mask(facts)
    made_up = remarked(facts, "benchmark", "what asked for them")
    seen, of_draft = ("", ()) if made_up or failed else _in_the_draft(facts, death)
    return Finding(
        rule=_OF_DEATH.id,
        cause=f"Logits{' (or what a grammar left of them)' * masked} were NaN or infinite, first in line "
        f"{place.line}{on_rank(death.rank)}. "
        + (_OF_A_BENCHMARK if made_up else seen or "The log does not say which layer made them."),
        confidence=Confidence.POSSIBLE if made_up else Confidence.LIKELY if masked or failed else Confidence.CERTAIN,
        evidence=(*evidence, *made_up, *failed, *of_settings(facts, *_SUSPECTS)),
        advice=(
            *(
                ("hold answers to real prompts against another engine's (--correct): if those are right, ignore it",)
                if made_up
                else ()
            ),
            *looks,
            *(() if made_up or failed else weights_left_out(facts)),
            *of_draft,
            *(one for one in _advice(facts) if not (of_draft and one == _NO_DRAFTS)),
        ),
        next_commands=("gemma4-triage serve --debug 1 -- --model-path MODEL",),
    )


_NO_DRAFTS = "once without --speculative-algorithm"
_OF_A_DRAFT = pattern(r"\w*(?:eagle|mtp|nextn|draft|dflash|dspark|spec_)\w*\.py:|.* \w*draft\w*$")
_OF_THE_TARGET = pattern(r"verif|sampler\.py|target_worker")
_INNER = 3  # frames


def _in_the_draft(facts: LogFacts, death: Death) -> tuple[str, tuple[str, ...]]:
    """Return what to say, and to try first, where a worker of drafts noticed it; empty where none did."""
    near = death.frames[-_INNER:]
    # Workers of drafts run the target too, and verify with it.
    if not any(map(_OF_A_DRAFT.match, near)) or _OF_THE_TARGET.search(" ".join((*near, death.statement))):
        return "", ()
    cached = _cached_before(facts, death.place.line)
    again = "SGLANG_ENABLE_SPEC_V2=0 first" if facts.arguments.get("SGLANG_ENABLE_SPEC_V2", "0") not in _OFF else ""
    prefix = (
        f"once with --disable-radix-cache: the last prefill before it took {cached} tokens from the prefix cache, of "
        "which the target wrote the keys, and the draft may never have written its own; if requests without cached "
        "tokens are right, neither weights nor their quantisation are at fault"
        if cached
        else "once with --disable-radix-cache: keys of a cached prefix that the draft never wrote are noise to it"
    )
    return (
        "A worker of drafts noticed it: the draft's own pass may have made them, and the target be sound.",
        (
            prefix,
            f"{_NO_DRAFTS}{f' ({again})' if again else ''}: if it then does not happen, the draft's pass is at fault",
            "a later release, whose worker of drafts writes its own keys of cached prefixes too",
        ),
    )


_OFF = frozenset({"0", "False", "false", ""})


def _cached_before(facts: LogFacts, line: int) -> int:
    """Return how many tokens the last prefill before a line took from the prefix cache, on any rank."""
    names = ("line", "new_tokens", "cached_tokens")
    rows = (row for rank in facts.schedulers for row in zip(*(rank.series[name] for name in names), strict=True))
    before = [(at_line, cached) for at_line, new, cached in rows if at_line and at_line < line and new]
    return int(max(before)[1] or 0) if before else 0


def _may_mask(facts: LogFacts) -> bool:
    """Say whether this server is made for requests whose grammar masks tokens."""
    names = ("tool_call_parser", "reasoning_parser")
    return any(facts.settings.get(name, "None") not in ("None", "") for name in names)


def _kernel_before(facts: LogFacts, place: Place) -> tuple[list[Evidence], tuple[str, ...]]:
    """Return a kernel's own failure that stands before, and what to choose in its place; nothing if none does."""
    alarm = next((alarm for alarm in facts.alarms if alarm.kind == "device"), None)
    if alarm is None or alarm.place.line >= place.line:
        return [], ()
    part = library_kernel.part_named(alarm.text)
    computes = f", which computes {part.what}: {part.look}" if part else ": another backend of the part it is of"
    look = f"begin with line {alarm.place.line}, where a kernel failed before{computes}; then a later release"
    return [at(facts, alarm.place, alarm.text, "a kernel that had failed before")], (look,)


_BLOCKS = pattern(r"(?i)deepseek-?v[34]|deepseek-?r1(?!-distill)|glm-5|kimi-k2")
_SCALES_OF_BLOCKS = (
    "a later release of SGLang with its DeepGEMM (deep_gemm, sglang-kernel), whatever else: on Blackwell scales of FP8 "
    "blocks are packed as powers of two (ue8m0), and one that is none becomes NaN in decodes of few tokens (SGLang "
    "25733). To tell: once with SGLANG_ENABLE_JIT_DEEPGEMM=0, or the same checkpoint on Hopper"
)


def _advice(facts: LogFacts) -> tuple[str, ...]:
    """Return what to switch off once, what this server has first; each alone, since two changes tell nothing."""
    asked = facts.settings
    steps = []
    if asked.get("enable_memory_saver") == "True":
        steps.append(
            "load the weights that a trainer sends from disk once (--enable-memory-saver is on): if those serve, the "
            "trainer's conversion is at fault, of names, layout or dtype, or some were never sent"
        )
    if Started(facts).is_float16:
        steps.append(
            "--dtype bfloat16 (float32 where the GPU has none): this server computes in float16, which ends at 65504; "
            "values of models trained in bfloat16 pass that"
        )
    if asked.get("kv_cache_dtype", "auto") not in ("auto", "bfloat16"):
        steps.append("once with --kv-cache-dtype auto: scales of an FP8 KV cache are the first suspect")
    runner = asked.get("moe_runner_backend", "auto")
    if runner not in ("auto", "None", "triton"):
        steps.append(f"once with another --moe-runner-backend than {runner}")
    if asked.get("quantization", "None") != "None":
        steps.append("once with the checkpoint that is not quantised, or another backend of its GEMM: scales")
    if asked.get("speculative_algorithm", "None") != "None":
        steps.append(_NO_DRAFTS)
    if asked.get("enable_hierarchical_cache") == "True":
        steps.append("once without --enable-hierarchical-cache: pages that come back from the host")
    if "blackwell" in facts.remarks and _BLOCKS.search(asked.get("model_path", "")):
        steps.append(_SCALES_OF_BLOCKS)
    if asked.get("tp_size", "1") != "1":
        steps.append("once with --disable-custom-all-reduce: a sum over ranks that goes wrong")
    if asked.get("disable_cuda_graph") != "True":
        steps.append(
            "once with --disable-cuda-graph-padding, if it comes only while many requests run: rows that fill a "
            "batch up to the size of its graph (SGLang 1571)"
        )
    steps.append("flashinfer-python and sglang-kernel of the releases that SGLang's pyproject names (pip list)")
    steps.append("once with --sampling-backend pytorch, if only sampling says so: logits that torch takes are finite")
    if _may_mask(facts):
        steps.append(
            "requests without response_format and without a tool that is forced, if only those do it: a grammar that "
            "leaves no token (while a model thinks, SGLang 13030) looks alike to sampling; another --grammar-backend"
        )
    steps.append("once with --attention-backend triton and --disable-cuda-graph; --enable-nan-detection names the step")
    steps.append(
        "then a later release: kernels that read what nobody had written (scratch, padding) have been mended there; "
        "and its SGLANG_SANITIZE_NAN_LOGITS keeps the server up through such a step, which heals no answer"
    )
    return tuple(steps)


def _accounts_for(death: Death) -> bool:
    # Sampling asserts on the device; what died of the assertion died of the logits.
    return _explains(death) or "device-side assert triggered" in death.message


_OF_DEATH = of_death(
    "non-finite-logits", "logits became NaN or infinite", _explains, _tell, alarms=("nan", "device", "signalled")
)
RULE = replace(_OF_DEATH, explains=_accounts_for)
