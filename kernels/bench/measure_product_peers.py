"""Measure the matrix products of a decode step beside what other libraries have for few rows.

    python kernels/bench/measure_product_peers.py --output FILE

The clock is that of bench_small_m_linear.py: CUDA graphs of products, each behind the norm of its input, with weights
that come from memory. `ours` has the plan of the committed table, and cuBLAS where that has none. An arm that a library
refuses, or that computes something else, has no time and says why. Whatever compiles, compiles before anything is
timed, as long as --compile-s allows.
A cell that takes CELL_S ends the script with the stacks of its threads; the rows before it are written.
Exit codes: 0 measured, 1 ours was wrong, 2 usage, 3 no CUDA.
"""

from __future__ import annotations

import argparse
import faulthandler
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from bench_page_guard import origin, write
from bench_small_m_linear import MODELS, Products, Size, products, with_limits
from cublaslt_algorithms import CublasLt

from gemma4_kernels.small_m_linear.launch import small_m_linear
from gemma4_kernels.small_m_linear.tuned import tuned_plans
from gemma4_repro.bench.quantiles import spread
from gemma4_repro.kernel_bench.replay_clock import ROTATED_BYTES, first_line, interleaved, replay_us
from gemma4_repro.step_bench.model_sizes import SIZES

ARMS = {
    "norm": "the norm of the input alone, which every other arm has too",
    "ours": "small_m_linear with the plan of the table; cuBLAS where the table has none",
    "cublas": "torch.mm by cuBLAS",
    "cublaslt": "torch.mm by cuBLASLt, which takes the first algorithm of its heuristic",
    "cublaslt-best": "the fastest of the algorithms that cuBLASLt's heuristic names",
    "compile": "torch.mm by torch.compile, max-autotune, without CUDA graphs of its own",
    "flashinfer": "FlashInfer's tinygemm_bf16, TensorRT-LLM's kernel for few rows, without dependent launch",
    "sgl-router": "sgl_kernel's dsv3_router_gemm",
    "sgl-fused-a": "sgl_kernel's dsv3_fused_a_gemm",
}
ROWS = (1, 8, 16)
ALGORITHMS = 24
COMPILED = ("e4b.", (1, 8))
"""Products and numbers of rows that torch.compile compiles: each takes it several seconds."""
DEEPEST = {"flashinfer": 4096}
"""Of deeper products this arm is not tried: at a depth of 10240 its graph failed on an H200, or did not come back."""
CELL_S = 90
_SIZE_LIMIT_S = 6.0
_MOST_ERROR = 5e-3
Launch = Callable[[torch.Tensor], Any]


def flashinfer_launch(cell: Products) -> Launch:
    from flashinfer.gemm import tinygemm_bf16

    return lambda weight: tinygemm_bf16(cell.normed, weight, cell.out)


def sgl_router_launch(cell: Products) -> Launch:
    import sgl_kernel

    kernels: Any = sgl_kernel
    return lambda weight: cell.out.copy_(kernels.dsv3_router_gemm(cell.normed, weight))


def sgl_fused_a_launch(cell: Products) -> Launch:
    import sgl_kernel

    kernels: Any = sgl_kernel
    return lambda weight: kernels.dsv3_fused_a_gemm(cell.normed, weight.T, cell.out)


def compiled_launch(cell: Products) -> Launch:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, w: torch.mm(x, w.T), mode="max-autotune-no-cudagraphs", dynamic=False)
    compiled(cell.normed, cell.weights[0])
    return lambda weight: compiled(cell.normed, weight)


OTHERS: dict[str, Callable[[Products], Launch]] = {
    "flashinfer": flashinfer_launch,
    "sgl-router": sgl_router_launch,
    "sgl-fused-a": sgl_fused_a_launch,
}


class Bench:
    """What is measured of each size, and for how long torch.compile may still compile."""

    def __init__(self, rounds: int, compile_s: float) -> None:
        self.rounds, self.compile_s = rounds, compile_s
        self.lt = CublasLt()

    def cell(self, size: Size, rows: int, uses: list[str], memory: torch.Tensor) -> dict[str, Any]:
        """Return the row of a size and a number of rows."""
        columns, depth = size
        cell = Products(size, rows, memory)
        # Random inputs to what is compared, though a replay norms them first.
        cell.normed.copy_(cell.x)
        refused: dict[str, str] = {}
        launches: dict[str, Launch] = {"cublas": cell.mm, "cublaslt": cell.mm}
        plans = tuned_plans(torch.cuda.get_device_name(), "bfloat16", columns, depth)
        plan = plans[rows] if plans else None
        launches["ours"] = (
            cell.mm if plan is None else lambda weight: small_m_linear(cell.normed, weight, plan, out=cell.out)
        )
        too_deep = [arm for arm, deepest in DEEPEST.items() if depth > deepest]
        refused |= dict.fromkeys(too_deep, "not tried at this depth")
        for arm, make in OTHERS.items():
            if arm in too_deep:
                continue
            self._try(arm, lambda make=make: make(cell), launches, refused)
        if rows not in COMPILED[1] or not any(use.split(" ")[2].startswith(COMPILED[0]) for use in uses):
            refused["compile"] = "not compiled"
        elif self.compile_s > 0:
            begin = time.monotonic()
            self._try("compile", lambda: compiled_launch(cell), launches, refused)
            self.compile_s -= time.monotonic() - begin
        else:
            refused["compile"] = "there was no time to compile it"
        tried = self._best_of_lt(cell, size, rows, launches, refused)
        recorded, expected = {"norm": cell.record(lambda weight: None)}, in_fp32(cell)
        for arm, launch in launches.items():
            torch.backends.cuda.preferred_blas_library("cublaslt" if arm == "cublaslt" else "cublas")
            if why := wrong(cell, launch, expected):
                refused[arm] = why
            else:
                recorded[arm] = cell.record(launch)
        torch.backends.cuda.preferred_blas_library("cublas")
        taken = interleaved({arm: one.graph for arm, one in recorded.items()}, self.rounds, _SIZE_LIMIT_S, 3)
        return {
            "columns": columns,
            "depth": depth,
            "rows": rows,
            "uses": uses,
            "weight_bytes": 2 * columns * depth,
            "calls": cell.calls,
            "us": {arm: spread([sample / cell.calls for sample in samples]) for arm, samples in taken.items()},
            "plan": plan and list(plan),
            "algorithms": tried,
            "refused": refused,
        }

    def _best_of_lt(
        self, cell: Products, size: Size, rows: int, launches: dict[str, Launch], refused: dict[str, str]
    ) -> int:
        """Add the fastest algorithm's launch, each timed twice, and return how many were tried."""
        product = self.lt.product(rows, *size)
        took: list[tuple[float, int, Launch]] = []
        expected = in_fp32(cell)
        for number, algorithm in enumerate(product.algorithms(ALGORITHMS)):

            def launch(weight: torch.Tensor, algorithm: Any = algorithm) -> None:
                product.multiply(algorithm, cell.normed, weight, cell.out)

            if not wrong(cell, launch, expected):
                graph = cell.record(launch).graph
                took.append((min(replay_us(graph, 2) for _ in range(2)), number, launch))
        if took:
            launches["cublaslt-best"] = min(took, key=lambda entry: entry[:2])[2]
        else:
            refused["cublaslt-best"] = "the heuristic has no algorithm that is right"
        return len(took)

    def _try(self, arm: str, make: Callable[[], Launch], launches: dict[str, Launch], refused: dict[str, str]) -> None:
        try:
            launches[arm] = make()
        except Exception as error:  # noqa: BLE001 - whatever a library refuses with
            refused[arm] = first_line(error)


def in_fp32(cell: Products) -> torch.Tensor:
    """Return the product with the cell's last weight."""
    cell.normed.copy_(cell.x)
    return cell.normed.float() @ cell.weights[-1].float().T


def wrong(cell: Products, launch: Launch, expected: torch.Tensor) -> str | None:
    """Say what keeps this launch from being timed: an error, or an answer that is no product."""
    weight = cell.weights[-1]
    cell.normed.copy_(cell.x)
    cell.out.fill_(math.nan)
    try:
        made = launch(weight)
        torch.cuda.synchronize()
    except Exception as error:  # noqa: BLE001 - whatever a library refuses with
        return first_line(error)
    answer = made if isinstance(made, torch.Tensor) and made.shape == expected.shape else cell.out
    error = ((answer.float() - expected).norm() / expected.norm()).item()
    return None if error < _MOST_ERROR else f"the relative error is {error:.2g}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, help="JSON file to write; default: stdout")
    parser.add_argument("--rounds", type=int, default=11, help="samples per arm and cell (default 11)")
    parser.add_argument("--models", nargs="+", choices=tuple(SIZES), default=MODELS, help="default: all but 31b")
    parser.add_argument("--limit-s", type=float, default=420.0, help="end after this long with what there is")
    parser.add_argument("--compile-s", type=float, default=180.0, help="torch.compile may take this long in all")
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print(
            "measure_product_peers measures a GPU, and no CUDA device was found: run it on a GPU host", file=sys.stderr
        )
        return 3
    begin, found = time.monotonic(), []
    sizes = products(options.models)
    memory = torch.empty(
        max(columns * depth for columns, depth in sizes) + ROTATED_BYTES // 2, device="cuda", dtype=torch.bfloat16
    )
    torch.manual_seed(0)
    for part in memory.split(1 << 26):
        part.normal_()
    bench = Bench(options.rounds, options.compile_s)
    about = {"dtype": "bfloat16", "rounds": options.rounds, "arms": ARMS}
    packages = ("sglang", "flashinfer-python", "sglang-kernel")
    heading = origin("1.0", "product_peers", *packages) | about
    for rows in ROWS:
        for size, uses in sorted(sizes.items(), key=lambda entry: entry[0][1] > min(DEEPEST.values())):
            if time.monotonic() - begin > options.limit_s:
                break
            faulthandler.dump_traceback_later(CELL_S, exit=True)
            found.append(bench.cell(size, rows, uses, memory))
            faulthandler.cancel_dump_traceback_later()
            print(line(found[-1]), file=sys.stderr, flush=True)
            if options.output:
                write(heading | with_limits(found), options.output)
    if not options.output:
        write(heading | with_limits(found), None)
    return 1 if any("ours" in row["refused"] for row in found) else 0


def line(row: dict[str, Any]) -> str:
    """Return a row as a line of text."""
    medians = ", ".join(f"{arm} {us['median']:.2f}" for arm, us in row["us"].items())
    why = "; ".join(f"{arm}: {reason[:60]}" for arm, reason in row["refused"].items())
    return f"{row['uses'][0]} [{row['columns']}, {row['depth']}], {row['rows']} rows: {medians} us ({why})"


if __name__ == "__main__":
    sys.exit(main())
