"""One process's attachment: plan, register, verify after SGLang has applied its hooks, write the guard manifest."""

from __future__ import annotations

import logging
import multiprocessing.util
import os
import pkgutil
import shlex
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import torch

from gemma4_dumps.store import default_root
from gemma4_runtime import announcement, current, host_environment, versions
from gemma4_runtime.attachment import Attachment, one_walk
from gemma4_runtime.errors import HostEngineRefused, RuntimePatchError
from gemma4_runtime.guard import Guard
from gemma4_runtime.manifest import build_manifest, write_manifest
from gemma4_runtime.patch import Kind, Patch
from gemma4_runtime.probes import process_end
from gemma4_runtime.release import HookRegistry, sglang_version
from gemma4_runtime.selection import select
from gemma4_runtime.settings import VARIABLES, HostEngine, Settings

logger = logging.getLogger(__name__)
_MARKS_THE_END = "process-end"
"""The probe whose hooks tell how a process ends. Without it a manifest has no `ended`, and says nothing of it."""


class Session:
    """Attaches the patches that the settings ask for, one session per process; `current` has what is in force then."""

    def __init__(self, settings: Settings, patches: tuple[Patch, ...] | None = None) -> None:
        self.settings = settings
        self.patches = select(settings, release=sglang_version) if patches is None else patches
        self.attachment = Attachment(
            self.patches, sglang_version, settings.allow_missing, settings.allow_untested, settings.cost
        )
        # The log names dumps by it, and whoever reads that stands in another folder.
        self.root = (settings.dump_dir or default_root()).absolute()
        self.manifest: dict[str, Any] = {}
        self._said_in_pid = 0
        self._cancel_finish: Callable[[], None] = lambda: None
        self._at_exit: multiprocessing.util.Finalize | None = None
        ids = frozenset(patch.id for patch in self.patches)
        guard = Guard(settings.mode, self.root, self._dump_context)
        self.in_force = current.InForce(settings, ids, guard, self._note, self.stop, self._note_end)

    def _note(self, patch: str, write: Callable[[dict[str, Any]], None]) -> None:
        rows = [row for row in self.manifest.get("patches", ()) if row["id"] == patch]
        for row in rows:
            write(row)
        if rows:
            self._write_manifest()

    def _note_end(self, how: str, why: str) -> None:
        if "ended" in self.manifest and self.manifest["ended"] is None and self.manifest["pid"] == os.getpid():
            self.manifest["ended"] = {"utc": datetime.now(UTC).isoformat(timespec="seconds"), "how": how, "why": why}
            self._write_manifest()

    def start(self) -> None:
        """Register now; verify and announce as soon as SGLang has applied every plugin's hooks.

        Raises:
            RuntimePatchError: there is a session already; see also `Attachment.register` and `check_host_engine`.
        """
        if current.in_force is not None:
            raise RuntimePatchError("this process has a session already; stop it before another starts")
        check_host_engine(self.settings)
        self.attachment.register()
        current.in_force = self.in_force
        self._announce()
        self._cancel_finish = _call_after_hooks_applied(self._finish)

    def stop(self) -> None:
        """Take everything off again. Safe to call twice."""
        self._cancel_finish()
        if self._at_exit is not None:
            self._at_exit.cancel()
        self.attachment.uninstall()
        if current.in_force is self.in_force:
            current.in_force = None

    def _finish(self) -> None:
        try:
            self.verify()
        except RuntimePatchError as error:
            # SGLang's loader has returned by now and nothing above us would stop the server.
            print(f"gemma4-triage: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            raise SystemExit(error.exit_code) from None
        if self.settings.host_engine is not HostEngine.OFF:
            os.register_at_fork(after_in_child=self._verify_in_child)

    def verify(self) -> None:
        """Prove every attachment, run every probe's self test, and write the guard manifest of this process.

        Raises:
            VerificationFailed: something is not in force, or a probe's self test does not fire.
        """
        rows = self.attachment.status()
        for row, patch in zip(rows, self.patches, strict=True):
            if patch.self_test is not None and patch.id not in self.attachment.missing:
                pkgutil.resolve_name(patch.self_test)()
                row["self_test"] = "fired"
            if patch.kind is Kind.FAULT:
                row["injected"] = False
        settings = self.settings.model_dump(mode="json")
        self.manifest = build_manifest(rows, settings, versions.package_versions(), versions.gpu())
        if any(patch.id == _MARKS_THE_END and patch.id not in self.attachment.missing for patch in self.patches):
            self.manifest["ended"] = None
            # Of this process: multiprocessing drops what a fork inherits, and calls it where atexit is not called.
            self._at_exit = multiprocessing.util.Finalize(None, process_end.note_exit, exitpriority=0)
        try:
            self.attachment.verify()
            self.manifest["verified"] = True
        finally:
            self._write_manifest()

    def _write_manifest(self) -> None:
        try:
            path = write_manifest(self.root / "guards", self.manifest)
        except OSError as error:
            # The guards themselves work without it, and every dump carries a copy.
            logger.error("gemma4-triage: the guard manifest could not be written: %s", error)
        else:
            if self.manifest["pid"] != self._said_in_pid:
                # Once in a process: each note of a probe writes the manifest again.
                self._said_in_pid = self.manifest["pid"]
                state = "verified" if self.manifest["verified"] else "NOT verified"
                count = sum(row["attached"] for row in self.manifest["patches"])
                logger.info("gemma4-triage: %d patches %s, guard manifest %s", count, state, path)

    def _verify_in_child(self) -> None:
        # Only the host engine forks its workers; a spawned worker loads the plugin for itself.
        if current.in_force is self.in_force:
            try:
                self.verify()
            except RuntimePatchError as error:
                # Python only prints an exception from here, and the worker would serve on unguarded.
                print(f"gemma4-triage: worker {os.getpid()}: {error}", file=sys.stderr, flush=True)
                os._exit(error.exit_code)

    def _announce(self) -> None:
        for line in announcement.lines(self.settings, self.patches, self.attachment.missing, self.attachment.release):
            _say(line.text, line.loud)

    def _dump_context(self) -> Mapping[str, Any]:
        return {
            "versions": self.manifest["versions"],
            "gpu": self.manifest["gpu"],
            "guards": self.manifest,
            "repeat_command": repeat_command(self.settings),
            "rank": torch.distributed.get_rank() if torch.distributed.is_initialized() else 0,
        }


def check_host_engine(settings: Settings) -> None:
    """Refuse the host engine where it would replace real kernels, or where its environment is incomplete.

    Raises:
        HostEngineRefused: saying what to set.
    """
    if settings.host_engine is HostEngine.OFF:
        return
    if torch.cuda.is_available() and settings.host_engine is not HostEngine.FORCE:
        raise HostEngineRefused(
            "GEMMA4_TRIAGE_HOST_ENGINE=1 would replace CUDA kernels by CPU stand-ins and this machine has CUDA; "
            "unset it, or set GEMMA4_TRIAGE_HOST_ENGINE=force"
        )
    if missing := host_environment.missing_from_environment():
        raise HostEngineRefused(
            f"the host engine needs these in the environment before Python starts: {' '.join(missing)}"
        )


def repeat_command(settings: Settings) -> str:
    """Return a shell line that starts this process again as it was: the variables that matter, then its command."""
    if os.path.basename(sys.argv[0]) == "gemma4-triage":
        # A reproduction's arm brings its own environment.
        return shlex.join(sys.argv)
    on = settings.host_engine is not HostEngine.OFF
    names = [*VARIABLES, *((*host_environment.NEEDED, *host_environment.with_stand_ins()) if on else ())]
    words = [f"{name}={shlex.quote(os.environ[name])}" for name in names if os.environ.get(name)]
    # A server's argv[0] is a file inside a package; the interpreter has to be named for it to start.
    interpreter = [] if os.access(sys.argv[0], os.X_OK) or os.sep not in sys.argv[0] else [sys.executable]
    return " ".join([*words, shlex.join([*interpreter, *sys.argv])])


def _say(text: str, loud: bool = False) -> None:
    """Say it on stderr as well as in the log: SGLang's Engine sets the log level to `error` by default."""
    if loud:
        print(f"gemma4-triage: {text}", file=sys.stderr, flush=True)
    else:
        logger.info("gemma4-triage: %s", text)


def _call_after_hooks_applied(callback: Callable[[], None]) -> Callable[[], None]:
    """Run `callback` once, when `HookRegistry.apply_hooks` next returns; `load_plugins` calls it after every plugin.

    Returns a function that cancels it; harmless once it has run.
    """
    original = HookRegistry.__dict__["apply_hooks"]

    def apply_then_call(cls: type[HookRegistry]) -> None:
        HookRegistry.apply_hooks = original
        with one_walk():
            cls.apply_hooks()
        callback()

    waiting = classmethod(apply_then_call)
    HookRegistry.apply_hooks = waiting  # pyright: ignore[reportAttributeAccessIssue]

    def cancel() -> None:
        if HookRegistry.__dict__["apply_hooks"] is waiting:
            HookRegistry.apply_hooks = original

    return cancel
