"""Whether this environment chooses a patch, because of which variable, and which one would change that."""

from __future__ import annotations

from collections.abc import Iterable

from gemma4_runtime.catalog import CATALOG
from gemma4_runtime.patch import Kind, Patch
from gemma4_runtime.selection import select
from gemma4_runtime.settings import Mode, Settings, knob_variables
from gemma4_runtime.standing import refusal

_MODE, _LEAK, _COST = "SGLANG_TRTLLM_MHA_DEBUG", "GEMMA4_TRIAGE_LEAK", "GEMMA4_TRIAGE_COST"
_SEED = "GEMMA4_TRIAGE_POOL_SEED"
_PATCHES, _PROBES, _FAULTS = "GEMMA4_TRIAGE_PATCHES", "GEMMA4_TRIAGE_PROBES", "GEMMA4_TRIAGE_FAULTS"
_HOST = "GEMMA4_TRIAGE_HOST_ENGINE"


def state_here(patch: Patch, settings: Settings, chosen: bool, release: str) -> str:
    """Return `on: …` or `off: …` with the variable that decides, or why it does not attach to this release of SGLang.

    Args:
        patch: Of the catalog.
        settings: Of the environment.
        chosen: Whether `select` has it for these settings.
        release: Of SGLang.
    """
    if why := refusal(patch, release):
        return f"off: {why}"
    return f"{'on' if chosen else 'off'}: {_because(patch, settings, chosen)}"


def variables_of(patch: Patch) -> tuple[str, ...]:
    """Return every variable that can choose it or that it reads, the deciding one first."""
    own = (*knob_variables(patch.knob), *(patch.about.switches if patch.about else ()))
    if patch.kind is Kind.PROBE:
        shared = {"mode": (_MODE, _PROBES), "leak": (_LEAK,), "cost": (_COST,), "age": (_SEED,)}[patch.asked_by]
    else:
        shared = ({Kind.FAULT: _FAULTS, Kind.HOST_LEAF: _HOST}.get(patch.kind, _PATCHES),)
    return tuple(dict.fromkeys((*shared, *own)))


def switch_on(patch: Patch) -> str:
    """Return a setting that chooses it, and as little else as can be."""
    if patch.kind is Kind.PROBE:
        return {
            "mode": f"{_MODE}=log {_PROBES}={patch.id}",
            "leak": f"{_LEAK}=dump",
            "cost": f"{_COST}=1",
            "age": f"{_SEED}=24",
        }[patch.asked_by]
    if patch.kind is Kind.FAULT:
        return f"{_FAULTS}={patch.id}"
    if patch.knob:
        return f"{knob_variables(patch.knob)[0]}=1"
    return f"{_HOST}=1" if patch.kind is Kind.HOST_LEAF else f"{_PATCHES}={patch.id}"


def switch_off(patch: Patch) -> str:
    """Say how to be without this one and keep the others."""
    if patch.kind is Kind.PROBE:
        return f"name the others in {_PROBES}" if patch.asked_by == "mode" else f"unset {variables_of(patch)[0]}"
    if patch.kind is Kind.HOST_LEAF:
        return "not alone: the host engine needs all of its leaves"
    if patch.default:
        return f"{_PATCHES}=default,-{patch.id}" + (f", or {knob_variables(patch.knob)[0]}=0" if patch.knob else "")
    also = f", unset {knob_variables(patch.knob)[0]}" if patch.knob else ""
    if bringer := _bringer(patch, CATALOG):
        also = f", and write -{patch.id} there where {bringer} brings it along"
    return f"leave it out of {_FAULTS if patch.kind is Kind.FAULT else _PATCHES}{also}; it is no default"


def _because(patch: Patch, settings: Settings, chosen: bool) -> str:
    if patch.kind is Kind.PROBE:
        return _of_probe(patch, settings, chosen)
    if patch.kind is Kind.HOST_LEAF:
        return f"{_HOST} is {settings.host_engine.value}"
    if patch.kind is Kind.FAULT:
        return f"{_FAULTS} names it" if chosen else f"{_FAULTS} does not name it"
    for fault in CATALOG:
        if patch.id in fault.instead_of and fault.id in settings.faults:
            return f"{_FAULTS} names {fault.id}, which takes its place"
    if patch.knob and (asked := settings.knob(patch.knob)) is not None:
        return f"{settings.knob_variable(patch.knob)}={int(asked)} has the last word"
    if chosen and not _names(settings, patch) and (bringer := _bringer(patch, select(settings))):
        return f"{bringer} needs it"
    if not (chosen or _removes(settings, patch)) and (without := _left_out_by_knob(settings, patch)):
        return f"{settings.knob_variable(without.knob)}=0 leaves {without.id} out, which would bring it along"
    if settings.patches:
        return f"{_PATCHES}={','.join(settings.patches)} {'has it' if chosen else 'leaves it out'}"
    served = "has it" if patch.default else "does not have it"
    return f"{_PATCHES} is unset; `gemma4-triage serve` sets default, which {served}"


def _bringer(patch: Patch, among: Iterable[Patch]) -> str | None:
    """Return the first of these patches that has this one chosen along with it."""
    return next((other.id for other in among if patch.id in other.brings), None)


def _left_out_by_knob(settings: Settings, patch: Patch) -> Patch | None:
    """Return the first patch that needs this one and that its own knob switches off."""
    needing = (other for other in CATALOG if patch.id in other.brings and other.knob)
    return next((other for other in needing if settings.knob(other.knob) is False), None)


def _removes(settings: Settings, patch: Patch) -> bool:
    return f"-{patch.id}" in settings.patches


def _names(settings: Settings, patch: Patch) -> bool:
    return any(item.lstrip("+") == patch.id for item in settings.patches)


def _of_probe(patch: Patch, settings: Settings, chosen: bool) -> str:
    value = {
        "mode": settings.mode.value,
        "leak": settings.leak.value,
        "cost": "1" if settings.cost else "unset",
        "age": str(settings.pool_seed or "unset"),
    }
    decides = f"{variables_of(patch)[0]} is {value[patch.asked_by]}"
    if patch.asked_by != "mode" or settings.mode is Mode.OFF or (chosen and not settings.probes):
        return decides
    if settings.probes:
        return f"{decides}, {_PROBES} {'names' if chosen else 'does not name'} it"
    return f"{decides}, which leaves out what waits for the device; {_PROBES}={patch.id} names it"
