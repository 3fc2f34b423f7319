"""How many layers a step goes through."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gemma4_triage.step_profile.steps import Step
from gemma4_triage.step_profile.trace_tables import Launches

# Each is launched once by every layer of Gemma-4 in SGLang 0.5.13.post1, whatever kind of layer it is, or by none.
ONCE_PER_LAYER = (
    "_gemma_qkv_rmsnorm_kernel",
    "qk_norm_rope_kernel",
    "post_attention_norms_kernel",
    "triple_rmsnorm_kernel",
)
_PLAIN = re.compile(r"\A\w+")


@dataclass(frozen=True)
class Layers:
    """How many layers a step has, and how that is known.

    Attributes:
        count: the number of layers; None if nothing repeats.
        source: how it is known, in words.
        scope: which launches are counted, since a step may hold a draft's layers beside the model's own.
        launches: how many launches the scope has.
    """

    count: int | None
    source: str
    scope: str
    launches: int


def count_layers(launches: Launches, step: Step, names: Sequence[str], given: int | None) -> Layers:
    """Count the layers of one step; in a graph that begins it there are only the model's own layers."""
    anchor = step.anchor
    of_graph = anchor is not None and len(anchor.rows) > 1
    ids = launches.name[anchor.rows] if anchor is not None and of_graph else launches.name[step.first : step.last]
    scope = f"{anchor.label or 'its graph'}" if anchor is not None and of_graph else "the step"
    counts = Counter(names[name] for name in map(int, ids))
    if given:
        return Layers(given, "given with --layers", scope, len(ids))
    for name in ONCE_PER_LAYER:
        found = sum(count for full, count in counts.items() if _plain(full) == name)
        if found:
            return Layers(found, f"launches of {name}, which each layer has one of", scope, len(ids))
    repeated = Counter(count for count in counts.values() if count > 1)
    if not repeated:
        return Layers(None, "no kernel is launched twice", scope, len(ids))
    most = max(repeated.values())
    count = max(count for count, kernels in repeated.items() if kernels == most)
    return Layers(count, f"{most} kernels are launched {count} times each", scope, len(ids))


def _plain(name: str) -> str:
    match = _PLAIN.match(name)
    return match[0] if match else ""
