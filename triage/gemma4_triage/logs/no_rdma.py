"""Lines of Mooncake alone, without SGLang's: no RDMA device was found, and what it falls back to may not carry KV."""

from __future__ import annotations

from collections.abc import Iterator

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.logs.rule import remarked


def without_rdma(facts: LogFacts) -> Iterator[Finding]:
    """Yield that the transport found no RDMA device, where no other line of the log is understood."""
    if facts.understood or facts.deaths or facts.alarms or "transport_no_rdma" not in facts.remarks:
        return
    yield Finding(
        rule="kv-transfer",
        cause="Mooncake found no RDMA device and goes over TCP. A start succeeds so; KV lies in the memory of the GPU, "
        "which TCP in many builds of Mooncake cannot read, and the first transfer then fails. Whether it did, these "
        "lines do not say.",
        confidence=Confidence.POSSIBLE,
        evidence=tuple(remarked(facts, "transport_no_rdma", "what the transport found")),
        ruled_out_if=("transfers succeed, by SGLang's own lines or answers through the router",),
        advice=(
            "ibv_devices in the container: where the host has such cards, /dev/infiniband, IPC_LOCK and the package "
            "rdma-core (ibverbs-providers) in it, lsmod | grep nvidia_peermem, and --disaggregation-ib-device",
            "where it has none: --disaggregation-transfer-backend nixl on both servers, whose UCX goes over TCP or "
            "within a host; or one server without --disaggregation-mode; or a later mooncake-transfer-engine built for "
            "CUDA, whose TCP copies by way of the host (MC_FORCE_TCP=1)",
            "SGLang's own lines of both servers, and the first that names a transfer",
        ),
    )
