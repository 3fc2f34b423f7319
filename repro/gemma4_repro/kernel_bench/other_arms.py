"""The arms of the ops that are no norm over the hidden size."""

from __future__ import annotations

from typing import Any

import torch

from gemma4_kernels.gelu_tanh_mul.launch import gelu_tanh_mul
from gemma4_kernels.ple_front_end.launch import ple_front_end
from gemma4_kernels.rounding import Rounding
from gemma4_kernels.routing.launch import routing
from gemma4_repro.kernel_bench.op_arms import EPS, Norms, OpArms, Tensors, eager_norm


class Routing(OpArms):
    def activations(self) -> Tensors:
        return (self.randn(self.tokens, self.model.experts),)

    def weights(self):
        return (self.randn(self.model.experts),)

    @property
    def moved_bytes(self) -> int:
        return self.tokens * (2 * self.model.experts + 8 * self.model.top_k)

    def ours(self, logits, scale, *, rounding: Rounding, path: Any = "auto"):
        return routing(logits, scale, self.model.top_k, rounding=rounding, path=path)

    def eager(self, logits, scale):
        probabilities = torch.nn.functional.softmax(logits, dim=-1)
        weights, ids = torch.topk(probabilities, k=self.model.top_k, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        return weights * scale[ids], ids

    def released(self, norms: Norms, logits, scale):
        from sglang.srt.layers.gemma4_fused_ops import gemma4_fused_routing

        return gemma4_fused_routing(logits, scale, self.model.top_k)


class GeluTanhMul(OpArms):
    def activations(self) -> Tensors:
        return self.randn(self.tokens, self.model.ple), self.randn(self.tokens, self.model.layers, self.model.ple)

    def weights(self):
        return ()

    def arguments(self, activations: Tensors, weights: tuple[Any, ...], layer: int) -> tuple[Any, ...]:
        gate, all_layers = activations
        return gate, all_layers[:, layer]

    @property
    def moved_bytes(self) -> int:
        return 3 * 2 * self.tokens * self.model.ple

    def ours(self, gate, ple, *, rounding: Rounding, path: Any = "auto"):
        return gelu_tanh_mul(gate, ple, rounding=rounding, path=path)

    def eager(self, gate, ple):
        return torch.nn.functional.gelu(gate, approximate="tanh") * ple

    def released(self, norms: Norms, gate, ple):
        return self.eager(gate, ple)


class PleFrontEnd(OpArms):
    def activations(self) -> Tensors:
        shape = (self.tokens, self.model.layers, self.model.ple)
        return self.randn(*shape) * self.model.hidden**0.5, self.randn(*shape)

    def weights(self):
        # As tensors on the device, which is how SGLang keeps the two factors.
        factors = torch.tensor([self.model.hidden**-0.5, 2**-0.5], dtype=torch.bfloat16, device=self.device)
        return self.randn(self.model.ple), factors

    @property
    def moved_bytes(self) -> int:
        return 3 * 2 * self.tokens * self.model.layers * self.model.ple

    def ours(self, projection, ple, weight, factors, *, rounding: Rounding, path: Any = "auto"):
        return ple_front_end(projection, weight, ple, self.model.hidden, rounding=rounding, path=path)

    def eager(self, projection, ple, weight, factors):
        return (eager_norm(projection * self.model.hidden**-0.5, weight) + ple) * 2.0**-0.5

    def released(self, norms: Norms, projection, ple, weight, factors):
        scaled = projection * factors[0]
        normed = norms.rmsnorm(scaled.view(-1, self.model.ple), weight, EPS).view(projection.shape)
        return (normed + ple) * factors[1]
