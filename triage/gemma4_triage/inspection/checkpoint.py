"""Whether a folder holds a whole Gemma-4 checkpoint, found out before a server spends minutes on loading it."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from gemma4_repro.crash.cells import Model
from gemma4_repro.crash.machine import Needs
from gemma4_repro.step_bench.model_sizes import SIZES
from gemma4_triage.errors import UsageMistake
from gemma4_triage.pools.arithmetic import KV_DTYPE_BYTES, token_bytes
from gemma4_triage.pools.model_shape import read_shape

_INDEX, _CONFIG = "model.safetensors.index.json", "config.json"
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.safetensors")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model")
_WHOLE = "download the checkpoint again, or give the folder that holds all of it"


def check_target(folder: Path, model: Model) -> tuple[Needs, str | None]:
    """Return what the checkpoint needs, and a remark if its shape is not that of `model`.

    Raises:
        UsageMistake: It is no Gemma-4, or its configuration, tokenizer or weights are not whole.
    """
    _refuse_no_folder(folder, "--model")
    try:
        shape = read_shape(folder)
        cell = token_bytes(shape, KV_DTYPE_BYTES["auto"])
    except UsageMistake as error:
        raise UsageMistake(str(error), "--model takes the folder of a Gemma-4 checkpoint") from error
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        raise UsageMistake(f"{folder} has no tokenizer: neither {' nor '.join(_TOKENIZERS)} is there", _WHOLE)
    needs = Needs(check_weights(folder), cell.full + cell.swa, shape.full_head_dim, shape.swa_head_dim)
    layers = SIZES[model.id].layers
    if len(shape.layer_types) == layers:
        return needs, None
    return (
        needs,
        f"{folder} has {len(shape.layer_types)} layers, and {model.title} has {layers}: the cell is run anyway",
    )


def check_assistant(folder: Path, target: Path) -> int:
    """Return the bytes of the assistant's weights.

    Raises:
        UsageMistake: It is no assistant, not of this target, or not whole.
    """
    _refuse_no_folder(folder, "--draft-model")
    config = _json_object(folder / _CONFIG)
    kind = config.get("model_type")
    if not (isinstance(kind, str) and kind.startswith("gemma4") and "assistant" in kind):
        raise UsageMistake(
            f"{folder} is no Gemma-4 assistant: its model_type is {kind!r}",
            "--draft-model takes the MTP assistant that belongs to --model",
        )
    hidden = _text_of(_json_object(target / _CONFIG)).get("hidden_size")
    backbone = config.get("backbone_hidden_size")
    if backbone != hidden:
        raise UsageMistake(
            f"{folder} drafts for a hidden size of {backbone!r}, and {target} has {hidden!r}",
            "give the assistant that belongs to --model",
        )
    return check_weights(folder)


def _refuse_no_folder(folder: Path, option: str) -> None:
    if not os.path.isdir(folder):
        raise UsageMistake(f"{folder} is no folder", f"{option} takes the folder of a checkpoint on this machine")


def check_weights(folder: Path) -> int:
    """Return the bytes of all shards: those of the index, or without one every *.safetensors of the folder.

    Raises:
        UsageMistake: There is none; one is missing, lies elsewhere or is cut off; or the index cannot be read.
    """
    if (folder / _INDEX).is_file():
        shards = _json_object(folder / _INDEX).get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
            raise UsageMistake(f"{folder / _INDEX} has no weight_map of file names", _WHOLE)
        found = set(shards.values())
        # SGLang loads files of the folder itself, and passes over what an index names elsewhere.
        if elsewhere := sorted(name for name in found if name != Path(name).name):
            raise UsageMistake(f"{folder / _INDEX} names {elsewhere[0]!r}, which is no file of its folder", _WHOLE)
    else:
        found = {path.name for path in folder.glob("*.safetensors")}
    names = sorted(found | {sibling for name in found for sibling in _siblings(name)})
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise UsageMistake(f"{folder} lacks {missing[0]}, one of {len(missing)} missing of {len(names)} shards", _WHOLE)
    if not names:
        raise UsageMistake(f"{folder} has no weights: no *.safetensors is there", _WHOLE)
    for name in names:
        _refuse_torn(folder / name)
    return sum((folder / name).stat().st_size for name in names)


def _siblings(name: str) -> set[str]:
    """Return the names of all shards of the set that a name such as model-00001-of-00002.safetensors belongs to."""
    shard = _SHARD.fullmatch(name)
    if shard is None:
        return set()
    return {f"{shard[1]}-{number:05}-of-{shard[3]}.safetensors" for number in range(1, int(shard[3]) + 1)}


def _refuse_torn(path: Path) -> None:
    from safetensors import SafetensorError, safe_open

    try:
        # Reads the header only, and holds it against the file's size.
        with safe_open(path, framework="numpy"):
            pass
    except (SafetensorError, OSError) as error:
        raise UsageMistake(f"{path} is not a whole safetensors file: {error}", _WHOLE) from error


def _json_object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageMistake(f"{path} cannot be read: {error.strerror}", _WHOLE) from error
    except (ValueError, RecursionError) as error:
        raise UsageMistake(f"{path} is no JSON: {error}", _WHOLE) from error
    if not isinstance(found, dict):
        raise UsageMistake(f"{path} holds no JSON object", _WHOLE)
    return found


def _text_of(config: dict[str, Any]) -> dict[str, Any]:
    text = config.get("text_config", config)
    return text if isinstance(text, dict) else config
