"""Writes down what every decoder layer of the target gave for every token.

Runs inside the engine's processes; harness, not part of the patched runtime. Two files are appended to, forward by
forward, so that a crash leaves what came before it:

| file         | holds                                                                                              |
|--------------|----------------------------------------------------------------------------------------------------|
| layers.jsonl | per forward {"mode": "DECODE", "layers": L, "hidden": H, "rows": [[prompt, position, token], ...]} |
| layers.f32   | the same rows' hidden states behind each layer, little-endian float32 [rows, L, H]                 |
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

from gemma4_repro.draft_recorder import prompt_of
from gemma4_runtime.targets import dotted_path

ROWS_NAME, STATES_NAME = "layers.jsonl", "layers.f32"


class LayerRecorder:
    """An after-hook on the scheduler's set-up, which hangs a forward hook on each decoder layer of the target."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pending: list[Any] = []
        self._files: tuple[Any, Any] | None = None

    def register(self, release: str) -> None:
        """Register with SGLang; call it before the engine loads its plugins. The scheduler inherits it by fork."""
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        HookRegistry.register(dotted_path(release, "scheduler.init_model_worker"), self, HookType.AFTER)

    def __call__(self, result: Any, scheduler: Any) -> None:
        from sglang.srt.models.gemma4_causal import Gemma4DecoderLayer

        model = scheduler.tp_worker.model_runner.model
        layers = [module for module in model.modules() if isinstance(module, Gemma4DecoderLayer)]
        for number, layer in enumerate(layers):
            layer.register_forward_hook(self._hook(number, len(layers)), with_kwargs=True)

    def _hook(self, number: int, layers: int) -> Any:
        def after_layer(layer: Any, args: Any, kwargs: Any, output: Any) -> None:
            # float32 whatever the model's dtype is, so that a reader needs no torch.
            self._pending.append(output[0].detach().float().cpu().numpy().copy())
            if number == layers - 1:
                call = inspect.signature(layer.forward).bind(*args, **kwargs).arguments
                # Gemma4ForConditionalGeneration counts positions from 1 on their way to the layers.
                self._write(call["forward_batch"], (call["positions"] - 1).tolist(), layers)

        return after_layer

    def _write(self, forward_batch: Any, positions: list[int], layers: int) -> None:
        import numpy as np

        states, self._pending = np.stack(self._pending, axis=1), []
        prompts = _prompt_of_rows(forward_batch, len(states))
        rows = list(zip(prompts, positions, forward_batch.input_ids.tolist(), strict=True))
        if self._files is None:
            # Opened here, in the scheduler: file positions are not to be shared with the parent.
            text = (self._folder / ROWS_NAME).open("a", encoding="utf-8", buffering=1)
            self._files = (text, (self._folder / STATES_NAME).open("ab", buffering=0))
        self._files[1].write(states.astype("<f4").tobytes())
        shape = {"layers": layers, "hidden": states.shape[2]}
        line = {"mode": forward_batch.forward_mode.name, **shape, "rows": rows}
        self._files[0].write(json.dumps(line) + "\n")


def _prompt_of_rows(forward_batch: Any, rows: int) -> list[int]:
    """Per row of the forward the number of the prompt that it belongs to."""
    prompts = [prompt_of(rid) for rid in forward_batch.rids]
    lengths = forward_batch.extend_seq_lens_cpu
    if lengths is None or sum(lengths) != rows:
        # A decode has a row per request, a verify as many for each as there are draft tokens.
        lengths = [rows // len(prompts)] * len(prompts)
    return [prompt for prompt, length in zip(prompts, lengths, strict=True) for _ in range(int(length))]
