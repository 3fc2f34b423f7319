"""Measure small_m_linear beside cuBLAS for the matrix products of a decode step, and choose its plans.

    python kernels/bench/bench_small_m_linear.py --output FILE          measures, on a GPU
    python kernels/bench/bench_small_m_linear.py --table FILE           makes the table of plans of such a file

An arm is a CUDA graph of products, each behind the norm of its input, as in a decoder layer; every product has weights
of its own until ROTATED_BYTES of them have been read, so that they come from memory and not from the L2 cache. A first
pass times every candidate; those that were fastest are timed again beside cuBLAS and cuBLASLt, in rotating order, and
compared with fp32. The limit is the size of the weights over the fastest rate at which an arm of this run read its own.
Exit codes: 0 measured, 1 an answer was wrong, 2 usage, 3 no CUDA.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch
from bench_page_guard import origin, write

from gemma4_kernels.rmsnorm_add.launch import rmsnorm_add
from gemma4_kernels.small_m_linear.launch import small_m_linear
from gemma4_kernels.small_m_linear.spec import AXES, Plan, StreamedPlan
from gemma4_kernels.small_m_linear.tuned import FOLDER
from gemma4_repro.bench.quantiles import spread
from gemma4_repro.kernel_bench.replay_clock import ROTATED_BYTES, Recorded, capture, interleaved, replay_us
from gemma4_repro.step_bench.model_sizes import PLE, SIZES, VOCABULARY, ModelSize

MODELS = ("e4b", "e2b", "26b")
GAIN = 0.97
"""The share of the faster of cuBLAS and cuBLASLt that ours may take at most where the table names it."""
FINALISTS = 3
_MOST_CALLS = 64
_WORKERS = 14
_LARGEST_SHARED_BYTES, _LEAST_SHARED_BYTES = 160_000, 24_000
_SIZE_LIMIT_S = 20.0
_MOST_ERROR = 5e-3
"""Relative to the fp32 product's norm; bf16 rounds by 2e-3."""
# (columns, depth)
Size = tuple[int, int]
Product = Callable[[torch.Tensor], Any]
P = TypeVar("P", Plan, StreamedPlan)


class WrongAnswer(Exception):
    """A product that is not the product is not worth timing."""


def main(argv: list[str] | None = None) -> int:
    options = read_options(argv, __doc__ or "", 420.0)
    if options.table is not None:
        return make_table(options.table, table_name, table_text)
    if not torch.cuda.is_available():
        print(
            "bench_small_m_linear measures a GPU, and no CUDA device was found: run it on a GPU host", file=sys.stderr
        )
        return 3
    found: list[dict[str, Any]] = []
    try:
        for row in measure(products(options.models), options.rounds, options.limit_s):
            found.append(row)
            print(line(row), file=sys.stderr)
    except WrongAnswer as error:
        print(error, file=sys.stderr)
        return 1
    about = {"dtype": "bfloat16", "rounds": options.rounds, "gain": GAIN}
    write(origin("1.0", "small_m_linear") | about | with_limits(found), options.output)
    return 0


def read_options(argv: list[str] | None, about: str, limit_s: float) -> argparse.Namespace:
    """Return what a script that makes a table of plans was asked for; exit with 2 where that cannot be."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--output", type=Path, help="JSON file to write; default: stdout")
    parser.add_argument("--force", action="store_true", help="overwrite the file")
    parser.add_argument("--rounds", type=int, default=15, help="samples per arm and size (default 15)")
    parser.add_argument("--models", nargs="+", choices=tuple(SIZES), default=MODELS, help="default: all but 31b")
    parser.add_argument("--limit-s", type=float, default=limit_s, help="end after this long with what there is")
    parser.add_argument("--table", type=Path, help="make the table of plans of this file, and measure nothing")
    options = parser.parse_args(argv)
    if options.rounds < 2:
        parser.error(f"--rounds is {options.rounds}, expected 2 or more")
    if options.output and options.output.exists() and not options.force:
        parser.error(f"{options.output} exists: give --force to overwrite it")
    return options


def make_table(
    rows_file: Path,
    name: Callable[[dict[str, Any]], str],
    text: Callable[[dict[str, Any], Path], str],
    folder: Path = FOLDER,
) -> int:
    """Write the table of a file that `--output` has written into a folder; return the exit code."""
    try:
        document = json.loads(rows_file.read_text(encoding="utf-8"))
        target, made = folder / name(document), text(document, rows_file)
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"{rows_file} is not a file that --output has written: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    target.write_text(made, encoding="utf-8")
    print(f"Wrote {target}", file=sys.stderr)
    return 0


def products(models: tuple[str, ...]) -> dict[Size, list[str]]:
    """Return the dense products of a decode step by size, with `count x model.name` of each that has it."""
    sizes: dict[Size, list[str]] = {}
    for model in models:
        for name, columns, depth, count in of_model(SIZES[model]):
            if count:
                sizes.setdefault((columns, depth), []).append(f"{count} x {model}.{name}")
    return sizes


def of_model(size: ModelSize) -> Iterator[tuple[str, int, int, int]]:
    """Yield (name, columns, depth, how many of a step) of a model on one GPU."""
    text = size.text_config(size.layers)
    hidden, heads, feed_forward = text["hidden_size"], text["num_attention_heads"], text["intermediate_size"]
    full, shared = size.groups, size.shared_layers(size.layers)
    shared_full = shared // size.group
    for kind, dim, kv, layers, sharing in (
        ("sliding", text["head_dim"], text["num_key_value_heads"], size.layers - full, shared - shared_full),
        ("full", text["global_head_dim"], text["num_global_key_value_heads"], full, shared_full),
    ):
        yield f"qkv-{kind}", (heads + 2 * kv) * dim, hidden, layers - sharing
        yield f"q-{kind}", heads * dim, hidden, sharing
        yield f"o-{kind}", hidden, heads * dim, layers
    wide = shared if text.get("use_double_wide_mlp") else 0
    for name, width, layers in (("", feed_forward, size.layers - wide), ("-wide", 2 * feed_forward, wide)):
        yield f"gate-up{name}", 2 * width, hidden, layers
        yield f"down{name}", hidden, width, layers
    if size.has_ple:
        yield "ple-gate", PLE, hidden, size.layers
        yield "ple-projection", hidden, PLE, size.layers
        yield "ple-model", size.layers * PLE, hidden, 1
    if size.has_experts:
        yield "router", text["num_experts"], hidden, size.layers
    yield "lm-head", VOCABULARY, hidden, 1


def candidates(block_m: int) -> list[Plan]:
    """Return the plans that are tried for this many rows, unsplit."""
    if block_m == 1:
        tried = itertools.product((4, 8, 32), (64, 256, 512, 1024), (1, 3, 5), (4,), (False, True))
        plans = [Plan(1, n, k, 1, stages, warps, ahead) for n, k, stages, warps, ahead in tried]
        return [plan for plan in plans if 1024 <= plan.block_n * plan.block_k <= 4096]
    tried = itertools.product((16, 32, 64, 128), (64, 128, 256), (3, 4, 6, 8), (2, 4), (False, True))
    plans = [Plan(block_m, n, k, 1, stages, warps, ahead) for n, k, stages, warps, ahead in tried]
    return [plan for plan in plans if _fits(plan)]


def _fits(plan: Plan) -> bool:
    """Say whether shared memory takes it, and enough bytes are under way without too many registers of a thread."""
    tile = 2 * plan.block_n * plan.block_k
    shared = plan.stages * (tile + 2 * plan.block_m * plan.block_k)
    return _LEAST_SHARED_BYTES <= shared <= _LARGEST_SHARED_BYTES and 32 <= tile // (32 * plan.num_warps) <= 256


def split(plan: Plan, size: Size, multiprocessors: int) -> list[Plan]:
    """Return the plan unsplit, or shared among as few programs as fill the device, and with twice as many."""
    columns, depth = size
    tiles, blocks = -(-columns // plan.block_n), depth // plan.block_k
    possible = [s for s in (1, 2, 4, 8) if s <= blocks and (s - 1) * -(-blocks // s) < blocks]
    if plan.block_m == 1:
        return [plan]
    filling = [s for s in possible if tiles * s >= multiprocessors][:2] or possible[-1:]
    return [plan._replace(splits=s) for s in filling if s == 1 or tiles * s <= 8 * multiprocessors]


def compile_plans(plans: list[Plan]) -> None:
    """Compile these on a worker's device context; the compiled kernels lie in Triton's cache folder."""
    for plan in plans:
        depth = 4 * plan.block_k
        x = torch.randn(plan.block_m, depth, device="cuda").bfloat16()
        weight = torch.randn(plan.block_n, depth, device="cuda").bfloat16()
        for splits in (1,) if plan.block_m == 1 else (1, 2):
            small_m_linear(x, weight, plan._replace(splits=splits))
    torch.cuda.synchronize()


def measure(sizes: dict[Size, list[str]], rounds: int, limit_s: float) -> Iterator[dict[str, Any]]:
    """Yield a row per size and number of rows.

    Raises:
        WrongAnswer: a finalist computed something else.
    """
    begin = time.monotonic()
    plans = [plan for block_m in (1, 8, 16) for plan in candidates(block_m)]
    with multiprocessing.get_context("spawn").Pool(_WORKERS) as pool:
        pool.map(compile_plans, [plans[number :: 4 * _WORKERS] for number in range(4 * _WORKERS)], chunksize=1)
    print(f"compiled {len(plans)} candidates in {time.monotonic() - begin:.0f} s", file=sys.stderr)
    most = max(columns * depth for columns, depth in sizes)
    memory = torch.empty(most + ROTATED_BYTES // 2, device="cuda", dtype=torch.bfloat16)
    torch.manual_seed(0)
    for part in memory.split(1 << 26):
        part.normal_()
    for size, uses in sizes.items():
        if time.monotonic() - begin > limit_s:
            print(f"out of time before {size}", file=sys.stderr)
            return
        yield from measure_size(size, uses, memory, rounds)


def measure_size(size: Size, uses: list[str], memory: torch.Tensor, rounds: int) -> Iterator[dict[str, Any]]:
    """Yield a row per number of rows."""
    columns, depth = size
    finalists: dict[int, list[Plan]] = {}
    for rows in AXES["rows"]:
        block_m = 1 if rows == 1 else 8 if rows <= 8 else 16
        products = Products(size, rows, memory)
        if block_m not in finalists:
            finalists[block_m] = fastest(candidates_for(size, block_m), products)
        plans = finalists[block_m]
        for plan in plans:
            products.check(plan)
        recorded = {"norm": products.record(lambda weight: None), "cublas": products.record(products.mm)}
        torch.backends.cuda.preferred_blas_library("cublaslt")
        recorded["cublaslt"] = products.record(products.mm)
        torch.backends.cuda.preferred_blas_library("cublas")
        recorded |= {str(number): products.record_ours(plan) for number, plan in enumerate(plans)}
        graphs = {arm: one.graph for arm, one in recorded.items()}
        taken = interleaved(graphs, rounds, _SIZE_LIMIT_S, 3)
        us = {arm: spread([sample / products.calls for sample in samples]) for arm, samples in taken.items()}
        best = min(range(len(plans)), key=lambda number: us[str(number)]["median"])
        yield {
            "columns": columns,
            "depth": depth,
            "rows": rows,
            "uses": uses,
            "weight_bytes": 2 * columns * depth,
            "calls": products.calls,
            "us": {arm: us[arm] for arm in ("norm", "cublas", "cublaslt")} | {"ours": us[str(best)]},
            "plan": list(plans[best]),
        }


class Products:
    """Products of one size, each behind the norm of its input and with weights of its own."""

    def __init__(self, size: Size, rows: int, memory: torch.Tensor) -> None:
        columns, depth = size
        self.calls = min(_MOST_CALLS, math.ceil(ROTATED_BYTES / (2 * columns * depth)))
        weights = memory[: self.calls * columns * depth].view(self.calls, columns, depth)
        self.weights = list(weights.unbind())
        self.x = torch.randn(rows, depth, device="cuda").bfloat16()
        self.ones = torch.ones(depth, device="cuda", dtype=torch.bfloat16)
        self.normed = torch.empty_like(self.x)
        self.out = torch.empty(rows, columns, device="cuda", dtype=torch.bfloat16)

    def record(self, product: Product) -> Recorded:
        """Return a graph of norm and product, as often as there are weights."""
        return capture(lambda number: self._behind_norm(product, self.weights[number % self.calls]), self.calls, 1)

    def record_ours(self, plan: Plan | StreamedPlan) -> Recorded:
        """Return a graph of our products."""
        return self.record(lambda weight: small_m_linear(self.normed, weight, plan, out=self.out))

    def mm(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the product by torch's BLAS library, the one that is preferred."""
        return torch.mm(self.normed, weight.T, out=self.out)

    def check(self, plan: Plan | StreamedPlan) -> None:
        """Raise WrongAnswer unless the plan's product is right up to rounding."""
        x, weight = self.x, self.weights[-1]
        expected = x.float() @ weight.float().T
        self.out.fill_(math.nan)
        answer = small_m_linear(x, weight, plan, out=self.out)
        error = ((answer.float() - expected).norm() / expected.norm()).item()
        if not error < _MOST_ERROR:
            raise WrongAnswer(f"{plan} of {list(weight.shape)}, {len(x)} rows: the relative error is {error:.2g}")

    def _behind_norm(self, product: Product, weight: torch.Tensor) -> Any:
        rmsnorm_add(self.x, self.ones, self.x, out=self.normed)
        return product(weight)


def candidates_for(size: Size, block_m: int) -> list[Plan]:
    """Return the plans that are tried for a size: whole blocks of its depth, shared as far as it takes."""
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    plans = candidates(block_m) + (candidates(8) if block_m == 1 else [])
    return [one for plan in plans if size[1] % plan.block_k == 0 for one in split(plan, size, multiprocessors)]


def fastest(plans: list[P], products: Products) -> list[P]:
    """Return the FINALISTS plans whose graphs replayed fastest, each timed twice."""
    took = {}
    for plan in plans:
        recorded = products.record_ours(plan)
        took[plan] = min(replay_us(recorded.graph, 2) for _ in range(2))
    return sorted(took, key=took.__getitem__)[:FINALISTS]


def with_limits(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the rows with limit_us, and the rate that it is of, in bytes per second."""
    rates = [row["weight_bytes"] / us["median"] * 1e6 for row in rows for arm, us in row["us"].items() if arm != "norm"]
    rate = max(rates, default=0.0)
    return {
        "read_bytes_per_s": round(rate),
        "rows": [row | {"limit_us": round(row["weight_bytes"] / rate * 1e6, 3)} for row in rows],
    }


def line(row: dict[str, Any]) -> str:
    """Return a row as a line of text."""
    medians = ", ".join(f"{arm} {us['median']:.2f}" for arm, us in row["us"].items())
    return f"{row['uses'][0]} [{row['columns']}, {row['depth']}], {row['rows']} rows: {medians} us; {row['plan']}"


def table_name(document: dict[str, Any]) -> str:
    """Return the file name of a GPU's table."""
    return "tuned_" + document["gpu"]["name"].lower().removeprefix("nvidia ").replace(" ", "_") + ".json"


def table_text(document: dict[str, Any], rows_file: Path) -> str:
    """Return the table of plans: of each size, by number of rows, the plan where it gains, else null for cuBLAS."""
    return table_lines(document, rows_file, ("cublas", "cublaslt"))


def table_lines(
    document: dict[str, Any],
    rows_file: Path,
    others: tuple[str, ...],
    left_out: Callable[[dict[str, Any]], bool] = lambda row: False,
) -> str:
    """Return the table of plans: the plan where it gains over the fastest of these other arms, else null."""
    entries: dict[Size, dict[str, Any]] = {}
    for row in document["rows"]:
        us = row["us"]
        other = min(us[arm]["median"] for arm in others if arm in us)
        gains = us["ours"]["median"] <= document["gain"] * other and not left_out(row)
        plans = entries.setdefault((row["columns"], row["depth"]), {})
        plans[str(row["rows"])] = row["plan"] if gains else None
    about = {name: document[name] for name in ("gpu", "versions", "dtype", "date", "command")}
    head = json.dumps(about | {"rows_file": rows_file.name}, indent=1).removesuffix("\n}")
    lines = [
        f'  {{"columns": {columns}, "depth": {depth}, "plans": {json.dumps(plans)}}}'
        for (columns, depth), plans in entries.items()
    ]
    return head + ',\n "entries": [\n' + ",\n".join(lines) + "\n ]\n}\n"


if __name__ == "__main__":
    sys.exit(main())
