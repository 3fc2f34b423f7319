"""V1 verify without CUDA graphs leaves the target's write locations on the draft's batch: two sizes that differ.

With several requests torch names two tensors; with one it says that an output of shape [1] does not broadcast. The
same words end a draft that lost other inputs as batches merged, of which each request has one: it is certain only
where more was copied than the server takes requests. From 0.5.14 on eager batches are copied by
`EagerRunner.load_batch`, and 0.5.15 keeps the target's write locations out of them: a stack with that frame is
`draft-bookkeeping`, which holds for both.
"""

from __future__ import annotations

from gemma4_runtime.releases import order
from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.rule import at, of_death, of_settings

_TWO = pattern(r"The size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\)")
_ONE = pattern(r"output with shape \[(\d+)\] doesn't match the broadcast shape \[(\d+)\]")
_FIXED = "0.5.15"
_FRAME = "_eager_fb_view"
_LATER_FRAME = pattern(r"eager_runner\.py:.* load_batch$")
_OF_A_DRAFT = pattern(r"\w*(?:eagle|mtp|draft|spec)\w*\.py:|.* \w*draft\w*$")


def _explains(death: Death) -> bool:
    if any(map(_LATER_FRAME.match, death.frames)):
        return False
    if any(frame.endswith(_FRAME) for frame in death.frames):
        return bool(_TWO.search(death.message) or _ONE.search(death.message))
    return bool(_ONE.search(death.message)) and any(_OF_A_DRAFT.match(frame) for frame in death.frames)


def _tell(facts: LogFacts, death: Death) -> Finding:
    seen = any(frame.endswith(_FRAME) for frame in death.frames)
    sizes = _TWO.search(death.message) or _ONE.search(death.message)
    copied, most = int(sizes[2]) if sizes else 0, facts.settings.get("max_running_requests", "")
    sure = seen and most.isdecimal() and copied > int(most)
    # The release's own fix keeps the write locations out, so that something else has these words there.
    has_fix = bool(facts.release) and order(facts.release) >= order(_FIXED)
    sure = sure and not has_fix
    where = f"raised in {death.frame}, {f'called by {_FRAME}' if seen else 'under a draft worker'}"
    return Finding(
        rule=RULE.id,
        cause="The draft's batch carried the write locations that target verify left, and no CUDA graph hid them.",
        confidence=Confidence.CERTAIN if sure else Confidence.POSSIBLE if has_fix else Confidence.LIKELY,
        evidence=(
            at(facts, death.place, death.message, where),
            *(of_settings(facts, "speculative_algorithm", "disable_cuda_graph") if not seen else ()),
            *(of_settings(facts, "max_running_requests") if sure else ()),
        ),
        ruled_out_if=()
        if sure
        else (
            *((f"the release that runs is {facts.release}, as the log names it: it has the fix",) if has_fix else ()),
            "the server ran with CUDA graphs",
            "drafts were lost as two batches merged: then another of the draft's inputs has too few",
        ),
        advice=("without the fix: let the draft run in CUDA graphs, or serve without --speculative-algorithm",),
        next_commands=("gemma4-triage repro corpus --only eager-out-cache-loc", "gemma4-triage patches"),
        fix="eager-out-cache-loc",
        upstream=() if has_fix else ("SGLang 29616",),
    )


RULE = of_death("stale-write-rows", "sizes of out_cache_loc differ in an eager draft", _explains, _tell)
