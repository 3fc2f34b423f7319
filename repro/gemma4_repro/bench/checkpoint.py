"""The toy pair scaled up: configuration and tokenizer; SGLang's load_format=dummy draws the weights.

E4B's shape: five sliding layers to a full one, the last ones without KV of their own, per-layer embeddings, and an
assistant that reads the target's KV. Head dims that XQA on Hopper takes. Dummy weights are uniform in +-0.001 from a
fixed seed, equal in all arms.

| size     | hidden | layers, of which without KV | intermediate | head dims, sliding and full |
|----------|--------|-----------------------------|--------------|-----------------------------|
| `scaled` | 1536   | 18, 6                       | 6144         | 64, 128                     |
| `e4b`    | 2560   | 42, 18: as E4B itself       | 10240        | 128, 256: half of E4B's     |

The vocabulary is the toys': what logits and sampling of E4B's cost is left out, so a probe's share of a step is larger.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemma4_repro.toys.locate import ASSISTANT_NAME, TARGET_NAME, toy_path

WINDOW = 512
_ASSISTANT_HIDDEN = 256
_GROUP = ["sliding_attention"] * 5 + ["full_attention"]


@dataclass(frozen=True)
class Size:
    """groups: of five sliding layers and a full one. shared: layers at the end without KV of their own."""

    hidden: int
    groups: int
    shared: int
    head_dim: int
    per_layer_input: int

    @property
    def attention(self) -> dict[str, Any]:
        return {
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": self.head_dim,
            "global_head_dim": 2 * self.head_dim,
            "sliding_window": WINDOW,
        }

    @property
    def target(self) -> dict[str, Any]:
        layers = _GROUP * self.groups
        return self.attention | {
            "layer_types": layers,
            "num_hidden_layers": len(layers),
            "num_kv_shared_layers": self.shared,
            "hidden_size": self.hidden,
            "intermediate_size": 4 * self.hidden,
            "hidden_size_per_layer_input": self.per_layer_input,
        }

    @property
    def assistant(self) -> dict[str, Any]:
        return self.attention | {"hidden_size": _ASSISTANT_HIDDEN, "intermediate_size": 4 * _ASSISTANT_HIDDEN}


SIZES = {"scaled": Size(1536, 3, 6, 64, 128), "e4b": Size(2560, 7, 18, 128, 256)}


def make_pair(folder: Path, size: Size) -> tuple[Path, Path]:
    """Folders of target and assistant, made below `folder`. Raises FileNotFoundError without the toys."""
    target = write_checkpoint(TARGET_NAME, folder / "target", size.target, {})
    assistant = write_checkpoint(
        ASSISTANT_NAME, folder / "assistant", size.assistant, {"backbone_hidden_size": size.hidden}
    )
    return target, assistant


def geometry(size: Size) -> dict[str, Any]:
    """Say what a row's document says about the model."""
    return {
        "layers": len(_GROUP) * size.groups,
        "layers_without_kv": size.shared,
        "hidden": size.hidden,
        "heads": size.attention["num_attention_heads"],
        "kv_heads": size.attention["num_key_value_heads"],
        "head_dims": {"sliding": size.head_dim, "full": 2 * size.head_dim},
        "window": WINDOW,
        "assistant": {"layers": 4, "hidden": _ASSISTANT_HIDDEN},
        "weights": "dummy",
    }


def write_checkpoint(toy: str, folder: Path, text: dict[str, Any], top: dict[str, Any]) -> Path:
    """Write the toy's tokenizer and configuration, with `text` of its text model and `top` changed.

    Raises FileNotFoundError without the toys.
    """
    folder.mkdir(parents=True)
    source = toy_path(toy)
    for path in source.iterdir():
        if path.suffix in (".json", ".jinja") and path.name != "config.json":
            shutil.copy(path, folder)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config |= top | {"dtype": "bfloat16"}
    config["text_config"] |= text
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    return folder
