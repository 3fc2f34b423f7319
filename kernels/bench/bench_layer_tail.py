"""Measure layer_tail beside its ops one by one for the layers of E4B and E2B, and choose its plans.

    python kernels/bench/bench_layer_tail.py --output FILE          measures, on a GPU
    python kernels/bench/bench_layer_tail.py --table FILE           makes the table of plans of such a file

An arm is a CUDA graph of layers without their attention: each reads a part of what the one ahead projected, and has
weights of its own, so that they come from memory and not from the L2 cache. The ops one by one have the plans of their
tables, and their norms let the product behind them in first. Every arm's last hidden states are compared with those of
the ops. The limit is the size of the weights over the fastest rate at which a product was read when the products'
table was made. Exit codes: 0 measured, 1 an answer was wrong, 2 usage, 3 no CUDA.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from bench_page_guard import origin, write
from bench_small_m_linear import WrongAnswer, make_table, read_options, table_name

from gemma4_kernels.cross_layer_norm.launch import cross_layer_norm
from gemma4_kernels.cuda_source import unavailable
from gemma4_kernels.launcher import let_next_in_where, let_nothing_in
from gemma4_kernels.layer_tail.kernel import FOLDER
from gemma4_kernels.layer_tail.launch import layer_tail
from gemma4_kernels.layer_tail.spec import AXES, TailPlan, TailWeights
from gemma4_kernels.post_attention_norms.launch import post_attention_norms
from gemma4_kernels.rmsnorm_add.launch import rmsnorm_add
from gemma4_kernels.small_m_linear.launch import small_m_geglu, small_m_gelu_mul, small_m_linear
from gemma4_kernels.small_m_linear.streamed import streams_behind
from gemma4_kernels.small_m_linear.tuned import streamed_plans, tuned_plans
from gemma4_repro.bench.quantiles import spread
from gemma4_repro.kernel_bench.replay_clock import capture, interleaved
from gemma4_repro.step_bench.model_sizes import PLE, SIZES

MODELS = ("e4b", "e2b")
CANDIDATES = {
    2560: (TailPlan(1280, 10, 3, 10), TailPlan(1280, 9, 3, 10)),
    1536: (TailPlan(1536, 8, 3, 12), TailPlan(1536, 8, 3, 8)),
}
"""By width of the residual stream. Rings of other stages, and more or fewer warps, made a whole step slower."""
NO_GAIN = {2560: (4, 8), 1536: (8,)}
"""By width of the residual stream, rows of which a whole step was not faster with it, though products and norms are."""
SPARED = {2560: {1: 16, 2: 16}, 1536: {1: 16, 2: 16, 4: 16}}
"""Multiprocessors that a plan leaves to the attention, by width and rows: as many as that takes of so few requests
(decode_attention's `cluster_parts`), where a whole step was faster so. With 8, with 32, or with 16 for more requests,
it was slower; no rows of that are kept. This file times no attention, so that it cannot choose them.
"""
_ROTATED_BYTES = 2 << 30
_MOST_ERROR = 6e-2
"""Relative to the norm of the ops' hidden states behind a dozen layers or more; both round, in other places."""
_EPS = 1e-6
_SIZE_LIMIT_S = 20.0


class Layer(NamedTuple):
    """One kind of layer: the widths of its residual stream, MLP, attention and next projection."""

    hidden: int
    wide: int
    inner: int
    columns: int


def main(argv: list[str] | None = None) -> int:
    options = read_options(argv, __doc__ or "", 240.0)
    if options.table is not None:
        return make_table(options.table, table_name, table_text, FOLDER)
    if not torch.cuda.is_available():
        print("bench_layer_tail measures a GPU, and no CUDA device was found", file=sys.stderr)
        return 3
    if reason := unavailable(torch.device("cuda", 0)):
        print(f"The kernel cannot run here: {reason}", file=sys.stderr)
        return 3
    found: list[dict[str, Any]] = []
    begin = time.monotonic()
    try:
        for layer, uses in layers(tuple(model for model in options.models if model in MODELS)).items():
            if time.monotonic() - begin > options.limit_s:
                print(f"out of time before {layer}", file=sys.stderr)
                break
            for row in measure(layer, uses, options.rounds):
                found.append(row)
                print(line(row), file=sys.stderr)
    except WrongAnswer as error:
        print(error, file=sys.stderr)
        return 1
    write(origin("1.0", "layer_tail") | {"dtype": "bfloat16", "rounds": options.rounds, "rows": found}, options.output)
    return 0


def layers(models: tuple[str, ...]) -> dict[Layer, list[str]]:
    """Return the kinds of layers of these models, with the names of those that have each."""
    found: dict[Layer, list[str]] = {}
    for model in models:
        size = SIZES[model]
        text = size.text_config(size.layers)
        wides = [1, 2] if text.get("use_double_wide_mlp") else [1]
        for kind, dim in (("sliding", text["head_dim"]), ("full", text["global_head_dim"])):
            inner = text["num_attention_heads"] * dim
            for wide in wides:
                layer = Layer(text["hidden_size"], wide * text["intermediate_size"], inner, max(inner, 3072))
                found.setdefault(layer, []).append(f"{model}.{kind}{'-wide' if wide == 2 else ''}")
    return found


class Layers:
    """So many layers that their weights do not fit in a cache, and rows for the first."""

    def __init__(self, layer: Layer) -> None:
        self.layer = layer
        one = self._weights()
        count = max(4, _ROTATED_BYTES // self._bytes(one))
        self.weights = [one, *(self._weights() for _ in range(count - 1))]

    def _weights(self) -> tuple[TailWeights, torch.Tensor, torch.Tensor]:
        hidden, wide, inner, columns = self.layer

        def matrix(rows: int, depth: int) -> torch.Tensor:
            return torch.randn(rows, depth, device="cuda", dtype=torch.bfloat16) * depth**-0.5

        def norm() -> torch.Tensor:
            return (1 + 0.1 * torch.randn(hidden, device="cuda")).to(torch.bfloat16)

        matrices = matrix(hidden, inner), matrix(2 * wide, hidden), matrix(hidden, wide)
        embeddings = matrix(PLE, hidden), matrix(hidden, PLE)
        scalar = torch.full((1,), 0.9, device="cuda", dtype=torch.bfloat16)
        weights = TailWeights(*matrices, *embeddings, norm(), norm(), norm(), norm(), scalar)
        return weights, norm(), matrix(columns, hidden)

    def _bytes(self, one: tuple[TailWeights, torch.Tensor, torch.Tensor]) -> int:
        return sum(tensor.nbytes for tensor in (*one[0], *one[1:]))

    @property
    def weight_bytes(self) -> int:
        """Return the size of the weights of one layer."""
        return self._bytes(self.weights[0])

    def rows(self, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return attended, residual and the per-layer inputs [count, layers, PLE] of so many rows."""
        generator = torch.Generator("cuda").manual_seed(0)

        def draw(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator, device="cuda").to(torch.bfloat16)

        return draw(count, self.layer.inner), draw(count, self.layer.hidden), draw(count, len(self.weights), PLE)

    def one_by_one(self, attended: torch.Tensor, residual: torch.Tensor, ple: torch.Tensor) -> torch.Tensor:
        """Return the last hidden states, op by op."""
        count = attended.shape[0]
        for number, (w, next_norm, projection) in enumerate(self.weights):
            attention = small_m_linear(attended, w.o, _plan(w.o, count))
            residual, x = post_attention_norms(attention, w.post_attention, residual, w.pre_feed_forward, _EPS)
            gated = small_m_geglu(x, w.gate_up, _plan(w.gate_up, count))
            mlp = small_m_linear(gated, w.down, _plan(w.down, count))
            residual = rmsnorm_add(mlp, w.post_feed_forward, residual, _EPS)
            gated = small_m_gelu_mul(residual, w.ple_gate, ple[:, number], _plan(w.ple_gate, count))
            made = small_m_linear(gated, w.ple_projection, _plan(w.ple_projection, count))
            end = cross_layer_norm(made, w.post_ple, residual, w.scalar, next_norm, _EPS)
            assert end.hidden is not None
            assert end.normed is not None
            residual = end.hidden
            attended = small_m_linear(end.normed, projection, _plan(projection, count))[:, : self.layer.inner]
        return residual

    def at_once(
        self, plan: TailPlan, attended: torch.Tensor, residual: torch.Tensor, ple: torch.Tensor
    ) -> torch.Tensor:
        """Return the last hidden states, a launch for each layer."""
        for number, (weights, next_norm, projection) in enumerate(self.weights):
            made = layer_tail(attended, residual, ple[:, number], weights, next_norm, projection, _EPS, plan)
            assert made.projected is not None
            residual, attended = made.hidden, made.projected[:, : self.layer.inner]
        return residual


def _plan(weight: torch.Tensor, rows: int) -> Any:
    gpu, (columns, depth) = torch.cuda.get_device_name(), weight.shape
    streamed, tuned = (plans(gpu, "bfloat16", columns, depth) for plans in (streamed_plans, tuned_plans))
    return (streamed and streamed[rows]) or (tuned and tuned[rows])


def measure(layer: Layer, uses: list[str], rounds: int) -> Iterator[dict[str, Any]]:
    """Yield a row per number of rows.

    Raises:
        WrongAnswer: a plan computed something else than the ops.
    """
    every = Layers(layer)
    for rows in AXES["rows"]:
        let_next_in_where(lambda: True, streams_behind)
        try:
            drawn = every.rows(rows)
            wanted = every.one_by_one(*drawn)
            graphs = {"one-by-one": capture(lambda _, drawn=drawn: every.one_by_one(*drawn), 1, 1)}
            for plan in CANDIDATES[layer.hidden]:
                found = every.at_once(plan, *drawn)
                error = ((found - wanted).float().norm() / wanted.float().norm()).item()
                if not error <= _MOST_ERROR:
                    raise WrongAnswer(f"{uses[0]}, {rows} rows: {plan} is {error:.2e} from the ops one by one")
                graphs[str(list(plan))] = capture(lambda _, plan=plan, drawn=drawn: every.at_once(plan, *drawn), 1, 1)
        finally:
            let_nothing_in()
        taken = interleaved({name: one.graph for name, one in graphs.items()}, rounds, _SIZE_LIMIT_S, 2)
        us = {name: spread([sample / len(every.weights) for sample in samples]) for name, samples in taken.items()}
        best = min((name for name in us if name != "one-by-one"), key=lambda name: us[name]["median"])
        yield {
            **layer._asdict(),
            "uses": uses,
            "rows": rows,
            "layers": len(every.weights),
            "weight_bytes": every.weight_bytes,
            "us": {"one-by-one": us["one-by-one"], "ours": us[best]},
            "plan": json.loads(best),
        }


def line(row: dict[str, Any]) -> str:
    """Return a row as a line of text."""
    medians = ", ".join(f"{arm} {us['median']:.2f}" for arm, us in row["us"].items())
    return f"{row['uses'][0]}, {row['rows']} rows: {medians} us; {row['plan']}"


def table_text(document: dict[str, Any], rows_file: Path) -> str:
    """Return the table: of each kind of layer, by number of rows, the plan where a step gains by it, else null."""
    kept = ("gpu", "versions", "dtype", "date", "command")
    entries: dict[tuple[int, int, int], dict[str, list[int] | None]] = {}
    for row in document["rows"]:
        us, rows = row["us"], row["rows"]
        gains = us["ours"]["median"] < us["one-by-one"]["median"] and rows not in NO_GAIN[row["hidden"]]
        spared = SPARED.get(row["hidden"], {}).get(rows, 0)
        plan = [*row["plan"][: TailPlan._fields.index("spared")], *([spared] if spared else [])]
        entries.setdefault((row["hidden"], row["wide"], row["inner"]), {})[str(rows)] = plan if gains else None
    head = json.dumps({key: document[key] for key in kept} | {"rows_file": rows_file.name}, indent=1)
    lines = [
        "  " + json.dumps({"hidden": hidden, "wide": wide, "inner": inner, "plans": plans})
        for (hidden, wide, inner), plans in entries.items()
    ]
    return head[:-2] + ',\n "entries": [\n' + ",\n".join(lines) + "\n ]\n}\n"


if __name__ == "__main__":
    sys.exit(main())
