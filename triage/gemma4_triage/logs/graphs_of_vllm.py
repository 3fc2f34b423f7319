"""What to change of vLLM's CUDA graphs where a kernel left its buffer: how they were captured, and for which sizes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.told_for_vllm import of_vllm

_CAPTURES = pattern(r"\S+ (?:_?capture_\w+|_?capture|_dummy_run|_warmup_and_capture)$")
_MODE = pattern(r"cudagraph_mode\W{1,6}(\w+)")
_DRAFTS = pattern(r"num_speculative_tokens\W{1,4}(\d{1,3})")
_SIZES = pattern(r"apture sizes \[([\d, ]+)")
_DECODE_ONLY = '--compilation-config \'{"cudagraph_mode": "FULL_DECODE_ONLY"}\''


def apart(facts: LogFacts, death: Death) -> Iterator[str]:
    """Yield what to try first of graphs and drafts, each once; nothing where the log is not vLLM's."""
    asked = facts.arguments
    if not of_vllm(facts) or asked.get("enforce_eager") == "True":
        return
    config = asked.get("compilation_config", "")
    mode = found[1] if (found := _MODE.search(config)) else ""
    drafts = int(found[1]) if (found := _DRAFTS.search(asked.get("speculative_config", ""))) else 0
    other = _DECODE_ONLY if mode != "FULL_DECODE_ONLY" else '--compilation-config \'{"cudagraph_mode": "PIECEWISE"}\''
    if any(map(_CAPTURES.match, death.frames)):
        yield (
            f"once with {other}, then with --enforce-eager: it fell while graphs were captured, over a made-up batch "
            "whose lengths may be zero, which a request's never are; then a later release of vLLM and of that kernel"
        )
    elif drafts:
        yield (
            f"once without --speculative-config; if it then holds: {_sizes(facts, drafts + 1)}; once with {other}, "
            "then with --enforce-eager; then a later release of vLLM"
        )


def _sizes(facts: LogFacts, step: int) -> str:
    """Return what sizes graphs should have where a step of drafts has so many tokens for each request."""
    said = facts.remarks.get("vllm_graph_sizes")
    found = _SIZES.search(said.text) if said else None
    odd = [size for size in re.findall(r"\d+", found[1]) if int(size) % step] if found else []
    why = f" (line {said.place.line} has {', '.join(odd[:4])}, which are not)" if said and odd else ""
    wanted = ",".join(str(step * times) for times in (1, 2, 3, 4))
    return (
        f"cudagraph_capture_sizes that are all multiples of {step}, the tokens of a request with its drafts "
        f"({wanted}, ...){why}"
    )
