"""Which arms an op has."""

from __future__ import annotations

from gemma4_repro.kernel_bench.norm_arms import (
    CrossLayerNorm,
    MoeCrossLayerNorm,
    PostAttentionNorms,
    RmsnormAdd,
    RmsnormResidualScalar,
    TripleRmsnorm,
)
from gemma4_repro.kernel_bench.op_arms import OpArms
from gemma4_repro.kernel_bench.other_arms import GeluTanhMul, PleFrontEnd, QkNormRope, Routing
from gemma4_repro.kernel_bench.plan import ModelShape

_ARMS: dict[str, type[OpArms]] = {
    "routing": Routing,
    "rmsnorm_add": RmsnormAdd,
    "gelu_tanh_mul": GeluTanhMul,
    "rmsnorm_residual_scalar": RmsnormResidualScalar,
    "post_attention_norms": PostAttentionNorms,
    "ple_front_end": PleFrontEnd,
    "triple_rmsnorm": TripleRmsnorm,
    "cross_layer_norm": CrossLayerNorm,
    "qk_norm_rope": QkNormRope,
}


def arms_of(op: str, model: ModelShape, tokens: int, device: str) -> OpArms:
    """Return the op's arms, with inputs made on `device` as they are asked for."""
    kind = MoeCrossLayerNorm if op == "cross_layer_norm" and model.experts else _ARMS[op]
    return kind(model, tokens, device)
