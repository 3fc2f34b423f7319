"""A step failed inside the CUDA graph of a prefill, which SGLang can do without."""

from __future__ import annotations

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.rule import exception_text, of_death, of_failure, of_settings, remarked
from gemma4_triage.logs.started import Started

_RUNNER = pattern(r"(?:\w*piecewise\w*|prefill_cuda_graph_runner|\w*breakable_cuda_graph\w*)\.py:")
_SINCE = (0, 5, 14)
"""The release from which --cuda-graph-backend-prefill stands for --disable-piecewise-cuda-graph."""


def _explains(death: Death) -> bool:
    return any(map(_RUNNER.match, death.frames))


def _tell(facts: LogFacts, death: Death) -> Finding:
    older = "--disable-piecewise-cuda-graph"
    newer = "--cuda-graph-backend-prefill disabled"
    start = Started(facts)
    # The server's own words name the argument of its release.
    said = facts.remarks.get("prefill_graph")
    old = "Piecewise CUDA Graph failed" in said.text if said else start.older_than(*_SINCE)
    without = older if old else newer if said or start.release else f"{newer} ({older} before 0.5.14)"
    return Finding(
        rule=RULE.id,
        cause="A step failed as the CUDA graph of a prefill was captured or replayed: the code that it ran "
        f"({death.frame or 'unknown'}) does not fit such a graph, which pads rows and keeps a context of its own.",
        confidence=Confidence.LIKELY,
        evidence=(
            *of_failure(facts, death, "what the step raised"),
            *remarked(facts, "prefill_graph", "what the server says of it"),
            *of_settings(facts, "attention_backend", "enable_torch_compile"),
        ),
        ruled_out_if=(f"it fails alike with {older if old else newer}: {exception_text(death)[:80]}",),
        advice=(
            f"{without}: prefills then run without a graph; decode keeps its own",
            "a later release of SGLang, or another --attention-backend or --moe-runner-backend with the graph on",
        ),
    )


RULE = of_death("prefill-graph", "a step failed in the CUDA graph of a prefill", _explains, _tell)
