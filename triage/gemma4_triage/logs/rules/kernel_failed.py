"""A kernel or a library of CUDA failed in a way that names no table and no buffer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs import flashinfer_workspace, host_pinning
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.rule import of_wordings, remarked, says
from gemma4_triage.logs.rules import graph_capture, index_outside_tensor, library_kernel
from gemma4_triage.logs.switched_on import features, switched_on

_ON_THE_DEVICE = "It is noticed later"


_PREFILL_GRAPH = pattern(r"(?:piecewise|prefill|breakable)_?cuda_graph\w*\.py:|.* warmup_compile$")
_WITHOUT_GRAPH = (
    "once without the graph of prefills, in whose warmup or capture it stands (--cuda-graph-backend-prefill=disabled; "
    "earlier --disable-piecewise-cuda-graph): it runs sizes that a short --context-length or a full GPU has no room "
    "for"
)
_CAPTURE = pattern(r"[Cc]apture cuda graph failed")
_BEHIND_GRAPH = (
    "once without the graph of prefills (--cuda-graph-backend-prefill=disabled; earlier "
    "--disable-piecewise-cuda-graph): it was captured right before, and the capture that failed came behind it; its "
    "warmup may leave workspaces and states of kernels (FP4, MoE) otherwise than the next capture takes for granted"
)


def _find(facts: LogFacts) -> Iterator[Finding]:
    # What fails in the exchange of a capture's handles has no sizes that are wrong.
    if not any(graph_capture.RULE.explains(death) for death in facts.failures):
        graphs = any(map(_PREFILL_GRAPH.match, (frame for death in facts.failures for frame in death.frames)))
        behind = "prefill_graphs" in facts.remarks and any(map(says(_CAPTURE), facts.failures))
        for found in _OF_WORDINGS.find(facts):
            apart = switched_on(facts) if _ON_THE_DEVICE in found.cause else ()
            death = next((one for one in facts.failures if f"line {one.place.line}" == found.evidence[0].field), None)
            own = flashinfer_workspace.of_the_start(facts, found)
            advice = (
                *own,
                *(_of_its_experts(facts, death) if death is not None else ()),
                *(_WITHOUT_GRAPH,) * graphs,
                *(_BEHIND_GRAPH,) * (behind and not graphs),
                *apart,
                *(_of_its_kernel(death) if death is not None else ()),
                *(index_outside_tensor.of_media(facts) if "looks rows up" in found.cause else ()),
                *found.advice,
            )
            yield host_pinning.at_a_later_call(facts, _of_an_npu(facts, found.model_copy(update={"advice": advice})))


def _of_its_experts(facts: LogFacts, death: Death) -> Iterator[str]:
    """Yield what to choose in place of the way to the experts that an exception names, and the start by hand."""
    for one in features(facts):
        if one.setting == "moe_a2a_backend" and one.is_named(death):
            given = facts.settings["moe_a2a_backend"]
            other = "none" if given == "deepep" else "deepep or none"
            yield f"with --moe-a2a-backend {other} in place of {given}, whose own kernel the exception is about"


def _of_its_kernel(death: Death) -> Iterator[str]:
    """Yield what to choose in place of the kernel in Triton that was launched as the failure was noticed."""
    launched = library_kernel.part_of(death) if death.package == "triton" else None
    if launched is not None:
        yield (
            f"{library_kernel.look_beside(launched, death)}: a kernel of {launched.what} was launched in Triton as it "
            "was noticed; "
            "rm -r ~/.triton/cache, then the triton that the installed torch pins; dmesg -T | grep -i xid, and a card "
            "that has had one is reset, or its host started again, before the next try"
        )


_GRID = pattern(r"value (\d+) for parameter coreDim .{0,80}?(\d+)\.?$|coreDim=(\d+) can't be greater than UINT16_MAX")
_FAULT = pattern(r"fault kernel_name=(\w+?)(?:_\d+)?\b")
_FEWER = (
    "a smaller --chunked-prefill-size and --max-prefill-tokens (fewer than {0} tokens in one step), fewer requests at "
    "once; then a later release, whose kernel takes its work in pieces"
)
_A_KERNEL_OF_TRITON = (
    "it is one of SGLang's kernels in Triton: the triton-ascend of SGLang's image for this NPU, or a later image; once "
    "without what calls it, by the frames (--disable-radix-cache, --page-size 128, without drafts)"
)


def _tokens_at_most(facts: LogFacts, blocks: int, most: int) -> int:
    """Return how many tokens of a prefill an NPU takes, where each of the last one's had as many blocks as another."""
    last = [rank.series["new_tokens"][-1] for rank in facts.schedulers if len(rank.series.get("new_tokens", ()))]
    tokens = max((int(one or 0) for one in last), default=0)
    return most * tokens // blocks if tokens and blocks % tokens == 0 else most


def _of_an_npu(facts: LogFacts, found: Finding) -> Finding:
    """Return the finding with what lines before it say of the kernel that failed on an NPU."""
    if (line := facts.remarks.get("npu_grid")) is not None and (sizes := _GRID.search(line.text)):
        blocks, most = sizes[1] or sizes[3], sizes[2] or "65535"
        return found.model_copy(
            update={
                "cause": f"A kernel was asked for {blocks} blocks, and the NPU takes at most {most} at once: too "
                "many tokens are in one step.",
                "evidence": (*found.evidence, *remarked(facts, "npu_grid", "what the NPU said of it")),
                "advice": (_FEWER.format(_tokens_at_most(facts, int(blocks), int(most))), *found.advice[1:]),
            }
        )
    if (line := facts.remarks.get("npu_kernel")) is not None and (kernel := _FAULT.search(line.text)):
        return found.model_copy(
            update={
                "cause": f"The kernel {kernel[1]} failed on the NPU, mostly as it read outside of its memory or was "
                "compiled for another NPU.",
                "evidence": (*found.evidence, *remarked(facts, "npu_kernel", "the kernel that failed")),
                "advice": (_A_KERNEL_OF_TRITON, *found.advice),
            }
        )
    return found


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
