"""Indices out of a dump that may come from anywhere."""

from __future__ import annotations

import numpy as np

from gemma4_dumps.reader import Dump
from gemma4_triage.errors import NothingChecked

HINT = "gemma4-triage dumps show says what is in it"
FARTHEST = 2**40


def integers(dump: Dump, name: str, dimensions: int) -> np.ndarray:
    """int64, far ids drawn nearer: where they point is outside anyhow. Raises NothingChecked, DumpError."""
    found = dump.tensor(name)
    if found.dtype.kind not in "iu" or found.ndim != dimensions:
        raise NothingChecked(f"{name} is {found.dtype}{list(found.shape)}: no indices", HINT)
    if found.dtype.kind == "u":
        found = np.minimum(found, np.asarray(FARTHEST, np.uint64))
    return np.clip(found.astype(np.int64), -FARTHEST, FARTHEST)
