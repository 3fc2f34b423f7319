"""Measure decode_attention beside the two kernels of SGLang's Triton backend.

    python kernels/bench/bench_decode_attention.py --output FILE
    python kernels/bench/bench_decode_attention.py --fronts --output FILE     full layers with what is ahead of them

An arm is a CUDA graph of attentions, each behind a norm that reads the result of the one before and writes its queries;
keys and values rotate until ROTATED_BYTES of them have been read, so that they come from memory and not from the L2
cache. SGLang's arm has as many parts as its own rule gives each request. Every arm is compared with fp32 before it is
timed, in rotating order. With --fronts an attention also norms, turns and stores what the norm ahead makes: *programs*
is the kernel in Triton, and *clusters* the one in CUDA C++, which is compared with it. The limit is the size of keys
and values over 4.59 TB/s, at which this GPU's matrix products have read their weights (docs/products.md). Exit codes: 0
measured, 1 an answer was wrong, 2 usage, 3 no CUDA.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch
from bench_page_guard import origin, write

from gemma4_kernels.decode_attention.launch import Front, NewKeys, Plan, cluster_shares, decode_attention, plan_for
from gemma4_kernels.rmsnorm_add.launch import rmsnorm_add
from gemma4_repro.bench.quantiles import spread
from gemma4_repro.kernel_bench.replay_clock import capture, interleaved, sets_for

RATE = 4.59e12
CALLS = 32
_MOST_ERROR = 1e-2
"""Relative to the fp32 result's norm; bf16 probabilities and results round by 3e-3."""
# (name, query heads, key heads, head dim, slots of a request)
LAYERS = (
    ("e4b-sliding", 8, 2, 256, (128, 511)),
    ("e4b-full", 8, 2, 512, (128, 768, 4096, 32768)),
    ("e2b-sliding", 8, 1, 256, (511,)),
    ("e2b-full", 8, 1, 512, (768, 4096)),
    ("26b-sliding", 16, 8, 256, (1023,)),
    ("26b-full", 16, 2, 512, (1024, 4096)),
)
REQUESTS = (1, 8, 16, 64, 256)
FRONT_REQUESTS, FRONT_SLOTS = (1, 2, 4, 8, 12), (128, 768, 2048, 8192, 32000)
_MOST_SLOTS = 1 << 19


def plans(requests: int, kv_heads: int, device: torch.device) -> dict[str, Plan]:
    """Return our arms: the plan that a call without one has, and others."""
    own = plan_for(requests, kv_heads, device)
    tried = [own._replace(block=block, stages=stages, num_warps=warps, least=least) for block, stages, warps, least in (
        (32, 3, 4, 64), (32, 5, 4, 64), (64, 3, 8, 64), (32, 5, 4, 32), (32, 3, 8, 64), (64, 3, 8, 128),
    )]  # fmt: skip
    return {"ours": own} | {f"plan {'-'.join(map(str, plan))}": plan for plan in tried}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, help="JSON file to write; default: stdout")
    parser.add_argument("--rounds", type=int, default=15, help="samples per arm and cell (default 15)")
    parser.add_argument("--limit-s", type=float, default=240.0, help="end after this long with what there is")
    parser.add_argument("--search", action="store_true", help="time other plans than the one that is taken, too")
    parser.add_argument("--fronts", action="store_true", help="time full layers with their front by both kernels")
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("bench_decode_attention measures a GPU, and no CUDA device was found", file=sys.stderr)
        return 3
    begin, rows, wrong = time.monotonic(), [], False
    wide = [(*layer[:-1], FRONT_SLOTS) for layer in LAYERS if layer[3] == 512]
    for requests in FRONT_REQUESTS if options.fronts else REQUESTS:
        for name, heads, kv_heads, head_dim, lengths in wide if options.fronts else LAYERS:
            for length in lengths:
                if requests * length > _MOST_SLOTS or time.monotonic() - begin > options.limit_s:
                    continue
                cell = name, requests, heads, kv_heads, head_dim, length, options.rounds
                for row in measure_front(*cell) if options.fronts else measure(*cell, options.search):
                    rows.append(row)
                    wrong |= not row["error"] <= _MOST_ERROR
                print(line(rows), file=sys.stderr, flush=True)
    write(origin("1.0", "decode_attention") | {"dtype": "bfloat16", "rate": RATE, "rows": rows}, options.output)
    return 1 if wrong else 0


def measure(
    name: str, requests: int, heads: int, kv_heads: int, head_dim: int, length: int, rounds: int, search: bool
) -> list[dict[str, Any]]:
    """Return a row for each arm of this cell; an arm whose answer is wrong has no times."""
    device, dtype = torch.device("cuda", torch.cuda.current_device()), torch.bfloat16
    moved = 2 * requests * length * kv_heads * head_dim * 2
    sets = sets_for(moved, CALLS)
    count = requests * length
    pools = [torch.randn(count, 2 * kv_heads, head_dim, device=device, dtype=dtype) for _ in range(sets)]
    starts = torch.arange(0, count + 1, length, dtype=torch.int32, device=device)
    slots = torch.randperm(count, device=device)
    width = heads * head_dim
    queries, ones = (
        torch.randn(requests, width, device=device, dtype=dtype),
        torch.ones(width, device=device, dtype=dtype),
    )
    scale = 1.0 / head_dim**0.5

    def arm(attend: Any) -> Any:
        state = {"hidden": queries}

        def call(number: int) -> torch.Tensor:
            q = rmsnorm_add(state["hidden"] if number else queries, ones, queries).view(requests, heads, head_dim)
            pool = pools[number % sets]
            made = attend(q, pool[:, :kv_heads], pool[:, kv_heads:])
            state["hidden"] = made.view(requests, width)
            return made

        return call

    chosen = plans(requests, kv_heads, device)
    arms = {"sglang": sglang(requests, heads, kv_heads, head_dim, starts, slots, scale)}
    for label, plan in chosen.items() if search else [("ours", chosen["ours"])]:
        arms[label] = lambda q, k, v, plan=plan: decode_attention(q, k, v, starts, slots, scale, plan=plan)
    q = queries.view(requests, heads, head_dim)
    expected = in_fp32(q, pools[0][:, :kv_heads], pools[0][:, kv_heads:], slots, length, scale)
    rows, graphs = [], {}
    for label, attend in arms.items():
        found = attend(q, pools[0][:, :kv_heads], pools[0][:, kv_heads:]).float()
        error = float((found - expected).norm() / expected.norm())
        rows.append(
            {
                "layer": name,
                "requests": requests,
                "slots": length,
                "heads": heads,
                "kv_heads": kv_heads,
                "head_dim": head_dim,
                "arm": label,
                "plan": list(chosen[label]) if label in chosen else None,
                "error": error,
                "limit_us": moved / RATE * 1e6,
            }
        )
        if error <= _MOST_ERROR:
            graphs[label] = capture(arm(attend), CALLS, sets)
    for label, us in interleaved({label: one.graph for label, one in graphs.items()}, rounds, 4.0).items():
        next(row for row in rows if row["arm"] == label)["us"] = spread([sample / CALLS for sample in us])
    return rows


def measure_front(
    name: str, requests: int, heads: int, kv_heads: int, head_dim: int, length: int, rounds: int
) -> list[dict[str, Any]]:
    """Return a row for each kernel of a front that this cell can have."""
    device, dtype = torch.device("cuda", torch.cuda.current_device()), torch.bfloat16
    moved = 2 * requests * length * kv_heads * head_dim * 2
    sets = min(sets_for(moved, CALLS), 16)
    count = requests * length
    pools = [torch.randn(count, 2 * kv_heads, head_dim, device=device, dtype=dtype) for _ in range(sets)]
    starts = torch.arange(0, count + 1, length, dtype=torch.int32, device=device)
    slots = torch.randperm(count, device=device)
    places = slots[starts[1:].long() - 1].clone()
    sizes = [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim]
    rows = torch.randn(requests, sum(sizes), device=device, dtype=dtype)
    ones = torch.ones(sum(sizes), device=device, dtype=dtype)
    angles = torch.randn(64, head_dim // 2, device=device)
    table, positions = torch.cat((angles.cos(), angles.sin()), 1), torch.arange(requests, device=device) % 64
    weights = torch.rand(2, head_dim, device=device).to(dtype) * head_dim**-0.25

    def arm(plan: Plan | None) -> Any:
        def call(number: int) -> torch.Tensor:
            q, k, v = (part.unflatten(1, (-1, head_dim)) for part in rmsnorm_add(rows, ones, rows).split(sizes, 1))
            front = Front(weights[0], table, positions, 1e-6, NewKeys(k, v, weights[1], places))
            pool = pools[number % sets]
            return decode_attention(
                q, pool[:, :kv_heads], pool[:, kv_heads:], starts, slots, 1.0, front=front, plan=plan
            )

        return call

    arms: dict[str, Plan | None] = {"programs": plan_for(requests, kv_heads, device, head_dim)}
    shares = cluster_shares(
        requests, heads, kv_heads, head_dim, torch.cuda.get_device_properties(device).multi_processor_count
    )
    if shares is not None:
        arms["clusters"] = None
    expected = arm(arms["programs"])(0).float()
    found, graphs = [], {}
    for label, plan in arms.items():
        error = float((arm(plan)(0).float() - expected).norm() / expected.norm())
        sizes_of = {"slots": length, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "arm": label}
        how = {"plan": list(plan) if plan else None, "shares": list(shares) if plan is None and shares else None}
        numbers = {"error": error, "limit_us": moved / RATE * 1e6}
        found.append({"layer": name, "requests": requests, **sizes_of, **how, **numbers})
        if error <= _MOST_ERROR:
            graphs[label] = capture(arm(plan), CALLS, sets)
    for label, us in interleaved({label: one.graph for label, one in graphs.items()}, rounds, 4.0).items():
        next(row for row in found if row["arm"] == label)["us"] = spread([sample / CALLS for sample in us])
    return found


def sglang(
    requests: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    starts: torch.Tensor,
    slots: torch.Tensor,
    scale: float,
    most: int = 8,
) -> Any:
    """Return SGLang's attention with `most` parts, its default, and as many of them as its rule gives."""
    from sglang.srt.layers.attention.triton_ops.decode_attention import decode_attention_fwd
    from sglang.srt.layers.attention.triton_ops.metadata import get_num_kv_splits_triton

    device = starts.device
    parts = torch.empty(requests, dtype=torch.int32, device=device)
    lengths = (starts[1:] - starts[:-1]).long()
    cores = torch.cuda.get_device_properties(device).multi_processor_count
    schedule = 256 if requests < 256 else 1 << (requests - 1).bit_length()
    numbers = (requests, 1, heads, kv_heads, most, cores)
    get_num_kv_splits_triton[(1,)](parts, lengths, *numbers, MAX_NUM_SEQ=schedule)  # pyright: ignore[reportArgumentType]
    logits = torch.empty(requests, heads, most, head_dim, dtype=torch.float32, device=device)
    sums = torch.empty(requests, heads, most, dtype=torch.float32, device=device)

    def attend(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(q)
        decode_attention_fwd(
            q, keys, values, out, starts, slots, logits, sums, parts, most, scale, 1.0, 1.0, use_pdl=True
        )
        return out

    return attend


def in_fp32(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor, length: int, scale: float
) -> torch.Tensor:
    out = []
    for request, one in enumerate(q):
        mine = slots[request * length : (request + 1) * length]
        k, v = keys[mine].transpose(0, 1).float(), values[mine].transpose(0, 1).float()
        scores = one.float().unflatten(0, (k.shape[0], -1)) @ k.transpose(1, 2) * scale
        out.append((scores.softmax(-1) @ v).flatten(0, 1))
    return torch.stack(out)


def line(rows: list[dict[str, Any]]) -> str:
    """Return the last cell in one line: each arm's median."""
    last = [row for row in rows if all(row[name] == rows[-1][name] for name in ("layer", "requests", "slots"))]
    told = ", ".join(
        f"{row['arm']} {row['us']['median']:.2f}" if "us" in row else f"{row['arm']} wrong" for row in last
    )
    return f"{last[0]['layer']} {last[0]['requests']} x {last[0]['slots']}: limit {last[0]['limit_us']:.2f}, {told} us"


if __name__ == "__main__":
    sys.exit(main())
