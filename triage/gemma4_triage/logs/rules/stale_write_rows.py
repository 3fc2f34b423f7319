"""V1 verify without CUDA graphs leaves the target's write locations on the draft's batch: two sizes that differ.

With several requests torch names two tensors; with one it says that an output of shape [1] does not broadcast.
"""

from __future__ import annotations

import re

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.rule import at, of_death, of_settings

_TWO = re.compile(r"The size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\)")
_ONE = re.compile(r"output with shape \[(\d+)\] doesn't match the broadcast shape \[(\d+)\]")
_FRAME = "_eager_fb_view"
_OF_A_DRAFT = re.compile(r"\w*(?:eagle|mtp|draft|spec)\w*\.py:|.* \w*draft\w*$")


def _explains(death: Death) -> bool:
    if any(frame.endswith(_FRAME) for frame in death.frames):
        return bool(_TWO.search(death.message) or _ONE.search(death.message))
    return bool(_ONE.search(death.message)) and any(_OF_A_DRAFT.match(frame) for frame in death.frames)


def _tell(facts: LogFacts, death: Death) -> Finding:
    seen = any(frame.endswith(_FRAME) for frame in death.frames)
    where = f"raised in {death.frame}, {f'called by {_FRAME}' if seen else 'under a draft worker'}"
    return Finding(
        rule=RULE.id,
        cause="The draft's batch carried the write locations that target verify left, and no CUDA graph hid them.",
        confidence=Confidence.CERTAIN if seen else Confidence.LIKELY,
        evidence=(
            at(facts, death.place, death.message, where),
            *(of_settings(facts, "speculative_algorithm", "disable_cuda_graph") if not seen else ()),
        ),
        ruled_out_if=("the server ran with CUDA graphs",),
        advice=("without the fix: let the draft run in CUDA graphs, or serve without --speculative-algorithm",),
        next_commands=("gemma4-triage repro corpus --only eager-out-cache-loc", "gemma4-triage patches"),
        fix="eager-out-cache-loc",
        upstream=("SGLang 29616",),
    )


RULE = of_death("stale-write-rows", "sizes of out_cache_loc differ in an eager draft", _explains, _tell)
