"""Batches decode step by step, at a fraction of the speed: larger than the largest CUDA graph, or never in one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Eager, LogFacts, RankFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.rule import Rule, at, of_settings, on_rank, over, remarked
from gemma4_triage.logs.switched_on import features

_LINES, _SHARE, _FEW = 3, 0.2, 2  # of the decode lines; a few above the limit are a peak of load
_SLOWER = 0.6  # of the speed per request; a larger batch alone costs less


def _find(facts: LogFacts) -> Iterator[Finding]:
    ran = [(rank, rank.eager) for rank in facts.schedulers if rank.eager is not None]
    without = [eager for _, eager in ran if eager is not None]
    if without and not any(eager.graph_lines for eager in without):
        if _unpadded(facts) and sum(eager.lines for eager in without) > 1:
            yield _none(facts, without, _UNPADDED)
        elif (largest := max(_captured(facts), default=0)) and all(largest < eager.smallest for eager in without):
            if sum(eager.lines for eager in without) >= _FEW:
                yield _none(facts, without, _above(largest))
        elif _asked_for_graphs(facts, without):
            yield _none(facts, without, _never(facts))
        return
    yield from islice((_beyond(facts, rank, eager) for rank, eager in ran if eager and _is_too_large(facts, eager)), 1)


_SIZES = pattern(r"\bbs[ =]\[([\d, ]+)\]")


def _captured(facts: LogFacts) -> list[int]:
    """Return the sizes of batches that a start says it has captured graphs of."""
    said = facts.remarks.get("graph_sizes")
    found = _SIZES.search(said.text) if said is not None else None
    return [int(size) for size in found[1].split(",") if size.strip()] if found else []


def _is_too_large(facts: LogFacts, eager: Eager) -> bool:
    """Say whether batches above those of the graphs are frequent, and slow beside those within."""
    sizes = _captured(facts)
    # Where the start says what was captured, fewer lines are enough.
    least = _FEW if sizes and eager.smallest > max(sizes) else _LINES
    often = eager.graph_lines > 0 and eager.lines >= max(least, _SHARE * (eager.lines + eager.graph_lines))
    return often and eager.smallest > eager.largest_in_graph and eager.speed <= _SLOWER * eager.speed_in_graph


def _beyond(facts: LogFacts, rank: RankFacts, eager: Eager) -> Finding:
    return Finding(
        rule=RULE.id,
        cause=f"Batches of over {eager.largest_in_graph} requests decode without a CUDA graph"
        f"{on_rank(rank.rank)}: {eager.speed:.0f} tokens/s per request, {eager.speed_in_graph:.0f} within graphs.",
        confidence=Confidence.LIKELY,
        evidence=(
            at(facts, eager.first, eager.smallest, "the fewest requests in a decode line with cuda graph: False"),
            over(facts, "decode lines", eager.lines, f"without a graph, beside {eager.graph_lines} with one"),
            over(facts, "decode lines", eager.largest_in_graph, "the most requests in a line with cuda graph: True"),
            *remarked(facts, "graph_sizes", "the sizes that were captured"),
            *of_settings(facts, "cuda_graph_max_bs", "max_running_requests"),
        ),
        ruled_out_if=("batches of the same size are as slow with a larger --cuda-graph-max-bs",),
        advice=(
            "raise --cuda-graph-max-bs to the requests that run at once; it takes memory, so lower "
            "--mem-fraction-static a little if the capture then fails",
            f"or bound the batch: --max-running-requests {eager.largest_in_graph} and more servers",
        ),
    )


def _unpadded(facts: LogFacts) -> bool:
    """Say whether batches are not filled up to the size of a graph, so that others than those have none."""
    return facts.arguments.get("disable_cuda_graph_padding") == "True"


_ALWAYS = 8  # decode lines
_WITHOUT = ("disable_cuda_graph", "enforce_eager", "disable_decode_cuda_graph")
_HAVE_LINES = ("enable_dp_attention", "enable_two_batch_overlap")
_DATA_PARALLEL = (
    "a --cuda-graph-max-bs above the requests of all data-parallel ranks together: some releases hold their sum "
    "against it (SGLang 5527); --max-running-requests that stays below it"
)


def _asked_for_graphs(facts: LogFacts, eager: list[Eager]) -> bool:
    """Say whether no decode step ran within a graph although the start asked for graphs of that many requests."""
    asked = facts.settings
    largest = asked.get("cuda_graph_max_bs", "None")
    return (
        sum(one.lines for one in eager) >= _ALWAYS
        and facts.device == "cuda"
        and "model_path" in asked
        and not any(asked.get(name) == "True" for name in _WITHOUT)
        and asked.get("cuda_graph_backend_decode") != "disabled"
        and (
            (largest.isdecimal() and min(one.smallest for one in eager) <= int(largest))
            or "graph_sizes" in facts.remarks
        )
    )


class _Reason(NamedTuple):
    """Why no decode step had a graph: the cause's own sentence, the settings that bear on it, and what to try."""

    cause: str
    settings: tuple[str, ...]
    ruled_out_if: str
    advice: tuple[str, ...]


_UNPADDED = _Reason(
    "No decode step ran within a CUDA graph. With --disable-cuda-graph-padding a batch is not filled up to "
    "the size of a graph, so that only those of a captured size have one, and in some releases none.",
    (),
    "it is as fast without --disable-cuda-graph-padding",
    ("leave out --disable-cuda-graph-padding; or capture the sizes that run (--cuda-graph-bs); then a later release",),
)


def _above(largest: int) -> _Reason:
    return _Reason(
        f"No decode step ran within a CUDA graph: more requests ran at once than the {largest} of the largest that was "
        "captured, and each step launches its kernels one by one, which is slow.",
        ("cuda_graph_max_bs", "max_running_requests"),
        "it is no faster while no more requests run than that",
        (
            "raise --cuda-graph-max-bs (newer releases: --cuda-graph-max-bs-decode, where the start names it) to the "
            "requests that run at once; graphs take memory, so lower --mem-fraction-static a little if the capture "
            "then fails",
            f"or bound the batch: --max-running-requests {largest} and more servers",
        ),
    )


def _never(facts: LogFacts) -> _Reason:
    asked = facts.settings
    split = "once without --enable-two-batch-overlap: a batch that not every rank can split has no graph"
    return _Reason(
        "No decode step ran within a CUDA graph, though graphs of that many requests were "
        "captured: each step launches its kernels one by one, which is slow.",
        ("cuda_graph_max_bs", "enable_dp_attention", "dp_size", "enable_two_batch_overlap"),
        "it is no faster on one GPU with CUDA graphs on (without --disable-cuda-graph)",
        (
            *((_DATA_PARALLEL,) if asked.get("enable_dp_attention") == "True" else ()),
            *((split,) if asked.get("enable_two_batch_overlap") == "True" else ()),
            *(f"once {one.without}" for one in features(facts) if one.setting not in _HAVE_LINES),
            "requests without log probabilities of prompts, hidden states or adapters, whose batches some releases run "
            "without a graph; then a later release",
        ),
    )


def _none(facts: LogFacts, eager: list[Eager], reason: _Reason) -> Finding:
    least = min(eager, key=lambda one: one.smallest)
    return Finding(
        rule=RULE.id,
        cause=reason.cause,
        confidence=Confidence.LIKELY,
        evidence=(
            at(facts, least.first, least.smallest, "the fewest requests in a decode line with cuda graph: False"),
            over(facts, "decode lines", sum(one.lines for one in eager), "without a graph, and none with one"),
            *remarked(facts, "graph_sizes", "the sizes that were captured"),
            *of_settings(facts, *reason.settings),
        ),
        ruled_out_if=(reason.ruled_out_if,),
        advice=reason.advice,
    )


RULE = Rule("eager-decode", "batches above the largest CUDA graph decode slowly", _find)
