"""SGLang's own text layers of a toy, one token at a time, and sessions with patches of layers in force."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from sglang.srt.plugins.hook_registry import HookRegistry

import vision_world
from gemma4_runtime.catalog import CATALOG
from gemma4_runtime.fusion import eligible
from gemma4_runtime.fusion.layer_plan import forget_plan
from gemma4_runtime.fusion.paths import PATHS
from gemma4_runtime.session import Session
from gemma4_runtime.settings import read_settings


class Attend(torch.nn.Module):
    """An attention of one token: it gives each query head some of its own elements back."""

    def forward(self, q, k, v, forward_batch, save_kv_cache):
        return q.flatten(-2) if k is None else q.flatten(-2) + k.flatten(-2).mean()


def text_model(rank: Any) -> Any:
    """Return a toy's text model, whose layers have attention without keys of other tokens.

    Args:
        rank: What `vision_world.one_rank` yields.
    """
    text = vision_world.load_model(rank).language_model
    for module in text.modules():
        if hasattr(module, "forward_native"):
            # Where there is a GPU, SGLang's are for that.
            module._forward_method = module.forward_native
    for layer in text.layers:
        layer.self_attn.attn = Attend()
    return text


@contextmanager
def sessions(
    monkeypatch: pytest.MonkeyPatch, folder: Path, model: Any, renew: Callable[[], None]
) -> Iterator[Callable[..., Session]]:
    """Yield what starts a session with patches, by their ids, on what counts as the host engine.

    Args:
        monkeypatch: The test's.
        folder: Where dumps go.
        model: Of `text_model`.
        renew: Runs what the patches do as a model is made.
    """
    monkeypatch.setenv("SGLANG_TRTLLM_MHA_DEBUG_DIR", str(folder))
    monkeypatch.setattr(eligible, "on_host_engine", lambda: True)
    started: list[Session] = []

    def begin(*ids: str) -> Session:
        while started:
            started.pop().stop()
        PATHS.__init__()
        session = Session(read_settings(), tuple(patch for patch in CATALOG if patch.id in ids))
        session.start()
        started.append(session)
        HookRegistry.apply_hooks()
        renew()
        for layer in model.layers:
            forget_plan(layer)
        return session

    yield begin
    for session in started:
        session.stop()
    PATHS.__init__()


def calls_of(module: Any) -> list[int]:
    """Return a list that grows at each call of a module's forward, without a hook, which would be seen."""
    calls: list[int] = []
    own = module.forward
    module.forward = lambda *a, **k: calls.append(1) or own(*a, **k)
    return calls
