"""Frozen records of what to run and what it should show. They check themselves, so a bad catalog fails at import."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from gemma4_repro.expectation import Expectation
from gemma4_repro.staged_workload import StagedWorkload
from gemma4_repro.workloads import Workload
from gemma4_runtime.settings import VARIABLES

_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_RUNNER_OWNS = ("SGLANG_TRTLLM_MHA_DEBUG_DIR", "GEMMA4_TRIAGE_HOST_ENGINE")


@dataclass(frozen=True)
class Arm:
    """One engine run: an environment, engine arguments, a load, a limit, and what is expected of it.

    `environment` holds variables of gemma4_runtime.settings only; the runner adds what every arm needs. workload: None
    for prompts with pictures and a toy that sees them, both made for the run, see parity.pictures. one_by_one: a
    request is let in when all before it have just finished, see arrivals.AfterLastRounds.
    """

    id: str
    title: str
    environment: Mapping[str, str]
    engine_arguments: Mapping[str, Any]
    workload: Workload | StagedWorkload | None
    time_limit_s: float
    expectations: tuple[Expectation, ...]
    one_by_one: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "environment", MappingProxyType(dict(self.environment)))
        object.__setattr__(self, "engine_arguments", MappingProxyType(dict(self.engine_arguments)))
        if not _ID.fullmatch(self.id):
            raise ValueError(f"arm id {self.id!r} must be lower-case words joined by '-': it names a folder")
        if self.time_limit_s <= 0:
            raise ValueError(f"arm {self.id}: time_limit_s must be above 0, not {self.time_limit_s}")
        if not self.expectations:
            raise ValueError(f"arm {self.id} expects nothing, so it could show nothing")
        foreign = [name for name in self.environment if name not in VARIABLES or name in _RUNNER_OWNS]
        if foreign:
            raise ValueError(f"arm {self.id} may not set {', '.join(foreign)}; it may set runtime settings only")

    @property
    def has_probes(self) -> bool:
        return self.environment.get("SGLANG_TRTLLM_MHA_DEBUG", "off") not in ("", "0", "off")

    @property
    def device_model(self) -> str:
        """What the host engine's attention does with an out-of-range page: sm100 or sm90."""
        return self.environment.get("GEMMA4_TRIAGE_DEVICE_MODEL", "sm100")


@dataclass(frozen=True)
class Scenario:
    """A symptom and the arms that show it, trap it and show it gone.

    Attributes:
        expected_s: Wall-clock on 2 idle cores.
        absent: From which release of SGLang on there is nothing to show, and why: "0.5.14, reason"; empty: none yet.
    """

    id: str
    symptom: str
    hardware: str
    expected_s: float
    toys: tuple[str, ...]
    arms: tuple[Arm, ...] = field(repr=False)
    absent: str = ""

    def __post_init__(self) -> None:
        ids = [arm.id for arm in self.arms]
        if not _ID.fullmatch(self.id):
            raise ValueError(f"scenario id {self.id!r} must be lower-case words joined by '-'")
        if not ids or len(set(ids)) != len(ids):
            raise ValueError(f"scenario {self.id}: arm ids must exist and differ, got {ids}")
        for arm in self.arms:
            unknown = {e.reference for e in arm.expectations if e.reference is not None} - set(ids)
            if unknown or arm.id in {e.reference for e in arm.expectations}:
                raise ValueError(f"scenario {self.id}: arm {arm.id} is compared with {unknown or arm.id}")

    def arm(self, arm_id: str) -> Arm:
        """Return the arm of that id. Raises KeyError."""
        return next((arm for arm in self.arms if arm.id == arm_id), None) or _missing(arm_id)


def _missing(arm_id: str) -> Arm:
    raise KeyError(arm_id)
