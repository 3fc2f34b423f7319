"""What is measured: models, ops, token counts, arms. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from gemma4_repro.errors import UnknownName


class ModelShape(NamedTuple):
    """Sizes of a model.

    Attributes:
        hidden: H.
        experts, top_k: 0 without a mixture of experts.
        ple: P, 0 without per-layer embeddings.
        heads, kv_heads, head_dim: of a sliding layer, which most are.
        shared_layers: those that read another layer's keys.
    """

    id: str
    hidden: int
    layers: int
    experts: int
    top_k: int
    ple: int
    heads: int
    kv_heads: int
    head_dim: int
    shared_layers: int


MODELS = (
    ModelShape("26b", 2816, 30, 128, 8, 0, 16, 8, 256, 0),
    ModelShape("e2b", 1536, 35, 0, 0, 256, 8, 1, 256, 20),
    ModelShape("e4b", 2560, 42, 0, 0, 256, 8, 2, 256, 18),
    ModelShape("31b", 5376, 60, 0, 0, 0, 32, 16, 256, 0),
)
OPS = (
    "routing",
    "rmsnorm_add",
    "gelu_tanh_mul",
    "rmsnorm_residual_scalar",
    "post_attention_norms",
    "ple_front_end",
    "triple_rmsnorm",
    "cross_layer_norm",
    "qk_norm_rope",
)
# Those of which a target is a share of the copy bandwidth; routing's is the released kernel.
# qk_norm_rope is more than norms, and its committed copies are slower than those of other ops: see docs/kernels.md.
NORM_OPS = tuple(op for op in OPS if op not in ("routing", "gelu_tanh_mul", "qk_norm_rope"))
TOKENS = (1, 8, 64, 512, 4096, 32768)
MAX_TOKENS = 1 << 17
# Measured before the others, of every op, so that a run that is cut short says most.
FIRST_MODELS = ("26b", "e4b")
FIRST_TOKENS = (1, 64, 4096)
ARMS = {
    "ours": "our kernel, fp32 throughout",
    "ours-eager": "our kernel with eager's roundings",
    "sglang": "what SGLang 0.5.13.post1 launches there",
    "compile": "torch.compile (max-autotune) of the eager lines",
    "eager": "Hugging Face's lines in eager torch",
    "flashinfer": "a part: FlashInfer's rmsnorm of one of the inputs",
    "sgl-kernel": "a part: sgl_kernel's rmsnorm of one of the inputs; of routing its topk_softmax, without the scale",
    "vllm": "vLLM's router kernel, out of the file that --vllm-router names",
    "copy": "a device copy that reads and writes as many bytes as our kernel has to",
    "empty": "an empty Triton kernel",
}
# They compute a part of an op: no rivals, but what a library takes for it.
PARTS = ("flashinfer", "sgl-kernel")
# Those whose part is a norm over the hidden size, or the size of a per-layer embedding.
_WITH_PARTS = NORM_OPS
# (op, model, tokens)
PlannedCell = tuple[str, ModelShape, int]


def has_arm(op: str, arm: str) -> bool:
    """Is there anything to measure? A library's norm is a part of most norm ops, and vLLM is there for its router."""
    if arm == "vllm":
        return op == "routing"
    return arm not in PARTS or op in _WITH_PARTS or (arm == "sgl-kernel" and op == "routing")


def applies(op: str, model: ModelShape) -> bool:
    """Does this model have what the op computes?"""
    if op in ("routing", "triple_rmsnorm"):
        return model.experts > 0
    if op in ("rmsnorm_add", "gelu_tanh_mul", "ple_front_end"):
        return model.ple > 0
    return model.experts == 0 or op in ("cross_layer_norm", "qk_norm_rope")


@dataclass(frozen=True)
class KernelPlan:
    """What is measured.

    Attributes:
        ops, models, arms: ids.
        rounds: samples per arm and cell.
        limit_s: for everything.
        vllm_router: for the arm `vllm`, the file.
    """

    ops: tuple[str, ...]
    models: tuple[str, ...]
    tokens: tuple[int, ...]
    arms: tuple[str, ...]
    rounds: int
    limit_s: float
    vllm_router: str = ""

    def cells(self) -> list[PlannedCell]:
        """(op, model, tokens) of what there is to measure, in the order in which it is: first sizes, first models."""
        models = [model for model in MODELS if model.id in self.models]
        cells = [(op, model, t) for op in self.ops for model in models if applies(op, model) for t in self.tokens]
        return sorted(cells, key=lambda cell: (cell[2] not in FIRST_TOKENS, cell[1].id not in FIRST_MODELS))

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def plan_from_dict(fields: dict[str, Any]) -> KernelPlan:
    """Return the inverse of `as_dict`, after JSON."""
    lists = {name: tuple(fields[name]) for name in ("ops", "models", "tokens", "arms")}
    return KernelPlan(**lists, rounds=fields["rounds"], limit_s=fields["limit_s"], vllm_router=fields["vllm_router"])


def choose(what: str, wanted: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """Return the wanted ids in their known order; all if none is wanted. Raises UnknownName."""
    for id in wanted:
        if id not in known:
            raise UnknownName(f"there is no {what} {id!r}", f"allowed: {', '.join(known)}")
    return tuple(id for id in known if id in wanted or not wanted)
