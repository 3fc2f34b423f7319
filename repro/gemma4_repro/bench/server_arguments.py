"""SGLang's arguments, the same for each arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gemma4_repro.bench.plan import DRAFT_TOKENS

STEPS_PER_WINDOW = 20
"""SGLang times its decode steps in windows of decode_log_interval. 20: a log line, in every arm, each 20 steps."""

_COMMON = {
    "host": "127.0.0.1",
    "grammar_backend": "none",
    "skip_server_warmup": True,
    # An idle scheduler polls without end otherwise, and all arms share the cores.
    "sleep_on_idle": True,
    "decode_log_interval": STEPS_PER_WINDOW,
    "random_seed": 0,
}
_SPECULATIVE = {
    "speculative_algorithm": "NEXTN",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": DRAFT_TOKENS,
}


def cuda_arguments(pair: tuple[Path, Path], mtp: bool, batches: Sequence[int]) -> dict[str, Any]:
    """Hopper: XQA decode under CUDA graphs, prefill and target verify on Triton.

    The draft has trtllm_mha as its plain backend, because SGLang as shipped fails with a hybrid one, and the arms are
    to differ in nothing but the probes: no arm has a fix on.
    """
    arguments = _COMMON | {
        "model_path": str(pair[0]),
        "load_format": "dummy",
        "dtype": "bfloat16",
        "prefill_attention_backend": "triton",
        "decode_attention_backend": "trtllm_mha",
        "page_size": 64,
        # All arms' servers share the GPU: the pool has a fixed size, 2 to 3 GB.
        "max_total_tokens": 196608,
        "mem_fraction_static": 0.7,
        "swa_full_tokens_ratio": 0.5,
        "max_running_requests": max(batches),
        "cuda_graph_bs": sorted(batches),
        # Graphs of prefills, which are not measured.
        "disable_piecewise_cuda_graph": True,
    }
    if not mtp:
        return arguments
    draft = {"speculative_draft_model_path": str(pair[1]), "speculative_draft_attention_backend": "trtllm_mha"}
    return arguments | _SPECULATIVE | draft


def host_arguments(pair: tuple[Path, Path], mtp: bool, batches: Sequence[int]) -> dict[str, Any]:
    """Return the host engine on the trained toys: a smoke run."""
    arguments = _COMMON | {
        "model_path": str(pair[0]),
        "device": "cpu",
        "dtype": "float32",
        "attention_backend": "trtllm_mha",
        "page_size": 16,
        "max_total_tokens": 2560,
        "swa_full_tokens_ratio": 0.4,
        "max_running_requests": max(batches),
        "disable_cuda_graph": True,
        "disable_overlap_schedule": True,
        "sampling_backend": "pytorch",
        "decode_log_interval": 4,
    }
    return arguments | _SPECULATIVE | {"speculative_draft_model_path": str(pair[1])} if mtp else arguments


def command_words(arguments: Mapping[str, Any]) -> list[str]:
    """Command-line words; True is a bare flag, a list several words, None nothing."""
    words: list[str] = []
    for name, value in arguments.items():
        if value is None:
            continue
        words.append("--" + name.replace("_", "-"))
        if value is not True:
            words += [str(item) for item in (value if isinstance(value, list) else [value])]
    return words
