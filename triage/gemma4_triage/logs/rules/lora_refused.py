"""A LoRA adapter does not fit the server: its rank, its modules, its names, or it is not there."""

from __future__ import annotations

from gemma4_triage.finding import Confidence
from gemma4_triage.logs.rule import of_wordings

RULE = of_wordings(
    "lora-refused",
    "a LoRA adapter does not fit the server",
    "lora_refused.toml",
    Confidence.LIKELY,
    settings=("max_lora_rank",),
    ruled_out_if=("the same adapter loads with PEFT and its names are those of the server's modules",),
    advice=("once without the adapter: the base model has to start",),
    alarms=("adapter",),
)
