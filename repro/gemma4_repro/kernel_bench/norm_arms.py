"""The arms of the ops over rows of the hidden size."""

from __future__ import annotations

from typing import Any

from gemma4_kernels.cross_layer_norm.launch import cross_layer_norm, moe_cross_layer_norm
from gemma4_kernels.post_attention_norms.launch import post_attention_norms
from gemma4_kernels.rmsnorm_add.launch import rmsnorm_add
from gemma4_kernels.rmsnorm_residual_scalar.launch import rmsnorm_residual_scalar
from gemma4_kernels.rounding import Rounding
from gemma4_kernels.triple_rmsnorm.launch import triple_rmsnorm
from gemma4_repro.kernel_bench.op_arms import EPS, Norms, OpArms, Tensors, eager_norm


class RmsnormAdd(OpArms):
    def activations(self) -> Tensors:
        return self.hidden_rows(), self.hidden_rows()

    def weights(self):
        return (self.weight(),)

    @property
    def moved_bytes(self) -> int:
        return 3 * self.row_bytes

    def ours(self, x, residual, weight, *, rounding: Rounding, path: Any = "auto"):
        return rmsnorm_add(x, weight, residual, rounding=rounding, path=path)

    def eager(self, x, residual, weight):
        return residual + eager_norm(x, weight)

    def released(self, norms: Norms, x, residual, weight):
        return norms.rmsnorm(x, weight, EPS) + residual


class RmsnormResidualScalar(RmsnormAdd):
    def weights(self):
        return self.weight(), self.scalar()

    def ours(self, x, residual, weight, scalar, *, rounding: Rounding, path: Any = "auto"):
        return rmsnorm_residual_scalar(x, weight, residual, scalar, rounding=rounding, path=path)

    def eager(self, x, residual, weight, scalar):
        return (residual + eager_norm(x, weight)) * scalar

    def released(self, norms: Norms, x, residual, weight, scalar):
        if self.model.ple:
            return (norms.rmsnorm(x, weight, EPS) + residual) * scalar
        # Models without per-layer embeddings have it fused in this release.
        from sglang.srt.layers.gemma4_fused_ops import gemma_rmsnorm_residual_scalar

        return gemma_rmsnorm_residual_scalar(x, weight, residual, scalar, EPS)


class PostAttentionNorms(RmsnormAdd):
    def weights(self):
        return self.weight(), self.weight()

    @property
    def moved_bytes(self) -> int:
        return 4 * self.row_bytes

    def ours(self, x, residual, weight, next_weight, *, rounding: Rounding, path: Any = "auto"):
        return post_attention_norms(x, weight, residual, next_weight, rounding=rounding, path=path)

    def eager(self, x, residual, weight, next_weight):
        total = residual + eager_norm(x, weight)
        return total, eager_norm(total, next_weight)

    def released(self, norms: Norms, x, residual, weight, next_weight):
        normed = norms.rmsnorm(x, weight, EPS)
        norms.fused_add_rmsnorm(normed, residual, next_weight, EPS)
        return residual, normed


class TripleRmsnorm(RmsnormAdd):
    def weights(self):
        scale = self.weight()
        # The release's router norm has one weight, into which it has folded both factors.
        as_released = (scale.float() * self.model.hidden**-0.5).to(scale.dtype)
        return self.weight(), scale, as_released, self.weight(), self.weight()

    @property
    def moved_bytes(self) -> int:
        return 6 * self.row_bytes

    def ours(self, x, residual, weight, scale, as_released, dense, experts, *, rounding, path: Any = "auto"):
        return triple_rmsnorm(x, weight, residual, scale, dense, experts, rounding=rounding, path=path)

    def eager(self, x, residual, weight, scale, as_released, dense, experts):
        total = residual + eager_norm(x, weight)
        routed = eager_norm(total, None) * scale * self.model.hidden**-0.5
        return total, routed, eager_norm(total, dense), eager_norm(total, experts)

    def released(self, norms: Norms, x, residual, weight, scale, as_released, dense, experts):
        normed = norms.rmsnorm(x, weight, EPS)
        norms.fused_add_rmsnorm(normed, residual, dense, EPS)
        return residual, norms.rmsnorm(residual, as_released, EPS), normed, norms.rmsnorm(residual, experts, EPS)


class CrossLayerNorm(RmsnormResidualScalar):
    """The tail of a layer without experts."""

    def weights(self):
        return self.weight(), self.scalar(), self.weight()

    @property
    def moved_bytes(self) -> int:
        return 4 * self.row_bytes

    def ours(self, x, residual, weight, scalar, next_weight, *, rounding: Rounding, path: Any = "auto"):
        return cross_layer_norm(x, weight, residual, scalar, next_weight, rounding=rounding, path=path)

    def eager(self, x, residual, weight, scalar, next_weight):
        hidden = super().eager(x, residual, weight, scalar)
        return hidden, eager_norm(hidden, next_weight)

    def released(self, norms: Norms, x, residual, weight, scalar, next_weight):
        hidden = super().released(norms, x, residual, weight, scalar)
        return hidden, norms.rmsnorm(hidden, next_weight, EPS)


class MoeCrossLayerNorm(OpArms):
    """The tail of a layer with experts."""

    def activations(self) -> Tensors:
        return self.hidden_rows(), self.hidden_rows(), self.hidden_rows()

    def weights(self):
        return self.weight(), self.weight(), self.weight(), self.scalar(), self.weight()

    @property
    def moved_bytes(self) -> int:
        return 5 * self.row_bytes

    def ours(
        self, dense, experts, residual, dense_w, experts_w, weight, scalar, next_w, *, rounding, path: Any = "auto"
    ):
        return moe_cross_layer_norm(
            dense, dense_w, experts, experts_w, weight, residual, scalar, next_w, rounding=rounding, path=path
        )

    def eager(self, dense, experts, residual, dense_w, experts_w, weight, scalar, next_w):
        branch = eager_norm(dense, dense_w) + eager_norm(experts, experts_w)
        hidden = (residual + eager_norm(branch, weight)) * scalar
        return hidden, eager_norm(hidden, next_w)

    def released(self, norms: Norms, dense, experts, residual, dense_w, experts_w, weight, scalar, next_w):
        from sglang.srt.layers.gemma4_fused_ops import gemma_dual_rmsnorm_residual_scalar

        weights = (dense_w, experts, experts_w, weight, residual, scalar)
        hidden = gemma_dual_rmsnorm_residual_scalar(dense, *weights, EPS, EPS, EPS)
        return hidden, norms.rmsnorm(hidden, next_w, EPS)
