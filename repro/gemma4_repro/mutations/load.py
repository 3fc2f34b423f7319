"""What the engine of a mutation serves, and how: short, in two stages, with answers that outlast the window."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from gemma4_repro.corpus.case import corrected
from gemma4_repro.mutations.grid import Server
from gemma4_repro.scenarios.e4b_engine import e4b_engine
from gemma4_repro.staged_workload import StagedWorkload
from gemma4_repro.workloads import Beginnings, Workload

_FIRST = Workload(prompt_count=4, prompt_tokens=70, shortest_new_tokens=20, longest_new_tokens=60)
_AGAIN = Beginnings(prompt_count=2, prompt_tokens=50, whole_tokens=70, shortest_new_tokens=16, longest_new_tokens=24)
_LONGER = Workload(prompt_count=2, prompt_tokens=120, shortest_new_tokens=24, longest_new_tokens=40, seed=21)

LOAD = StagedWorkload(((_FIRST,), (_AGAIN, _LONGER)))
"""Four prompts, then two that find beginnings of them in the prefix cache, and two that are read in chunks."""

_SERVERS: Mapping[Server, Mapping[str, Any]] = {
    Server.STEPWISE: {},
    Server.OVERLAPPED: {"disable_overlap_schedule": False},
    Server.UNCACHED: {"disable_radix_cache": True},
    Server.HYBRID: {
        "prefill_attention_backend": "triton",
        "decode_attention_backend": "trtllm_mha",
        "speculative_attention_mode": "decode",
    },
    # SGLang works out how much of the memory is left from the size of a chunk.
    Server.UNCHUNKED: {"chunked_prefill_size": -1, "mem_fraction_static": 0.5},
    Server.EVICTING: {},
    Server.IN_PYTHON: {},
}

_ENVIRONMENTS: Mapping[Server, Mapping[str, str]] = {
    # In tokens. Before 0.5.23 neither server is drawn.
    Server.EVICTING: {"SGLANG_SWA_EVICTION_INTERVAL": "1"},
    Server.IN_PYTHON: {"SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": "python"},
}


class Probes(StrEnum):
    """What looks at the engine of a mutation."""

    TRAP = "trap"
    """Every probe ends the engine at its first finding, and the leak audit runs after every step."""
    CONTAIN = "contain"
    """Every probe writes its dump and lets the server go on, and the leak audit runs at idle: as one would serve."""


PAUSE_S = 0.5
"""Between the stages, so that what is changed at idle is met by the second one."""


def engine_arguments(models: Mapping[str, Any], mtp: bool, server: Server = Server.STEPWISE) -> dict[str, Any]:
    """Return the arguments of sglang's Engine. models: where the toys lie."""
    arguments = e4b_engine("trtllm_mha", **{"chunked_prefill_size": 128, **_SERVERS[server]}) | dict(models)
    return arguments if mtp else {key: value for key, value in arguments.items() if not key.startswith("speculative_")}


def settings(probes: Probes | None, server: Server = Server.STEPWISE) -> dict[str, str]:
    """Return the settings of the runtime and of SGLang.

    Args:
        probes: What looks at the engine; None for none.
        server: How it is started.
    """
    bare = {
        "GEMMA4_TRIAGE_PATCHES": corrected(),
        "GEMMA4_TRIAGE_FAULTS": "",
        "GEMMA4_TRIAGE_DEVICE_MODEL": "sm100",
        "SGLANG_TRTLLM_MHA_DEBUG": "off",
        "GEMMA4_TRIAGE_LEAK": "off",
        **_ENVIRONMENTS.get(server, {}),
    }
    if probes is None:
        return bare
    guarded = bare | {"SGLANG_TRTLLM_MHA_DEBUG": probes.value, "GEMMA4_TRIAGE_LEAK": "dump"}
    return guarded | ({"GEMMA4_TRIAGE_LEAK_EVERY": "1"} if probes is Probes.TRAP else {})
