"""Which cells a GPU can run, and why not the others: SGLang's own rules, the kernels' shapes, and memory."""

from __future__ import annotations

from dataclasses import dataclass

from gemma4_repro.crash.cells import Cell, Model
from gemma4_repro.step_bench.model_sizes import SIZES

XQA_HEAD_DIMS = (64, 128, 256)
USABLE = 0.85
"""What SGLang takes of a GPU at most by itself, roughly: its mem_fraction_static for one GPU."""
LONGEST_REQUEST_TOKENS = 9000
"""Prompt and answer of the published load that shows the crash."""
_KV_ELEMENT_BYTES = 2


@dataclass(frozen=True)
class Gpu:
    """A CUDA device as its driver describes it."""

    name: str
    major: int
    minor: int
    memory_bytes: int

    @property
    def sm(self) -> str:
        """Return the name of its architecture, such as `sm90`."""
        return f"sm{self.major}{self.minor}"

    @property
    def device(self) -> str:
        """Return the architecture that expectations are about: sm100 for sm103 too."""
        return f"sm{self.major}0"

    @property
    def text(self) -> str:
        """Return name, architecture and memory in words."""
        return f"{self.name} ({self.sm}, {_gib(self.memory_bytes)})"

    @property
    def nominal_text(self) -> str:
        """Return the same for a GPU of REFERENCES, whose memory is its data sheet's and not a driver's."""
        return f"{self.name} ({self.sm}, {self.memory_bytes // 10**9} GB by its data sheet)"


HOPPER = Gpu("an H200", 9, 0, 141 * 10**9)
BLACKWELL = Gpu("a B200", 10, 0, 180 * 10**9)
REFERENCES = (HOPPER, BLACKWELL)
"""The GPUs that scripts and the matrix speak of. Memory is the data sheet's, in decimal GB."""


@dataclass(frozen=True)
class Needs:
    """What a checkpoint asks of a GPU.

    Args:
        weights_bytes: Of all its weights, as they lie on the GPU.
        token_bytes: KV of one token over all layers.
        full_head_dim, swa_head_dim: Head dimensions of full and of sliding layers.
    """

    weights_bytes: int
    token_bytes: int
    full_head_dim: int
    swa_head_dim: int

    @property
    def least_bytes(self) -> int:
        """Return what weights and one request of the longest published load take."""
        return self.weights_bytes + LONGEST_REQUEST_TOKENS * self.token_bytes


def needs_of_model(model: Model) -> Needs:
    """Return what the published model asks for, in bfloat16, from its shape. The image encoder is left out."""
    size = SIZES[model.id]
    text = size.text
    full = size.groups * text["num_global_key_value_heads"] * 512
    sliding = (size.layers - size.groups) * text["num_key_value_heads"] * 256
    return Needs(model.weights_bytes, 2 * _KV_ELEMENT_BYTES * (full + sliding), 512, 256)


def obstacle(cell: Cell, gpu: Gpu | None, needs: Needs) -> str | None:
    """Return why this machine cannot run the cell, as one sentence without its full stop; None if it can."""
    if gpu is None:
        return "no CUDA device is visible to this process, and real weights need one"
    return _architecture(cell, gpu, needs) or _memory(gpu, needs)


def _architecture(cell: Cell, gpu: Gpu, needs: Needs) -> str | None:
    if gpu.major < 8:
        return f"{gpu.name} is {gpu.sm}, and bfloat16 kernels need sm80 or later"
    if cell.backend.id == "trtllm" and gpu.major != 10:
        return f"{gpu.name} is {gpu.sm}, and SGLang's trtllm_mha prefills on sm100 and sm103 only"
    if cell.backend.id == "hybrid":
        if gpu.major not in (9, 10, 12):
            return f"{gpu.name} is {gpu.sm}, and SGLang's trtllm_mha decodes on sm90, sm100 and sm120 only"
        dims = sorted({needs.swa_head_dim, needs.full_head_dim})
        if gpu.major != 10 and not set(dims) <= set(XQA_HEAD_DIMS):
            return (
                f"trtllm_mha decodes with XQA on {gpu.sm}, which takes head dims of "
                f"{', '.join(map(str, XQA_HEAD_DIMS))}, and this model has {' and '.join(map(str, dims))}"
            )
    return None


def _memory(gpu: Gpu, needs: Needs) -> str | None:
    if needs.least_bytes <= USABLE * gpu.memory_bytes:
        return None
    return (
        f"{gpu.name} has {_gib(gpu.memory_bytes)}, of which SGLang uses about {USABLE:.0%}, and "
        f"{_gib(needs.weights_bytes)} of weights with one request of {LONGEST_REQUEST_TOKENS} tokens need "
        f"{_gib(needs.least_bytes)}"
    )


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 30):.1f} GiB"
