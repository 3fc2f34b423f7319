"""Processes of a vLLM server wait for each other without an end: no exception says so, one line comes every minute.

Source: vllm/distributed/device_communicators/shm_broadcast.py, which says it once a minute while a reader is behind.
"""

from __future__ import annotations

from collections.abc import Iterator

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs import said_in_notes
from gemma4_triage.logs.facts import LogFacts, Remark
from gemma4_triage.logs.rule import Rule, at, remarked

_GOES_ON = ("vllm_serves", "vllm_start", "http_ready", "vllm_drafts")


def _find(facts: LogFacts) -> Iterator[Finding]:
    first, last = facts.remarks.get("first_vllm_waits"), facts.remarks.get("vllm_waits")
    if facts.deaths or facts.served or first is None or last is None or first.place.line == last.place.line:
        return
    if any(_line(facts, name) > last.place.line for name in _GOES_ON):
        return
    sums = facts.remarks.get("own_sums")
    captures = facts.remarks.get("vllm_captures")
    ready = "http_ready" in facts.remarks or "answer" in facts.understood
    doing = (
        "while it served"
        if ready
        else "as it captured CUDA graphs"
        if captures is not None and captures.place.line < first.place.line
        else "before it was ready"
    )
    yield Finding(
        rule=RULE.id,
        cause=f"Processes of this vLLM server stand {doing}: one waits for the others for minutes, none says that it "
        f"failed, and nothing follows.{_OF_SUMS if sums is not None and sums.place.line < last.place.line else _ANY}",
        confidence=Confidence.LIKELY if sums is not None else Confidence.POSSIBLE,
        evidence=(
            at(facts, first.place, first.text, "the first line that says that it waits"),
            at(facts, last.place, last.text, "the last one, behind which nothing goes on"),
            *remarked(facts, "own_sums", "the server's own sum over GPUs, in use"),
            *remarked(facts, "no_links", "how the GPUs reach each other"),
            *remarked(facts, "vllm_captures", "what it did"),
        ),
        ruled_out_if=(
            "a later line says that compiling, loading or capturing came to its end: that may take minutes",
            "GPUs are idle (nvidia-smi), and a process of it compiles (nvcc, cicc, ptxas in top)",
        ),
        advice=(*_of_drafts(facts), *said_in_notes.named_in_notes(facts, stacks=True), *_advice(sums, ready)),
    )


def _line(facts: LogFacts, name: str) -> int:
    """Return the line of the last remark of a name; 0 if there is none."""
    return facts.remarks[name].place.line if name in facts.remarks else 0


_OF_SUMS = (
    " Just before, a sum over GPUs of the server's own was switched on, whose kernels wait for a flag of the other "
    "GPU: where GPUs reach each other's memory only in name (through the host's bridge, with IOMMU or ACS on, in "
    "virtual machines) it never comes, and GPUs stand at 100% with little power. What py-spy shows of a kernel behind "
    "it only waits in line."
)
_ANY = " GPUs at 100% with little power wait in a sum over ranks; idle ones wait for a process of the host."
_WITHOUT_P2P = (
    "without sums from GPU to GPU: --disable-custom-all-reduce (and what else switches such a kernel on: "
    "VLLM_ENABLE_PCIE_ALLREDUCE=0), NCCL_P2P_DISABLE=1 and, with it, NCCL_CUMEM_ENABLE=0: NCCL then goes through the "
    "host's memory"
)
_TOPOLOGY = (
    "nvidia-smi topo -m: where it says PHB, NODE or SYS and no NV, GPUs meet through the host; IOMMU off (or iommu=pt) "
    "and ACS off in the firmware let them reach each other, which the p2pBandwidthLatencyTest of CUDA's samples shows"
)
_STACKS = (
    "py-spy dump --pid of every worker and of EngineCore while it stands: the rank whose stack differs is the one to "
    "look at; then once with --enforce-eager"
)
_NOT_YET = "wait once for half an hour if it compiles for the first time (a cache that is empty), with top at hand"


def _of_drafts(facts: LogFacts) -> tuple[str, ...]:
    """Return what to do where drafts are made by ranks that share experts; empty if none are."""
    asked = facts.arguments
    several = asked.get("data_parallel_size", asked.get("dp_size", "1")) not in ("1", "None")
    if not asked.get("speculative_config") or not (several or asked.get("enable_expert_parallel") == "True"):
        return ()
    return (
        "once without --speculative-config: ranks share their experts in every step, and a drafter that leaves one out "
        "on one rank (a request within its drafts of --max-model-len, a rank that idles) keeps the others waiting; "
        "until then requests whose prompt and max_tokens stay some tokens below --max-model-len; then a later release",
    )


def _advice(sums: Remark | None, ready: bool) -> tuple[str, ...]:
    if sums is not None:
        return (_WITHOUT_P2P, _TOPOLOGY, _STACKS)
    return (_STACKS, _WITHOUT_P2P, _TOPOLOGY, *(() if ready else (_NOT_YET,)))


RULE = Rule("workers-stand", "processes of a vLLM server wait for each other", _find)
