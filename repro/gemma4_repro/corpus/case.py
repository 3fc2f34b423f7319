"""Frozen records of what to run: a fault and the finding that it must lead to, or a load that must lead to none."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from gemma4_repro.corpus.finding import Finding
from gemma4_repro.staged_workload import StagedWorkload
from gemma4_runtime.catalog import CATALOG
from gemma4_runtime.releases import installed_or_base
from gemma4_runtime.standing import State, standing

_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
# The release's own window is one key too wide, which is a dump in `log` mode; of the faults only the case about it
# leaves it so.
CORRECTED = "default,+swa-window-width"
_RELEASE = installed_or_base()
_STANDING = {patch.id: standing(patch, _RELEASE).state for patch in CATALOG}


def corrected() -> str:
    """Return GEMMA4_TRIAGE_PATCHES of a run without that key, on the installed release; later ones are right."""
    return "default" if _STANDING["swa-window-width"] is State.ABSORBED else CORRECTED


@dataclass(frozen=True)
class Origin:
    """reference: project and number of a public issue or pull request. reported: what users saw, in our words."""

    reference: str
    reported: str


@dataclass(frozen=True)
class Case:
    """One engine run.

    Attributes:
        id: Of the case, and its folder's name.
        title: What runs, in a few words.
        workload: What is sent.
        mtp: With the assistant.
        engine: Arguments that differ from the scenarios'.
        time_limit_s: After which the engine is ended.
        ignore_eos: Whether answers go on past the end token.
    """

    id: str
    title: str
    workload: StagedWorkload
    mtp: bool = True
    engine: Mapping[str, Any] = field(default_factory=dict)
    time_limit_s: float = 120.0
    ignore_eos: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "engine", MappingProxyType(dict(self.engine)))
        if not _ID.fullmatch(self.id):
            raise ValueError(f"case id {self.id!r} must be lower-case words joined by '-': it names a folder")

        if None in self.workload.new_tokens() and "context_length" not in self.engine:
            raise ValueError(f"case {self.id} has open answers, and no context_length says where they end")

    @property
    def patches(self) -> str:
        """GEMMA4_TRIAGE_PATCHES of the run."""
        return corrected()

    @property
    def faults(self) -> tuple[str, ...]:
        """GEMMA4_TRIAGE_FAULTS of the run."""
        return ()

    @property
    def mode(self) -> str:
        """SGLANG_TRTLLM_MHA_DEBUG of the guarded run: `log`, so that a probe's finding hides no other probe's."""
        return "log"

    def environment(self, guarded: bool) -> dict[str, str]:
        """Return the settings of the run. guarded: with every probe and the leak audit; otherwise without any."""
        return {
            "GEMMA4_TRIAGE_PATCHES": self.patches,
            "GEMMA4_TRIAGE_FAULTS": ",".join(self.faults),
            "GEMMA4_TRIAGE_DEVICE_MODEL": "sm100",
            "SGLANG_TRTLLM_MHA_DEBUG": self.mode if guarded else "off",
            "GEMMA4_TRIAGE_LEAK": "dump" if guarded and _STANDING["leak-ledger"] is State.ATTACHES else "off",
        }


@dataclass(frozen=True, kw_only=True)
class FaultCase(Case):
    """A fault, and what the probes must make of it.

    Attributes:
        origin: The public report of it.
        injected: What is broken on purpose.
        inject: Catalog ids of faults.
        without: Fixes that are left off.
        later_engine: Engine arguments besides, on releases after the base.
        along: Patches on request that the fault is about.
        findings: Each must be made, and the first dump must be one of them, or of `earlier`.
        earlier: What may be found besides, and first: the same fault, seen while its entries are still in range.
        consequences: (rule, verdict) of dumps that may follow, because the engine goes on after the first.
        trap: Stop at the first, where going on would only add hundreds of its consequences.
    """

    origin: Origin
    injected: str
    inject: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    later_engine: Mapping[str, Any] = field(default_factory=dict)
    along: tuple[str, ...] = ()
    findings: tuple[Finding, ...]
    earlier: tuple[Finding, ...] = ()
    consequences: tuple[tuple[str, str], ...] = ()
    trap: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.inject or self.without or self.engine):
            raise ValueError(f"case {self.id} injects nothing")
        if not self.findings:
            raise ValueError(f"case {self.id} expects no finding, so it could show nothing")

    @property
    def patches(self) -> str:
        kept = corrected().replace(",+swa-window-width", "") if "swa-window-width" in self.without else corrected()
        left_off = (f"-{fix}" for fix in self.without if fix != "swa-window-width")
        # What comes along may bring what is left off.
        return ",".join([kept, *(f"+{patch}" for patch in self.along), *left_off])

    @property
    def faults(self) -> tuple[str, ...]:
        return self.inject

    @property
    def mode(self) -> str:
        return "trap" if self.trap else super().mode

    @property
    def probes(self) -> tuple[str, ...]:
        """The probes that have to fire, each once."""
        return tuple(dict.fromkeys(finding.probe for finding in self.findings))


@dataclass(frozen=True, kw_only=True)
class CleanCase(Case):
    """A load that must lead to nothing, run as a user runs it: patches at their defaults, probes that trap.

    Attributes:
        shows: Text that the engine's log must hold, without which the load did not do what it is there for.
    """

    shows: tuple[str, ...] = ()

    @property
    def patches(self) -> str:
        return "default"

    @property
    def mode(self) -> str:
        return "1"


@dataclass(frozen=True, kw_only=True)
class LogitFault:
    """A fault that no probe can see, since every index that a kernel follows is in range: it changes answers.

    What catches it is the logit gate, on the attention backend on which it shows. unlike: patches that do the same
    without the fault; with them instead of it the gate is silent.
    """

    id: str
    title: str
    origin: Origin
    injected: str
    inject: tuple[str, ...]
    unlike: tuple[str, ...]
    backend: str

    @property
    def command(self) -> str:
        """Exits 1."""
        faults = " ".join(f"--fault {fault}" for fault in self.inject)
        return f"gemma4-triage diff patches --with default {faults} --backend {self.backend} --mtp off"
