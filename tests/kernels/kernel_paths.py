"""Where the ops run: on this kind of machine a kernel runs in the Triton interpreter, on a GPU host on the GPU."""

import os
from collections.abc import Sequence
from typing import Any

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED or not torch.cuda.is_available() else "cuda"
needs_kernel = pytest.mark.skipif(
    DEVICE == "cpu" and not INTERPRETED, reason="needs CUDA or TRITON_INTERPRET=1, set before Triton is imported"
)
PATHS = [pytest.param("torch", id="torch"), pytest.param("kernel", id="kernel", marks=needs_kernel)]


def cases_here(cases: Sequence[Any]) -> list[Any]:
    """Return those of a spec's cases that are small enough for this device."""
    return [pytest.param(case, id=case.name) for case in cases if case.interpreted or DEVICE == "cuda"]
