"""V1 verify without CUDA graphs leaves the target's write locations on the draft's batch: two sizes that differ."""

from __future__ import annotations

import re

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.rule import at, of_death

_MESSAGE = re.compile(r"The size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\)")
_FRAME = "_eager_fb_view"


def _explains(death: Death) -> bool:
    return bool(_MESSAGE.search(death.message)) and any(frame.endswith(_FRAME) for frame in death.frames)


def _tell(facts: LogFacts, death: Death) -> Finding:
    return Finding(
        rule=RULE.id,
        cause="The draft's batch carried the write locations that target verify left, and no CUDA graph hid them.",
        confidence=Confidence.CERTAIN,
        evidence=(at(facts, death.place, death.message, f"raised in {death.frame}, called by {_FRAME}"),),
        ruled_out_if=("the server ran with CUDA graphs",),
        next_commands=("gemma4-triage repro corpus --only eager-out-cache-loc", "gemma4-triage patches"),
        fix="eager-out-cache-loc",
        upstream=("SGLang 29616",),
    )


RULE = of_death("stale-write-rows", "sizes of out_cache_loc differ in an eager draft", _explains, _tell)
