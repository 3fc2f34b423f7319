"""A kernel or a library of CUDA failed in a way that names no table and no buffer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.logs.rule import of_wordings, pattern
from gemma4_triage.logs.rules import graph_capture
from gemma4_triage.logs.suspects import switched_on

_ON_THE_DEVICE = "It is noticed later"


_PREFILL_GRAPH = pattern(r"(?:piecewise|prefill|breakable)_?cuda_graph\w*\.py:|.* warmup_compile$")
_WITHOUT_GRAPH = (
    "once without the graph of prefills, in whose warmup or capture it stands (--cuda-graph-backend-prefill=disabled; "
    "earlier --disable-piecewise-cuda-graph): it runs sizes that a short --context-length or a full GPU has no room "
    "for"
)


def _find(facts: LogFacts) -> Iterator[Finding]:
    # What fails in the exchange of a capture's handles has no sizes that are wrong.
    if not any(graph_capture.RULE.explains(death) for death in facts.failures):
        graphs = any(map(_PREFILL_GRAPH.match, (frame for death in facts.failures for frame in death.frames)))
        for found in _OF_WORDINGS.find(facts):
            apart = switched_on(facts) if _ON_THE_DEVICE in found.cause else ()
            yield found.model_copy(update={"advice": (*(_WITHOUT_GRAPH,) * graphs, *apart, *found.advice)})


_OF_WORDINGS = of_wordings(
    "kernel-failed",
    "a kernel or a library of CUDA failed",
    "kernel_failed.toml",
    Confidence.POSSIBLE,
    settings=("attention_backend", "quantization", "kv_cache_dtype"),
    next_commands=("gemma4-triage serve --debug 1 -- --model-path MODEL",),
    advice=("the first rank and the first such line count: later ones follow from it",),
    alarms=("device", "signalled"),
)
RULE = replace(_OF_WORDINGS, find=_find)
