"""Measure routed_experts beside SGLang's grouped kernels for the experts of 26B-A4B, and choose its plans.

    python kernels/bench/bench_routed_experts.py --output FILE          measures, on a GPU
    python kernels/bench/bench_routed_experts.py --table FILE           makes the table of plans of such a file

An arm is a CUDA graph of LAYERS layers' experts one behind the other, each with weights and a draw of experts of its
own, the same for every arm; their weights are far more than an L2 cache holds. A first pass times every way to cut the
first launch, and with the fastest of them every way to cut the second; the best is timed again beside SGLang's
`fused_experts`, in rotating order. Every answer is compared with fp32. The limit is the size of the experts that were
drawn over LIMIT_BYTES_PER_US. Exit codes: 0 measured, 1 an answer was wrong, 2 usage, 3 no CUDA.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from bench_page_guard import origin, write
from bench_small_m_linear import WrongAnswer, make_table, read_options, table_name
from triton.runtime.errors import OutOfResources

from gemma4_kernels.routed_experts.launch import routed_experts
from gemma4_kernels.routed_experts.reference import routed_experts as in_torch
from gemma4_kernels.routed_experts.spec import AXES, FOLDER, Plan
from gemma4_repro.bench.quantiles import spread
from gemma4_repro.kernel_bench.replay_clock import Recorded, capture, interleaved
from gemma4_repro.step_bench.model_sizes import SIZES

LAYERS = 4
GAIN = 0.97
"""The share of SGLang's time that ours may take at most where the table names it."""
LIMIT_BYTES_PER_US = 4.59e6
"""The fastest rate at which a product was read when the products' table was made, docs/products.md."""
GATES = (
    (16, 128, 5, 1), (16, 128, 4, 2), (16, 64, 8, 2), (32, 128, 4, 4), (32, 128, 5, 2), (64, 128, 3, 4), (64, 64, 6, 4),
)  # fmt: skip
"""gate_n, gate_k, gate_stages, gate_warps."""
DOWNS = (
    (32, 64, 11, 5, 2), (32, 64, 11, 5, 4), (32, 64, 11, 7, 2), (32, 64, 11, 7, 4), (32, 64, 11, 6, 1),
    (64, 64, 11, 5, 4), (16, 64, 11, 8, 1), (32, 64, 6, 6, 4),
)  # fmt: skip
"""down_n, down_k, down_splits, down_stages, down_warps."""
_SIZE_LIMIT_S = 10.0
_MOST_ERROR = 1e-2
"""Relative to the norm of the experts in fp32 with bf16 between them."""

Call = Callable[[int], torch.Tensor]


def main(argv: list[str] | None = None) -> int:
    options = read_options(argv, __doc__ or "", 300.0)
    if options.table is not None:
        return make_table(options.table, table_name, table_text, FOLDER)
    if not torch.cuda.is_available():
        print("bench_routed_experts measures a GPU, and no CUDA device was found", file=sys.stderr)
        return 3
    found: list[dict[str, Any]] = []
    experts = Experts()
    begin = time.monotonic()
    try:
        for rows in AXES["rows"]:
            if time.monotonic() - begin > options.limit_s:
                print(f"out of time before {rows} rows", file=sys.stderr)
                break
            for row in measure(experts, rows, options.rounds):
                found.append(row)
                print(line(row), file=sys.stderr)
    except WrongAnswer as error:
        print(error, file=sys.stderr)
        return 1
    about = {"dtype": "bfloat16", "rounds": options.rounds, "gain": GAIN, "limit_bytes_per_us": LIMIT_BYTES_PER_US}
    document = origin("1.0", "routed_experts", *([] if experts.peer is None else ["sglang"]))
    write(document | about | {"rows": found}, options.output)
    return 0


class Experts:
    """The experts of LAYERS layers of 26B-A4B, with random weights."""

    def __init__(self) -> None:
        size = SIZES["26b"]
        text = size.text_config(size.layers)
        self.hidden, self.width = text["hidden_size"], text["moe_intermediate_size"]
        self.count, self.top_k = text["num_experts"], text["top_k_experts"]
        self.weights = [
            (self._matrix(2 * self.width, self.hidden), self._matrix(self.hidden, self.width)) for _ in range(LAYERS)
        ]
        self.peer = sglang_experts(self.count)

    def _matrix(self, rows: int, depth: int) -> torch.Tensor:
        return torch.randn(self.count, rows, depth, device="cuda", dtype=torch.bfloat16) * depth**-0.5

    def draw(self, rows: int) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Return of each layer its rows, shares and ids: as many experts of each row, evenly drawn."""
        generator = torch.Generator("cuda").manual_seed(rows)
        drawn = []
        for _ in range(LAYERS):
            x = torch.randn(rows, self.hidden, generator=generator, device="cuda").to(torch.bfloat16)
            logits = torch.randn(rows, self.count, generator=generator, device="cuda")
            chosen, ids = logits.topk(self.top_k, dim=1)
            drawn.append((x, chosen.softmax(1).contiguous(), ids.to(torch.int32).contiguous()))
        return drawn

    def expert_bytes(self) -> int:
        """Return the size of one expert's weights."""
        return sum(tensor[0].nbytes for tensor in self.weights[0])


def sglang_experts(count: int) -> Callable[..., torch.Tensor] | None:
    """Return SGLang's grouped kernels as a function of x, gate_up, down, shares and ids; None without SGLang."""
    try:
        from sglang.srt.layers.moe.moe_runner.base import MoeRunnerConfig
        from sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe import fused_experts
        from sglang.srt.layers.moe.topk import StandardTopKOutput
        from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler
    except ImportError as error:
        print(f"SGLang's experts are left out: {error}", file=sys.stderr)
        return None
    # The kernels ask for the server's arguments; of a model of this name SGLang reads no configuration.
    arguments = ServerArgs(model_path="dummy")  # pyright: ignore[reportCallIssue]
    set_global_server_args_for_scheduler(arguments)
    config = MoeRunnerConfig(num_experts=count, num_local_experts=count, activation="gelu", inplace=False)

    def call(
        x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, shares: torch.Tensor, ids: torch.Tensor
    ) -> torch.Tensor:
        return fused_experts(x, gate_up, down, StandardTopKOutput(shares, ids, shares), config)

    return call


def measure(experts: Experts, rows: int, rounds: int) -> Iterator[dict[str, Any]]:
    """Yield the row of a number of rows.

    Raises:
        WrongAnswer: a plan computed something else than fp32.
    """
    drawn = experts.draw(rows)
    wanted = [
        in_torch(x, *weights, shares, ids) for (x, shares, ids), weights in zip(drawn, experts.weights, strict=True)
    ]

    def call_of(plan: Plan) -> Call:
        def call(at: int) -> torch.Tensor:
            x, shares, ids = drawn[at % LAYERS]
            return routed_experts(x, *experts.weights[at % LAYERS], shares, ids, plan)

        return call

    def peer(at: int) -> torch.Tensor:
        assert experts.peer is not None
        x, shares, ids = drawn[at % LAYERS]
        return experts.peer(x, *experts.weights[at % LAYERS], shares, ids)

    def recorded(name: str, call: Call) -> Recorded:
        for at in range(LAYERS):
            found = call(at)
            error = ((found - wanted[at]).float().norm() / wanted[at].float().norm()).item()
            if not error <= _MOST_ERROR:
                raise WrongAnswer(f"{rows} rows: {name} is {error:.2e} from fp32")
        return capture(call, LAYERS, LAYERS)

    def fastest(plans: list[Plan]) -> Plan:
        taken = {}
        for plan in plans:
            try:
                one = recorded(str(plan), call_of(plan))
            except OutOfResources as error:
                print(f"{rows} rows, {list(plan)}: {error}", file=sys.stderr)
                continue
            samples = interleaved({"": one.graph}, 5, 1.0, 2)[""]
            taken[plan] = statistics.median(samples)
            print(f"{rows} rows, {list(plan)}: {taken[plan] / LAYERS:.1f} us", file=sys.stderr)
        return min(taken, key=lambda plan: taken[plan])

    finalists = []
    for block_m in (1, 8) if rows == 1 else (8,):
        gate = fastest([Plan(block_m, *gate, *DOWNS[0]) for gate in GATES])
        finalists.append(fastest([Plan(*gate[:5], *down) for down in DOWNS]))
    graphs = {json.dumps(plan): recorded(str(plan), call_of(plan)) for plan in finalists}
    if experts.peer is not None:
        graphs["sglang"] = recorded("SGLang's", peer)
    taken = interleaved({name: one.graph for name, one in graphs.items()}, rounds, _SIZE_LIMIT_S, 2)
    us = {name: spread([sample / LAYERS for sample in samples]) for name, samples in taken.items()}
    best = min((name for name in us if name != "sglang"), key=lambda name: us[name]["median"])
    chosen = statistics.mean(len(ids.unique()) for _, _, ids in drawn)
    weight_bytes = int(chosen * experts.expert_bytes())
    yield {
        "hidden": experts.hidden,
        "width": experts.width,
        "experts": experts.count,
        "top_k": experts.top_k,
        "rows": rows,
        "layers": LAYERS,
        "experts_drawn": chosen,
        "weight_bytes": weight_bytes,
        "limit_us": weight_bytes / LIMIT_BYTES_PER_US,
        "us": {"ours": us[best]} | ({"sglang": us["sglang"]} if "sglang" in us else {}),
        "plan": json.loads(best),
    }


def line(row: dict[str, Any]) -> str:
    """Return a row as a line of text."""
    medians = ", ".join(f"{arm} {us['median']:.2f}" for arm, us in row["us"].items())
    return f"{row['rows']} rows: {medians}, limit {row['limit_us']:.2f} us; {row['plan']}"


def table_text(document: dict[str, Any], rows_file: Path) -> str:
    """Return the table: by number of rows, the plan where it gains, else null for SGLang's own kernels."""
    kept = ("gpu", "versions", "dtype", "date", "command")
    entries: dict[tuple[int, ...], dict[str, list[int] | None]] = {}
    names = ("hidden", "width", "experts", "top_k")
    for row in document["rows"]:
        us = row["us"]
        gains = us["ours"]["median"] <= document["gain"] * us["sglang"]["median"]
        entries.setdefault(tuple(row[name] for name in names), {})[str(row["rows"])] = row["plan"] if gains else None
    head = json.dumps({key: document[key] for key in kept} | {"rows_file": rows_file.name}, indent=1)
    lines = ["  " + json.dumps(dict(zip(names, key, strict=True)) | {"plans": plans}) for key, plans in entries.items()]
    return head[:-2] + ',\n "entries": [\n' + ",\n".join(lines) + "\n ]\n}\n"


if __name__ == "__main__":
    sys.exit(main())
