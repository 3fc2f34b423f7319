"""The torch.compile arm: how it is compiled, and how a process that compiles leaves the device to one at a time."""

from __future__ import annotations

import fcntl
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from torch._dynamo.utils import counters
from torch._inductor.runtime.triton_heuristics import CachingAutotuner

from gemma4_repro.kernel_bench.op_arms import OpArms

# The bench captures graphs itself: one of Inductor's own around ours would hide what is timed.
MODE = "max-autotune-no-cudagraphs"


def compiled(arms: OpArms) -> Callable[..., Any]:
    """Return the eager lines for these very shapes.

    The first call compiles, or loads what another process left in the folder TORCHINDUCTOR_CACHE_DIR.
    """
    return torch.compile(arms.eager, mode=MODE, dynamic=False)


def compile_once(arms: OpArms, turn: Callable[[], Any]) -> bool:
    """Compile, tune and run once; True if the code came from the cache. turn: a context in which to use the device."""
    torch._dynamo.reset()
    counters.clear()
    function = compiled(arms)
    # The first two layers are of every kind that there is.
    for layer in (0, 1):
        with turn():
            arguments = arms.arguments(arms.activations(), arms.weights(), layer)
        function(*arguments)
        if arguments[0].is_cuda:
            torch.cuda.synchronize()
    return counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"] > 0


class DeviceTurn:
    """The right to use the device, among the processes that name the same file.

    Inductor picks its configurations by timing them; what another process runs on the device meanwhile would decide.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._held = path, False

    @contextmanager
    def __call__(self) -> Iterator[None]:
        if self._held:
            yield
            return
        with self._path.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self._held = True
            try:
                yield
            finally:
                self._held = False

    def for_autotuning(self) -> None:
        """Have every timing of Inductor's autotuner in this process wait for its turn."""
        bench = CachingAutotuner.bench

        @functools.wraps(bench)
        def in_turn(*arguments: Any, **options: Any) -> Any:
            with self():
                return bench(*arguments, **options)

        CachingAutotuner.bench = in_turn
