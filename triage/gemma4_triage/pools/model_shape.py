"""What a Gemma-4 config.json says about KV: layers of each kind, heads, head dims, window, shared layers.

Defaults and derived values are those of transformers' Gemma4TextConfig 5.8.1; base attributes are the sliding layers',
`global_*` the full ones', which SGLang swaps when it loads a config (utils/hf_transformers/config.py).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemma4_runtime.pools.arithmetic import own_kv
from gemma4_triage.errors import UsageMistake
from gemma4_triage.input_file import read_input

_LARGEST_CONFIG_BYTES = 16 << 20
_MOST_LAYERS = 10_000
_TYPES = ("sliding_attention", "full_attention")
_PATTERN = 6
_HINT = "give the config.json of a Gemma-4 checkpoint, or the folder that it is in"


@dataclass(frozen=True)
class ModelShape:
    """What of a model decides how much KV its tokens need.

    Attributes:
        name: the model's name, for messages.
        layer_types: "sliding_attention" or "full_attention" for each layer.
        shared_layers: how many of the last layers have no KV of their own.
        full_heads: KV heads of a full layer, before tensor parallelism.
        swa_heads: KV heads of a sliding-window layer, before tensor parallelism.
        full_head_dim: elements of a head in a full layer.
        swa_head_dim: elements of a head in a sliding-window layer.
        window: how many tokens a sliding-window layer sees.
        context: the longest sequence, in tokens.
    """

    name: str
    layer_types: tuple[str, ...]
    shared_layers: int
    full_heads: int
    swa_heads: int
    full_head_dim: int
    swa_head_dim: int
    window: int
    context: int

    def layers(self, kind: str, owners_only: bool) -> int:
        """Count the layers of a kind.

        Args:
            kind: "sliding_attention" or "full_attention".
            owners_only: whether to count only layers that have KV of their own.
        """
        of_kind = [layer for layer, its in enumerate(self.layer_types) if its == kind]
        return len(own_kv(of_kind, len(self.layer_types), self.shared_layers) if owners_only else of_kind)


def read_shape(path: Path) -> ModelShape:
    """path: config.json, or the folder that it is in.

    Raises:
        UsageMistake: it cannot be read, is no Gemma-4, or lacks or contradicts what KV needs.
    """
    file = path / "config.json" if os.path.isdir(path) else path
    config = _load(file)
    kind = str(config.get("model_type", ""))
    if "assistant" in kind:
        raise UsageMistake(
            f"{file} is a draft ({kind}), whose KV lies in its target's pools", "give the target's config"
        )
    text = config.get("text_config", config)
    if not isinstance(text, dict) or not kind.startswith("gemma4"):
        raise UsageMistake(f"{file} is not of a Gemma-4: model_type is {kind or 'not there'!r}", _HINT)
    return _shape(file, _Fields(file, text))


def _load(file: Path) -> dict[str, Any]:
    try:
        document = json.loads(read_input(file, _LARGEST_CONFIG_BYTES).decode())
    except OSError as error:
        raise UsageMistake(f"{file} cannot be read: {error.strerror}", _HINT) from error
    except (ValueError, RecursionError) as error:
        raise UsageMistake(f"{file} is no JSON: {error}", _HINT) from error
    if not isinstance(document, dict):
        raise UsageMistake(f"{file} holds no JSON object", _HINT)
    return document


class _Fields:
    """The text config, whose errors name the file and the field."""

    def __init__(self, file: Path, text: Mapping[str, Any]) -> None:
        self.file, self.text = file, text

    def number(self, name: str, default: int | None = None, low: int = 1) -> int:
        value = self.text.get(name)
        value = default if value is None else value
        if value is None:
            raise UsageMistake(f"{self.file} has no {name}", _HINT)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value < 1 << 31:
            raise UsageMistake(f"{self.file}: {name} is {value!r}, not a whole number of {low} or more", _HINT)
        return value


def _shape(file: Path, fields: _Fields) -> ModelShape:
    types = _layer_types(file, fields)
    shared = fields.number("num_kv_shared_layers", 0, low=0)
    if shared >= len(types):
        raise UsageMistake(f"{file}: {shared} of {len(types)} layers share their KV, which leaves no owner", _HINT)
    swa_heads, swa_dim = fields.number("num_key_value_heads"), fields.number("head_dim", 256)
    return ModelShape(
        name=file.parent.name if file.name == "config.json" else file.stem,
        layer_types=types,
        shared_layers=shared,
        full_heads=fields.number("num_global_key_value_heads", swa_heads),
        swa_heads=swa_heads,
        full_head_dim=fields.number("global_head_dim", 512),
        swa_head_dim=swa_dim,
        window=fields.number("sliding_window"),
        context=fields.number("max_position_embeddings", 131_072),
    )


def _layer_types(file: Path, fields: _Fields) -> tuple[str, ...]:
    count = fields.number("num_hidden_layers")
    if count > _MOST_LAYERS:
        raise UsageMistake(f"{file}: {count} layers", _HINT)
    types = fields.text.get("layer_types")
    if types is None:
        types = [_TYPES[(i + 1) % _PATTERN == 0] for i in range(count)]
    if not isinstance(types, list) or not all(kind in _TYPES for kind in types):
        raise UsageMistake(f"{file}: layer_types holds something other than {' and '.join(_TYPES)}", _HINT)
    if len(types) != count:
        raise UsageMistake(f"{file}: {len(types)} layer_types for {count} layers", _HINT)
    # transformers forces the last layer to be full.
    types = (*types[:-1], "full_attention")
    if "sliding_attention" not in types:
        raise UsageMistake(f"{file} has no sliding layer, so there is one pool and no ratio", _HINT)
    return types
