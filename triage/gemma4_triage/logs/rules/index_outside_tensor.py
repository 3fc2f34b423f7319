"""An index was outside a tensor, and a check of torch's stopped it: on the device an assertion, on a CPU an error."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.handled import handling
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.rule import (
    at,
    exception_text,
    of_death,
    of_failure,
    of_settings,
    on_rank,
    remarked,
)
from gemma4_triage.logs.rules import draft_bookkeeping
from gemma4_triage.logs.started import Started
from gemma4_triage.logs.suspects import of_files
from gemma4_triage.logs.switched_on import in_its_warmup, switched_on

_MESSAGE = pattern(
    r"device-side assert triggered|"
    r"Assertion .{0,60}(?:sizes\[i\] <= index|srcIndex < srcSelectDimSize|ind < ind_dim_size)|"
    r"Assertion .{0,90}index out of bounds|index -?\d+ is out of bounds for dimension \d+ with size (?!0\b)\d+"
)


_INNER = 4  # frames
_WRITES_KV = pattern(r".* \w*(?:set_kv_buffer|store_kvcache|write_kv)\w*$")

WHICH_ONE = "CUDA_LAUNCH_BLOCKING=1 says whether it is this condition or an earlier kernel's: the GPU reports late"


def asserts_on_the_device(death: Death) -> bool:
    """Say whether the line that failed asserts a condition on the GPU, which is noticed as any kernel's assertion."""
    return death.statement.startswith("torch._assert_async(") and "device-side assert" in death.message


def _explains(death: Death) -> bool:
    return (
        bool(_MESSAGE.search(death.message))
        and not draft_bookkeeping.RULE.explains(death)
        and not asserts_on_the_device(death)
    )


def _tell(facts: LogFacts, death: Death) -> Finding:
    if any(_WRITES_KV.match(frame) for frame in death.frames[-3:]):
        return _of_a_pool(facts, death)
    if draft_bookkeeping.rotates(death):
        return _of_a_table(facts, death)
    if any(map(_BIASES.search, (death.statement, death.message))) and _ASKS.match(death.frame):
        return _of_a_request(facts, death)
    if _ENDS.match(death.frame):
        return _of_stop_ids(facts, death)
    held = handling(death)
    what = f"what the process died of{on_rank(death.rank)}{f', in {death.frame}' if death.frame else ''}"
    return Finding(
        rule=_OF_DEATH.id,
        cause=f"{_what(facts, death)}{held.what if held else ''}",
        confidence=Confidence.POSSIBLE,
        evidence=(at(facts, death.place, exception_text(death), what),),
        ruled_out_if=("the probes trap nothing before the same crash",),
        advice=(
            *in_its_warmup(facts, death),
            *of_media(facts),
            *((held.look,) if held else ()),
            *(
                (f"once without {part.without}: its file stands in the traceback",)
                if (part := of_files(death.frames[-_INNER:])) is not None
                else ()
            ),
            *_of_a_bound(facts),
            *_of_a_tree(facts),
            *_of_a_draft(facts),
            *_of_the_host_cache(facts, death),
            "CUDA_LAUNCH_BLOCKING=1 and --disable-cuda-graph: the traceback then names the look-up and its tensor",
            "hold the last request's length against max_position_embeddings in config.json, and its token ids against "
            "vocab_size: a longer --context-length, or ids of another tokenizer, lead outside of those tables",
            *switched_on(facts),
        ),
        next_commands=("gemma4-triage serve --debug 1 -- --model-path MODEL",),
    )


_BARE = pattern(r"device-side assert triggered")
_ASSERTION = pattern(r"Assertion\b|out of bounds")


def _what(facts: LogFacts, death: Death) -> str:
    """Return what happened: of an assertion whose words the log does not have, what it mostly is."""
    asserted = any(_ASSERTION.search(one.message) for one in (death, *facts.failures))
    if _BARE.search(death.message) and not asserted and "bound_asserted" not in facts.remarks:
        return (
            "A kernel's assertion failed on the device, and the log has not its words: mostly an index was outside of "
            "a tensor, and it may be another condition."
        )
    return (
        "An index was outside its tensor, and torch stopped before the access. The log does not say whose index it was."
    )


_BOUND = pattern(r"out of bounds: 0 <= .{1,60}? < (\d+)")
_OF_EAGLE3 = 2048


def _of_a_bound(facts: LogFacts) -> tuple[str, ...]:
    """Return whose table it was by its number of rows, where an assertion of a compiled kernel names that."""
    said = facts.remarks.get("bound_asserted")
    found = _BOUND.search(said.text) if said is not None else None
    if said is None or found is None:
        return ()
    rows = int(found[1])
    draft = (
        " (drafts of EAGLE3 mostly have 2048 positions): a draft with a larger max_position_embeddings in its "
        "config.json, or requests that stay within it (--max-model-len, --context-length)"
        if rows == _OF_EAGLE3
        else ", of the draft too: a table of angles that ends there is left by a longer request"
    )
    return (
        f"look which number in config.json is {rows}, for line {said.place.line} says that the table has so many rows: "
        f"max_position_embeddings of the model or of its draft{draft}; vocab_size: ids of another tokenizer",
    )


def _of_a_draft(facts: LogFacts) -> tuple[str, ...]:
    """Return what to hold against each other where a draft of its own may have fewer positions than its target."""
    given = facts.settings.get("speculative_draft_model_path", "None")
    if given == "None" or not any(_SCATTERS.search(one.message) for one in facts.failures):
        return ()
    backend = {**facts.arguments, **facts.settings}.get("speculative_draft_attention_backend", "None")
    other = (
        f"another --speculative-draft-attention-backend than {backend}, which the start gives the draft alone "
        "(flashinfer, fa3, triton), or once without drafts: its tables are laid out for another kind of draft; then a "
        "later release",
    )
    return (
        *(other if backend != "None" else ()),
        f"{_SHORTER_DRAFT}: {given} may have fewer positions than its target, and positions of drafts then run past "
        "its tables; a later release, which compares the two at the start",
    )


_OF_V4 = pattern(r"(?i)deepseek-?_?v4|\bDSV4\b")
_LEFT_OUT = (
    "once without --enable-hierarchical-cache, with the same load: no frame says whose index it was, and what comes "
    "back from the host is what this start has beside plain serving{0}"
)
_STABLE = (
    ". Of DeepSeek-V4 with it 0.5.16 and 0.5.17 have stood in a prefill or asserted so, and 0.5.15.post1 has held "
    "(SGLang 34235; SGLang 33614 is of the stand): go back to that, or forward"
)


def _of_a_tree(facts: LogFacts) -> tuple[str, ...]:
    """Return what to try where drafts are a tree and steps are captured; empty of a chain, or without graphs."""
    width, steps = (facts.settings.get(name, "") for name in ("speculative_eagle_topk", "speculative_num_steps"))
    if not width.isdecimal() or int(width) <= 1 or facts.settings.get("disable_cuda_graph") == "True":
        return ()
    tokens = f" and --speculative-num-draft-tokens {int(steps) + 1}" if steps.isdecimal() else ""
    return (
        f"once with --speculative-eagle-topk 1{tokens} (one more than the steps), then with {width} again and "
        "--disable-cuda-graph: drafts are a tree here, and releases have laid the captured table of its places out for "
        "one branch alone, so that long requests write past their row, and ids of drafts come out as numbers of no "
        "token (SGLang 27338); then a later release",
    )


def _of_the_host_cache(facts: LogFacts, death: Death) -> tuple[str, ...]:
    """Return that the cache of the host is left out first, where it is on and no frame says anything."""
    if death.frames or facts.settings.get("enable_hierarchical_cache") != "True":
        return ()
    notes = facts.remarks["notes"].text if "notes" in facts.remarks else ""
    return (_LEFT_OUT.format(_STABLE if _OF_V4.search(f"{Started(facts).model} {notes}") else ""),)


_SCATTERS = pattern(r"(?:scatter|gather|index)\w*[ _]?(?:kernel|out of bounds)|ScatterGatherKernel|device-side assert")
_GATHERS = pattern(r"vectorized_gather_kernel|indexSelect|srcSelectDimSize|operator name is (?:aclnn)?(?:Gather|Embed)")
_SEES = pattern(r"-vl\b|[-_]vl[-_]|vlmo?e?for|llava|internvl|minicpm-?[vo]|omni|gemma-?[34]|pixtral|glm-\d\.\dv")


_PICTURED = pattern(r"(?i)\b(?:with|has|have|of|and|only) (?:\w+ ){0,2}(?:images?|pictures?|photos?|videos?|audio)\b")


def of_media(facts: LogFacts) -> tuple[str, ...]:
    """Return what to try first where embeddings were looked up, with drafts, in a model that takes images."""
    asserted = any(_GATHERS.search(text.message) for text in facts.failures)
    drafts = facts.settings.get("speculative_algorithm", "None") != "None"
    notes = facts.remarks["notes"].text if "notes" in facts.remarks else ""
    pictured = _PICTURED.search(notes) is not None
    if not (asserted and drafts and (pictured or _SEES.search(Started(facts).model))):
        return ()
    cut = (
        "requests with images without drafts (once without --speculative-algorithm), or with a --chunked-prefill-size "
        "above the longest of them, so that none is cut: where a chunk ends the draft takes the next id of the prompt, "
        "which for an image is a placeholder or a hash far above the vocabulary, and looks it up among its embeddings "
        "(SGLang 27863); then a later release",
    )
    chunked = facts.settings.get("chunked_prefill_size", "None") != "-1"
    return (
        *(cut if pictured and chunked else ()),
        "once with --disable-prefill-cuda-graph (--cuda-graph-backend-prefill disabled), then without drafts, with a "
        "request that has an image: ids that stand for an image lie above the vocabulary, and a draft that looks "
        "them up among embeddings, or a graph that holds that look-up, reads outside of the table (SGLang 38330)",
    )


_BIASES = pattern(r"logit_bias|token_ids_logprob")
_ASKS = pattern(r"sampling_batch_info\.py:|schedule_batch\.py:|logprob\w*\.py:")


def _of_a_request(facts: LogFacts, death: Death) -> Finding:
    return Finding(
        rule=_OF_DEATH.id,
        cause="A request names a token id that the vocabulary does not have (logit_bias, token_ids_logprob), and this "
        "release does not refuse it: it ends the whole scheduler.",
        confidence=Confidence.LIKELY,
        evidence=tuple(of_failure(facts, death)),
        advice=(
            "have the client, or a proxy before the server, refuse ids below 0 or from the size of the vocabulary on",
            "a later release, which may refuse it by itself",
        ),
    )


_ENDS = pattern(r"(?:min_new_tokens|\w*penal\w*)\.py:\S* _?prepare\w*$")


def _of_stop_ids(facts: LogFacts, death: Death) -> Finding:
    """Tell of the ids that end an answer, which min_new_tokens puts into a table of the vocabulary's size."""
    shown = "ids_outside" in facts.remarks
    return Finding(
        rule=_OF_DEATH.id,
        cause="A request names a token id that the vocabulary does not have (stop_token_ids beside min_new_tokens), "
        "and this release does not refuse it: it ends the whole scheduler."
        + ("" if shown else " Unless an earlier kernel asserted, as devices report late."),
        confidence=Confidence.LIKELY if shown else Confidence.POSSIBLE,
        evidence=(*of_failure(facts, death), *remarked(facts, "ids_outside", "what a request asked for")),
        ruled_out_if=("no request sets stop_token_ids, min_new_tokens or penalties",),
        advice=(
            "have the client, or a proxy before the server, refuse stop_token_ids below 0 or from the size of the "
            "vocabulary on; --log-requests --log-requests-level 1 shows whose they are",
            "a later release, which checks stop_token_ids (SGLang 27398)",
            "once with requests without min_new_tokens; with CUDA_LAUNCH_BLOCKING=1 the frame is that of the kernel",
        ),
    )


_SHORTER_DRAFT = (
    "--context-length no longer than max_position_embeddings in the config.json of the draft, or serve without drafts"
)


def _of_a_table(facts: LogFacts, death: Death) -> Finding:
    drafts = facts.settings.get("speculative_algorithm", "None") != "None" or any(
        "eagle" in frame or "draft" in frame for frame in death.frames
    )
    whose = "the model, or its draft, has" if drafts else "the model has"
    # A device reports late, wherever the host is by then.
    asserted = "device-side" in death.message
    late = " Unless an earlier kernel asserted: CUDA_LAUNCH_BLOCKING=1 would name it." if asserted else ""
    return Finding(
        rule=_OF_DEATH.id,
        cause=f"A position was beyond the table of angles: a request grew longer than {whose} positions for.{late}",
        confidence=Confidence.POSSIBLE if late else Confidence.LIKELY,
        evidence=(
            *of_failure(facts, death),
            *of_settings(facts, "context_length", "speculative_draft_model_path", "json_model_override_args"),
        ),
        ruled_out_if=("requests that stay far below max_position_embeddings die alike",),
        advice=(
            *((_SHORTER_DRAFT,) if drafts else ()),
            "--context-length no longer than max_position_embeddings in the model's config.json, or a rope_scaling "
            "that covers it; SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN takes that check away",
        ),
        next_commands=("gemma4-triage serve --debug 1 -- --model-path MODEL",),
    )


def _of_a_pool(facts: LogFacts, death: Death) -> Finding:
    drafts = facts.settings.get("speculative_algorithm", "None") != "None"
    cause = "KV was written to a slot beyond the end of its pool, and torch stopped it."
    if drafts:
        cause += " With drafts the usual reason is a draft's pool that is smaller than the target's ids."
    return Finding(
        rule=_OF_DEATH.id,
        cause=cause,
        confidence=Confidence.LIKELY if drafts else Confidence.POSSIBLE,
        evidence=(*of_failure(facts, death), *of_settings(facts, "speculative_algorithm", "swa_full_tokens_ratio")),
        ruled_out_if=("the probes trap nothing before the same crash",),
        advice=(
            *(("serve without --speculative-algorithm, or take a later release",) if drafts else ()),
            "a --max-total-tokens that the pool's fill never comes near; or --disable-hybrid-swa-memory",
        ),
        next_commands=("gemma4-triage serve --debug 1 -- --model-path MODEL",),
        upstream=("SGLang 17630",) if drafts else (),
    )


def _find(facts: LogFacts) -> Iterator[Finding]:
    # Sampling asserts too, that probabilities are finite: then no index is at fault.
    if not any(alarm.kind == "nan" for alarm in facts.alarms):
        yield from _OF_DEATH.find(facts)


_OF_DEATH = of_death("index-outside-tensor", "torch found an index outside its tensor", _explains, _tell)
RULE = replace(_OF_DEATH, find=_find, alarms=frozenset({"device", "signalled"}))
