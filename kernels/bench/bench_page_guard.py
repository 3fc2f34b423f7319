"""Measure page_guard: microseconds per metadata build for rows x columns, beside what bounds it.

    python kernels/bench/bench_page_guard.py --output FILE

Clock "graph": an arm is a CUDA graph of BUILDS builds in a row, over SETS sets of tables in turn; the arms are replayed
one after the other, round by round, in rotating order, and a sample is one replay's time / BUILDS. The tables are in
the L2 cache, as they are in serving, where SGLang has written them just before. Clock "host": the caller's time for one
call, the GPU idle, arms in rotating order too. Without --output the document goes to stdout.
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
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from gemma4_kernels.page_guard.launch import (
    Findings,
    GuardedSlots,
    GuardedTable,
    NullPage,
    Offence,
    Padding,
    PageGuard,
    PreparedCheck,
)
from gemma4_kernels.page_guard.spec import AXES
from gemma4_repro.kernel_bench.replay_clock import empty_kernel, replay_us

SCHEMA_VERSION = "2.0"
GRAPH_ARMS = {
    "step": "PreparedCheck.launch as serving pays it: check and contain, no offence, the result in pinned host memory",
    "check": "check only, no offence",
    "offences": "check only, one offence in each row of each table, each stored to host memory",
    "ragged": "check only, no offence, the same entries as int32 token slots with an indptr",
    "copy": "device copy that moves as many bytes, read and written, as the guard reads of the tables",
    "empty": "an empty Triton kernel",
}
HOST_ARMS = {
    "check": "PageGuard.check with contain: prepare, launch, wait for the stream, read",
    "launch": "PreparedCheck.launch: one bound launch",
    "read": "PreparedCheck.read of a clean result",
}
TABLES, PAGE_SIZE, BOUND = 2, 64, 1 << 20
BUILDS, SETS = 20, 4
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


def options_of(argv: list[str] | None, script: str, about: str, rounds: int) -> argparse.Namespace | None:
    """Return `output` and `rounds` of a bench's command line; None, with a line on stderr, where there is no CUDA.

    Args:
        argv: Words of the command line.
        script: The bench's name.
        about: What the script says of itself.
        rounds: Samples where --rounds does not say.
    """
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--output", type=Path, help="JSON file to write; default: stdout")
    parser.add_argument("--force", action="store_true", help="overwrite the file")
    parser.add_argument("--rounds", type=int, default=rounds, help=f"samples per arm and size (default {rounds})")
    options = parser.parse_args(argv)
    if options.rounds < 2:
        parser.error(f"--rounds is {options.rounds}, expected 2 or more")
    if options.output and options.output.exists() and not options.force:
        parser.error(f"{options.output} exists: give --force to overwrite it")
    if torch.cuda.is_available():
        return options
    print(f"{script} measures a GPU, and no CUDA device was found: run it on a GPU host", file=sys.stderr)
    return None


def main(argv: list[str] | None = None) -> int:
    options = options_of(argv, "bench_page_guard", __doc__ or "", 200)
    if options is None:
        return 3
    rows = []
    titles = (*GRAPH_ARMS, *(f"host:{arm}" for arm in HOST_ARMS))
    print("us, medians\n rows x columns" + "".join(f"{title:>12}" for title in titles), file=sys.stderr)
    for row_count in AXES["rows"]:
        for columns in AXES["columns"]:
            try:
                measured = list(measure(row_count, columns, options.rounds))
            except WrongAnswer as error:
                print(f"{row_count} x {columns}: {error}", file=sys.stderr)
                return 1
            rows += measured
            medians = "".join(f"{row['median_us']:>12.2f}" for row in measured)
            print(f"{row_count:>5} x {columns:<7}{medians}", file=sys.stderr)
    write(heading(options.rounds) | {"rows": rows}, options.output)
    return 0


class WrongAnswer(Exception):
    """A guard that reports the wrong thing is not worth timing."""


def command_line() -> str:
    """Say what was run, without the folders of this machine."""
    words = (Path(word).name if Path(word).is_absolute() else word for word in sys.argv)
    return shlex.join(["python", *words])


def write(document: dict[str, Any], output: Path | None) -> None:
    """Write the document of a bench script to its file, or to stdout without one."""
    text = json.dumps(document, indent=1) + "\n"
    if output is None:
        sys.stdout.write(text)
    else:
        output.write_text(text, encoding="utf-8")
        print(f"Wrote {output}", file=sys.stderr)


def origin(schema_version: str, op: str, *packages: str) -> dict[str, Any]:
    """Return what every document of a bench script begins with: what was run, when, on what and with which versions."""
    gpu = torch.cuda.get_device_properties(0)
    return {
        "schema_version": schema_version,
        "op": op,
        "command": command_line(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "gpu": {
            "name": gpu.name,
            "capability": f"{gpu.major}.{gpu.minor}",
            "multiprocessors": gpu.multi_processor_count,
        },
        "versions": {"python": platform.python_version(), "cuda": torch.version.cuda}
        | {name: version(name) for name in ("torch", "triton", *packages)},
    }


def heading(rounds: int) -> dict[str, Any]:
    arms = {"graph": GRAPH_ARMS, "host": HOST_ARMS}
    return origin(SCHEMA_VERSION, "page_guard") | {"rounds": rounds, "builds_per_graph": BUILDS, "arms": arms}


def measure(rows: int, columns: int, rounds: int) -> Iterator[dict[str, Any]]:
    """Yield one row of the document per arm and clock.

    Raises:
        WrongAnswer: a guard found something in clean tables, or missed a planted offence.
    """
    size = {"rows": rows, "columns": columns, "tables": TABLES, "bytes": TABLES * rows * columns * 4}
    on_graph, on_host = make_arms(rows, columns)
    graphs = {name: capture(arm) for name, arm in on_graph.items()}
    clocks: dict[str, dict[str, Callable[[int], float]]] = {
        "graph": {name: lambda _, graph=graph: replay_us(graph) / BUILDS for name, graph in graphs.items()},
        "host": {name: lambda round_, arm=arm: host_us(arm, round_) for name, arm in on_host.items()},
    }
    for clock, arms in clocks.items():
        samples = interleaved(arms, rounds)
        for name in arms:
            yield size | {"arm": name, "clock": clock} | summary(samples[name])


def interleaved(arms: dict[str, Callable[[int], float]], rounds: int) -> dict[str, list[float]]:
    """Microseconds per arm and round."""
    samples: dict[str, list[float]] = {name: [] for name in arms}
    names = list(arms)
    # The first rounds warm caches and clocks up.
    for round_ in range(-5, rounds):
        shift = round_ % len(names)
        for name in names[shift:] + names[:shift]:
            took_us = arms[name](round_)
            if round_ >= 0:
                samples[name].append(took_us)
    return samples


Arm = Callable[[int], Any]


def make_arms(rows: int, columns: int) -> tuple[dict[str, Arm], dict[str, Arm]]:
    """Return per clock and arm a function of the build's number, which picks the set of tables."""
    shape = (rows, columns)
    clean = [
        [torch.randint(PAGE_SIZE, BOUND, shape, dtype=torch.int32, device="cuda") for _ in range(TABLES)]
        for _ in range(SETS)
    ]
    spoilt = [[pages.clone() for pages in tables] for tables in clean]
    for pages in (pages for tables in spoilt for pages in tables):
        pages[:, -1] = BOUND
    # Every column is live: the guard's worst case for a table of this width.
    lengths = torch.full((rows,), columns * PAGE_SIZE, dtype=torch.int32, device="cuda")
    indptr = torch.arange(rows + 1, dtype=torch.int32, device="cuda") * columns
    guard, padding = PageGuard("cuda"), Padding(lengths, 0)
    modes = (NullPage.LEGAL_IN_PADDED_ROWS, NullPage.LEGAL)

    def tables_of(pages: list[torch.Tensor]) -> list[GuardedTable | GuardedSlots]:
        return [GuardedTable(table, BOUND, mode) for table, mode in zip(pages, modes, strict=True)]

    def slots_of(pages: list[torch.Tensor]) -> list[GuardedTable | GuardedSlots]:
        return [GuardedSlots(table.view(-1), BOUND, mode, indptr) for table, mode in zip(pages, modes, strict=True)]

    def prepare(arrays: list[list[GuardedTable | GuardedSlots]], contain: bool) -> list[PreparedCheck]:
        return [guard.prepare(a, lengths, PAGE_SIZE, contain=contain, padding=padding) for a in arrays]

    prepared = {
        "step": prepare([tables_of(pages) for pages in clean], True),
        "check": prepare([tables_of(pages) for pages in clean], False),
        "offences": prepare([tables_of(pages) for pages in spoilt], False),
        "ragged": prepare([slots_of(pages) for pages in clean], False),
    }
    refuse_wrong_answers(prepared, rows, columns)
    # Half the bytes are read and half written.
    words = max(1, TABLES * rows * columns // 2)
    sources = [torch.ones(words, dtype=torch.int32, device="cuda") for _ in range(SETS)]
    targets = [torch.empty_like(source) for source in sources]
    steps, arrays, empty = prepared["step"], [tables_of(pages) for pages in clean], empty_kernel()
    on_graph: dict[str, Arm] = {
        **{name: lambda build, checks=checks: checks[build % SETS].launch() for name, checks in prepared.items()},
        "copy": lambda build: targets[build % SETS].copy_(sources[build % SETS]),
        "empty": lambda build: empty[(1,)](),
    }
    on_host: dict[str, Arm] = {
        "check": lambda build: guard.check(arrays[build % SETS], lengths, PAGE_SIZE, contain=True, padding=padding),
        "launch": on_graph["step"],
        "read": lambda build: steps[build % SETS].read(),
    }
    if list(on_graph) != list(GRAPH_ARMS) or list(on_host) != list(HOST_ARMS):
        raise RuntimeError("an arm without a description, or a description without an arm")
    return on_graph, on_host


def refuse_wrong_answers(prepared: dict[str, list[PreparedCheck]], rows: int, columns: int) -> None:
    places = [(table, row) for table in range(TABLES) for row in range(rows)]
    # A padded row has no keys, and here every row has some: the null page is legal in the second table only.
    planted = Findings(
        offences=tuple(Offence(table, row, columns - 1, BOUND, int(table == 0), BOUND) for table, row in places),
        counts=(rows,) * TABLES,
        overflows=(),
        rows=tuple(range(rows)),
    )
    for name, checks in prepared.items():
        expected = planted if name == "offences" else None
        for check in checks:
            check.launch()
            torch.cuda.synchronize()
            found = check.read()
            if found != expected:
                raise WrongAnswer(f"{name} found {found}, expected {expected}")


def capture(arm: Callable[[int], Any]) -> torch.cuda.CUDAGraph:
    arm(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for build in range(BUILDS):
            arm(build)
    return graph


def host_us(arm: Callable[[int], Any], build: int) -> float:
    """Return the caller's time for one call, the GPU idle: a metadata build runs outside the graph."""
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
