"""The columns of a comparison: one engine run each, of a backend, with or without MTP, with a set of patches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gemma4_repro.corpus.faults import FAULTS
from gemma4_repro.errors import UnknownName
from gemma4_repro.parity.load import ENGINE, NEEDED_FIXES
from gemma4_repro.scenarios.e4b_engine import e4b_engine
from gemma4_runtime.catalog import CATALOG
from gemma4_runtime.errors import SettingsError
from gemma4_runtime.patch import Kind
from gemma4_runtime.releases import RUNNABLE, installed_or_base
from gemma4_runtime.selection import select
from gemma4_runtime.settings import Settings
from gemma4_runtime.standing import is_absorbed, refusal

BACKENDS = ("triton", "trtllm_mha")
"""Attention backends that the host engine can run."""
MTP = {"off": False, "on": True}
TIME_LIMITS_S = {"triton": 480.0, "trtllm_mha": 180.0}
"""Triton's interpreter needs seconds for what trtllm_mha's stand-in does in one."""


@dataclass(frozen=True)
class Side:
    """patches: GEMMA4_TRIAGE_PATCHES. faults: catalog ids, injected. probes: SGLANG_TRTLLM_MHA_DEBUG."""

    id: str
    backend: str
    mtp: bool
    patches: str
    faults: tuple[str, ...] = ()
    probes: str = "log"
    device_model: str = "sm100"

    @property
    def title(self) -> str:
        """In a few words, for a column's head."""
        return f"{self.backend}, MTP {'on' if self.mtp else 'off'}"

    @property
    def attached(self) -> tuple[str, ...]:
        """The fixes and optimisations that `patches` comes to."""
        return attached(self.patches, self.faults)

    @property
    def chosen(self) -> tuple[str, ...]:
        """`attached`, and the faults."""
        return (*self.attached, *self.faults)

    def environment(self) -> dict[str, str]:
        """Return the runtime's settings, all of them, so that nothing depends on the user's shell."""
        return {
            # The load's prompts are shorter than those for which yoco is worth its while.
            "GEMMA4_TRIAGE_YOCO_ROWS": "1",
            "GEMMA4_TRIAGE_PATCHES": self.patches,
            "GEMMA4_TRIAGE_FAULTS": ",".join(self.faults),
            "GEMMA4_TRIAGE_DEVICE_MODEL": self.device_model,
            "SGLANG_TRTLLM_MHA_DEBUG": self.probes,
        }

    def engine_arguments(self, models: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of sglang's Engine. models: of the checkpoints, and those that a load has."""
        arguments = e4b_engine(self.backend, **ENGINE) | dict(models)
        if self.mtp:
            return arguments
        return {name: value for name, value in arguments.items() if not name.startswith("speculative_")}


def attached(patches: str, faults: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the ids of fixes and optimisations that a value of GEMMA4_TRIAGE_PATCHES attaches.

    Raises:
        UnknownName: a patch or a fault that the catalog does not have, and the text names those near it; or one that
            does not attach to the installed release, and the text says why.
    """
    items = tuple(item.strip() for item in patches.split(",") if item.strip())
    if len(set(items)) < len(items):
        raise UnknownName(f"{patches!r} names a patch twice", "name each once")
    try:
        # Constructed, not read: the user's environment has no say.
        chosen = select(Settings.model_construct(patches=items, faults=faults), release=installed_or_base())
    except SettingsError as error:
        # What is read here is an option's value.
        said = str(error).replace("GEMMA4_TRIAGE_PATCHES=", "").replace("GEMMA4_TRIAGE_FAULTS=", "")
        said = said.replace("GEMMA4_TRIAGE_PATCHES asks", f"{patches!r} asks").replace(
            "GEMMA4_TRIAGE_FAULTS asks", "it asks"
        )
        raise UnknownName(said, "gemma4-triage patches explain ID says what one of them is") from error
    release = installed_or_base()
    for patch in chosen if release in RUNNABLE else ():
        if reason := refusal(patch, release):
            raise UnknownName(reason, f"gemma4-triage patches list --sglang {release} shows what attaches")
    return tuple(patch.id for patch in chosen if patch.kind in (Kind.FIX, Kind.OPTIMISATION))


@dataclass(frozen=True)
class ChosenPatches:
    """The patches of a comparison that names none.

    Args:
        ids: a value of GEMMA4_TRIAGE_PATCHES.
        added: fixes that are no default, and that the load needs so that the release's own errors do not hide others.
        left_out: default fixes that would repair an injected fault.
    """

    ids: str
    added: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def patches_for(load_name: str, faults: tuple[str, ...]) -> ChosenPatches:
    """Return the default patches, with what the load needs and without what repairs one of these faults.

    What repairs a fault is in its record of the corpus: with it the fault would do nothing.

    Raises:
        UnknownName: a fault that the catalog does not have.
    """
    default = attached("default", faults)
    repair = {fix for case in FAULTS if set(case.inject) & set(faults) for fix in case.without}
    itself = {patch.id for patch in CATALOG if is_absorbed(patch, installed_or_base())}
    added = tuple(fix for fix in NEEDED_FIXES[load_name] if fix not in default and fix not in itself)
    left_out = tuple(fix for fix in default if fix in repair)
    words = ["default", *(f"+{fix}" for fix in added), *(f"-{fix}" for fix in left_out)]
    return ChosenPatches(",".join(words), added, left_out)


def read_backends(text: str) -> tuple[str, ...]:
    """`triton,trtllm_mha` in the order given. Raises UnknownName."""
    return _words(text, BACKENDS, "backend", "the host engine runs on a CPU")


def read_mtp(text: str) -> tuple[bool, ...]:
    """`off,on` in the order given. Raises UnknownName."""
    return tuple(MTP[word] for word in _words(text, tuple(MTP), "--mtp", "MTP is on or off"))


def _words(text: str, known: tuple[str, ...], what: str, why: str) -> tuple[str, ...]:
    words = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    strangers = [word for word in words if word not in known]
    if strangers or not words:
        named = ", ".join(strangers) or "nothing"
        raise UnknownName(f"{what}: {named} cannot be compared here; {why}", f"allowed: {', '.join(known)}")
    return words
