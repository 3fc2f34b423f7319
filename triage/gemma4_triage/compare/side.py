"""One of the two dumps: whatever is wrong with it is said with its letter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gemma4_dumps.errors import DumpError
from gemma4_dumps.manifest_file import load_manifest
from gemma4_dumps.reader import Dump
from gemma4_dumps.schema import TensorRecord
from gemma4_triage.compare.difference import Letter


@dataclass(frozen=True)
class Side:
    """A dump that is being compared. Raises what `Dump` raises, with the letter and the dump's name in front."""

    letter: Letter
    dump: Dump

    def record(self, name: str) -> TensorRecord:
        with _said(self.letter, self.dump.path):
            return self.dump.record(name)

    def window(self, name: str, start: int, stop: int) -> np.ndarray:
        with _said(self.letter, self.dump.path):
            return self.dump.window(name, start, stop)

    def events(self) -> Iterator[Any]:
        with _said(self.letter, self.dump.path):
            yield from self.dump.events()


def open_side(letter: Letter, path: Path) -> Side:
    """Read the manifest of the dump at `path`. Raises DumpError."""
    with _said(letter, path):
        return Side(letter, Dump(path, load_manifest(path)))


@contextmanager
def _said(letter: Letter, path: Path) -> Iterator[None]:
    try:
        yield
    except DumpError as error:
        raise type(error)(f"{letter}, {path.name}: {error}") from error
