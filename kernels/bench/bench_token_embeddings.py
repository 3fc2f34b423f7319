"""Measure token_embeddings beside the lines of SGLang 0.5.13.post1 that it stands for, as CUDA graphs.

    python kernels/bench/bench_token_embeddings.py --output FILE

A graph is 20 calls in a row, each with ids of its own out of the whole vocabulary, so that no row is in a cache; arms
are replayed in rotating order, and a sample is one replay's time / 20. Before an arm is timed its bits are compared.
Exit codes: 0 measured, 1 an answer was wrong, 2 usage, 3 no CUDA.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from bench_page_guard import BUILDS, capture, interleaved, options_of, origin, summary, write

from gemma4_kernels.token_embeddings.launch import token_embeddings
from gemma4_kernels.token_embeddings.spec import AXES
from gemma4_repro.kernel_bench.replay_clock import replay_us

# Hidden size, and layers times per-layer size.
SIZES = {"e2b": (1536, 8960), "e4b": (2560, 10752), "26b": (2816, 0), "31b": (5376, 0)}
VOCABULARY, HIDDEN, PAD = 262144, (258880, 258884, 258881), 0
Arm = Callable[[int], Any]
# What a cell is, its arms, and for each the tensors that one call gives.
Cell = tuple[dict[str, Any], dict[str, Arm]]


def main(argv: list[str] | None = None) -> int:
    return run(argv, "token_embeddings", __doc__ or "", cells())


def run(argv: list[str] | None, op: str, about: str, measured: Iterable[Cell]) -> int:
    """Measure cells of one op whose arms give the same bits.

    Args:
        argv: Words of the command line.
        op: Its name.
        about: What the script says of itself.
        measured: The cells. An arm's call number picks its inputs, and returns a list of tensors.
    """
    options = options_of(argv, f"bench_{op}", about, 100)
    if options is None:
        return 3
    rows = []
    for size, arms in measured:
        first, *others = [[one.clone() for one in arm(0)] for arm in arms.values()]
        if any(not torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True)):
            print(f"{size}: the arms give different bits", file=sys.stderr)
            return 1
        graphs = {name: capture(arm) for name, arm in arms.items()}
        samples = interleaved(
            {name: lambda _, graph=graph: replay_us(graph) / BUILDS for name, graph in graphs.items()}, options.rounds
        )
        found = [size | {"arm": name, "clock": "graph"} | summary(samples[name]) for name in arms]
        rows += found
        medians = ", ".join(f"{row['arm']} {row['median_us']:.2f} us" for row in found)
        print(f"{', '.join(f'{key} {value}' for key, value in size.items())}: {medians}", file=sys.stderr)
    write(
        origin("1.0", op, "sglang") | {"rounds": options.rounds, "calls_per_graph": BUILDS, "rows": rows},
        options.output,
    )
    return 0


def cells() -> Iterable[Cell]:
    for model in AXES["model"]:
        width, per_layer = SIZES[str(model)]
        tables = [
            torch.randn(VOCABULARY, width or 1, dtype=torch.bfloat16, device="cuda") for width in (width, per_layer)
        ]
        for tokens in AXES["tokens"]:
            ids = [torch.randint(VOCABULARY, (int(tokens),), device="cuda") for _ in range(BUILDS)]
            yield {"model": model, "tokens": tokens}, make_arms(ids, tables[0], tables[1] if per_layer else None)


def make_arms(ids: list[torch.Tensor], table: torch.Tensor, per_layer: torch.Tensor | None) -> dict[str, Arm]:
    factors = table.shape[1] ** 0.5, 256**0.5

    def ours(call: int) -> list[torch.Tensor]:
        made = token_embeddings(ids[call], table, factors[0], per_layer, factors[1], hidden_ids=HIDDEN, pad=PAD)
        return [one for one in made if one is not None]

    def sglang(call: int) -> list[torch.Tensor]:
        given = ids[call]
        shown = given.clone()
        for hidden in HIDDEN:
            shown[given == hidden] = PAD
        tokens = torch.nn.functional.embedding(given, table) * factors[0]
        if per_layer is None:
            return [tokens]
        inside = torch.logical_and(shown >= 0, shown < len(per_layer))
        shown = torch.where(inside, shown, torch.zeros_like(shown))
        return [tokens, torch.nn.functional.embedding(shown, per_layer) * factors[1]]

    return {"sglang": sglang, "ours": ours}


if __name__ == "__main__":
    sys.exit(main())
