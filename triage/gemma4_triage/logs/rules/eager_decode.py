"""Batches larger than the largest captured CUDA graph decode step by step, at a fraction of the speed."""

from __future__ import annotations

from collections.abc import Iterator

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.logs.rule import Rule, at, of_settings, on_rank, over, remarked

_LINES, _SHARE = 3, 0.2  # of the decode lines; a few above the limit are a peak of load
_SLOWER = 0.6  # of the speed per request; a larger batch alone costs less


def _find(facts: LogFacts) -> Iterator[Finding]:
    for rank in facts.schedulers:
        eager = rank.eager
        if eager is None or eager.lines < max(_LINES, _SHARE * (eager.lines + eager.graph_lines)):
            continue
        if eager.smallest <= eager.largest_in_graph or eager.speed > _SLOWER * eager.speed_in_graph:
            continue
        yield Finding(
            rule=RULE.id,
            cause=f"Batches of over {eager.largest_in_graph} requests decode without a CUDA graph"
            f"{on_rank(rank.rank)}: {eager.speed:.0f} tokens/s per request, {eager.speed_in_graph:.0f} within graphs.",
            confidence=Confidence.LIKELY,
            evidence=(
                at(facts, eager.first, eager.smallest, "the fewest requests in a decode line with cuda graph: False"),
                over(facts, "decode lines", eager.lines, f"without a graph, beside {eager.graph_lines} with one"),
                over(
                    facts, "decode lines", eager.largest_in_graph, "the most requests in a line with cuda graph: True"
                ),
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
        return


RULE = Rule("eager-decode", "batches above the largest CUDA graph decode slowly", _find)
