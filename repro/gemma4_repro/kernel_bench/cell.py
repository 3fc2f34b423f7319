"""One cell, an op of a model at a token count: its arms as calls, checked and timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from gemma4_dumps.wording import number_of
from gemma4_kernels.rounding import Rounding
from gemma4_repro.kernel_bench.arms_catalog import arms_of
from gemma4_repro.kernel_bench.compiled import compiled
from gemma4_repro.kernel_bench.launch_count import count_launches
from gemma4_repro.kernel_bench.op_arms import EPS, Norms, OpArms
from gemma4_repro.kernel_bench.plan import PARTS, ModelShape, has_arm
from gemma4_repro.kernel_bench.replay_clock import (
    Call,
    DeviceLost,
    Recorded,
    capture,
    device_answers,
    empty_kernel,
    first_line,
    interleaved,
    sets_for,
)
from gemma4_repro.kernel_bench.vllm_router import vllm_router

# A step with fewer calls than this is too short a graph to time.
MIN_CALLS = 8
# Of 32,768 tokens about one has such a place.
SAME_EXPERTS = 0.999
COUNTED = ("ours", "sglang", "vllm", "compile", "eager")


class WrongAnswer(Exception):
    """A kernel that computes the wrong thing is not worth timing."""


class Cell:
    """Buffers and calls of a cell. Call n is layer n's: weights of its own, activations in turn."""

    def __init__(
        self, op: str, model: ModelShape, tokens: int, device: str = "cuda", vllm_file: Path | None = None
    ) -> None:
        self.op, self.model, self.tokens, self._vllm_file = op, model, tokens, vllm_file
        # The front end makes the inputs of all layers at once, once a step.
        self.calls_per_step = 1 if op == "ple_front_end" else model.layers
        self.calls = max(MIN_CALLS, self.calls_per_step)
        self.arms: OpArms = arms_of(op, model, tokens, device)
        self.sets = sets_for(self.arms.moved_bytes, self.calls)
        self._activations = [self.arms.activations() for _ in range(self.sets)]
        self._weights = [self.arms.weights() for _ in range(self.calls)]

    def arguments(self, call: int) -> tuple[Any, ...]:
        layer = call % self.model.layers
        return self.arms.arguments(self._activations[call % self.sets], self._weights[call], layer)

    def refuse_wrong_answers(self) -> None:
        """Raises WrongAnswer unless our kernel agrees with our torch path, in both rounding modes."""
        for rounding in Rounding:
            found = _flat(self.arms.ours(*self.arguments(0), rounding=rounding))
            wanted = _flat(self.arms.ours(*self.arguments(0), rounding=rounding, path="torch"))
            if self.op == "routing":
                found, wanted = _of_the_same_experts(found, wanted, rounding)
            for place, (one, other) in enumerate(zip(found, wanted, strict=True)):
                if not _agree(one, other):
                    raise WrongAnswer(
                        f"{self.op}, {self.model.id}, {number_of(self.tokens, 'token')}, {rounding.value}: {place}"
                    )

    def call_of(self, arm: str) -> Call:
        """Return the arm as a function of the call's number. Raises whatever its library raises while it is set up."""
        if arm in ("ours", "ours-eager"):
            rounding = Rounding.FP32 if arm == "ours" else Rounding.EAGER
            return lambda call: self.arms.ours(*self.arguments(call), rounding=rounding)
        if arm == "eager":
            return lambda call: self.arms.eager(*self.arguments(call))
        if arm == "compile":
            function = compiled(self.arms)
            return lambda call: function(*self.arguments(call))
        if arm == "sglang":
            norms = library_norms()
            return lambda call: self.arms.released(norms, *self.arguments(call))
        if self.op == "routing" and arm in ("vllm", "sgl-kernel"):
            return self._router_call(arm)
        return self._part_call(arm) if arm in PARTS else self._yardstick(arm)

    def _router_call(self, arm: str) -> Call:
        top_k = self.model.top_k
        if arm == "vllm":
            if self._vllm_file is None:
                raise ValueError("no file of vLLM's is named")
            router = vllm_router(self._vllm_file)
            return lambda call: router(self.arguments(call)[0], top_k, self.arguments(call)[1])
        return lambda call: library_top_k(self.arguments(call)[0], top_k)

    def _part_call(self, arm: str) -> Call:
        rmsnorm = _flashinfer_rmsnorm() if arm == "flashinfer" else library_norms().rmsnorm
        weight = torch.ones(self._activations[0][0].shape[-1], dtype=torch.bfloat16, device="cuda")
        return lambda call: rmsnorm(self._activations[call % self.sets][0].flatten(0, -2), weight, EPS)

    def _yardstick(self, arm: str) -> Call:
        if arm == "empty":
            kernel = empty_kernel()
            return lambda call: kernel[(1,)]()
        # Whole pages: a device copies an odd number of bytes more slowly.
        words = -(-self.arms.moved_bytes // 8 // 1024) * 1024 or 1024
        pairs = [[torch.ones(words, dtype=torch.int32, device="cuda") for _ in range(2)] for _ in range(self.sets)]
        return lambda call: pairs[call % self.sets][0].copy_(pairs[call % self.sets][1])


def measure(
    cell: Cell, arms: tuple[str, ...], rounds: int, limit_s: float, count: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    """("samples" | "launches" | "lost", fields) of every arm.

    Raises:
        WrongAnswer, DeviceLost.
    """
    where = {"op": cell.op, "model": cell.model.id, "tokens": cell.tokens}
    if "ours" in arms:
        _check(cell)
    recorded: dict[str, Recorded] = {}
    for arm in arms:
        if not has_arm(cell.op, arm):
            continue
        # Broad on purpose: an arm is another library at a size that it may not take; the others are still measured.
        try:
            call = cell.call_of(arm)
            recorded[arm] = capture(call, cell.calls, cell.sets)
            if count and arm in COUNTED:
                launches = count_launches(call, cell.calls_per_step)
                yield "launches", where | {"arm": arm, "launches_per_step": launches}
        except Exception as error:
            if not device_answers():
                raise DeviceLost(arm, first_line(error)) from error
            yield "lost", where | {"arm": arm, "why": first_line(error)}
    about = {"calls": cell.calls, "sets": cell.sets, "moved_bytes": cell.arms.moved_bytes}
    graphs = {arm: one.graph for arm, one in recorded.items()}
    for arm, replays_us in interleaved(graphs, rounds, limit_s).items():
        yield "samples", where | about | {"arm": arm, "us": [took / cell.calls for took in replays_us]}


def _check(cell: Cell) -> None:
    try:
        cell.refuse_wrong_answers()
    except RuntimeError as error:
        if device_answers():
            raise
        raise DeviceLost("ours", f"first launch: {first_line(error)}") from error


def library_norms() -> Norms:
    """Return those of sgl_kernel and SGLang. Raises ImportError."""
    from sgl_kernel import fused_add_rmsnorm, rmsnorm
    from sglang.jit_kernel.rope import apply_rope_with_cos_sin_cache_inplace
    from sglang.srt.layers.gemma4_fused_ops import gemma_qkv_rmsnorm

    return Norms(rmsnorm, fused_add_rmsnorm, gemma_qkv_rmsnorm, apply_rope_with_cos_sin_cache_inplace)


def library_top_k(logits: torch.Tensor, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(weights [T, top_k] fp32, ids int32) by sgl_kernel: softmax, top-k and renormalisation. Raises ImportError."""
    from sgl_kernel import topk_softmax

    shape = (logits.shape[0], top_k)
    weights = torch.empty(shape, dtype=torch.float32, device=logits.device)
    ids = torch.empty(shape, dtype=torch.int32, device=logits.device)
    topk_softmax(weights, ids, logits, renormalize=True)
    return weights, ids


def _flashinfer_rmsnorm() -> Callable[..., torch.Tensor]:
    from flashinfer.norm import rmsnorm

    return rmsnorm


def _flat(result: Any) -> tuple[torch.Tensor, ...]:
    return (result,) if isinstance(result, torch.Tensor) else tuple(result)


def _of_the_same_experts(
    found: tuple[torch.Tensor, ...], wanted: tuple[torch.Tensor, ...], rounding: Rounding
) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """Return (weights, ids) of both, in EAGER mode without the few places that changed with their neighbour.

    There a probability is on a rounding boundary.
    """
    same = found[1] == wanted[1]
    if rounding is Rounding.EAGER and same.double().mean() >= SAME_EXPERTS:
        return tuple(one[same] for one in found), tuple(one[same] for one in wanted)
    return found, wanted


def _agree(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    if not found.is_floating_point():
        return torch.equal(found, wanted)
    wanted, scale = wanted.float(), wanted.float().abs().max().item()
    return torch.allclose(found.float(), wanted, rtol=2**-6, atol=2**-6 * scale)
