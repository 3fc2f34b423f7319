"""Speculative decoding met sizes or indices that do not fit: the release lost count of drafts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.rule import at, of_death, of_failure, of_settings
from gemma4_triage.logs.rules import stale_write_rows, unmergeable_batch

_DRAFTS = pattern(
    r"\w*(?:eagle|mtp|spec_|speculative|draft|ngram|multi_layer)\w*\.py:|.* \w*(?:draft|verify|spec_info)\w*$"
)
_MISFIT = pattern(
    r"Sizes of tensors must match|must match the size of|size of tensor|shape mismatch|doesn't match the "
    r"broadcast shape|"
    r"is invalid for input of size|index .{0,40}out of (?:bounds|range)|device-side assert|out of bounds|"
    r"The expanded size of the tensor|cannot be broadcast|cannot reshape"
)
_INNER = 5  # frames
_COPY = pattern(r"cuda_graph_buffer_registry\.py:.* fill_from$")
_RUNNER = pattern(r"(?:cuda_graph_buffer_registry|eager_runner|\w*graph_runner|model_runner|hook_registry)\.py:")


_ROTATES = pattern(r"(?:rotary_embedding|rope\w*)\.py:|.* \w*(?:rotary|rope)\w*$")


def rotates(death: Death) -> bool:
    """Say whether it was raised where positions look up their angles: a position is too large, whoever gave it."""
    return any(map(_ROTATES.match, death.frames[-2:]))


def _asking(death: Death) -> tuple[str, ...]:
    """Return the frames up to the one that had the batch copied, where a runner's copy of its batch failed; else all.

    What does not fit there was made by whoever asked for the forward.
    """
    frames = tuple(death.frames)
    while frames and _COPY.match(death.frames[-1]) and _RUNNER.match(frames[-1]):
        frames = frames[:-1]
    return frames


def of_drafts(death: Death) -> bool:
    """Say whether it was raised in speculative decoding, on sizes or indices."""
    inner = _asking(death)[-_INNER:]
    if rotates(death):
        return False
    return any(_DRAFTS.match(frame) for frame in inner) and _MISFIT.search(death.message) is not None


def _explains(death: Death) -> bool:
    others = (stale_write_rows.RULE, unmergeable_batch.RULE)
    return of_drafts(death) and not any(rule.explains(death) for rule in others)


def _tell(facts: LogFacts, death: Death) -> Finding:
    algorithm = facts.settings.get("speculative_algorithm", "None")
    second = any("_v2" in frame for frame in death.frames)
    merging = any(frame.endswith("merge_batch") for frame in death.frames)
    where = "two batches were merged" if merging else "a draft or its verification was prepared"
    named = f" ({algorithm})" if algorithm != "None" else ""
    named += ", spec v2," if second else ""
    writes = _writes_beyond(death)
    doubt = (
        " The draft's KV pool may be smaller than the target's, which has a second one for windows." if writes else ""
    )
    return Finding(
        rule=_OF_DEATH.id,
        cause=f"Speculative decoding{named} lost count as {where}: sizes or indices do not fit. It is a defect of the "
        f"release, not of memory or of a prompt.{doubt}",
        confidence=Confidence.LIKELY,
        evidence=(
            *of_failure(facts, death),
            *of_settings(facts, "speculative_algorithm", "speculative_num_steps", "disable_overlap_schedule"),
            *of_settings(facts, "speculative_eagle_topk", "page_size") * bool(_of_trees(facts)),
        ),
        ruled_out_if=("the same load without --speculative-algorithm dies alike",),
        advice=(
            *(
                ("once with --disable-hybrid-swa-memory: draft and target then have pools of one size",)
                if writes
                else ()
            ),
            *_of_trees(facts),
            *_of_ids(facts, death),
            "serve without --speculative-algorithm, or take another release of SGLang",
            *(("spec v2 alone: unset SGLANG_ENABLE_SPEC_V2, or --disable-overlap-schedule",) if second else ()),
            *(("EAGLE with a draft made for this target instead of STANDALONE",) if algorithm == "STANDALONE" else ()),
        ),
        next_commands=("gemma4-triage serve --debug 1 -- --model-path MODEL",),
    )


_LOOKS_UP = pattern(r"indexSelect|srcSelectDimSize|vectorized_gather_kernel")
_DRAFTS_ALONE = pattern(r".* draft(?:_forward|_extend\w*)?$")


def _of_ids(facts: LogFacts, death: Death) -> tuple[str, ...]:
    """Return what to look at where a draft looked up a token, or a row, that its embedding does not have."""
    said = any(_LOOKS_UP.search(text) for one in facts.alarms for text in (one.text, *one.more))
    said = said or any(_LOOKS_UP.search(one.message) for one in facts.failures)
    if not said or not any(map(_DRAFTS_ALONE.match, death.frames[-2:])):
        return ()
    return (
        "a draft that was made for this very target: by the assertion a row was looked up that a table lacks, as where "
        "vocab_size, draft_vocab_size or the table from one to the other (d2t, --speculative-token-map) are another "
        "model's; hold both config.json against each other",
    )


def _of_trees(facts: LogFacts) -> tuple[str, ...]:
    """Return what to try where drafts branch and pages hold several tokens: each branch then ends inside a page."""
    wide, page = (facts.settings.get(name, "") for name in ("speculative_eagle_topk", "page_size"))
    if not (wide.isdecimal() and page.isdecimal() and int(wide) > 1 and int(page) > 1):
        return ()
    return (
        f"--speculative-eagle-topk 1, or --page-size 1: branches of drafts (topk {wide}) and pages of {page} tokens do "
        "not go together in every backend and release (SGLang 25077); then another --attention-backend",
    )


def _writes_beyond(death: Death) -> bool:
    """Say whether an index into a KV pool was too large, in a server with a pool of its own for sliding windows."""
    writes = any(frame.endswith((" set_kv_buffer", " set_swa_loc")) for frame in death.frames[-_INNER:])
    return writes and death.usage is not None and death.usage.swa is not None


def _find(facts: LogFacts) -> Iterator[Finding]:
    # Sampling asserts too, that probabilities are finite: then no index is at fault.
    if any(alarm.kind == "nan" for alarm in facts.alarms):
        return
    found = list(_OF_DEATH.find(facts))
    yield from found or _that_it_outlived(facts)


_LENGTHS = pattern(r"length of (\w+): (\d+) != length of (\w+): (\d+)")
_KEPT_OF_DRAFTS = pattern(r"topk_(?:p|index)|hidden_states|verified_id|accept\w*|draft\w*|new_indices|spec_info")


def _that_it_outlived(facts: LogFacts) -> Iterator[Finding]:
    """Yield that what is kept of drafts and the batch have other lengths, which a server writes down and goes on."""
    said = facts.remarks.get("lengths_differ")
    found = _LENGTHS.search(said.text) if said is not None else None
    if said is None or found is None or not any(map(_KEPT_OF_DRAFTS.fullmatch, (found[1], found[3]))):
        return
    yield Finding(
        rule=_OF_DEATH.id,
        cause=f"What is kept of drafts and the batch got out of step, and the server went on: {found[2]} requests are "
        f"left in the batch, and {found[3]} has {found[4]}. Requests ended or were aborted around a prefill; from "
        "then on drafts may be another request's.",
        confidence=Confidence.POSSIBLE,
        evidence=(
            at(facts, said.place, said.text, "the last such line"),
            *of_settings(facts, "speculative_algorithm", "disable_overlap_schedule"),
        ),
        ruled_out_if=("the same load without --speculative-algorithm writes such lines too",),
        advice=(
            "a later release of SGLang, which takes ended requests out before drafts are verified; do not pass the "
            "line over",
            "serve without --speculative-algorithm, or with the other of spec v1 and v2 (SGLANG_ENABLE_SPEC_V2), where "
            "answers have to be right until then",
            "fewer requests that are aborted, and no flush_cache while requests come in",
        ),
        upstream=("SGLang 14368",),
    )


_OF_DEATH = of_death(
    "draft-bookkeeping", "speculative decoding lost count", _explains, _tell, alarms=("device", "signalled")
)
RULE = replace(_OF_DEATH, find=_find)
