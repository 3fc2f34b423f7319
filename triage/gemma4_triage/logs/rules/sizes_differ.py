"""Two tensors of one step have different numbers of rows or columns: parts of the engine disagree about the batch."""

from __future__ import annotations

import re

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.looked_at_first import health_checks_in_the_batch
from gemma4_triage.logs.parts_of_sglang import is_shortened
from gemma4_triage.logs.rule import of_death, of_failure, of_settings
from gemma4_triage.logs.suspects import of_files
from gemma4_triage.logs.switched_on import Feature, features

MISFIT = pattern(
    r"Size mismatch for shape|Sizes of tensors must match|must match the (?:existing )?size|size of tensor a|"
    r"shape mismatch|doesn't match the broadcast shape|is invalid for input of size|The expanded size of the tensor|"
    r"cannot be broadcast|cannot reshape|mat1 and mat2 shapes|Expected size \d+ but got size \d+|"
    r"split_with_sizes expects split_sizes to sum exactly|must have (?:the )?shape|"
    r"expected .{0,40}batch.{0,20}(?:got|but)|"
    # Of a code that CUDA or a library returned it tells of no sizes.
    r"Check failed: (?!.{0,60}(?i:status|success|\berr\w*|result))[^=]{0,80}==.{0,80}\(\d+ vs\. \d+\)"
)
_STEP = pattern(r".* (?:run_batch|forward\w*|\w*forward|replay|verify|draft\w*|process_batch_result\w*|sample)$")
_NUMBERS = (
    pattern(r"Size mismatch for shape#\d+\('(?P<what>\w+)'\): expected (?P<a>\d+) but got (?P<b>\d+)"),
    pattern(r"tensor a \((?P<a>\d+)\) must match the size of tensor b \((?P<b>\d+)\)"),
    pattern(r"Expected size (?P<a>\d+) but got size (?P<b>\d+)"),
    pattern(r"\((?P<a>\d+) vs\. (?P<b>\d+)\)"),
    pattern(r"expanded size of the tensor \((?P<a>\d+)\) must match the existing size \((?P<b>\d+)\)"),
)
# What makes rows of a step that others do not see, or takes some away; nearest to the rows first.
_OF_ROWS = (
    *("enable_mixed_chunk", "speculative_algorithm", "attn_cp_size", "pp_size", "enable_dp_attention"),
    *("enable_two_batch_overlap", "disaggregation_mode", "enable_lora"),
)
_MOST = 3
OF_ADAPTERS = pattern(r"(?:lora\w*|mem_pool)\.py:\d+ \w*(?:load|prepare_lora|slice_lora|init_buffers)\w*$")


_TRIAL = pattern(
    r".* (?:determine_available_memory|profile_run|_dummy_run|profile_\w+|warmup\w*|capture\w*|"
    r"init_memory_pool|load_model)$"
)
_SPLIT = pattern(r"(?:dimension -?\d+ \(|sum exactly to )(\d+)\b.{0,50}\), but got split_sizes=\[([\d, ]+)\]")


def _of_its_class(facts: LogFacts, death: Death) -> Finding | None:
    """Return what a model's own class took for other widths than the checkpoint has, before any request; else None."""
    if facts.served or death.usage is not None or not any(map(_TRIAL.match, death.frames)):
        return None
    split = _SPLIT.search(death.message)
    if split is None:
        return None
    parts = [int(part) for part in split[2].split(",")]
    lacking = next((part for part in parts if sum(parts) - part == int(split[1])), None)
    short = f": {split[1]} wide, and split for {sum(parts)}"
    short += f", which is one part of {lacking} too many" if lacking else ""
    layers = (
        " Layers of which one part is not in the checkpoint (values that are the keys: attention_k_eq_v, v_proj) are "
        "split so by a class that does not know of them."
    )
    return Finding(
        rule=RULE.id,
        cause=f"The model's class in this release does not fit the checkpoint: a fused projection in {death.frame} is "
        f"{short.removeprefix(': ')}. That was in the start's own trial run, so no request, graph or memory is at "
        f"fault.{layers if lacking else ''}",
        confidence=Confidence.LIKELY,
        evidence=(*of_failure(facts, death), *of_settings(facts, "model_path", "tp_size", "quantization")),
        ruled_out_if=("another checkpoint of the same class and config.json starts on this release",),
        advice=(
            "a later release or nightly of the server, whose class of this model has those layers; or the one before, "
            "if it started there",
            *((_QUANTISED,) if facts.settings.get("quantization", "None") != "None" else ()),
            "until then a smaller or other checkpoint of the family; the same files and another --tp change nothing",
        ),
    )


_QUANTISED = (
    "the same model not quantised, or quantised by another method: loaders of one method (bitsandbytes) have left out "
    "the part that a checkpoint does not have, where others serve it"
)


def _explains(death: Death) -> bool:
    # Weights of an adapter are told as such.
    if any(map(OF_ADAPTERS.match, death.frames[-2:])):
        return False
    if MISFIT.search(death.message) is None:
        return False
    return any(map(_STEP.match, death.frames)) or is_shortened(death)


def _tell(facts: LogFacts, death: Death) -> Finding:
    if (of_its_class := _of_its_class(facts, death)) is not None:
        return of_its_class
    found = next((match for words in _NUMBERS if (match := words.search(death.message))), None)
    numbers = f": {found['a']} against {found['b']}" if found else ""
    on = [one for name in _OF_ROWS for one in features(facts) if one.setting == name]
    named = [one for one in features(facts) if one.is_named(death) and one not in on]
    part = of_files(death.frames[-4:])
    split = _split(facts, death, found)
    within = f", in {death.frame}" if not is_shortened(death) else ""
    return Finding(
        rule=RULE.id,
        cause=f"Two tensors of one step differ in size{numbers}{within}: parts of the engine disagree about "
        f"the rows of this batch. Mostly that is a defect of the release{_where(on)}, seldom of weights."
        f"{_TIMES.format(split[0]) if split and split[0] else ''}",
        confidence=Confidence.LIKELY if on else Confidence.POSSIBLE,
        evidence=(*of_failure(facts, death), *of_settings(facts, *(one.setting for one in (*on, *named)))),
        ruled_out_if=("the same requests, one at a time, on a server started without options, die alike",),
        advice=(
            *health_checks_in_the_batch(facts, death),
            *split[1:],
            *((_NO_PACK,) if _OF_ZERO.search(death.message) else ()),
            *(
                _as_ranks_fill_up(facts, int(found["a"]), int(found["b"]))
                if found and _LAYS_OUT.match(death.frame)
                else ()
            ),
            *(f"once {one.without}" for one in (*named, *on)[:_MOST]),
            *((f"once without {part.without}",) if part is not None and not on else ()),
            *((_SYMBOLS,) if "with fake tensors" in death.message else ()),
            "once with --disable-cuda-graph: a graph pads the batch to its own size"
            if facts.settings.get("disable_cuda_graph") != "True"
            else "once without --disable-cuda-graph: graphs take another path than the one that failed",
            "then a later release",
        ),
    )


_TIMES = (
    " One is {} times the other, as where one was gathered from all ranks that share a batch and the other was not."
)
_SHARES = (
    "once without what gives each rank a share of a step's rows: --enable-dp-attention, context parallelism "
    "(--attn-cp-size 1, no --enable-prefill-context-parallel; elsewhere --enable-nsa-prefill-context-parallel), "
    "--enable-two-batch-overlap; then a later release, or the one before"
)
_PADDED = (
    "once without --enable-dp-attention, by which such ranks (DP) share a step: rows that fill a rank's share up to "
    "the largest are then counted at one place and not at another; then a later release"
)
_DP, _CP = pattern(r"\bDP\d"), pattern(r"\b(?:ATTN_)?CP\d")


def _split(facts: LogFacts, death: Death, found: re.Match[str] | None) -> tuple[str, ...]:
    """Return how many times the larger number is the smaller, "" if not, and what to leave out of ranks; or nothing."""
    few, many = sorted((int(found["a"]), int(found["b"]))) if found else (0, 0)
    times = many // few if few > 1 and many % few == 0 else 0
    shares = _CP.search(death.rank) is not None or times in (4, 8, 16, 32)
    if shares and not any(one.setting in ("speculative_algorithm", "pp_size") for one in features(facts)):
        return (str(times) if times > 1 else "", _SHARES)
    # A start that is not in the log is known by its ranks.
    return ("", _PADDED) if not facts.settings and _DP.search(death.rank) else ()


_OF_ZERO = pattern(r"shape .\[(?:[^\]]*, ?)?0(?:, ?[^\]]*)?\]. is invalid for input of size (?!0\b)")
_NO_PACK = (
    "once with --page-size 16, then 64: the shape has a dimension of 0, as a page of one token makes in a layout of "
    "packs; then a smaller --tp, if there are fewer heads than ranks"
)


_LAYS_OUT = pattern(r"\w*(?:backend|graph_runner)\w*\.py:")


def _as_ranks_fill_up(facts: LogFacts, one: int, other: int) -> tuple[str, ...]:
    """Return what to do where a batch was filled up to a multiple of the ranks, beyond what a buffer is made for."""
    few, many = sorted((one, other))
    asked = facts.settings.get("tp_size", "1")
    ranks = int(asked) if asked.isdecimal() else 1
    if ranks < 2 or many % ranks or not 0 < many - few < ranks:
        return ()
    return (
        f"--max-running-requests (and --cuda-graph-max-bs) {many}, or another multiple of the {ranks} ranks, below or "
        f"above {few}: steps of several ranks are filled up to such a multiple, and a buffer here may be made for the "
        f"{few} requests that the start allows (max_running_requests), capped ones too",
    )


_SYMBOLS = (
    "once with TORCH_COMPILE_DISABLE=1, which mends nothing: the same error then names numbers in place of symbols (s5)"
)


def _where(on: list[Feature]) -> str:
    return f" where {' or '.join(one.flag for one in on[:2])} is on" if on else ""


RULE = of_death("sizes-differ", "tensors of one step differ in size", _explains, _tell)
