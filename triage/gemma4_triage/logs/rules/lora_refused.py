"""A LoRA adapter does not fit the server: its rank, its modules, its names, or it is not there."""

from __future__ import annotations

import re

from gemma4_triage.finding import Confidence
from gemma4_triage.logs.rule import Wording, of_wordings

_WORDINGS = (
    Wording(
        re.compile(
            r"(?i)rank.{0,80}(?:incompatible|exceed|larger|greater|max[-_]lora[-_]rank)|max[-_]lora[-_]rank.{0,80}(?:rank|adapter)"
        ),
        "The adapter's rank or its target modules are not among those that the server was started for.",
        "--max-lora-rank at least r of adapter_config.json, and --lora-target-modules all of its target_modules",
    ),
    Wording(
        re.compile(
            r"(?i)LoRA (?:adapter|name)?.{0,60}(?:not found|not loaded|does not exist|never been loaded|"
            r"is not registered)"
        ),
        "A request names an adapter that is not loaded.",
        "GET /v1/models lists the names; load it with --lora-paths NAME=PATH or POST /load_lora_adapter",
    ),
    Wording(
        re.compile(
            r"(?i)lora.{0,80}(?:missing weight|weight name|unexpected key|target modules?)|(?:missing weight|"
            r"KeyError).{0,120}lora_[AB]"
        ),
        "Names in the adapter are not those of SGLang's modules.",
        "compare the names in adapter_model.safetensors with the model; target_modules of adapter_config.json as bare "
        "names (gate_proj) without a path before them; merge the adapter if they differ",
    ),
)

RULE = of_wordings(
    "lora-refused",
    "a LoRA adapter does not fit the server",
    _WORDINGS,
    Confidence.LIKELY,
    settings=("max_lora_rank",),
    ruled_out_if=("the same adapter loads with PEFT and its names are those of the server's modules",),
    advice=("once without the adapter: the base model has to start",),
    alarms=("adapter",),
)
