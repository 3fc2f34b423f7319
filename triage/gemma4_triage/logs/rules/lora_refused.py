"""A LoRA adapter does not fit the server: its rank, its modules, its names, or it is not there."""

from __future__ import annotations

from gemma4_triage.finding import Confidence
from gemma4_triage.logs.rule import Wording, of_wordings, pattern

_WORDINGS = (
    Wording(
        pattern(
            r"(?i)rank.{0,80}(?:incompatible|exceed|larger|greater|max[-_]lora[-_]rank)|max[-_]lora[-_]rank.{0,80}(?:rank|adapter)"
        ),
        "The adapter's rank or its target modules are not among those that the server was started for.",
        "--max-lora-rank at least r of adapter_config.json, and --lora-target-modules all of its target_modules",
    ),
    Wording(
        pattern(
            r"(?i)LoRA (?:adapter|name)?.{0,60}(?:not found|not loaded|does not exist|never been loaded|"
            r"is not registered)"
        ),
        "A request names an adapter that is not loaded.",
        "GET /v1/models lists the names; load it with --lora-paths NAME=PATH or POST /load_lora_adapter",
    ),
    Wording(
        pattern(
            r"(?i)lora.{0,80}(?:missing weight|weight name|unexpected key|target modules?)|(?:missing weight|"
            r"KeyError).{0,120}lora_[AB]"
        ),
        "Names in the adapter are not those of SGLang's modules.",
        "compare the names in adapter_model.safetensors with the model; target_modules of adapter_config.json as bare "
        "names (gate_proj) without a path before them; merge the adapter if they differ",
    ),
)

_FITS = Wording(
    pattern(r"(?i)size of tensor a|must match|does not match|shape mismatch|get_hidden_dim not implemented"),
    "The adapter's weights do not fit the buffers that this release makes for the model: it does not know how wide a "
    "module is (heads of another width, fused or tower modules), or --tp splits or copies heads otherwise.",
    "a later release; a smaller --tp, at most the model's KV heads; an adapter without the module that the line "
    "names, or merge it into the weights",
    frames=pattern(
        r"(?:lora\w*|mem_pool|utils)\.py:\d+ \w*(?:load|prepare_lora|slice_lora|init_buffers|get_hidden_dim)\w*$"
    ),
)
RULE = of_wordings(
    "lora-refused",
    "a LoRA adapter does not fit the server",
    (*_WORDINGS, _FITS),
    Confidence.LIKELY,
    settings=("max_lora_rank",),
    ruled_out_if=("the same adapter loads with PEFT and its names are those of the server's modules",),
    advice=("once without the adapter: the base model has to start",),
    alarms=("adapter",),
)
