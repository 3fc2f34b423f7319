"""Measure beside_experts beside its ops one by one for the layers of 26B-A4B, and choose its plans.

    python kernels/bench/bench_beside_experts.py --output FILE          measures, on a GPU
    python kernels/bench/bench_beside_experts.py --table FILE           makes the table of plans of such a file

An arm is a CUDA graph of LAYERS layers behind their attention, each with weights and rows of its own, the same for
every arm: the norms ahead, dense MLP, router and experts, and the norms behind; their weights are far more than an L2
cache holds. A first pass times every way to cut the first launch, then the third, then what is asked for ahead; those
that were fastest are timed again beside the ops one by one, each with the plan of its own table, in rotating order.
Every answer is compared with fp32. A plan that does not compile or is wrong is left out with a line. The file is
written behind each number of rows. Exit codes: 0 measured, 1 the ops one by one were wrong or the device was lost,
2 usage, 3 no CUDA.
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
from bench_routed_experts import sglang_experts
from bench_small_m_linear import WrongAnswer, make_table, read_options, table_name
from triton.errors import TritonError

from gemma4_kernels.beside_experts import reference
from gemma4_kernels.beside_experts.launch import dense_beside_experts
from gemma4_kernels.beside_experts.spec import AXES, FOLDER, Plan, Weights, plan_of
from gemma4_kernels.beside_experts.tuned import Size
from gemma4_kernels.cross_layer_norm.launch import moe_cross_layer_norm
from gemma4_kernels.cuda_source import unavailable
from gemma4_kernels.launcher import let_next_in_where, let_nothing_in
from gemma4_kernels.routed_experts.launch import routed_experts
from gemma4_kernels.routed_experts.spec import Plan as ExpertsPlan
from gemma4_kernels.routed_experts.tuned import tuned_plans as experts_plans
from gemma4_kernels.routing.launch import routing
from gemma4_kernels.small_m_linear.launch import small_m_geglu, small_m_linear
from gemma4_kernels.small_m_linear.spec import Plan as ProductPlan
from gemma4_kernels.small_m_linear.streamed import streams_behind
from gemma4_kernels.small_m_linear.tuned import streamed_plans, tuned_plans
from gemma4_kernels.triple_rmsnorm.launch import triple_rmsnorm
from gemma4_repro.bench.quantiles import spread
from gemma4_repro.kernel_bench.replay_clock import DeviceLost, Recorded, capture, device_answers, interleaved
from gemma4_repro.kernel_bench.replay_clock import first_line as told
from gemma4_repro.step_bench.model_sizes import SIZES

DEVICE = "cuda"
LAYERS = 4
FINALISTS = 3
GAIN = 0.97
"""The share of the faster way's time, op by op, that ours may take at most where the table names it."""
LIMIT_BYTES_PER_US = 4.59e6
"""The fastest rate at which a product was read when the products' table was made, docs/products.md."""
FIRSTS = {
    1: ((8, 256, 5, 4), (8, 256, 3, 4), (8, 512, 3, 4), (16, 128, 5, 4), (4, 512, 5, 4), (32, 64, 5, 4)),
    8: ((16, 256, 4, 2), (16, 128, 6, 2), (16, 128, 8, 1), (32, 128, 6, 2), (32, 64, 8, 2), (32, 128, 4, 4)),
}
"""Rows that a program holds, and first_n, first_k, first_stages, first_warps."""
GATES = {
    1: ((16, 128, 5, 1), (16, 64, 8, 2), (16, 128, 4, 2), (32, 128, 5, 2)),
    2: ((64, 128, 3, 4), (16, 128, 5, 1), (32, 128, 5, 2), (32, 128, 4, 4)),
    4: ((32, 128, 5, 2), (64, 128, 3, 4), (16, 128, 5, 1), (16, 128, 4, 2)),
    8: ((16, 128, 5, 1), (16, 128, 4, 2), (32, 128, 5, 2), (64, 128, 3, 4)),
}
"""gate_n, gate_k, gate_stages, gate_warps of a number of rows."""
DENSES = {
    1: ((8, 16, 64, 8), (8, 32, 64, 6), (8, 32, 64, 4), (1, 8, 64, 6), (1, 4, 64, 6), (8, 64, 64, 4)),
    8: ((8, 16, 64, 8), (8, 32, 64, 6), (8, 32, 64, 4), (8, 64, 64, 4), (8, 64, 64, 3)),
}
"""dense_m, dense_n, dense_k, dense_stages of a single row, and of more."""
MEASURED_EXPERTS = {8: ExpertsPlan(8, 16, 128, 5, 1, 32, 64, 11, 5, 4)}
"""The fastest plans of routed_experts where its table has none, of the rows file that it is made of."""
_SIZE_LIMIT_S = 10.0
_MOST_ERROR = 1e-2
"""Relative to the norm of the layer in fp32 with bf16 between its parts."""
_LEAST_GAP = 0.05
"""Between the last expert that a row chooses and the next one: no other order of the sum chooses that."""
_EPS = 1e-6

Given = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Way = Callable[[Given, Weights], tuple[torch.Tensor, torch.Tensor]]


def main(argv: list[str] | None = None) -> int:
    options = read_options(argv, __doc__ or "", 300.0)
    if options.table is not None:
        return make_table(options.table, table_name, table_text, FOLDER)
    if not torch.cuda.is_available():
        print("bench_beside_experts measures a GPU, and no CUDA device was found", file=sys.stderr)
        return 3
    about = {"dtype": "bfloat16", "rounds": options.rounds, "gain": GAIN, "limit_bytes_per_us": LIMIT_BYTES_PER_US}
    document = origin("1.0", "beside_experts") | about
    found: list[dict[str, Any]] = []
    code = 0
    layers, begin = Layers(), time.monotonic()
    if reason := unavailable(torch.device(DEVICE)):
        print(f"the ops one by one stream no weight, as a server would: {reason}", file=sys.stderr)
    try:
        for number, rows in enumerate(AXES["rows"]):
            left_s = options.limit_s - (time.monotonic() - begin)
            if left_s <= 0:
                print(f"out of time before {rows} rows", file=sys.stderr)
                break
            until = time.monotonic() + left_s / (len(AXES["rows"]) - number)
            for row in measure(layers, rows, options.rounds, until):
                found.append(row)
                print(line(row), file=sys.stderr)
            if options.output is not None:
                write(document | {"rows": found}, options.output)
    except (WrongAnswer, DeviceLost) as error:
        print(error, file=sys.stderr)
        code = 1
    if options.output is None:
        write(document | {"rows": found}, None)
    return code


class Layers:
    """LAYERS layers of 26B-A4B with random weights, from the norms behind the attention to those at the end."""

    def __init__(self) -> None:
        size = SIZES["26b"]
        text = size.text_config(size.layers)
        self.size = Size(
            text["hidden_size"],
            text["intermediate_size"],
            text["moe_intermediate_size"],
            text["num_experts"],
            text["top_k_experts"],
        )
        self.weights = [self._weights() for _ in range(LAYERS)]
        self.norms = [(1 + 0.1 * torch.randn(self.size.hidden, device=DEVICE)).to(torch.bfloat16) for _ in range(8)]
        self.scalar = torch.full((1,), 0.9, device=DEVICE, dtype=torch.bfloat16)

    def _weights(self) -> Weights:
        hidden, wide, width, experts, _ = self.size

        def matrix(*shape: int, scale: float = 1.0) -> torch.Tensor:
            return torch.randn(shape, device=DEVICE, dtype=torch.bfloat16) * (scale * shape[-1] ** -0.5)

        return Weights(
            matrix(2 * wide, hidden),
            matrix(hidden, wide),
            # The router's input has hidden^-0.5 of its norm in it.
            matrix(experts, hidden, scale=hidden**0.5),
            (1 + 0.1 * torch.randn(experts, device=DEVICE)).to(torch.bfloat16),
            matrix(experts, 2 * width, hidden),
            matrix(experts, hidden, width),
        )

    def draw(self, rows: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return of each layer attention and residual of rows whose choice of experts is no close one."""
        generator = torch.Generator(DEVICE).manual_seed(rows)
        drawn, top_k = [], self.size.top_k
        for weights in self.weights:
            shape = 64 + 8 * rows, self.size.hidden
            given = [torch.randn(shape, generator=generator, device=DEVICE).to(torch.bfloat16) for _ in "ar"]
            logits = self.normed(given[0], given[1])[1][1].float() @ weights.router.float().T
            best = logits.topk(min(top_k + 1, self.size.experts), dim=1).values
            clear = (best[:, top_k - 1] - best[:, -1] > _LEAST_GAP).nonzero()[:rows, 0]
            drawn.append((given[0][clear].contiguous(), given[1][clear].contiguous()))
        return drawn

    def normed(self, attention: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, Given]:
        """Return the residual, and the inputs of dense MLP, router and experts."""
        made = triple_rmsnorm(attention, self.norms[0], residual, *self.norms[1:4], eps=_EPS)
        return made.residual, (made.dense, made.router, made.experts)

    def run(self, way: Way, drawn: tuple[torch.Tensor, torch.Tensor], at: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what dense MLP and experts of a layer make of its rows, with the norms on both sides."""
        residual, given = self.normed(*drawn)
        dense, experts = way(given, self.weights[at])
        first, second, third, following = self.norms[4:]
        moe_cross_layer_norm(dense, first, experts, second, third, residual, self.scalar, following, _EPS)
        return dense, experts


def beside(plan: Plan, top_k: int) -> Way:
    """Return the way of four launches."""
    return lambda given, weights: dense_beside_experts(*given, weights, top_k, plan)


def one_by_one(rows: int, size: Size, experts: Callable[..., torch.Tensor] | None = None) -> Way:
    """Return the way of six launches, with the `experts` of SGLang or, without them, ours."""
    experts_plan = experts_plan_of(rows, size)

    def way(given: Given, weights: Weights) -> tuple[torch.Tensor, torch.Tensor]:
        gated = small_m_geglu(given[0], weights.gate_up, product_plan(weights.gate_up, rows))
        dense = small_m_linear(gated, weights.down, product_plan(weights.down, rows))
        logits = small_m_linear(given[1], weights.router, product_plan(weights.router, rows))
        shares, ids = routing(logits, weights.per_expert_scale, size.top_k)
        of_experts = given[2], weights.experts_gate_up, weights.experts_down, shares, ids
        return dense, routed_experts(*of_experts, experts_plan) if experts is None else experts(*of_experts)

    return way


def product_plan(weight: torch.Tensor, rows: int) -> Any:
    """Return the plan of a product as the model has it: streamed, or not; None where cuBLAS is as fast."""
    if DEVICE != "cuda":
        return None
    gpu, (columns, depth) = torch.cuda.get_device_name(), weight.shape
    tuned = tuned_plans(gpu, "bfloat16", columns, depth)
    streamed = None if unavailable(weight.device) else streamed_plans(gpu, "bfloat16", columns, depth)
    return (streamed and streamed[rows]) or (tuned and tuned[rows])


def experts_plan_of(rows: int, size: Size) -> ExpertsPlan | None:
    """Return the plan of routed_experts: of its table, or else the fastest that was measured."""
    return tuned_experts(rows, size) or MEASURED_EXPERTS.get(rows)


def tuned_experts(rows: int, size: Size) -> ExpertsPlan | None:
    """Return the plan of routed_experts' table; None where SGLang's own kernels are as fast."""
    gpu = torch.cuda.get_device_name() if DEVICE == "cuda" else ""
    plans = experts_plans(gpu, size.hidden, size.width, size.experts, size.top_k)
    return plans[rows] if plans else None


class Trial:
    """The plans of one number of rows, each compared with fp32 and timed."""

    def __init__(self, layers: Layers, rows: int, until: float) -> None:
        self.layers, self.rows, self.until = layers, rows, until
        self.drawn = layers.draw(rows)
        self.wanted = [
            reference.dense_beside_experts(*layers.normed(*drawn)[1], weights, layers.size.top_k)
            for drawn, weights in zip(self.drawn, layers.weights, strict=True)
        ]
        self.taken: dict[Plan, float] = {}

    def recorded(self, name: str, way: Way) -> Recorded:
        """Return its graph. Raises WrongAnswer if it computes something else than fp32."""

        def call(at: int) -> tuple[torch.Tensor, torch.Tensor]:
            return self.layers.run(way, self.drawn[at % LAYERS], at % LAYERS)

        for at in range(LAYERS):
            for part, found, wanted in zip(("dense", "experts"), call(at), self.wanted[at], strict=True):
                error = ((found - wanted).float().norm() / wanted.float().norm()).item()
                if not error <= _MOST_ERROR:
                    raise WrongAnswer(f"{self.rows} rows: {part} of {name} is {error:.2e} from fp32")
        return capture(call, LAYERS, LAYERS)

    def record(self, plan: Plan) -> Recorded | None:
        """Return the graph of a plan, or None where it cannot be had, with a line that says why.

        Raises:
            DeviceLost: An error that CUDA repeats at every call.
        """
        try:
            return self.recorded(str(list(plan)), beside(plan, self.layers.size.top_k))
        except (TritonError, RuntimeError, ValueError, WrongAnswer) as error:
            print(f"{self.rows} rows, {list(plan)}: left out: {told(error)}", file=sys.stderr)
            if DEVICE == "cuda" and not device_answers():
                raise DeviceLost(str(list(plan)), f"{list(plan)}: {told(error)}") from error
            return None

    def fastest(self, plans: list[Plan]) -> Plan | None:
        """Return the fastest of all that were tried until now and of these, as far as there is time."""
        for plan in plans:
            if plan in self.taken or time.monotonic() > self.until:
                continue
            one = self.record(plan)
            if one is not None:
                self.taken[plan] = statistics.median(interleaved({"": one.graph}, 5, 1.0, 2)[""])
                print(f"{self.rows} rows, {list(plan)}: {self.taken[plan] / LAYERS:.2f} us", file=sys.stderr)
        return min(self.taken, key=lambda plan: self.taken[plan], default=None)


def tried(trial: Trial, experts: ExpertsPlan) -> list[Plan]:
    """Return the fastest plans of a first pass, the fastest first."""
    single = trial.rows == 1
    (n, k, stages, warps), *others = GATES[trial.rows]
    start = plan_of(
        ProductPlan(8, 16, 256, 1, 4, 2, False),
        experts._replace(gate_n=n, gate_k=k, gate_stages=stages, gate_warps=warps),
        ProductPlan(8, min(n, 32), 64, 1, 6, warps, False),
    )
    firsts = [(m, *first) for m in ((1, 8) if single else (8,)) for first in FIRSTS[m]]
    best = trial.fastest([start, *(start._replace(**_named("first", ("m", *_CUT), first)) for first in firsts)])
    if best is None:
        return []
    best = trial.fastest([best._replace(**_named("gate", _CUT, gate), dense_n=min(gate[0], 32)) for gate in others])
    assert best is not None
    denses = DENSES[1] if single else DENSES[8]
    best = trial.fastest([best._replace(**_named("dense", ("m", *_CUT[:3]), dense)) for dense in denses])
    assert best is not None
    best = trial.fastest([best._replace(dense_first=False)])
    assert best is not None
    dense_steps = -(-trial.layers.size.dense_width // best.dense_k)
    first_steps = -(-trial.layers.size.hidden // best.first_k)
    best = trial.fastest([best._replace(dense_ahead=steps) for steps in (2, dense_steps)])
    assert best is not None
    trial.fastest([best._replace(first_ahead=steps) for steps in (1, -(-first_steps // 2))])
    return sorted(trial.taken, key=lambda plan: trial.taken[plan])[:FINALISTS]


_CUT = ("n", "k", "stages", "warps")


def _named(launch: str, names: tuple[str, ...], cut: tuple[int, ...]) -> dict[str, int]:
    return {f"{launch}_{name}": number for name, number in zip(names, cut, strict=True)}


def measure(layers: Layers, rows: int, rounds: int, until: float) -> Iterator[dict[str, Any]]:
    """Yield the row of a number of rows; none if no plan was right, or there was no time for one.

    Raises:
        WrongAnswer: the ops one by one computed something else than fp32.
        DeviceLost: an error that CUDA repeats at every call.
    """
    size = layers.size
    let_next_in_where(lambda: True, streams_behind)
    try:
        trial = Trial(layers, rows, until)
        graphs = {"one-by-one": trial.recorded("one by one", one_by_one(rows, size))}
        if tuned_experts(rows, size) is None and (theirs := with_sglangs_experts(trial)) is not None:
            graphs["sglang-experts"] = theirs
        plans = tried(trial, experts_plan_of(rows, size) or MEASURED_EXPERTS[8])
        ours = {json.dumps(plan): one for plan in plans if (one := trial.record(plan)) is not None}
        if not ours:
            print(f"{rows} rows: no plan was measured", file=sys.stderr)
            return
        let_nothing_in()
        # What a plan would take if norms let nothing start before their own inputs are there.
        waits = trial.record(plans[0])
    finally:
        let_nothing_in()
    graphs |= ours | ({} if waits is None else {"norms-wait": waits})
    taken = interleaved({name: one.graph for name, one in graphs.items()}, rounds, _SIZE_LIMIT_S, 2)
    us = {name: spread([sample / LAYERS for sample in samples]) for name, samples in taken.items()}
    best = min(ours, key=lambda name: us[name]["median"])
    chosen = statistics.mean(_experts_chosen(layers, trial, at) for at in range(LAYERS))
    first = layers.weights[0]
    experts_bytes = chosen * sum(tensor[0].nbytes for tensor in (first.experts_gate_up, first.experts_down))
    weight_bytes = int(experts_bytes) + sum(tensor.nbytes for tensor in first[:4])
    yield size._asdict() | {
        "rows": rows,
        "layers": LAYERS,
        "experts_drawn": chosen,
        "weight_bytes": weight_bytes,
        "limit_us": weight_bytes / LIMIT_BYTES_PER_US,
        "us": {"ours": us[best]} | {name: us[name] for name in graphs if name not in ours},
        "plan": json.loads(best),
        "tried": len(trial.taken),
    }


def _experts_chosen(layers: Layers, trial: Trial, at: int) -> int:
    router_x, weights = layers.normed(*trial.drawn[at])[1][1], layers.weights[at]
    return len((router_x.float() @ weights.router.float().T).topk(layers.size.top_k, dim=1).indices.unique())


def with_sglangs_experts(trial: Trial) -> Recorded | None:
    """Return the graph of the ops one by one with SGLang's experts, or None where SGLang cannot say."""
    try:
        theirs = sglang_experts(trial.layers.size.experts)
        if theirs is None:
            return None
        return trial.recorded("SGLang's experts", one_by_one(trial.rows, trial.layers.size, theirs))
    except (TritonError, ImportError, OSError, RuntimeError, ValueError, TypeError, AttributeError) as error:
        print(f"{trial.rows} rows: SGLang's experts are left out: {told(error)}", file=sys.stderr)
        return None


def line(row: dict[str, Any]) -> str:
    """Return a row as a line of text."""
    medians = ", ".join(f"{arm} {us['median']:.2f}" for arm, us in row["us"].items())
    return f"{row['rows']} rows: {medians}, limit {row['limit_us']:.2f} us; {row['plan']}"


def table_text(document: dict[str, Any], rows_file: Path) -> str:
    """Return the table: by number of rows, the plan where it gains, else null for the ops one by one."""
    kept = ("gpu", "versions", "dtype", "date", "command")
    entries: dict[tuple[int, ...], dict[str, list[int] | None]] = {}
    for row in document["rows"]:
        us = row["us"]
        other = min(us[name]["median"] for name in ("one-by-one", "sglang-experts") if name in us)
        gains = us["ours"]["median"] <= document["gain"] * other
        entries.setdefault(tuple(row[name] for name in Size._fields), {})[str(row["rows"])] = (
            row["plan"] if gains else None
        )
    head = json.dumps({key: document[key] for key in kept} | {"rows_file": rows_file.name}, indent=1)
    lines = ["  " + json.dumps(Size(*key)._asdict() | {"plans": plans}) for key, plans in entries.items()]
    return head[:-2] + ',\n "entries": [\n' + ",\n".join(lines) + "\n ]\n}\n"


if __name__ == "__main__":
    sys.exit(main())
