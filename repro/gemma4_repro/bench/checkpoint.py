"""The toy pair scaled up: configuration and tokenizer only, since SGLang's load_format=dummy draws the weights.

E4B's shape: five sliding layers to a full one, the last third without KV of its own, per-layer embeddings, and an
assistant that reads the target's KV. Head dims 64 and 128, which XQA on Hopper takes. Dummy weights are uniform in
+-0.001 from a fixed seed, equal in all arms; the assistant is never right, so an MTP step yields one token.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from gemma4_repro.toys.locate import ASSISTANT_NAME, TARGET_NAME, toy_path

HIDDEN, ASSISTANT_HIDDEN, WINDOW = 1536, 256, 512
_GROUP = ["sliding_attention"] * 5 + ["full_attention"]
_ATTENTION = {
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "global_head_dim": 128,
    "sliding_window": WINDOW,
}
_TARGET = _ATTENTION | {
    "layer_types": _GROUP * 3,
    "num_hidden_layers": len(_GROUP) * 3,
    "num_kv_shared_layers": len(_GROUP),
    "hidden_size": HIDDEN,
    "intermediate_size": 4 * HIDDEN,
    "hidden_size_per_layer_input": 128,
}
_ASSISTANT = _ATTENTION | {"hidden_size": ASSISTANT_HIDDEN, "intermediate_size": 4 * ASSISTANT_HIDDEN}


def make_pair(folder: Path) -> tuple[Path, Path]:
    """Folders of the target and the assistant, made below `folder`. Raises FileNotFoundError without the toys."""
    target = _scaled(TARGET_NAME, folder / "target", _TARGET, {})
    assistant = _scaled(ASSISTANT_NAME, folder / "assistant", _ASSISTANT, {"backbone_hidden_size": HIDDEN})
    return target, assistant


def geometry() -> dict[str, Any]:
    """What a row's document says about the model."""
    assistant = {"layers": 4, "hidden": ASSISTANT_HIDDEN}
    return {
        "layers": _TARGET["num_hidden_layers"],
        "layers_without_kv": _TARGET["num_kv_shared_layers"],
        "hidden": HIDDEN,
        "heads": _ATTENTION["num_attention_heads"],
        "kv_heads": _ATTENTION["num_key_value_heads"],
        "head_dims": {"sliding": _ATTENTION["head_dim"], "full": _ATTENTION["global_head_dim"]},
        "window": WINDOW,
        "assistant": assistant,
        "weights": "dummy",
    }


def _scaled(toy: str, folder: Path, text: dict[str, Any], top: dict[str, Any]) -> Path:
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
