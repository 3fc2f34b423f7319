"""What transformers says about a load: `python -m gemma4_repro.parity.oracle_process PARENT_PID FOLDER`.

A process of its own, beside the engine's, and without SGLang, which changes transformers when it is imported. Reads
FOLDER/oracle_request.json and writes FOLDER/oracle.npz. Of each prompt i, n tokens with the greedy ones:

| array           | holds                                                                                          |
|-----------------|------------------------------------------------------------------------------------------------|
| tokens_i        | int64 [n], the prompt's first                                                                  |
| logprobs_i      | float64 [n - 1, vocabulary]; row p: what follows token p                                       |
| states_i        | float32 [n - 1, layers, hidden], behind each decoder layer                                     |
| states_i_keys_k | the same, for each row had its sliding layers alone seen k keys, all rows before it being right |
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import AutoProcessor, Gemma4ForConditionalGeneration

from gemma4_repro.engine.parent_death import die_with_parent
from gemma4_repro.parity.oracle_files import ARRAYS_NAME, REQUEST_NAME, OracleRequest

_HIDDEN = torch.finfo(torch.float32).min


def main() -> None:
    """See the module."""
    die_with_parent(int(sys.argv[1]))
    folder = Path(sys.argv[2])
    request = OracleRequest.model_validate_json((folder / REQUEST_NAME).read_text(encoding="utf-8"))
    model = Gemma4ForConditionalGeneration.from_pretrained(request.model_path, dtype=torch.float32).eval()
    arrays: dict[str, np.ndarray] = {}
    with torch.inference_mode():
        for number, (prompt, new) in enumerate(zip(request.prompts, request.new_tokens, strict=True)):
            seen = _seen(request.model_path, request.pictures[number]) if request.pictures else {}
            for name, array in _of_prompt(model, prompt, new, request.windows, seen).items():
                arrays[name.format(number)] = array
    temporary = folder / f".{ARRAYS_NAME}"
    with temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
    temporary.replace(folder / ARRAYS_NAME)


def _seen(model_path: str, pictures: list[str]) -> dict[str, torch.Tensor]:
    """Say what the model is given of these files: pixel_values, image_position_ids."""
    if not pictures:
        return {}
    processor = AutoProcessor.from_pretrained(model_path).image_processor
    made = processor([Image.open(path) for path in pictures], return_tensors="pt")
    return {name: made[name] for name in ("pixel_values", "image_position_ids")}


def _of_prompt(
    model: Any, prompt: list[int], new_tokens: int, windows: list[int], seen: dict[str, torch.Tensor]
) -> dict[str, np.ndarray]:
    """Arrays by name, with {} for the prompt's number."""
    tokens = model.generate(
        input_ids=torch.tensor([prompt]), max_new_tokens=new_tokens, do_sample=False, eos_token_id=None, **seen
    )
    # Nothing is asked of the last token.
    ids = tokens[:, :-1]
    logits, states = _forward(model, ids, None, seen)
    found = {
        "tokens_{}": tokens[0].numpy(),
        "logprobs_{}": torch.log_softmax(logits[0].double(), -1).numpy(),
        "states_{}": states[0].numpy(),
    }
    rows = torch.arange(ids.shape[1])
    for keys in windows:
        # One copy of the sequence per row; in copy p the window of row p alone is another.
        _, varied = _forward(model, ids.expand(len(rows), -1), _masks(model, len(rows), keys), {})
        found[f"states_{{}}_keys_{keys}"] = varied[rows, rows].numpy()
    return found


def _masks(model: Any, length: int, keys: int) -> dict[str, torch.Tensor]:
    """Additive masks [length, 1, length, length]: batch item p gives the right window to every row but p."""
    query, key = torch.arange(length)[:, None], torch.arange(length)[None, :]
    causal = key <= query
    right = causal & (key > query - model.config.text_config.sliding_window)
    other = causal & (key > query - keys)
    rows = torch.arange(length)
    sliding = right.expand(length, length, length).clone()
    sliding[rows, rows] = other[rows]
    full = causal.expand(length, length, length)
    return {name: torch.where(mask, 0.0, _HIDDEN)[:, None] for name, mask in _named(full, sliding)}


def _named(full: torch.Tensor, sliding: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    return [("full_attention", full), ("sliding_attention", sliding)]


def _forward(
    model: Any, ids: torch.Tensor, masks: dict[str, torch.Tensor] | None, seen: dict[str, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [batch, n, vocabulary], and the states behind each decoder layer [batch, n, layers, hidden]."""
    states: list[torch.Tensor] = []

    def keep(layer: Any, args: Any, output: Any) -> None:
        states.append(output[0] if isinstance(output, tuple) else output)

    hooks = [layer.register_forward_hook(keep) for layer in model.model.language_model.layers]
    try:
        logits = model(input_ids=ids, attention_mask=masks, use_cache=False, **seen).logits
    finally:
        for hook in hooks:
            hook.remove()
    return logits, torch.stack(states, dim=2)


if __name__ == "__main__":
    main()
