"""Measure streamed.cu beside the plans of the table and cuBLAS for the products of a decode step, and choose its plans.

    python kernels/bench/measure_streamed_products.py --output FILE    measures, on a GPU that has a table of plans
    python kernels/bench/measure_streamed_products.py --table FILE     makes the table of such a file

The clock is that of bench_small_m_linear.py: CUDA graphs of products, each behind the norm of its input, with weights
from memory. A first pass times every candidate; the fastest are timed again beside the plan of the table and cuBLAS, in
rotating order, and compared with fp32. In `ours` and `table-first` the norm lets its product start at once, as norms do
where products are streamed; in `table` once its own inputs are there. Exit codes: 0 measured, 1 an answer was wrong, 2
usage, 3 no CUDA.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from bench_page_guard import origin, write
from bench_small_m_linear import (
    Products,
    Size,
    WrongAnswer,
    fastest,
    make_table,
    products,
    read_options,
    table_lines,
    with_limits,
)

from gemma4_kernels.cuda_source import machine_code, unavailable
from gemma4_kernels.launcher import let_next_in_where
from gemma4_kernels.small_m_linear import streamed
from gemma4_kernels.small_m_linear.spec import AXES, StreamedPlan
from gemma4_kernels.small_m_linear.tuned import tuned_plans
from gemma4_repro.bench.quantiles import spread
from gemma4_repro.kernel_bench.replay_clock import ROTATED_BYTES, interleaved

GAIN = 0.99
"""The share of the fastest other's time that ours may take at most where the table names it."""
NO_GAIN = {"e4b": (1,), "e2b": (1,), "26b": (12, 16)}
"""Rows by model of which a step was not faster with them; of 26B, of which the products' sum was not smaller."""
_RING_BYTES = {1: 190 << 10, 2: 84 << 10}
"""By blocks that a multiprocessor is to hold. It has 227 KiB for them and what else they share."""
_IN_FLIGHT_BYTES = 63 << 10
_WORKERS = 14
_SIZE_LIMIT_S = 20.0


def main(argv: list[str] | None = None) -> int:
    options = read_options(argv, __doc__ or "", 300.0)
    if options.table is not None:
        return make_table(options.table, table_name, table_text)
    if not torch.cuda.is_available():
        print("measure_streamed_products measures a GPU, and no CUDA device was found", file=sys.stderr)
        return 3
    if reason := unavailable(torch.device("cuda", 0)):
        print(f"The streaming kernel cannot run here: {reason}", file=sys.stderr)
        return 3
    found: list[dict[str, Any]] = []
    try:
        for row in measure(dense_products(tuple(options.models)), options.rounds, options.limit_s):
            found.append(row)
            print(line(row), file=sys.stderr)
    except WrongAnswer as error:
        print(error, file=sys.stderr)
        return 1
    about = {"dtype": "bfloat16", "rounds": options.rounds, "gain": GAIN}
    write(origin("1.0", "streamed_products") | about | with_limits(found), options.output)
    return 0


def dense_products(models: tuple[str, ...]) -> dict[Size, list[str]]:
    """Return the products of a decode step that the patch takes, all but the LM head, by size."""
    return {size: uses for size, uses in products(models).items() if not any("lm-head" in use for use in uses)}


def candidates(rows: int, size: Size) -> list[StreamedPlan]:
    """Return the plans that are tried for 8 or 16 rows of a size."""
    found: list[StreamedPlan] = []
    for most, co_resident, warps in itertools.product((2560, 1280), _RING_BYTES, (8, 10, 16)):
        if rows > 8 and co_resident > 1:
            # The registers of two such blocks are more than a multiprocessor has.
            continue
        parts = -(-size[1] // most)
        stage_depth = -(-size[1] // (32 * parts)) * 32
        stage_bytes = 8 * (2 * stage_depth + 64)
        stages = min(24, _RING_BYTES[co_resident] // stage_bytes)
        for in_flight in {max(1, min(stages, _IN_FLIGHT_BYTES // stage_bytes)), stages if co_resident > 1 else 0}:
            plan = StreamedPlan(stage_depth, stages, in_flight, warps, co_resident)
            if in_flight and plan not in found:
                found.append(plan)
    return found


def measure(sizes: dict[Size, list[str]], rounds: int, limit_s: float) -> Iterator[dict[str, Any]]:
    """Yield a row per size and number of rows.

    Raises:
        WrongAnswer: a finalist computed something else.
    """
    begin = time.monotonic()
    about = torch.cuda.get_device_properties(0)
    architecture, jobs = f"sm_{about.major}{about.minor}a", []
    for size, rows in itertools.product(sizes, (8, 16)):
        programs = min(about.multi_processor_count, size[0])
        jobs += [streamed.built_for(plan, rows, *size, "none", programs, True) for plan in candidates(rows, size)]
    with ThreadPoolExecutor(_WORKERS) as pool:
        list(pool.map(lambda built: machine_code(streamed.SOURCE, built.defined, architecture), dict.fromkeys(jobs)))
    print(f"compiled {len(set(jobs))} candidates in {time.monotonic() - begin:.0f} s", file=sys.stderr)
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
    table = tuned_plans(torch.cuda.get_device_name(), "bfloat16", columns, depth)
    finalists: dict[int, list[StreamedPlan]] = {}
    for rows in AXES["rows"]:
        of = 1 if rows == 1 else 8 if rows <= 8 else 16
        cell = Products(size, rows, memory)
        norm_lets_in(True)
        if of not in finalists:
            finalists[of] = fastest(candidates(rows, size), cell)
        for plan in finalists[of]:
            cell.check(plan)
        today = table[rows] if table else None
        recorded = {"norm": cell.record(lambda weight: None), "cublas": cell.record(cell.mm)}
        if today is not None:
            recorded["table-first"] = cell.record_ours(today)
            norm_lets_in(False)
            recorded["table"] = cell.record_ours(today)
            norm_lets_in(True)
        recorded |= {str(number): cell.record_ours(plan) for number, plan in enumerate(finalists[of])}
        taken = interleaved({arm: one.graph for arm, one in recorded.items()}, rounds, _SIZE_LIMIT_S, 3)
        us = {arm: spread([sample / cell.calls for sample in samples]) for arm, samples in taken.items()}
        best = min(range(len(finalists[of])), key=lambda number: us[str(number)]["median"])
        yield {
            "columns": columns,
            "depth": depth,
            "rows": rows,
            "uses": uses,
            "weight_bytes": 2 * columns * depth,
            "calls": cell.calls,
            "us": {arm: us[arm] for arm in ("norm", "cublas", "table", "table-first") if arm in us}
            | {"ours": us[str(best)]},
            "plan": list(finalists[of][best]),
        }


def line(row: dict[str, Any]) -> str:
    """Return a row as a line of text."""
    medians = ", ".join(f"{arm} {us['median']:.2f}" for arm, us in row["us"].items())
    return f"{row['uses'][0]} [{row['columns']}, {row['depth']}], {row['rows']} rows: {medians} us; {row['plan']}"


def table_name(document: dict[str, Any]) -> str:
    """Return the file name of a GPU's table."""
    return "streamed_" + document["gpu"]["name"].lower().removeprefix("nvidia ").replace(" ", "_") + ".json"


def table_text(document: dict[str, Any], rows_file: Path) -> str:
    """Return the table of plans: of each size, by number of rows, the plan where it gains, else null."""
    return table_lines(document, rows_file, ("cublas", "table-first"), _left_out)


def _left_out(row: dict[str, Any]) -> bool:
    """Say whether no model that has the product gains by such plans, see NO_GAIN."""
    models = {use.partition(" x ")[2].partition(".")[0] for use in row["uses"]}
    return all(row["rows"] in NO_GAIN.get(model, ()) for model in models)


def norm_lets_in(first: bool) -> None:
    """Settle whether a norm that is recorded next lets its product start before its own inputs are there."""
    let_next_in_where(lambda: first, lambda device, programs, width: True)


if __name__ == "__main__":
    sys.exit(main())
