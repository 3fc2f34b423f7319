"""Measure the layers of a decode step with weights read ahead, for other numbers of bytes.

    python kernels/bench/measure_weights_ahead.py --output FILE

An arm is a CUDA graph of all layers of a model, in our own kernels from the projection of queries to the norm of the
next layer: what `small-m-linear` and `decode-attention` make of them, without SGLang. All weights are drawn, and each
request has CONTEXT keys. Every arm's result has to have the bits of the arm that reads nothing ahead. The limit is the
size of the weights over the rate at which `bench_small_m_linear.py` read its fastest.
Exit codes: 0 measured, 1 an answer was wrong, 2 usage, 3 no CUDA.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from bench_page_guard import origin, write

from gemma4_kernels.cross_layer_norm.launch import cross_layer_norm
from gemma4_kernels.decode_attention.launch import decode_attention
from gemma4_kernels.post_attention_norms.launch import post_attention_norms
from gemma4_kernels.qk_norm_rope.launch import qk_norm_rope
from gemma4_kernels.rmsnorm_add.launch import rmsnorm_add
from gemma4_kernels.small_m_linear.launch import small_m_geglu, small_m_gelu_mul, small_m_linear
from gemma4_kernels.small_m_linear.tuned import tuned_plans
from gemma4_repro.bench.quantiles import spread
from gemma4_repro.kernel_bench.replay_clock import capture, interleaved
from gemma4_repro.step_bench.model_sizes import PLE, SIZES, ModelSize
from gemma4_runtime.fusion.weights_ahead import planned
from gemma4_runtime.optimisations.weights_ahead import Most, plan_layer

RATE = 4.59e12
CONTEXT = 1024
MODELS, ROWS = ("e4b", "e2b"), (1, 8, 16)
_MB = 1 << 20
_LIMIT_S = 20.0


def sizes_tried() -> list[Most]:
    """Return the default, each of its numbers alone, and other numbers for all."""
    alone = [Most(*(value if place == kept else 0 for place, value in enumerate(Most()))) for kept in range(4)]
    attention = [Most()._replace(attention=size * _MB) for size in (12, 16, 32, 40)]
    layer_end = [Most()._replace(layer_end=size * _MB) for size in (8, 16, 32)]
    short = [Most()._replace(norm=size * _MB, product=size * _MB) for size in (4, 12, 16)]
    return [Most(), *alone, *attention, *layer_end, *short]


class WrongAnswer(Exception):
    """Reading ahead changed a value."""


class Layers:
    """All layers of a model with drawn weights, for one number of rows."""

    def __init__(self, size: ModelSize, rows: int) -> None:
        self.text, self.rows = size.text_config(size.layers), rows
        self.hidden = self.text["hidden_size"]
        shared = size.shared_layers(size.layers)
        self.layers = [
            self._layer(kind, number >= size.layers - shared) for number, kind in enumerate(self.text["layer_types"])
        ]
        self.ones = torch.ones(self.hidden, device="cuda", dtype=torch.bfloat16)
        self.scalar = torch.full((1,), 0.5, device="cuda", dtype=torch.bfloat16)
        self.input = drawn(rows, self.hidden)
        self.ple = drawn(rows, len(self.layers), PLE)
        self.positions = torch.full((rows,), CONTEXT, device="cuda")
        self.attended = {dim: self._attended(dim) for dim in (self.text["head_dim"], self.text["global_head_dim"])}

    @property
    def weight_bytes(self) -> int:
        return sum(linear.read for layer in self.layers for linear in layer.linears)

    def plan(self, most: Most) -> None:
        """Say what is read ahead from the next `run` on."""
        for layer, following in zip(self.layers, [*self.layers[1:], None], strict=True):
            plan_layer(layer, following, most)

    def run(self, ahead: bool) -> torch.Tensor:
        """Return what the layers make of the input."""
        hidden, normed = self.input, rmsnorm_add(self.input, self.ones, self.input)
        for number, layer in enumerate(self.layers):
            hidden, normed = self._run_layer(layer, hidden, normed, self.ple[:, number], ahead)
        return normed

    def _run_layer(self, layer: Any, hidden: torch.Tensor, normed: torch.Tensor, ple: torch.Tensor, ahead: bool) -> Any:
        attention, mlp, state = layer.self_attn, layer.mlp, self.attended[layer.self_attn.dim]
        made, dim, ones = self._product(normed, attention.qkv_proj, ahead), attention.dim, state["ones"]
        q, k, v = made[:, : attention.q_size], None, None
        if not attention.is_kv_shared_layer:
            k, v = made[:, attention.q_size :].chunk(2, dim=1)
        rope: Any = qk_norm_rope(q, k, v, ones, None if k is None else ones, state["angles"], self.positions)
        if k is not None:
            # In the place of the release's one kernel that stores keys and values.
            state["keys"][: self.rows].copy_(rope[1].view(self.rows, -1, dim))
        queries = rope[0].view(self.rows, -1, dim)
        attended = decode_attention(queries, state["keys"], state["values"], state["starts"], state["slots"], 1.0)
        out = self._product(attended.view(self.rows, -1), attention.o_proj, ahead)
        residual, normed = post_attention_norms(out, self.ones, hidden, self.ones)
        gated = small_m_geglu(normed, mlp.gate_up_proj.part, **self._how(mlp.gate_up_proj, ahead))
        hidden = rmsnorm_add(self._product(gated, mlp.down_proj, ahead), self.ones, residual)
        gate = layer.per_layer_input_gate
        gated = small_m_gelu_mul(hidden, gate.part, ple, **self._how(gate, ahead))
        out = self._product(gated, layer.per_layer_projection, ahead)
        return cross_layer_norm(out, self.ones, hidden, self.scalar, self.ones)[:2]

    def _product(self, x: torch.Tensor, linear: Any, ahead: bool) -> torch.Tensor:
        return small_m_linear(x, linear.part, **self._how(linear, ahead))

    def _how(self, linear: Any, ahead: bool) -> dict[str, Any]:
        return {"plan": linear.plans[self.rows], "fetch": planned(linear.weight) if ahead else ()}

    def _layer(self, kind: str, shared: bool) -> Any:
        text, hidden = self.text, self.hidden
        full = kind == "full_attention"
        dim = text["global_head_dim"] if full else text["head_dim"]
        keys = text["num_global_key_value_heads"] if full else text["num_key_value_heads"]
        queries, both = text["num_attention_heads"] * dim, 2 * (keys or text["num_key_value_heads"]) * dim
        width = text["intermediate_size"] * (2 if shared and text.get("use_double_wide_mlp") else 1)
        qkv = linear(queries + both, hidden, queries if shared else None)
        attention = SimpleNamespace(
            qkv_proj=qkv, o_proj=linear(hidden, queries), q_size=queries, dim=dim, is_kv_shared_layer=shared,
            kv_shared_layer_index=0 if shared else None,
        )  # fmt: skip
        mlp = SimpleNamespace(gate_up_proj=linear(2 * width, hidden), down_proj=linear(hidden, width))
        gate, projection = linear(PLE, hidden), linear(hidden, PLE)
        return SimpleNamespace(
            self_attn=attention, mlp=mlp, per_layer_input_gate=gate, per_layer_projection=projection, has_ple=True,
            enable_moe_block=False,
            linears=(qkv, attention.o_proj, mlp.gate_up_proj, mlp.down_proj, gate, projection),
        )  # fmt: skip

    def _attended(self, dim: int) -> dict[str, Any]:
        text = self.text
        full = dim == text["global_head_dim"]
        keys = text["num_global_key_value_heads"] if full else text["num_key_value_heads"]
        length = CONTEXT if full else text["sliding_window"] - 1
        count = self.rows * length
        # Read by all layers: next to the weights, it is little that comes from the cache where it would not.
        return {
            "keys": drawn(count, keys or text["num_key_value_heads"], dim),
            "values": drawn(count, keys or text["num_key_value_heads"], dim),
            "starts": torch.arange(0, count + 1, length, dtype=torch.int32, device="cuda"),
            "slots": torch.randperm(count, device="cuda"),
            "angles": torch.rand(CONTEXT + 1, dim, device="cuda"),
            "ones": torch.ones(dim, device="cuda", dtype=torch.bfloat16),
        }


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def linear(columns: int, depth: int, read: int | None = None) -> Any:
    """Return what has a weight as a linear layer has, of which `read` rows are read, with its plans."""
    weight, rows = drawn(columns, depth) / depth**0.5, columns if read is None else read
    plans = tuned_plans(torch.cuda.get_device_name(), "bfloat16", rows, depth) or (None,) * 17
    return SimpleNamespace(weight=weight, part=weight[:rows], plans=plans, read=rows * depth * 2)


def measure(model: str, rows: int, rounds: int) -> list[dict[str, Any]]:
    """Return a row of each arm; one that reads nothing ahead comes first.

    Raises:
        WrongAnswer: an arm's result has other bits.
    """
    torch.manual_seed(0)
    layers = Layers(SIZES[model], rows)
    if any(linear.plans[rows] is None for layer in layers.layers for linear in layer.linears):
        print(f"{model}, {rows} rows: a product has no plan on this GPU", file=sys.stderr)
        return []
    arms: dict[str, Most | None] = {"nothing ahead": None} | {str(tuple(most)): most for most in sizes_tried()}
    recorded, results = {}, {}
    for name, most in arms.items():
        if most is not None:
            layers.plan(most)

        def run(number: int, name: str = name, ahead: bool = most is not None) -> None:
            results[name] = layers.run(ahead)

        recorded[name] = capture(run, 1, 1)
        recorded[name].graph.replay()
        torch.cuda.synchronize()
        results[name] = results[name].clone()
        if not results[name].isfinite().all() or not torch.equal(results[name], results["nothing ahead"]):
            raise WrongAnswer(f"{model}, {rows} rows, {name}: other bits than without")
    taken = interleaved({name: one.graph for name, one in recorded.items()}, rounds, _LIMIT_S, 3)
    limit = layers.weight_bytes / RATE * 1e6
    about = {"model": model, "rows": rows, "context": CONTEXT, "limit_us": round(limit, 1)}
    return [about | {"arm": name, "most": arms[name], "us": spread(us)} for name, us in taken.items()]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, help="JSON file to write; default: stdout")
    parser.add_argument("--rounds", type=int, default=15, help="samples per arm (default 15)")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("measure_weights_ahead measures a GPU, and no CUDA device was found", file=sys.stderr)
        return 3
    found: list[dict[str, Any]] = []
    for model in options.models:
        for rows in ROWS:
            try:
                made = measure(model, rows, options.rounds)
            except WrongAnswer as error:
                print(error, file=sys.stderr)
                return 1
            for row in made:
                print(
                    f"{model} {rows} {row['arm']}: {row['us']['median']:.1f} us, limit {row['limit_us']}",
                    file=sys.stderr,
                )
            found += made
    write(
        origin("1.0", "weights_ahead") | {"dtype": "bfloat16", "rounds": options.rounds, "rows": found}, options.output
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
