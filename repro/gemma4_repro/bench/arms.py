"""The arms: what a server is started with, and what it may cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gemma4_repro.errors import UnknownName

REFERENCE = "none"
REFERENCE_LOST = f"the arm {REFERENCE!r} is lost, and nothing can be compared without it"
OFF = "off"
# SGLang takes SGLANG_PLUGINS for a list of those to load: with a name that nobody has, ours is not even imported.
WITHOUT_PLUGIN = {"SGLANG_PLUGINS": "no-plugin"}


@dataclass(frozen=True)
class BenchArm:
    """An arm of `bench probes`. `{folder}` in a value of `environment` is the arm's folder.

    Attributes:
        share_limit: of the reference's step, what its probes' own code may take at most; None: for comparison only.
        identity: SGLang's functions have to be the very objects that it shipped.
        smoke: runs on the host engine as well.
        arguments: of SGLang, in place of the run's.
    """

    id: str
    title: str
    environment: Mapping[str, str] = field(default_factory=dict)
    share_limit: float | None = None
    identity: bool = False
    smoke: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def environment_in(self, folder: Path) -> dict[str, str]:
        return {name: value.replace("{folder}", str(folder)) for name, value in self.environment.items()}


_WITH_CLOCKS = {"SGLANG_TRTLLM_MHA_DEBUG_DIR": "{folder}/dumps", "GEMMA4_TRIAGE_COST": "1"}


def _probes(mode: str) -> dict[str, str]:
    return {"SGLANG_TRTLLM_MHA_DEBUG": mode} | _WITH_CLOCKS


def _flashinfer(level: int) -> dict[str, str]:
    # %i becomes the process id.
    destination = "{folder}/flashinfer_%i.log"
    return WITHOUT_PLUGIN | {"FLASHINFER_LOGLEVEL": str(level), "FLASHINFER_LOGDEST": destination}


ARMS: tuple[BenchArm, ...] = (
    BenchArm(REFERENCE, "SGLang as shipped: the plugin is not loaded", WITHOUT_PLUGIN, smoke=True),
    BenchArm(OFF, "plugin loaded, probes off", {"SGLANG_TRTLLM_MHA_DEBUG": "0"}, identity=True, smoke=True),
    BenchArm("log", "probes on: log", _probes("log"), smoke=True),
    BenchArm("contain", "probes on: contain", _probes("contain"), share_limit=0.01),
    BenchArm("trap", "probes on: trap", _probes("trap"), smoke=True),
    BenchArm(
        "ledger",
        "leak ledger on, probes off",
        {"GEMMA4_TRIAGE_LEAK": "dump"} | _WITH_CLOCKS,
        share_limit=0.02,
        smoke=True,
    ),
    BenchArm("flashinfer-3", "FlashInfer's API log, level 3, to a file", _flashinfer(3)),
    BenchArm("flashinfer-5", "FlashInfer's API log, level 5, to a file", _flashinfer(5)),
    BenchArm(
        "strict-mem-check",
        "SGLang's pool equations at every step",
        WITHOUT_PLUGIN | {"SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1"},
    ),
)


def choose(ids: tuple[str, ...], smoke: bool) -> tuple[BenchArm, ...]:
    """Return the arms of these ids, or all that this device runs; in the catalog's order, with the reference.

    Raises:
        UnknownName: an id that does not exist, or that the host engine cannot run.
    """
    known = [arm for arm in ARMS if arm.smoke or not smoke]
    strangers = [id for id in ids if id not in [arm.id for arm in known]]
    if strangers:
        where = " on the host engine" if smoke else ""
        raise UnknownName(f"there is no arm {strangers[0]!r}{where}", f"arms: {', '.join(arm.id for arm in known)}")
    return tuple(arm for arm in known if not ids or arm.id in (*ids, REFERENCE))
