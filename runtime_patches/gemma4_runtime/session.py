"""One process's attachment: plan, register, verify after SGLang has applied its hooks, write the guard manifest."""

from __future__ import annotations

import logging
import os

import sglang
import torch
from sglang.srt.plugins.hook_registry import HookRegistry

from gemma4_runtime.attachment import Attachment
from gemma4_runtime.errors import HostEngineRefused
from gemma4_runtime.patch import Kind, Patch
from gemma4_runtime.selection import select
from gemma4_runtime.settings import HostEngine, Settings

logger = logging.getLogger(__name__)

_HOST_ENVIRONMENT = {"SGLANG_USE_CPU_ENGINE": "1", "TRITON_INTERPRET": "1"}


class Session:
    """Attaches the patches that the settings ask for. One per process; `current` is the one in force, or None."""

    current: Session | None = None

    def __init__(self, settings: Settings, patches: tuple[Patch, ...] | None = None) -> None:
        self.settings = settings
        self.patches = select(settings) if patches is None else patches
        self.attachment = Attachment(self.patches, sglang.__version__)

    def start(self) -> None:
        """Register now and verify as soon as SGLang has applied all plugins' hooks.

        Raises:
            RuntimePatchError: see `Attachment.register` and `check_host_engine`.
        """
        check_host_engine(self.settings)
        self.attachment.register()
        Session.current = self
        _call_after_hooks_applied(self._finish)

    def stop(self) -> None:
        """Take everything off again. Safe to call twice."""
        self.attachment.uninstall()
        if Session.current is self:
            Session.current = None

    def _finish(self) -> None:
        self.attachment.verify()


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
    missing = [f"{name}={value}" for name, value in _HOST_ENVIRONMENT.items() if os.environ.get(name) != value]
    if missing:
        raise HostEngineRefused(f"the host engine needs these in the environment before Python starts: {' '.join(missing)}")


def _call_after_hooks_applied(callback) -> None:
    """Run `callback` once, when `HookRegistry.apply_hooks` next returns; `load_plugins` calls it after every plugin."""
    original = HookRegistry.__dict__["apply_hooks"]

    def apply_then_call(cls) -> None:
        HookRegistry.apply_hooks = original
        cls.apply_hooks()
        callback()

    HookRegistry.apply_hooks = classmethod(apply_then_call)
