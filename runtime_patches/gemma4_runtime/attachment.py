"""Attaches a set of patches to SGLang, verifies every one, and takes all of it off again.

Hooks go through SGLang's HookRegistry and source edits through its source_patcher. HookRegistry only logs a hook that
failed to attach, so `verify` walks from SGLang's symbol to our function and raises if it does not get there.
"""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from types import CodeType, ModuleType
from typing import Any, TypeVar

from gemma4_runtime.cost import timed
from gemma4_runtime.errors import PatchTargetMissing, UnsupportedRelease, VerificationFailed
from gemma4_runtime.hook_arguments import handing_on
from gemma4_runtime.patch import Bind, Edit, Hook, Kind, Patch, check_conflicts
from gemma4_runtime.release import (
    EditSpec,
    HookRegistry,
    HookSource,
    HookType,
    PatchApplicationError,
    PatchState,
    patch_function,
)
from gemma4_runtime.releases import RUNNABLE, nearest
from gemma4_runtime.standing import attaches_untested, refusal, way_out
from gemma4_runtime.targets import dotted_path

_SOURCE = HookSource("gemma4_runtime", "gemma4-triage")
_MISSING = object()
_T = TypeVar("_T")


@dataclass(frozen=True)
class _Site:
    """One attribute of SGLang: its owner (module or class), its name, and the raw object found there (or _MISSING)."""

    path: str
    owner: Any
    name: str
    raw: Any

    @property
    def function(self) -> Any:
        return self.raw.__func__ if isinstance(self.raw, (staticmethod, classmethod)) else self.raw

    def current(self) -> Any:
        raw = vars(self.owner).get(self.name, _MISSING)
        return raw.__func__ if isinstance(raw, (staticmethod, classmethod)) else raw

    def restore(self) -> None:
        if self.raw is _MISSING:
            if self.name in vars(self.owner):
                delattr(self.owner, self.name)
        elif vars(self.owner).get(self.name, _MISSING) is not self.raw:
            setattr(self.owner, self.name, self.raw)


def _find(path: str, patch: Patch, may_be_missing: bool = False) -> _Site:
    owner_path, _, name = path.rpartition(".")
    try:
        owner = pkgutil.resolve_name(owner_path)
    except (ImportError, AttributeError) as error:
        raise PatchTargetMissing(f"patch {patch.id}: target {path} is missing: {error}") from error
    raw = vars(owner).get(name, _MISSING)
    if raw is _MISSING and not may_be_missing:
        inherited = f"; {owner_path} inherits it, name the class that defines it" if hasattr(owner, name) else ""
        raise PatchTargetMissing(f"patch {patch.id}: target {path} is missing{inherited}")
    return _Site(path, owner, name, raw)


@dataclass
class _Applied:
    patch: Patch
    attachment: Hook | Edit | Bind
    site: _Site
    implementation: Any = None
    edit: PatchState | None = None
    edited_code: CodeType | None = None


@dataclass
class Attachment:
    """A set of patches on their way onto SGLang. Call `register`, let SGLang apply its hooks, then call `verify`.

    Attributes:
        patches: What is to attach.
        release: Of SGLang.
        allow_missing: A probe whose release is undeclared or one of whose targets is not there is left out as a whole.
            Fixes, faults and host leaves are never left out.
        allow_untested: On a release that nobody has looked at, probes attach as to the nearest one, if all their
            targets are there.
        timed: Every hook of every probe is wrapped in a clock, see cost.py.
        missing: The probes that were left out, id to reason.
    """

    patches: tuple[Patch, ...]
    release: str
    allow_missing: bool = False
    allow_untested: bool = False
    timed: bool = False
    missing: dict[str, str] = field(default_factory=dict)
    _applied: list[_Applied] = field(default_factory=list)

    def register(self) -> None:
        """Check everything that can be checked, then register hooks, edit sources and bind names. All or nothing.

        Raises:
            UnsupportedRelease: a patch does not declare this SGLang release.
            PatchConflict: two patches claim one target.
            PatchTargetMissing: a target or an edit's source line does not exist in this release.
        """
        supported = [patch for patch in self.patches if self._tolerating(patch, self._check_release)]
        check_conflicts(supported)
        planned = [plan for patch in supported for plan in self._tolerating(patch, self._plan) or ()]
        # Whatever stops this, SGLang does not stay half patched.
        with ExitStack() as unless_all_registered:
            unless_all_registered.callback(self.uninstall)
            for patch, attachment, site in planned:
                shared = next((one for one in self._applied if one.attachment == attachment), None)
                # Optimisations of one function share its hook, which asks which of them are in force.
                self._applied.append(
                    replace(shared, patch=patch) if shared else _register(patch, attachment, site, self.timed)
                )
            unless_all_registered.pop_all()

    def _tolerating(self, patch: Patch, step: Callable[[Patch], _T]) -> _T | None:
        """Say what `step` makes of the patch; None if the patch is a probe that may be missing, and is."""
        try:
            return step(patch)
        except (UnsupportedRelease, PatchTargetMissing) as error:
            if not (self.allow_missing and patch.kind is Kind.PROBE):
                raise
            self.missing[patch.id] = str(error)
            return None

    def _check_release(self, patch: Patch) -> bool:
        if not self._untested(patch) and (reason := refusal(patch, self.release)):
            raise UnsupportedRelease(reason, way_out(self.release))
        return True

    def _untested(self, patch: Patch) -> bool:
        return self.allow_untested and attaches_untested(patch, self.release)

    def _plan(self, patch: Patch) -> list[tuple[Patch, Hook | Edit | Bind, _Site]]:
        release = nearest(self.release, RUNNABLE) if self._untested(patch) else self.release
        return [
            (patch, wanted, _find(dotted_path(release, wanted.target), patch, isinstance(wanted, Bind)))
            for wanted in patch.attachments_in(release)
        ]

    def verify(self) -> None:
        """Prove that each attachment is in force in this process.

        Raises:
            VerificationFailed: naming every patch and target that is not.
        """
        failures = [f"{a.patch.id} on {a.site.path}" for a in self._applied if not _in_force(a)]
        failures += [
            f"{patch.id} was never registered"
            for patch in self.patches
            if patch.id not in self.missing and not any(a.patch is patch for a in self._applied)
        ]
        if failures:
            raise VerificationFailed("not in force after SGLang applied its hooks: " + "; ".join(failures))

    def status(self) -> list[dict[str, Any]]:
        """Return a row per patch: id, kind, title, targets, attached; of a probe that was left out also the reason."""
        rows = []
        for patch in self.patches:
            applied = [a for a in self._applied if a.patch is patch]
            rows.append(
                {
                    "id": patch.id,
                    "kind": patch.kind.value,
                    "title": patch.title,
                    "targets": [a.site.path for a in applied],
                    "attached": bool(applied) and all(_in_force(a) for a in applied),
                    **({"reason": self.missing[patch.id]} if patch.id in self.missing else {}),
                    **({"untested": self._as_on} if applied and self._untested(patch) else {}),
                }
            )
        return rows

    @property
    def _as_on(self) -> str:
        return f"SGLang {self.release}, as on {nearest(self.release, RUNNABLE)}"

    def uninstall(self) -> None:
        """Put back the very objects that SGLang shipped. Safe to call twice, and after a failed `register`."""
        wrappers: dict[int, tuple[Any, Any]] = {}
        for applied in reversed(self._applied):
            if applied.edit is not None:
                applied.edit.restore()
            elif isinstance(applied.attachment, Bind):
                applied.site.restore()
            else:
                wrapped = _unhook(applied)
                if wrapped is not applied.site.raw:
                    wrappers[id(wrapped)] = wrapped, applied.site.function
        _rebind_importers(wrappers)
        self._applied.clear()
        self.missing.clear()
        # Hooks of other plugins on the same targets were taken off with ours; put them back.
        with one_walk():
            HookRegistry.apply_hooks()


def _register(patch: Patch, attachment: Hook | Edit | Bind, site: _Site, clocks: bool) -> _Applied:
    if isinstance(attachment, Edit):
        edit = EditSpec(match=attachment.match, replacement=attachment.replacement)
        try:
            state = patch_function(target=site.function, edits=[edit])
        except PatchApplicationError as error:
            raise PatchTargetMissing(f"patch {patch.id}: the source of {site.path} has changed: {error}") from error
        except ValueError as error:
            # source_patcher compiles the function on its own, so one that uses super() or a closure cannot be edited.
            raise PatchTargetMissing(f"patch {patch.id}: {site.path} cannot be edited: {error}") from error
        return _Applied(patch, attachment, site, edit=state, edited_code=site.function.__code__)
    implementation = pkgutil.resolve_name(attachment.implementation)
    if isinstance(attachment, Bind):
        setattr(site.owner, site.name, implementation)
    else:
        implementation = handing_on(attachment.how, implementation, site.function)
        if clocks and patch.finds:
            implementation = timed(patch.id, attachment.how, implementation)
        HookRegistry.register(site.path, implementation, HookType(attachment.how.value), source=_SOURCE)
    return _Applied(patch, attachment, site, implementation)


def _in_force(applied: _Applied) -> bool:
    current = applied.site.current()
    if applied.edit is not None:
        return any(getattr(function, "__code__", None) is applied.edited_code for function in _chain(current))
    if isinstance(applied.attachment, Bind):
        return current is applied.implementation
    return any(applied.implementation is cell for wrapper in _chain(current) for cell in _closure(wrapper))


def _chain(function: Any) -> Iterable[Callable[..., Any]]:
    """`function` and what it really calls, outermost first.

    A REPLACE wrapper names what it replaced as `__wrapped__` but does not hold it: nothing below it is ever called.
    """
    while function is not None and function is not _MISSING:
        yield function
        wrapped = getattr(function, "__wrapped__", None)
        function = wrapped if any(wrapped is cell for cell in _closure(function)) else None


def _closure(function: Any) -> list[Any]:
    return [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]


def _unhook(applied: _Applied) -> Any:
    """Takes all of a target's hooks off with this one; returns what stood there, SGLang's own if another did so."""
    path = applied.site.path
    hooks = HookRegistry._hooks.get(path, [])
    hooks[:] = [hook for hook in hooks if hook[1] is not applied.implementation]
    if not hooks:
        HookRegistry._hooks.pop(path, None)
    HookRegistry._patched.discard(path)
    wrapped = vars(applied.site.owner).get(applied.site.name)
    applied.site.restore()
    return wrapped


@contextmanager
def one_walk() -> Iterator[None]:
    """Have HookRegistry find whatever else holds a hooked function in one walk over all modules.

    It walks once for each hook's target, through thousands of modules of other libraries: under all probes that was
    half of a server's start on a CPU.
    """
    registry: Any = sys.modules[HookRegistry.__module__]
    its_own = registry._propagate_patch
    walked: set[int] = set()
    holders: dict[int, list[tuple[ModuleType, str]]] = {}

    def rebind(original: object, wrapped: object, source: object) -> int:
        if id(original) not in holders:
            walked.clear()
            holders.clear()
            holders.update({id(one): [] for one in (original, *_not_yet_hooked())})
        for module in list(sys.modules.values()):
            if isinstance(module, ModuleType) and id(module) not in walked:
                walked.add(id(module))
                for name, value in _held_by(module, holders):
                    holders[id(value)].append((module, name))
        # What holds the original by now: another target's hook may have been put in its place since the walk.
        held = [(module, name) for module, name in holders[id(original)] if vars(module).get(name) is original]
        elsewhere = [(module, name) for module, name in held if module is not source]
        for module, name in elsewhere:
            setattr(module, name, wrapped)
        if isinstance(source, ModuleType):
            elsewhere += [(source, name) for name, value in vars(source).items() if value is wrapped]
        holders.setdefault(id(wrapped), []).extend(elsewhere)
        return len(elsewhere)

    registry._propagate_patch = rebind
    try:
        yield
    finally:
        registry._propagate_patch = its_own


def _not_yet_hooked() -> Iterator[object]:
    """Yield what stands at each target whose hooks HookRegistry has not applied."""
    for path in HookRegistry._hooks.keys() - HookRegistry._patched:
        # Importing another plugin's target may raise anything. HookRegistry meets the same at its turn, and reports it.
        with suppress(Exception):
            found = pkgutil.resolve_name(path)
            yield getattr(found, "__func__", found)


def _held_by(module: ModuleType, ids: Mapping[int, object]) -> list[tuple[str, Any]]:
    """Return the names under which a module holds one of the objects, and the object."""
    # Most of thousands of modules hold none, which is found without a step of Python for each of their names.
    if ids.keys().isdisjoint(map(id, list(vars(module).values()))):
        return []
    return [(name, value) for name, value in list(vars(module).items()) if id(value) in ids]


def _rebind_importers(wrappers: dict[int, tuple[Any, Any]]) -> None:
    """Walk back what HookRegistry rebinds too: every module's name that held the original, a method's as well.

    Args:
        wrappers: By the wrapper's id, it and the original.
    """
    for module in list(sys.modules.values()) if wrappers else ():
        if isinstance(module, ModuleType):
            for name, value in _held_by(module, wrappers):
                setattr(module, name, wrappers[id(value)][1])
