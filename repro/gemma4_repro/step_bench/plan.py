"""What is measured: models, batches, arms. Imports no torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from gemma4_dumps.errors import ExitCode
from gemma4_repro.errors import ReproError
from gemma4_repro.step_bench.model_sizes import SIZES, ModelSize
from gemma4_runtime.catalog.layer_ops import LAYER_OPS

NONE, SHIPPED, CUBLAS, UNSTREAMED, SEPARATE = "none", "shipped", "all-cublas", "all-unstreamed", "all-separate"
EXPERTS, DENSE, ATTENTION = "all-sglang-experts", "all-dense-alone", "all-sglang-attention"
APART, ENDS, ALL = "all-apart", "all-front-apart", "all"
SEVERAL = (CUBLAS, UNSTREAMED, SEPARATE, EXPERTS, DENSE, ATTENTION, APART, ENDS, ALL)
LEFT_OUT = {
    CUBLAS: ("small-m-linear",),
    UNSTREAMED: ("streamed-products",),
    SEPARATE: ("layer-tail",),
    EXPERTS: ("routed-experts",),
    DENSE: ("dense-beside-experts",),
    ATTENTION: ("decode-attention",),
    APART: ("attention-front",),
    ENDS: ("token-embeddings", "capped-logits"),
}
"""Arms of several ops, of which one may take another's place."""
OPS = tuple(patch.id for patch in LAYER_OPS)
DEFAULTS = tuple(patch.id for patch in LAYER_OPS if patch.default)
ARMS = {
    NONE: "the plugin is loaded, none of the ops is in force: every hook passes on to SGLang's own lines",
    SHIPPED: "captured by SGLang before anything of ours was loaded",
    CUBLAS: "all default ops in force but small-m-linear: cuBLAS computes every matrix product",
    UNSTREAMED: "all default ops in force but streamed-products: no weight is streamed",
    SEPARATE: "all default ops in force but layer-tail: each product and each norm of a layer is a launch",
    EXPERTS: "all default ops in force but routed-experts: SGLang's grouped kernels compute the experts",
    DENSE: "all default ops in force but dense-beside-experts: dense MLP, router and experts are launches of their own",
    ATTENTION: "all default ops in force but decode-attention: SGLang's own kernels compute the attention",
    APART: "all default ops in force but attention-front: norms of heads, store and attention are a launch each",
    ENDS: "all default ops in force but token-embeddings and capped-logits: a step begins and ends as SGLang's",
    ALL: "all default ops in force",
} | {patch.id: patch.title for patch in LAYER_OPS}
MODELS = ("26b", "e4b")
BATCHES = (1, 16, 64)
MAX_BATCH = 256
CONTEXT_TOKENS = 768
"""Of each request before the step that is timed, unless a plan says otherwise: more than the window of E2B and E4B."""

MARGIN = 3.0
"""Whatever changes a step's roundings changes all those behind it: two right arms may be almost as far apart as a step
and the same with moved norms, and the next seed is another draw."""
MOST_RELATIVE = 0.5
"""Above this share of the logits' spread two steps have little in common, however much rounding does to them."""


class LayersRefused(ReproError):
    """A model cannot have that many layers."""

    exit_code = ExitCode.USAGE


def has(op: str, size: ModelSize, layers: int | None = None) -> bool:
    """Does a step of this model have what the op computes? layers: of the model; None: all that it has."""
    if op in ("routing", "triple-rmsnorm", "routed-experts", "dense-beside-experts"):
        return size.has_experts
    if op in ("rmsnorm-add", "gelu-tanh-mul", "ple-front-end", "layer-tail"):
        return size.has_ple
    if op == "q-only-projection":
        return size.shared_layers(size.layers if layers is None else layers) > 0
    everywhere = ("cross-layer-norm", "qk-norm-rope", "small-m-linear", "streamed-products", "decode-attention")
    return op in (*everywhere, "attention-front", "token-embeddings", "capped-logits") or not size.has_experts


@dataclass(frozen=True)
class StepPlan:
    """What is measured.

    Attributes:
        models, arms: ids.
        layers: of every model, None for all that it has.
        rounds: samples per arm.
        limit_s: for everything.
        context: tokens of each request before the step.
    """

    models: tuple[str, ...]
    batches: tuple[int, ...]
    layers: int | None
    arms: tuple[str, ...]
    rounds: int
    limit_s: float
    context: int = CONTEXT_TOKENS

    def arms_of(self, model: str) -> tuple[str, ...]:
        """NONE first, which the others are held against; then the arms that this model has."""
        chosen = (arm for arm in ARMS if arm in self.arms and (arm not in OPS or has(arm, SIZES[model], self.layers)))
        return (NONE, *(arm for arm in chosen if arm != NONE))

    def ops_of(self, arm: str, model: str) -> tuple[str, ...]:
        """Return the ids that are in force in this arm."""
        in_force = {*DEFAULTS} if arm in SEVERAL else {arm}
        in_force.difference_update(LEFT_OUT.get(arm, ()))
        return tuple(op for op in OPS if op in in_force and has(op, SIZES[model], self.layers))

    def layers_of(self, model: str) -> int:
        """Raises LayersRefused: not a whole number of groups, or more than the model has."""
        size = SIZES[model]
        layers = size.layers if self.layers is None else self.layers
        if not 0 < layers <= size.layers or layers % size.group:
            allowed = ", ".join(str(size.group * number) for number in range(1, size.groups + 1))
            raise LayersRefused(f"{model} cannot have {layers} layers", f"whole groups of layers: {allowed}")
        return layers

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def plan_from_dict(fields: dict[str, Any]) -> StepPlan:
    """Return the inverse of `as_dict`, after JSON."""
    lists = {name: tuple(fields[name]) for name in ("models", "batches", "arms")}
    return StepPlan(**lists, **{name: fields[name] for name in ("layers", "rounds", "limit_s", "context")})
