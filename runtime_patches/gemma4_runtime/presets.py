"""Presets: what `serve --preset` sets at once, by the use that a server is put to. Neither torch nor SGLang."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Preset:
    """Variables that belong together.

    Attributes:
        id: its name on the command line.
        title: what a server gets with it, a sentence.
        why: whom it is for, and what it costs.
        variables: name to value; an option of `serve` wins over each of them.
    """

    id: str
    title: str
    why: str
    variables: Mapping[str, str]


PRESETS: tuple[Preset, ...] = (
    Preset(
        "speed",
        "The default fixes and optimisations are attached, and no probe is.",
        "For measuring and for loads whose evidence is not wanted. From SGLang 0.5.14 on MTP schedules overlapped by "
        "itself; on 0.5.13.post1 --patches default,+mtp-v2 beside it does, with --speculative-algorithm NEXTN.",
        {"GEMMA4_TRIAGE_PATCHES": "default", "SGLANG_TRTLLM_MHA_DEBUG": "off", "GEMMA4_TRIAGE_LEAK": "off"},
    ),
    Preset(
        "debug",
        "Probes stop the server before a bad access, or make it harmless inside CUDA graphs, and pages are audited for "
        "leaks; both write dumps.",
        "For a server that crashes, leaks or answers wrongly. Probes wait for the device, so steps take longer, and "
        "the first violation outside CUDA graphs ends the server. Both pools hand out their ids in shuffled orders, so "
        "that a wrong translation shows at once.",
        {
            "GEMMA4_TRIAGE_PATCHES": "default",
            "SGLANG_TRTLLM_MHA_DEBUG": "1",
            "GEMMA4_TRIAGE_LEAK": "dump",
            "GEMMA4_TRIAGE_POOL_SEED": "24",
        },
    ),
    Preset(
        "production",
        "Probes make bad entries harmless before a kernel reads them, write a dump, and end only the requests "
        "concerned.",
        "For serving users. docs/measure.md has what the probes cost; those that wait for the device are left out.",
        {"GEMMA4_TRIAGE_PATCHES": "default", "SGLANG_TRTLLM_MHA_DEBUG": "contain", "GEMMA4_TRIAGE_LEAK": "off"},
    ),
)


def preset(id: str) -> Preset | None:
    """Return the preset of that name; None if there is none."""
    return next((one for one in PRESETS if one.id == id), None)
