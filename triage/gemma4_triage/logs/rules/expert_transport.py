"""GPUs that cannot reach each other, for experts (DeepEP, NVSHMEM) or for sums: not set up, or failed."""

from __future__ import annotations

from gemma4_triage.finding import Confidence
from gemma4_triage.logs.rule import of_wordings

RULE = of_wordings(
    "expert-transport",
    "GPUs cannot reach each other, for experts or for sums",
    "expert_transport.toml",
    Confidence.LIKELY,
    settings=("moe_a2a_backend", "ep_size", "tp_size", "nnodes"),
    ruled_out_if=("it dies alike with --moe-a2a-backend none --disable-custom-all-reduce",),
    alarms=("nvshmem", "device"),
)
