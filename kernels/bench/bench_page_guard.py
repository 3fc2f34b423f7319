"""Measure page_guard: microseconds per metadata build for rows x columns, beside what bounds it.

    python kernels/bench/bench_page_guard.py --output FILE

An arm is a CUDA graph of BUILDS builds in a row, over SETS sets of tables in turn; the arms are replayed one after the
other, round by round, in rotating order, and a sample is one replay's time / BUILDS. The tables are in the L2 cache, as
they are in serving, where SGLang has written them just before. Without --output the document goes to stdout.
Exit codes: 0 measured, 1 a guard's answer was wrong, 2 usage, 3 no CUDA.
"""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from gemma4_kernels.page_guard.launch import Finding, GuardedTable, NullPage, Padding, PageGuard, decode
from gemma4_kernels.page_guard.spec import AXES

SCHEMA_VERSION = "1.0"
ARMS = {
    "contain": "check and contain, no offence: what serving pays",
    "check": "check only, no offence",
    "offences": "check only, one offence in each row of each table: the atomics",
    "reset": "the memset of the result buffer alone, which is part of each of the above",
    "copy": "device copy that moves as many bytes, read and written, as the guard reads of the tables",
    "empty": "an empty Triton kernel",
}
TABLES, PAGE_SIZE, BOUND = 2, 64, 1 << 20
BUILDS, SETS = 20, 4
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, help="JSON file to write; default: stdout")
    parser.add_argument("--force", action="store_true", help="overwrite the file")
    parser.add_argument("--rounds", type=int, default=200, help="samples per arm and size (default 200)")
    options = parser.parse_args(argv)
    if options.rounds < 2:
        parser.error(f"--rounds is {options.rounds}, expected 2 or more")
    if options.output and options.output.exists() and not options.force:
        parser.error(f"{options.output} exists: give --force to overwrite it")
    if not torch.cuda.is_available():
        print("bench_page_guard measures a GPU, and no CUDA device was found: run it on a GPU host", file=sys.stderr)
        return 3
    rows = []
    print("us per build, medians\n rows x columns" + "".join(f"{arm:>10}" for arm in ARMS), file=sys.stderr)
    for row_count in AXES["rows"]:
        for columns in AXES["columns"]:
            try:
                measured = list(measure(row_count, columns, options.rounds))
            except WrongAnswer as error:
                print(f"{row_count} x {columns}: {error}", file=sys.stderr)
                return 1
            rows += measured
            medians = "".join(f"{row['median_us']:>10.2f}" for row in measured if row["clock"] == "graph")
            print(f"{row_count:>5} x {columns:<7}{medians}", file=sys.stderr)
    document = json.dumps(heading(options.rounds) | {"rows": rows}, indent=1) + "\n"
    if options.output is None:
        sys.stdout.write(document)
    else:
        options.output.write_text(document, encoding="utf-8")
        print(f"Wrote {options.output}", file=sys.stderr)
    return 0


class WrongAnswer(Exception):
    """A guard that reports the wrong thing is not worth timing."""


def heading(rounds: int) -> dict[str, Any]:
    import triton

    gpu = torch.cuda.get_device_properties(0)
    return {
        "schema_version": SCHEMA_VERSION,
        "op": "page_guard",
        "command": shlex.join(["python", *sys.argv]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "gpu": {
            "name": gpu.name,
            "capability": f"{gpu.major}.{gpu.minor}",
            "multiprocessors": gpu.multi_processor_count,
        },
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "triton": triton.__version__,
            "cuda": torch.version.cuda,
        },
        "rounds": rounds,
        "builds_per_graph": BUILDS,
        "arms": ARMS,
    }


def measure(rows: int, columns: int, rounds: int) -> Iterator[dict[str, Any]]:
    """One row of the document per arm under graph replay, and one of the host's time per eager `check`.

    Raises:
        WrongAnswer: a guard found something in clean tables, or missed a planted offence.
    """
    arms = make_arms(rows, columns)
    graphs = {name: capture(arm) for name, arm in arms.items()}
    samples: dict[str, list[float]] = {name: [] for name in arms}
    names = list(arms)
    for round_number in range(-5, rounds):
        shift = round_number % len(names)
        for name in names[shift:] + names[:shift]:
            took_us = replay_us(graphs[name]) / BUILDS
            # The first rounds warm caches and clocks up.
            if round_number >= 0:
                samples[name].append(took_us)
    size = {"rows": rows, "columns": columns, "tables": TABLES, "bytes": TABLES * rows * columns * 4}
    for name in ARMS:
        yield size | {"arm": name, "clock": "graph"} | summary(samples[name])
    yield size | {"arm": "contain", "clock": "host"} | summary([host_us(arms["contain"], i) for i in range(rounds)])


def make_arms(rows: int, columns: int) -> dict[str, Callable[[int], Any]]:
    """Per arm a function of the build's number, which picks the set of tables."""
    shape = (rows, columns)
    clean = [
        [torch.randint(1, BOUND, shape, dtype=torch.int32, device="cuda") for _ in range(TABLES)] for _ in range(SETS)
    ]
    spoilt = [[pages.clone() for pages in tables] for tables in clean]
    for pages in (pages for tables in spoilt for pages in tables):
        pages[:, -1] = BOUND
    # Every column is live: the guard's worst case for a table of this width.
    lengths = torch.full((rows,), columns * PAGE_SIZE, dtype=torch.int32, device="cuda")
    guard = PageGuard(rows, "cuda")

    def check(sets: list[list[torch.Tensor]], contain: bool) -> Callable[[int], torch.Tensor]:
        modes = (NullPage.LEGAL_IN_PADDED_ROWS, NullPage.LEGAL)
        guarded = [[GuardedTable(pages, BOUND, mode) for pages, mode in zip(t, modes, strict=True)] for t in sets]
        padding = Padding(lengths, 1)
        return lambda build: guard.check(guarded[build % SETS], lengths, PAGE_SIZE, contain=contain, padding=padding)

    arms = {"contain": check(clean, True), "check": check(clean, False), "offences": check(spoilt, False)}
    first = Finding(0, 0, columns - 1, BOUND, BOUND, (rows,) * TABLES, tuple(range(rows)))
    for name, expected in (("contain", None), ("check", None), ("offences", first)):
        found = decode(arms[name](0).cpu())
        if found != expected:
            raise WrongAnswer(f"{name} found {found}, expected {expected}")
    # Half the bytes are read and half written.
    words = max(1, TABLES * rows * columns // 2)
    sources = [torch.ones(words, dtype=torch.int32, device="cuda") for _ in range(SETS)]
    targets = [torch.empty_like(source) for source in sources]
    empty = empty_kernel()
    return arms | {
        "reset": lambda build: guard.result.zero_(),
        "copy": lambda build: targets[build % SETS].copy_(sources[build % SETS]),
        "empty": lambda build: empty[(1,)](),
    }


def empty_kernel() -> Any:
    # Here: without CUDA the bench only says so, and needs no Triton for that.
    import triton

    return triton.jit(_empty)


def _empty():
    pass


def capture(arm: Callable[[int], Any]) -> torch.cuda.CUDAGraph:
    arm(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for build in range(BUILDS):
            arm(build)
    return graph


def replay_us(graph: torch.cuda.CUDAGraph) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1000


def host_us(arm: Callable[[int], Any], build: int) -> float:
    """The caller's time for one eager build, the GPU idle: a metadata build runs outside the graph."""
    torch.cuda.synchronize()
    start = time.perf_counter_ns()
    arm(build)
    return (time.perf_counter_ns() - start) / 1000


def summary(samples_us: list[float]) -> dict[str, Any]:
    ordered = sorted(samples_us)
    return {
        "samples": len(ordered),
        "median_us": round(statistics.median(ordered), 3),
        "quantiles_us": {str(q): round(ordered[min(len(ordered) - 1, int(q * len(ordered)))], 3) for q in QUANTILES},
    }


if __name__ == "__main__":
    sys.exit(main())
