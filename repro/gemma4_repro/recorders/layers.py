"""Writes down what every decoder layer of the target gave for every token that passed through all of them.

A prefill that gives its last layers only the last row of each request is written down in those rows.

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
from itertools import accumulate
from pathlib import Path
from typing import Any

from gemma4_repro.engine.serving import prompt_of
from gemma4_repro.recorders.recorder import Recorder
from gemma4_runtime.targets import dotted_path

ROWS_NAME, STATES_NAME = "layers.jsonl", "layers.f32"


class LayerRecorder(Recorder):
    """An after-hook on the scheduler's set-up, which hangs a forward hook on each decoder layer of the target."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pending: list[Any] = []
        self._batch: Any = None
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
            call = inspect.signature(layer.forward).bind(*args, **kwargs).arguments
            if number == 0:
                # A chunk that no token is sampled from may leave its last layers out; nothing of it is written.
                self._pending, self._batch = [], call["forward_batch"]
            # A later release returns the state alone.
            state = output[0] if isinstance(output, tuple) else output
            # float32 whatever the model's dtype is, so that a reader needs no torch.
            self._pending.append(state.detach().float().cpu().numpy().copy())
            if number == layers - 1:
                # Gemma4ForConditionalGeneration counts positions from 1 on their way to the layers.
                self._write(call["forward_batch"], (call["positions"] - 1).tolist(), layers)

        return after_layer

    def _write(self, last_batch: Any, positions: list[int], layers: int) -> None:
        """last_batch: of the last layer; it has fewer rows than the first's where layers that share keys had."""
        import numpy as np

        rows = len(positions)
        kept = [state if len(state) == rows else state[_last_rows(self._batch)] for state in self._pending]
        states, self._pending = np.stack(kept, axis=1), []
        prompts = _prompt_of_rows(last_batch, rows)
        listed = list(zip(prompts, positions, last_batch.input_ids.tolist(), strict=True))
        if self._files is None:
            # Opened here, in the scheduler: file positions are not to be shared with the parent.
            text = (self._folder / ROWS_NAME).open("a", encoding="utf-8", buffering=1)
            self._files = (text, (self._folder / STATES_NAME).open("ab", buffering=0))
        self._files[1].write(states.astype("<f4").tobytes())
        shape = {"layers": layers, "hidden": states.shape[2]}
        line = {"mode": self._batch.forward_mode.name, **shape, "rows": listed}
        self._files[0].write(json.dumps(line) + "\n")


def _last_rows(forward_batch: Any) -> list[int]:
    """Return the row of each request's last token."""
    return [end - 1 for end in accumulate(forward_batch.extend_seq_lens_cpu)]


def _prompt_of_rows(forward_batch: Any, rows: int) -> list[int]:
    """Return per row of the forward the number of the prompt that it belongs to."""
    prompts = [prompt_of(rid) for rid in forward_batch.rids]
    lengths = forward_batch.extend_seq_lens_cpu
    if lengths is None or sum(lengths) != rows:
        # A decode has a row per request, a verify as many for each as there are draft tokens.
        lengths = [rows // len(prompts)] * len(prompts)
    return [prompt for prompt, length in zip(prompts, lengths, strict=True) for _ in range(int(length))]
