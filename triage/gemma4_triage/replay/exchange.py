"""What goes to a backend's subprocess and comes back: files in one folder, JSON and safetensors only.

| file                          | written by | holds                                                              |
|-------------------------------|------------|--------------------------------------------------------------------|
| call.json, call.safetensors   | parent     | a `BackendCall`                                                    |
| about.json                    | child      | the device, and the dtype that it computes in                      |
| <number>.safetensors          | child      | `out` of the variant of that number                                |
| <number>.json                 | child      | the exception of that variant                                      |
| refusal.json                  | child      | why nothing was run                                                |

A file that is there is whole: it is written under another name first. A query is a row here: its keys end at it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

CALL, ABOUT, REFUSAL = "call", "about.json", "refusal.json"
_FACTS = ("variants", "before", "inside", "page_size", "paged", "window_left", "scale", "dtype")


@dataclass(frozen=True)
class BackendCall:
    """A call that a process of its own makes.

    Attributes:
        keys, values: [before + inside + after pages, page_size, kv_heads, head_dim] float32; the buffer is `inside`.
        queries: [rows, q_heads, head_dim] float32.
        lengths: [rows] int64, keys that a row sees or the window hides.
        tables: a variant's name -> entries [rows, columns] int64, in places from the buffer's start: pages if `paged`,
            else slots. Outside the buffer they keep their distance from it; what the window hides is 0 unless it is
            outside.
    """

    variants: tuple[str, ...]
    keys: np.ndarray
    values: np.ndarray
    queries: np.ndarray
    lengths: np.ndarray
    tables: Mapping[str, np.ndarray]
    before: int
    inside: int
    page_size: int
    paged: bool
    window_left: int
    scale: float
    dtype: str | None

    def slots(self, variant: str) -> list[np.ndarray]:
        """Return each row's visible keys as slots from the buffer's start, int64: what backends with lists follow."""
        found = []
        for table, length in zip(self.tables[variant], self.lengths.tolist(), strict=True):
            first = max(length - 1 - self.window_left, 0) if self.window_left >= 0 else 0
            positions = np.arange(first, length)
            if self.paged:
                found.append(table[positions // self.page_size] * self.page_size + positions % self.page_size)
            else:
                found.append(table[positions])
        return found


def write_call(folder: Path, call: BackendCall) -> None:
    """Write it for the child. Raises OSError."""
    tensors = {"keys": call.keys, "values": call.values, "queries": call.queries, "lengths": call.lengths}
    tensors |= {f"table.{number}": call.tables[name] for number, name in enumerate(call.variants)}
    save_file({name: np.ascontiguousarray(array) for name, array in tensors.items()}, folder / f"{CALL}.safetensors")
    write_json(folder / f"{CALL}.json", {name: getattr(call, name) for name in _FACTS})


def read_call(folder: Path) -> BackendCall:
    """Read it, in the child."""
    facts = json.loads((folder / f"{CALL}.json").read_text())
    tensors = load_file(folder / f"{CALL}.safetensors")
    names = tuple(facts.pop("variants"))
    tables = {name: tensors.pop(f"table.{number}") for number, name in enumerate(names)}
    return BackendCall(variants=names, tables=tables, **tensors, **facts)


def write_output(folder: Path, number: int, out: np.ndarray) -> None:
    temporary = folder / f".{number}"
    save_file({"out": np.ascontiguousarray(out)}, temporary)
    os.replace(temporary, folder / f"{number}.safetensors")


def read_output(folder: Path, number: int) -> np.ndarray | None:
    path = folder / f"{number}.safetensors"
    return load_file(path)["out"] if path.exists() else None


def write_json(path: Path, document: Any) -> None:
    temporary = path.with_name(f".{path.name}")
    temporary.write_text(json.dumps(document))
    os.replace(temporary, path)


def read_json(path: Path) -> Any:
    """Return None if it is not there."""
    return json.loads(path.read_text()) if path.exists() else None
