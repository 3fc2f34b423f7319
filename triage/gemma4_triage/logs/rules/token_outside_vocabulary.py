"""An answer that cannot be text: an id that no vocabulary has, a forgotten request, a wrong tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.rule import Wording, at, exception_text, of_wordings

_WORDINGS = (
    Wording(
        pattern(
            r"out of range integral type conversion attempted|piece id is out of range|"
            r"can't convert negative int to unsigned|"
            r"token id .{0,40}(?:out of|outside).{0,20}(?:vocab|range)"
        ),
        "A token id outside the vocabulary reached the detokenizer: sampling or a draft gave what is no token.",
        "once with --enable-nan-detection: NaN logits are the usual source",
    ),
)
_ASKED = pattern(r"/(?:de)?tokenize\b|serving_tokenize\w*\.py:|[Dd]uring (?:de)?tokenization")
_NEGATIVE = pattern(r"integral type|convert negative|piece id is out of range")
_DETOKENIZES = pattern(r"detokenizer_manager\.py:")
_TEXT = (
    Wording(
        pattern(r"^KeyError"),
        "The detokenizer had forgotten a request: more ran at once than it keeps states of, or one ended there twice.",
        "SGLANG_DETOKENIZER_MAX_STATES above the requests in flight, or a lower --max-running-requests; then a later "
        "release",
        frames=_DETOKENIZES,
    ),
    Wording(
        pattern(r"'(?P<tokenizer>\w*Tokenizer\w*)' object has no attribute '(?P<what>\w+)'"),
        "The tokenizer's class, {tokenizer}, has no {what}, which this release reads of every tokenizer: it is one of "
        "its own kind (tiktoken, Mistral's, the checkpoint's code), or of another transformers.",
        "a later release of SGLang, which may do without it; else the transformers that SGLang pins, or a "
        "--tokenizer-path with a tokenizer.json",
    ),
    Wording(
        pattern(r"^(?:TypeError|UnicodeDecodeError|AttributeError|IndexError)"),
        "The tokenizer's code could not turn token ids into text: its class, often one that comes with the checkpoint, "
        "does not fit the installed transformers, or ids beyond its vocabulary were sampled.",
        "the transformers that SGLang pins, and the checkpoint's newest tokenizer files; once with --tokenizer-mode "
        "auto; once without --trust-remote-code if the model is built in",
        frames=pattern(r".* (?:\w*decode\w*|convert_tokens_to_string|convert_ids_to_tokens)$"),
    ),
)

_OF_VLLM = of_wordings(
    "token-outside-vocabulary",
    "a token id that no vocabulary has",
    (
        Wording(
            pattern(r"StreamInput must be|Encountered invalid token id"),
            "Token ids that no vocabulary has (negative or huge ones) reached vLLM's detokenizer, which can only "
            "refuse them: the step itself gave garbage, from a kernel that does not fit this GPU, KV cache or model. "
            "The tokenizer is not at fault, and a process that ends later follows from it.",
            "one at a time: --kv-cache-dtype auto, where it is fp8; another --attention-backend (on ROCm "
            "VLLM_ROCM_USE_AITER=0); without --speculative-config; --enforce-eager: the first with which such ids stop "
            "names the part",
        ),
    ),
    Confidence.LIKELY,
    settings=("kv_cache_dtype", "quantization", "attention_backend"),
    ruled_out_if=("a client sent token ids of its own",),
    advice=("a later release or nightly of vLLM, and of its image for this GPU",),
)
_OUTSIDE = of_wordings(
    "token-outside-vocabulary",
    "a token id that no vocabulary has",
    _WORDINGS,
    Confidence.LIKELY,
    settings=("speculative_algorithm", "quantization", "disable_overlap_schedule"),
    ruled_out_if=("a client sent token ids of its own (input_ids, skip_tokenizer_init)",),
    next_commands=("gemma4-triage serve --debug 1 -- --model-path MODEL",),
    advice=("once without drafts, once with --disable-overlap-schedule: a value that is read before it is written",),
)
_DETOKENIZER = of_wordings(
    "token-outside-vocabulary", "answers could not be turned into text", _TEXT, Confidence.LIKELY
)


def _explains(death: Death) -> bool:
    if _OF_VLLM.explains(death):
        return True
    return _OUTSIDE.explains(death) or (any(map(_DETOKENIZES.match, death.frames)) and _DETOKENIZER.explains(death))


def _of_a_request(facts: LogFacts) -> Finding | None:
    """Return that a client sent such an id, where a request to turn ids into text failed; None if none did."""
    said = (*facts.failures, *facts.errors)
    death = next((one for one in said if _NEGATIVE.search(one.message)), None)
    if death is None or not any(_ASKED.search(text) for one in said for text in (one.message, *one.frames)):
        return None
    asked = facts.remarks.get("ids_outside")
    return Finding(
        rule=RULE.id,
        cause="A client asked for the text of a token id that no vocabulary has (a negative one, or one beyond it), "
        "and this release answers 500 where 400 is meant. Model and sampling are not at fault, and the server goes on.",
        confidence=Confidence.LIKELY if asked else Confidence.POSSIBLE,
        evidence=(
            at(facts, death.place, exception_text(death), "what the request failed of"),
            *((at(facts, asked.place, asked.text, "what it asked for"),) if asked else ()),
        ),
        ruled_out_if=("the ids of that request are all from 0 up to the size of the vocabulary",),
        advice=(
            "mend the client: only ids from 0 up to the size of the vocabulary to /detokenize (an id of -1 is mostly "
            "padding, or an answer's mark of no token); a later release refuses it by itself (SGLang 29820)",
        ),
    )


def _find(facts: LogFacts) -> Iterator[Finding]:
    ended = any(map(_DETOKENIZES.match, (frame for death in facts.deaths for frame in death.frames)))
    if not ended and (of_a_client := _of_a_request(facts)) is not None:
        yield of_a_client
        return
    found = list(_OF_VLLM.find(facts)) or list(_OUTSIDE.find(facts))
    if not found and any(map(_explains, facts.deaths)):
        found = list(_DETOKENIZER.find(facts))
    yield from found


RULE = replace(_OUTSIDE, find=_find, explains=_explains, alarms=frozenset({"answered-500"}))
