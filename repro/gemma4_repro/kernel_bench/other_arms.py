"""The arms of the ops that are no norm over the hidden size."""

from __future__ import annotations

from typing import Any

import torch

from gemma4_kernels.gelu_tanh_mul.launch import gelu_tanh_mul
from gemma4_kernels.ple_front_end.launch import ple_front_end
from gemma4_kernels.qk_norm_rope.launch import qk_norm_rope
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


class QkNormRope(OpArms):
    """A sliding layer's norms and rotation.

    Layers without keys of their own are the ones behind the first, so that the two calls before a capture are one of
    either kind.
    """

    _PLACES = 8192

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        # One for all layers. It stays in the cache, so its rows are not in moved_bytes.
        angles = torch.arange(self._PLACES, device=self.device)[:, None] * self._frequencies()
        self._table = torch.cat((angles.cos(), angles.sin()), dim=-1)

    def _frequencies(self) -> torch.Tensor:
        pairs = self.model.head_dim // 2
        return 10000.0 ** -(torch.arange(pairs, device=self.device) / pairs)

    def activations(self) -> Tensors:
        """Slices of the projection's output, and positions."""
        sizes = [heads * self.model.head_dim for heads in (self.model.heads, self.model.kv_heads, self.model.kv_heads)]
        positions = torch.arange(self.tokens, device=self.device) % self._PLACES
        return *self.randn(self.tokens, sum(sizes)).split(sizes, dim=-1), positions

    def weights(self):
        return self.randn(self.model.head_dim), self.randn(self.model.head_dim)

    def arguments(self, activations: Tensors, weights: tuple[Any, ...], layer: int) -> tuple[Any, ...]:
        q, k, v, positions = activations
        rows = (q, None, None) if 0 < layer <= self.model.shared_layers else (q, k, v)
        return *rows, positions, *weights, self._table

    @property
    def moved_bytes(self) -> int:
        """The mean of the layers."""
        own = self.model.layers - self.model.shared_layers
        heads = self.model.heads + 2 * self.model.kv_heads * own / self.model.layers
        return round(self.tokens * (4 * heads * self.model.head_dim + 8))

    def ours(self, q, k, v, positions, q_weight, k_weight, table, *, rounding: Rounding, path: Any = "auto"):
        made = qk_norm_rope(q, k, v, q_weight, k_weight, table, positions, rounding=rounding, path=path)
        return tuple(one for one in made if one is not None)

    def eager(self, q, k, v, positions, q_weight, k_weight, table):
        cos, sin = (torch.cat((part, part), dim=-1) for part in table[positions][:, None].to(q.dtype).chunk(2, dim=-1))

        def normed(rows: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
            return eager_norm(rows.unflatten(-1, (-1, self.model.head_dim)), weight)

        def turned(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            heads = normed(rows, weight)
            first, second = heads.chunk(2, dim=-1)
            return (heads * cos + torch.cat((-second, first), dim=-1) * sin).flatten(-2)

        if k is None:
            return (turned(q, q_weight),)
        return turned(q, q_weight), turned(k, k_weight), normed(v, None).flatten(-2)

    def released(self, norms: Norms, q, k, v, positions, q_weight, k_weight, table):
        heads, kv_heads, size = self.model.heads, self.model.kv_heads, self.model.head_dim
        norms.qkv_rmsnorm(q, k, v, q_weight, k_weight, heads, kv_heads, size, EPS)
        keys = torch.zeros_like(q[:, : kv_heads * size]) if k is None else k
        q_heads, k_heads = (rows.unflatten(-1, (-1, size)) for rows in (q, keys))
        norms.rope(q_heads, k_heads, table, positions, is_neox=True)
        return (q,) if k is None else (q, k, v)
