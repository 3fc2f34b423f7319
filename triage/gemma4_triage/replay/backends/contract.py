"""What a backend's module has to give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gemma4_triage.replay.exchange import BackendCall


class Refused(Exception):
    """This backend cannot run this call here. missing: the environment lacks something; else the call does not fit."""

    def __init__(self, reason: str, missing: bool = False) -> None:
        super().__init__(reason)
        self.missing = missing


@dataclass(frozen=True)
class Attention:
    """Attention as a backend computes it.

    Attributes:
        run: a variant's name -> outputs [rows, q_heads, head_dim] float32, after a synchronisation.
        dtype: what keys, values and outputs are rounded to.
        note: what a reader has to know, may be empty.
    """

    run: Callable[[str], np.ndarray]
    device: str
    dtype: str
    note: str = ""


Prepare = Callable[[BackendCall], Attention]
