"""What notes beside the log of a server that stands name, and what to leave out by it."""

from __future__ import annotations

from collections.abc import Iterator

from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.logs.rule import pattern

# What notes and lines name: the words, and what to leave out by them.
_NAMED = (
    (
        pattern(r"ncclCommWindowRegister|use_symmetric_memory|symm_mem\b"),
        "once without --enable-symm-mem: all ranks register its memory with NCCL together, also while the server runs, "
        "and that has never come back; then another release of NCCL (pip list | grep nccl)",
    ),
    (
        pattern(r"grammar|response_format|json_schema"),
        "no response_format, regex and forced tools once, refused before they reach the server: ranks ask each other "
        "whether a grammar is ready, and with --enable-dp-attention those without such a request have not come there; "
        "then a later release",
    ),
    (
        pattern(r"(?i)flashinfer.{0,12}all_?reduce|all_?reduce.{0,8}fusion"),
        "once without FlashInfer's fused all-reduce (--enforce-disable-flashinfer-allreduce-fusion; of vLLM "
        "VLLM_FLASHINFER_ALLREDUCE_BACKEND=mnnvl, or fuse_allreduce_rms false in --compilation-config): its kernels "
        "write into the memory of the other GPUs, which of another node they reach over a fabric (mnnvl) alone",
    ),
    (
        pattern(r"\bACS(?:Ctl)?\b|ReqRedir\+"),
        "ACS off on the bridges between the GPUs (in the firmware, or setpci of ECAP_ACS; lspci -vvv then shows "
        "ReqRedir- and CmpltRedir-), and NCCL_P2P_DISABLE=1 until then: with it, what one GPU writes to another goes "
        "through the root complex and the IOMMU, and NCCL waits for a flag that does not come",
    ),
    (
        pattern(r"via P2P/"),
        "once with NCCL_P2P_DISABLE=1: NCCL took the way from GPU to GPU (via P2P in its lines), which over PCIe works "
        "in name alone where IOMMU or ACS are on, or in a virtual machine; p2pBandwidthLatencyTest of CUDA's samples "
        "shows it",
    ),
    (
        pattern(r"recv_object|pp_proxy|\bPP\d\b.{0,40}\b(?:waits?|stands|in)\b"),
        "once with --pp-size 1 (--tp for the other GPUs): stages of the pipeline wait for each other, which no line "
        "says; then a later release",
    ),
    (
        pattern(r"(?i)deep_?ep|nvshmem"),
        "once with --moe-a2a-backend none: what carries tokens to experts waits for all ranks",
    ),
)


def named_in_notes(facts: LogFacts) -> Iterator[str]:
    """Yield what to leave out by what notes beside the log, and lines of NCCL and fused sums, name."""
    names = ("stands", "notes", "fused_sums", "nccl_p2p")
    said = "\n".join(facts.remarks[name].text for name in names if name in facts.remarks)
    yield from (advice for words, advice in _NAMED if words.search(said))
