"""Two tensors of one step have different types of numbers, as float32 against bfloat16."""

from __future__ import annotations

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.rule import of_death, of_failure, of_settings, remarked
from gemma4_triage.logs.suspects import of_files

_WORDS = pattern(
    r"(?i)(?:have|be|of) the same (?:data ?type|dtype)|expected (?:scalar )?(?:data ?)?type|"
    r"Input type .{0,60}should be the same|dtypes? (?:mismatch|differ|do not match)|"
    r"expected .{0,30}(?:bfloat16|float16|half|float32|float)\b.{0,30}(?:but (?:got|found)|got)"
)
_TOWER = pattern(r"\w*(?:vision|vit|siglip|clip|audio|_mm|whisper)\w*\.py:|.* get_(?:image|audio|video)_feature$")
_CACHE = pattern(r"(?i)\b(?:key|k_cache|kv|value|cache)")


def _explains(death: Death) -> bool:
    return death.type_name in ("RuntimeError", "ValueError", "TypeError", "AssertionError") and (
        _WORDS.search(death.message) is not None
    )


def _tell(facts: LogFacts, death: Death) -> Finding:
    said = " ".join(death.message.split())[:160]
    tower = next((frame for frame in reversed(death.frames) if _TOWER.match(frame)), "")
    quantised = facts.settings.get("kv_cache_dtype", "auto") not in ("auto", "None")
    told = remarked(facts, "needs_triton", "what the server says of its attention")
    part = of_files(death.frames[-4:])
    where = f" It is of the image or audio tower, in {tower.split()[0]}." if tower else ""
    return Finding(
        rule=RULE.id,
        cause=f"Two tensors of one step have different types of numbers: {said}. Something keeps a type of its own, or "
        f"was not cast; in this release, with these arguments, nothing casts it.{where}",
        confidence=Confidence.LIKELY,
        evidence=(*of_failure(facts, death), *told, *of_settings(facts, "dtype", "kv_cache_dtype", "quantization")),
        ruled_out_if=("the same server with --dtype of the checkpoint, and nothing quantised, dies alike",),
        advice=(
            *(("--attention-backend triton: images of this model need it, as the server says",) if told else ()),
            *(("once with --kv-cache-dtype auto",) if quantised or _CACHE.search(said) else ()),
            "--dtype bfloat16, or the torch_dtype of config.json; no --dtype that config.json does not name",
            *(("images and sound: their inputs or weights stay in float32; a later release casts them",) * bool(tower)),
            *((f"once without {part.without}",) if part is not None else ()),
            "then a later release",
        ),
    )


RULE = of_death("types-differ", "tensors of one step have different types", _explains, _tell)
