"""Which patches the settings ask for. Pure: settings and catalog in, an ordered tuple of patches out."""

from __future__ import annotations

from collections.abc import Iterable

from gemma4_dumps.wording import names_near
from gemma4_runtime.catalog import CATALOG
from gemma4_runtime.errors import SettingsError
from gemma4_runtime.patch import ATTACH_ORDER, Kind, Patch
from gemma4_runtime.releases import BASE, KNOWN, RUNNABLE, at_least, nearest
from gemma4_runtime.settings import DRAFTS, MTP_V2, VISION_BUDGET, HostEngine, Leak, Mode, Settings
from gemma4_runtime.standing import State, is_absorbed, standing

CLAMP = "clamp"
_PATCHES = "GEMMA4_TRIAGE_PATCHES"
_VARIABLES = {Kind.FAULT: "GEMMA4_TRIAGE_FAULTS", Kind.PROBE: "GEMMA4_TRIAGE_PROBES"}
_SELECTABLE = (Kind.FIX, Kind.OPTIMISATION)
_BUDGETED, _DRAFTED, _DRAFTS_IN, _PAGES = "vision-batching", "draft-policy", "mtp-v2", "page-table"


def select(settings: Settings, catalog: Iterable[Patch] = CATALOG, release: str = BASE) -> tuple[Patch, ...]:
    """Return the patches in the order in which to attach them: host leaves, faults, fixes, optimisations, probes.

    What the release has itself, or does not need yet, is left out in silence where a default or the host engine would
    bring it.

    Args:
        settings: What the environment asks for.
        catalog: The patches to choose from.
        release: The release of SGLang that they are for.

    Raises:
        SettingsError: a name that the catalog does not have for that variable; the message lists those it has. Or a
            name of what the release has itself, a setting of a patch that is not chosen, a knob's patch beside a
            fault that takes its place, or `clamp` beside a probe that stops what it lets go on.
    """
    catalog = tuple(catalog)
    chosen: set[str] = set()
    if settings.host_engine is not HostEngine.OFF:
        leaves = (patch for patch in catalog if patch.kind is Kind.HOST_LEAF)
        chosen |= {patch.id for patch in leaves if at_least(release, patch.since)}
    chosen |= _named("GEMMA4_TRIAGE_FAULTS", settings.faults, _of_kind(catalog, Kind.FAULT))
    selectable, by_knob = _of_kind(catalog, *_SELECTABLE), _by_knob(settings, catalog)
    chosen |= _edited("GEMMA4_TRIAGE_PATCHES", settings.patches, selectable, by_knob)
    if settings.mode is not Mode.OFF:
        probes = {name: patch for name, patch in _of_kind(catalog, Kind.PROBE).items() if patch.asked_by == "mode"}
        unnamed = {name for name, patch in probes.items() if not _costs_too_much(patch, settings.mode)}
        chosen |= _named("GEMMA4_TRIAGE_PROBES", settings.probes, probes) or unnamed
    if settings.leak is not Leak.OFF:
        chosen |= {patch.id for patch in catalog if patch.kind is Kind.PROBE and patch.asked_by == "leak"}
    if settings.cost:
        chosen |= {patch.id for patch in catalog if patch.kind is Kind.PROBE and patch.asked_by == "cost"}
    if settings.pool_seed:
        chosen |= {patch.id for patch in catalog if patch.kind is Kind.PROBE and patch.asked_by == "age"}
    chosen -= _absorbed(settings, catalog, release)
    chosen -= {patch.id for patch in not_ported(settings, release, catalog) if patch.id in chosen}
    chosen -= _displaced(chosen, catalog, settings)
    if settings.vision_budget_mb and _BUDGETED not in chosen:
        said = f"{VISION_BUDGET}='{settings.vision_budget_mb}' is for {_BUDGETED}, which"
        ways = f"is not on; have {_PATCHES} choose it"
        raise SettingsError(f"{said} {_why_off(_BUDGETED, ways, catalog, release)}, or unset {VISION_BUDGET}")
    if settings.drafts != "auto" and not {_DRAFTED, _DRAFTS_IN} <= chosen:
        ways = f"is not on; set {MTP_V2}=1, or have {_PATCHES} choose {_DRAFTS_IN}, which brings it"
        if _DRAFTED in chosen:
            ways = f"acts in {_DRAFTS_IN} alone, and that {ways}"
        elif _DRAFTS_IN in chosen:
            ways = f"is not on; leave -{_DRAFTED} out of {_PATCHES}"
        said = f"{DRAFTS} is for {_DRAFTED}, which"
        raise SettingsError(f"{said} {_why_off(_DRAFTED, ways, catalog, release)}, or unset {DRAFTS}")
    if {CLAMP, _PAGES} <= chosen and settings.mode is not Mode.LOG:
        word = "1" if settings.mode is Mode.ON else settings.mode.value
        raise SettingsError(
            f"SGLANG_TRTLLM_MHA_DEBUG='{word}' stops or ends requests whose pages are bad, and the patch {CLAMP} has "
            f"them go on; leave {CLAMP} out of GEMMA4_TRIAGE_PATCHES, or set SGLANG_TRTLLM_MHA_DEBUG=log, which dumps "
            f"what {CLAMP} replaces, or have GEMMA4_TRIAGE_PROBES leave {_PAGES} out"
        )
    return tuple(sorted((p for p in catalog if p.id in chosen), key=lambda p: ATTACH_ORDER.index(p.kind)))


def _why_off(name: str, ways: str, catalog: tuple[Patch, ...], release: str) -> str:
    """Return why a patch of which there is a setting is off: its release cannot have it, or else `ways`."""
    found = next((standing(patch, release) for patch in catalog if patch.id == name), None)
    if found is None or release not in KNOWN or found.state is State.ATTACHES:
        return ways
    return f"does not attach to SGLang {release}: {found.why}; serve on {BASE}"


def _absorbed(settings: Settings, catalog: tuple[Patch, ...], release: str) -> set[str]:
    """Return the ids of what the release has itself; naming one, or switching its knob on, is a person's mistake."""
    found = {patch.id: patch for patch in catalog if is_absorbed(patch, release)}
    named = {item.lstrip("+") for item in settings.patches} | {*settings.faults, *settings.probes}
    by_knob = {patch.id for patch in found.values() if patch.knob and settings.knob(patch.knob)}
    for name in sorted(found.keys() & (named | by_knob)):
        patch = found[name]
        variable = settings.knob_variable(patch.knob) if name in by_knob else _VARIABLES.get(patch.kind, _PATCHES)
        raise SettingsError(f"{variable} asks for {name}, which SGLang {release} has itself, since {patch.absorbed}")
    return set(found)


def _displaced(chosen: set[str], catalog: tuple[Patch, ...], settings: Settings) -> set[str]:
    """Return the ids in whose place a chosen fault is. A default leaves quietly, one whose own knob is on does not."""
    faults = [patch for patch in catalog if patch.id in chosen and patch.instead_of]
    for fault in faults:
        for patch in (patch for patch in catalog if patch.id in fault.instead_of and patch.knob):
            if settings.knob(patch.knob):
                raise SettingsError(
                    f"{settings.knob_variable(patch.knob)}='1' asks for {patch.id}, and "
                    f"GEMMA4_TRIAGE_FAULTS={fault.id} puts a broken form of it in its place: one server has one of the "
                    "two. Unset one of the variables"
                )
    return {other for fault in faults for other in fault.instead_of}


def left_out(settings: Settings, catalog: Iterable[Patch] = CATALOG) -> tuple[Patch, ...]:
    """Probes that the mode leaves out, and that would be attached if GEMMA4_TRIAGE_PROBES named them."""
    asked = (patch for patch in catalog if patch.kind is Kind.PROBE and patch.asked_by == "mode")
    return () if settings.probes else tuple(patch for patch in asked if _costs_too_much(patch, settings.mode))


def not_ported(settings: Settings, release: str, catalog: Iterable[Patch] = CATALOG) -> tuple[Patch, ...]:
    """Returns what the settings ask for without naming it, and the catalog knows not to attach to a known release.

    Args:
        settings: What the environment asks for.
        release: Of SGLang. One that is not known has no such list, and everything is refused there; where probes may
            attach all the same, it is the nearest one's.
        catalog: The patches to choose from.
    """
    if settings.allow_untested and release not in RUNNABLE:
        release = nearest(release, RUNNABLE)
        catalog = [patch for patch in catalog if patch.kind is Kind.PROBE]
    if release not in KNOWN:
        return ()
    named = {item.lstrip("+-") for item in settings.patches} | {*settings.probes}
    by_default = "default" in settings.patches[:1]
    return tuple(
        patch
        for patch in catalog
        if patch.id not in named
        and not (patch.knob and settings.knob(patch.knob))
        and (
            (patch.default and by_default)
            or (patch.kind is Kind.PROBE and patch.asked_by == "mode" and settings.mode is not Mode.OFF)
        )
        and standing(patch, release).state is State.NOT_PORTED
    )


def _costs_too_much(patch: Patch, mode: Mode) -> bool:
    """`contain` is for production, where no probe may wait for the device."""
    return mode is Mode.CONTAIN and patch.synchronises


def _of_kind(catalog: tuple[Patch, ...], *kinds: Kind) -> dict[str, Patch]:
    return {patch.id: patch for patch in catalog if patch.kind in kinds}


def _named(variable: str, names: tuple[str, ...], known: dict[str, Patch]) -> set[str]:
    unknown = [name for name in names if name not in known]
    if unknown:
        raise _unknown(variable, names, unknown, known)
    return set(names)


def _unknown(variable: str, items: tuple[str, ...], unknown: list[str], known: dict[str, Patch]) -> SettingsError:
    said = "; ".join(dict.fromkeys(names_near(one, known, "gemma4-triage patches list shows all") for one in unknown))
    return SettingsError(
        f"{variable}={','.join(items)!r} names {', '.join(unknown)}, which this version does not have; {said}"
    )


def _by_knob(settings: Settings, catalog: tuple[Patch, ...]) -> dict[str, bool]:
    """Return the patches of which the pull requests' own knobs say on or off; they have the last word."""
    said = {patch.id: settings.knob(patch.knob) for patch in catalog if patch.knob}
    return {name: on for name, on in said.items() if on is not None}


def _edited(variable: str, items: tuple[str, ...], known: dict[str, Patch], by_knob: dict[str, bool]) -> set[str]:
    """`default` or `none` may come first; then `+id` or `id` adds one and `-id` removes one, or what another brings."""
    chosen = {name for name, on in by_knob.items() if on}
    removed: set[str] = set()
    for position, item in enumerate(items):
        if item in ("default", "none"):
            if position:
                raise SettingsError(f"{variable}={','.join(items)!r}: {item!r} can only come first")
            if item == "default":
                chosen |= {patch.id for patch in known.values() if patch.default}
            continue
        name = item[1:] if item[0] in "+-" else item
        if name not in known:
            raise _unknown(variable, items, [name], known)
        if item.startswith("-"):
            # A knob that is switched off must not make an error of what it took when it was on.
            if name not in chosen | _brought(chosen | by_knob.keys(), known):
                raise SettingsError(
                    f"{variable}={','.join(items)!r} removes {name!r}, which nothing before it chooses; leave -{name} "
                    "out, or write what chooses it first"
                )
            chosen.discard(name)
            removed.add(name)
        else:
            chosen.add(name)
    chosen = {name for name in chosen if by_knob.get(name, True)} | {name for name, on in by_knob.items() if on}
    return chosen | (_brought(chosen, known) - removed)


def _brought(chosen: set[str], known: dict[str, Patch]) -> set[str]:
    """Return the ids of what the chosen need; a catalog for another purpose may lack a knob's patch."""
    return {other for name in chosen if name in known for other in known[name].brings}
