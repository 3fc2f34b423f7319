"""Write docs/products.md from the committed rows of small_m_linear and of steps with it."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from product_page_begins import begins, read_steps
from product_page_experts import beside, commands_of, experts

from gemma4_kernels.layer_tail.kernel import tuned_plans as tail_plans
from gemma4_kernels.small_m_linear.tuned import streamed_plans
from gemma4_triage.cli.option_names import todays_line

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "products.md"
ROWS = ROOT / "kernels" / "bench" / "rows" / "small_m_linear_h200_2026-11-23.json"
STEPS = [ROOT / "docs" / "bench" / f"step_products_h200_2026-11-23_{model}.json" for model in ("e4b", "e2b", "26b")]
GATES = [ROOT / "docs" / "bench" / f"step_gates_h200_2026-11-25_{model}.json" for model in ("e4b", "e2b", "26b")]
STREAMED = ROOT / "kernels" / "bench" / "rows" / "streamed_products_h200_2026-11-26.json"
STREAMED_STEPS = [
    ROOT / "docs" / "bench" / f"step_streamed_h200_2026-11-26_{model}.json" for model in ("e4b", "e2b", "26b")
]
TAIL = ROOT / "kernels" / "bench" / "rows" / "layer_tail_h200_2026-11-28.json"
SLIDING_STEPS = [
    ROOT / "docs" / "bench" / f"step_tail_of_sliding_h200_2026-11-29_{name}.json" for name in ("e4b", "e4b_8192")
]
TAIL_STEPS = [ROOT / "docs" / "bench" / f"step_tail_h200_2026-11-28_{model}.json" for model in ("e4b", "e2b")]
EXPERTS = ROOT / "kernels" / "bench" / "rows" / "routed_experts_h200_2026-11-29.json"
EXPERTS_STEPS = [ROOT / "docs" / "bench" / f"step_experts_h200_2026-11-29_{name}.json" for name in ("26b", "26b_8192")]
BESIDE = ROOT / "kernels" / "bench" / "rows" / "beside_experts_h200_2026-11-29.json"
BESIDE_STEPS = [ROOT / "docs" / "bench" / f"step_beside_h200_2026-11-30_{name}.json" for name in ("26b", "26b_8192")]
PEERS = ROOT / "kernels" / "bench" / "rows" / "product_peers_h200_2026-11-26.json"
SHOWN = (1, 8, 16)
STREAMED_AT_ONE_ROW = ("e4b", "e2b")
"""Models of which products of one row were streamed in the rows, and are not today."""
LEFT_OUT = "lm-head"

HEAD = """# Matrix products of a decode step

Made by `docs/make_product_page.py` from [rows](../kernels/bench/rows/{rows})
and [steps](bench/); {gpu}, torch {torch}, Triton {triton}.

```
{command}
```

A decode step reads all weights once and computes little with them, so what bounds a product is the time to read its
weights. Each product is timed behind the norm of its input, as it stands in a layer, in a CUDA graph of products whose
weights come from memory and not from the L2 cache. Times are medians in microseconds and include that norm. *limit* is
the size of the weights over {rate:.2f} TB/s, the fastest rate at which any arm of this run read its own; *of limit* is
the limit over our time. *cuBLAS* is the faster of cuBLAS and cuBLASLt as torch calls them. The table of plans names
ours where it needs at most {gain:.0%} of that time, which is so in {taken} of {cells} cells; elsewhere the patch
`small-m-linear` leaves the product to cuBLAS.

## All products of a step, without the LM head

The LM head is not taken by the patch: it is read at {head:.0%} of that rate by cuBLAS, batch 1, e4b.

| model | rows | cuBLAS, ms | ours, ms | limit, ms |
|---|---|---|---|---|
"""

STEP_HEAD = """
## Whole steps

```
{commands}
```

768 tokens of context. *cuBLAS* is the step with all our other kernels (arm `all-cublas`), *ours* with `small-m-linear`
as well (arm `all`); above 16 rows it is not taken. Logits were compared before anything was timed.

| model, batch | as shipped, ms | cuBLAS, ms | ours, ms | cuBLAS / ours | as shipped / ours |
|---|---|---|---|---|---|
"""

STEP_END = """
{unequal}
The experts of 26b are not products of this kind: in these rows SGLang's grouped kernels read them
([experts](#experts)).

## With the gates in the same launch

The gate of an MLP and that of a per-layer embedding are computed by the program that has just made the product: no
launch and no intermediate tensor of their own, and the bits are those of our two kernels one behind the other. All
defaults, among them `decode-attention`, which the rows above are without; 768 tokens of context.

```
{gates_commands}
```

| model, batch | as shipped, ms | ours, ms | as shipped / ours | kernels as shipped | kernels of ours |
|---|---|---|---|---|---|
{gates}

{streamed}
{peers}
## Each product

| product | columns, depth | rows | cuBLAS | ours | limit | of limit |
|---|---|---|---|---|---|---|
"""


STREAMED_HEAD = """## Streamed weights

Between two products of a step the memory is idle until the last multiprocessor is done, the norm has run and the first
weights arrive. `streamed-products` is a kernel in CUDA C++
([streamed.cu](../kernels/gemma4_kernels/small_m_linear/streamed.cu)), built on the spot by CUDA's compiler library. Its
multiprocessors have equally many rows of the weight each, and a ring in shared memory that one warp fills by bulk
copies before the inputs are there. No sum is shared, so a row's bits do not depend on what is beside it. It takes the
products of its table, where it needs at most {gain:.0%} of the time of the kernel above and of cuBLAS. Norms ahead of
it let it start before their own inputs are there; *norm first* is the kernel above behind such a norm.

```
{command}
```

Sums over the products of a step without the LM head, in milliseconds, another run:

| model | rows | ours above | norm first | with streamed | products that are streamed |
|---|---|---|---|---|---|
"""
STREAMED_STEP_HEAD = """
Whole steps, all defaults with (*streamed*) and without it (*unstreamed*), 768 tokens of context:

```
{commands}
```

| model, batch | as shipped, ms | unstreamed, ms | streamed, ms | unstreamed / streamed | as shipped / streamed |
|---|---|---|---|---|---|
"""
STREAMED_END = """
One row of E4B and E2B is not streamed, since a step was not faster by it, nor are more than 8 of 26B, of which the
products' sum was not smaller. The kernel's load of its input was put behind its wait after these rows were measured
(the compiler had moved it ahead in some builds for 9 to 16 rows). In the rows of batch 1 of
[E4B](bench/step_streamed_h200_2026-11-26_e4b.json) and
[E2B](bench/step_streamed_h200_2026-11-26_e2b.json) it still was, x{slower[e4b]:.3f} and x{slower[e2b]:.3f} as fast as
unstreamed; that step is the one of the table before. A server builds its kernels as it captures its graphs, once:
Triton's cache folder keeps them.
"""


def streamed_sums(document: dict[str, Any]) -> Iterator[str]:
    """Yield a line per model and number of rows: sums of the products, and how many of them are streamed."""
    for model in ("e4b", "e2b", "26b"):
        for count in SHOWN:
            total, taken, kinds = [0.0, 0.0, 0.0], 0, 0
            for row in (row for row in document["rows"] if row["rows"] == count):
                us = {arm: times["median"] for arm, times in row["us"].items()}
                above, first = (
                    min(us[arm] for arm in ("cublas", name) if arm in us) for name in ("table", "table-first")
                )
                plans = streamed_plans(document["gpu"]["name"], document["dtype"], row["columns"], row["depth"])
                streamed = plans is not None and plans[count] is not None
                for often, name in (use.split(" x ") for use in row["uses"]):
                    if name.startswith(f"{model}."):
                        times = above, first, us["ours"] if streamed else above
                        total = [before + int(often) * one / 1000 for before, one in zip(total, times, strict=True)]
                        taken, kinds = taken + streamed, kinds + 1
            yield f"| {model} | {count} | " + " | ".join(f"{ms:.2f}" for ms in total) + f" | {taken} of {kinds} |"


def streamed_steps(documents: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a line per model and batch of whole steps, of those whose products are streamed today."""
    for document in documents:
        us = {(row["batch"], row["arm"]): row["step_us"]["median"] / 1000 for row in document["rows"]}
        (model,) = document["models"]
        for batch in sorted({batch for batch, arm in us if arm == "all"}):
            if not (batch == 1 and model in STREAMED_AT_ONE_ROW):
                shipped, without, ours = (us[batch, arm] for arm in ("shipped", "all-unstreamed", "all"))
                ratios = f"x{without / ours:.3f} | x{shipped / ours:.3f}"
                yield f"| {model}, {batch} | {shipped:.2f} | {without:.2f} | {ours:.2f} | {ratios} |"


def streamed(document: dict[str, Any], steps: list[dict[str, Any]]) -> str:
    """Return the section on streamed weights."""
    slower = {}
    for step in steps:
        us = {(row["batch"], row["arm"]): row["step_us"]["median"] for row in step["rows"]}
        (model,) = step["models"]
        slower[model] = us[1, "all-unstreamed"] / us[1, "all"]
    text = STREAMED_HEAD.format(gain=document["gain"], command=document["command"])
    text += "".join(f"{line}\n" for line in streamed_sums(document))
    commands = commands_of(steps)
    text += STREAMED_STEP_HEAD.format(commands="\n".join(commands))
    text += "".join(f"{line}\n" for line in streamed_steps(steps))
    return text + STREAMED_END.format(slower=slower)


TAIL_HEAD = """## A layer behind its attention in one launch

Six products, of which one is the next layer's, and five norms follow the attention of a layer with per-layer
embeddings. `layer-tail` ([layer_tail.cu](../kernels/gemma4_kernels/layer_tail/layer_tail.cu)) is all of them in one
launch, for at most 8 rows: a block on each multiprocessor, whose ring goes on filling with the next product's weights
while rows go from block to block and are normed. Blocks wait for each other, so the launch is cooperative. Its table
names it where it was faster than the ops one by one, and where a whole step was: up to {e4b} rows of E4B and {e2b} of
E2B. There it leaves 16 multiprocessors to the attention of so few requests: a block there would begin when that ends,
with an empty ring, and all others would wait for it.

```
{command}
```

Microseconds of a layer without its attention, medians of one run; *one by one* are the kernels above and our norms,
*limit* is the size of the layer's weights over {rate:.2f} TB/s as above:

| layer | rows | one by one | one launch | limit | of limit |
|---|---|---|---|---|---|
"""
TAIL_STEP_HEAD = """
Whole steps, all defaults with and without it, 768 tokens of context:

```
{commands}
```

| model, batch | as shipped, ms | one by one, ms | ours, ms | one by one / ours | as shipped / ours | kernels |
|---|---|---|---|---|---|---|
"""
SLIDING_HEAD = """
With 4 requests of E4B, as which SGLang's graphs run 3 too, no step gains by it: in all layers it made one of 8192
tokens slower, of which no rows are kept, and in sliding layers alone it was as fast as *one by one*, which is in force:

```
{commands}
```

| model, batch, context | as shipped, ms | one by one, ms | in sliding layers, ms | one by one / in sliding layers |
|---|---|---|---|---|
"""


def tail(
    document: dict[str, Any], steps: list[dict[str, Any]], sliding: list[dict[str, Any]], bytes_per_s: float
) -> str:
    """Return the section on layers of one launch."""
    gpu = document["gpu"]["name"]
    taken = {
        (use.split(".")[0], row["rows"])
        for row in document["rows"]
        if (plans := tail_plans(gpu, row["hidden"], row["wide"], row["inner"])) and plans[row["rows"]]
        for use in row["uses"]
    }
    most = {model: max(rows for one, rows in taken if one == model) for model in ("e4b", "e2b")}
    text = TAIL_HEAD.format(**most, command=document["command"], rate=bytes_per_s / 1e12)
    for row in document["rows"]:
        ours, limit_us = row["us"]["ours"]["median"], row["weight_bytes"] / bytes_per_s * 1e6
        times = f"{row['us']['one-by-one']['median']:.1f} | {ours:.1f} | {limit_us:.1f} | {limit_us / ours:.0%}"
        text += f"| {', '.join(row['uses'])} | {row['rows']} | {times} |\n"
    commands = commands_of(steps)
    text += TAIL_STEP_HEAD.format(commands="\n".join(commands))
    for step in steps:
        rows = {(row["batch"], row["arm"]): row for row in step["rows"]}
        (model,) = step["models"]
        for batch in (batch for batch, arm in rows if arm == "all" and (model, batch) in taken):
            cells = [rows[batch, arm] for arm in ("shipped", "all-separate", "all")]
            shipped, separate, ours = (cell["step_us"]["median"] / 1000 for cell in cells)
            ratios = f"x{separate / ours:.3f} | x{shipped / ours:.3f} | {cells[-1]['kernels']}"
            text += f"| {model}, {batch} | {shipped:.2f} | {separate:.2f} | {ours:.2f} | {ratios} |\n"
    commands = commands_of(sliding)
    text += SLIDING_HEAD.format(commands="\n".join(commands))
    for step in sliding:
        us = {(row["batch"], row["arm"]): row["step_us"]["median"] / 1000 for row in step["rows"]}
        (model,), context = step["models"], step["method"]["context_tokens"]
        for batch in sorted({batch for batch, _ in us}):
            shipped, separate, ours = (us[batch, arm] for arm in ("shipped", "all-separate", "all"))
            times = f"{shipped:.2f} | {separate:.2f} | {ours:.2f} | x{separate / ours:.3f}"
            text += f"| {model}, {batch}, {context} | {times} |\n"
    return text + "\n"


PEERS_HEAD = """## Beside other libraries

```
{command}
```

Another run, sums over the products of a step without the LM head, in milliseconds; *limit* as above, of this run's
fastest rate, {rate:.2f} TB/s. *cuBLASLt, best* is the fastest of up to {algorithms} algorithms that cuBLASLt's
heuristic names, product by product. *FlashInfer* is `tinygemm_bf16`, which is TensorRT-LLM's kernel for few rows,
*compile* torch.compile with max-autotune. *fastest* says which arm is the fastest in how many of the products.

| model | rows | cuBLAS | cuBLASLt, best | FlashInfer | compile | ours | limit | fastest |
|---|---|---|---|---|---|---|---|---|
"""
PEER_ARMS = ("cublas", "cublaslt-best", "flashinfer", "compile", "ours")
PEERS_END = """
A dash is a sum of which a product is missing: FlashInfer's kernel is not tried above a depth of 4096, since its graph
of e4b.down failed or did not come back, and torch.compile compiled E4B's products of 1 and 8 rows. Of the sizes that
FlashInfer's kernel took it needs in the sum {flashinfer} times ours, by rows. Nothing was taken by
{refused}.
"""


def peer_lines(document: dict[str, Any]) -> Iterator[str]:
    """Yield a line per model and number of rows of which all products were measured."""
    for model in ("e4b", "e2b", "26b"):
        for count in SHOWN:
            used = [
                (int(use.split(" ")[0]), row)
                for row in document["rows"]
                if row["rows"] == count
                for use in row["uses"]
                if use.split(" ")[2].startswith(f"{model}.") and not use.endswith(LEFT_OUT)
            ]
            if not used:
                continue
            sums = [_sum_ms(used, arm) for arm in PEER_ARMS]
            limit = sum(often * row["limit_us"] for often, row in used) / 1000
            first = Counter(min(PEER_ARMS, key=lambda arm: _us(row, arm)) for _, row in used)
            told = ", ".join(f"{arm} {number}" for arm, number in first.most_common())
            times = " | ".join("-" if total is None else f"{total:.2f}" for total in sums)
            yield f"| {model} | {count} | {times} | {limit:.2f} | {told} |"


def _us(row: dict[str, Any], arm: str) -> float:
    return row["us"][arm]["median"] if arm in row["us"] else math.inf


def _sum_ms(used: list[tuple[int, dict[str, Any]]], arm: str) -> float | None:
    total = sum(often * _us(row, arm) for often, row in used) / 1000
    return total if math.isfinite(total) else None


def peers(document: dict[str, Any]) -> str:
    """Return the section on what other libraries have."""
    rows = document["rows"]
    refused = {arm: {row["refused"].get(arm) for row in rows} for arm in document["arms"]}
    nowhere = {arm: reasons for arm, reasons in refused.items() if None not in reasons}
    told = " and ".join(document["arms"][arm] for arm in nowhere)
    both = [row for row in rows if "flashinfer" in row["us"] and not any(use.endswith(LEFT_OUT) for use in row["uses"])]
    of_ours = {
        count: sum(_us(row, "flashinfer") for row in both if row["rows"] == count)
        / sum(_us(row, "ours") for row in both if row["rows"] == count)
        for count in SHOWN
    }
    flashinfer = ", ".join(f"{ratio:.2f} ({count})" for count, ratio in of_ours.items())
    head = PEERS_HEAD.format(
        command=document["command"],
        rate=document["read_bytes_per_s"] / 1e12,
        algorithms=max(row["algorithms"] for row in rows),
    )
    return head + "\n".join(peer_lines(document)) + "\n" + PEERS_END.format(refused=told, flashinfer=flashinfer)


def cublas_us(row: dict[str, Any]) -> float:
    """Return the time of the faster of cuBLAS and cuBLASLt."""
    return min(row["us"][arm]["median"] for arm in ("cublas", "cublaslt"))


def sums(rows: list[dict[str, Any]], models: tuple[str, ...]) -> Iterator[str]:
    """Yield a line per model and number of rows."""
    for model in models:
        for count in SHOWN:
            total = [0.0, 0.0, 0.0]
            for row in (row for row in rows if row["rows"] == count):
                for use in row["uses"]:
                    often, _, name = use.split(" ")
                    if name.startswith(f"{model}.") and not name.endswith(LEFT_OUT):
                        times = cublas_us(row), row["us"]["ours"]["median"], row["limit_us"]
                        total = [before + int(often) * us / 1000 for before, us in zip(total, times, strict=True)]
            yield f"| {model} | {count} | " + " | ".join(f"{value:.2f}" for value in total) + " |"


def step_lines(document: dict[str, Any]) -> Iterator[str]:
    """Yield a line per batch."""
    rows = {(row["batch"], row["arm"]): row["step_us"]["median"] / 1000 for row in document["rows"]}
    (model,) = document["models"]
    for batch in sorted({batch for batch, _ in rows}):
        shipped, cublas, ours = (rows[batch, arm] for arm in ("shipped", "all-cublas", "all"))
        ratios = f"x{cublas / ours:.3f} | x{shipped / ours:.3f}"
        yield f"| {model}, {batch} | {shipped:.2f} | {cublas:.2f} | {ours:.2f} | {ratios} |"


def gate_lines(document: dict[str, Any]) -> Iterator[str]:
    """Yield a line per batch of a step whose gates are part of the products."""
    rows = {(row["batch"], row["arm"]): row for row in document["rows"]}
    (model,) = document["models"]
    for batch in sorted({batch for batch, _ in rows}):
        shipped, ours = rows[batch, "shipped"], rows[batch, "all"]
        times = [row["step_us"]["median"] / 1000 for row in (shipped, ours)]
        counts = f"{shipped['kernels']} | {ours['kernels']}"
        yield f"| {model}, {batch} | {times[0]:.2f} | {times[1]:.2f} | x{times[0] / times[1]:.3f} | {counts} |"


def unequal(documents: list[dict[str, Any]]) -> str:
    """Return a sentence on the two arms that are the same graph, where they differ most."""
    apart = {}
    for document in documents:
        rows = {(row["model"], row["batch"], row["arm"]): row["step_us"]["median"] for row in document["rows"]}
        for (model, batch, arm), us in rows.items():
            if arm == "none":
                apart[model, batch] = abs(us / rows[model, batch, "shipped"] - 1)
    (model, batch), most = max(apart.items(), key=lambda entry: entry[1])
    rest = max(value for key, value in apart.items() if key != (model, batch))
    return (
        f"Two arms with the very same kernels, `none` and `shipped`, differ by {most:.1%} on {model} at batch {batch}, "
        f"so that\nless than this says nothing there; elsewhere they differ by at most {rest:.1%}."
    )


def markdown(
    document: dict[str, Any],
    steps: list[dict[str, Any]],
    gates: list[dict[str, Any]],
    others: dict[str, Any],
    sliding: list[dict[str, Any]],
    tails: dict[str, Any],
    tail_steps: list[dict[str, Any]],
    streams: dict[str, Any],
    streamed_runs: list[dict[str, Any]],
    routed: dict[str, Any],
    routed_steps: list[dict[str, Any]],
    dense: dict[str, Any],
    dense_steps: list[dict[str, Any]],
) -> str:
    """Return the page."""
    rows = document["rows"]
    head = next(row for row in rows if row["rows"] == 1 and any(use.endswith("e4b.lm-head") for use in row["uses"]))
    text = HEAD.format(
        rows=ROWS.name,
        gpu=document["gpu"]["name"],
        torch=document["versions"]["torch"],
        triton=document["versions"]["triton"],
        command=document["command"],
        rate=document["read_bytes_per_s"] / 1e12,
        gain=document["gain"],
        taken=sum(row["us"]["ours"]["median"] <= document["gain"] * cublas_us(row) for row in rows),
        cells=len(rows),
        head=head["limit_us"] / cublas_us(head),
    )
    text += "".join(f"{line}\n" for line in sums(rows, ("e4b", "e2b", "26b")))
    text += STEP_HEAD.format(commands="\n".join(todays_line(step["command"]) for step in steps))
    text += "".join(f"{line}\n" for step in steps for line in step_lines(step))
    text += STEP_END.format(
        unequal=unequal(steps),
        gates_commands="\n".join(
            todays_line(step["command"]).replace(" --rounds", " \\\n    --rounds") for step in gates
        ),
        gates="\n".join(line for step in gates for line in gate_lines(step)),
        peers=tail(tails, tail_steps, sliding, document["read_bytes_per_s"])
        + experts(routed, routed_steps)
        + beside(dense, dense_steps)
        + begins(read_steps())
        + peers(others),
        streamed=streamed(streams, streamed_runs),
    )
    for row in (row for row in rows if row["rows"] in SHOWN):
        ours = row["us"]["ours"]["median"]
        name = ", ".join(use.split(" ")[2] for use in row["uses"])
        times = f"{cublas_us(row):.2f} | {ours:.2f} | {row['limit_us']:.2f} | {row['limit_us'] / ours:.0%}"
        text += f"| {name} | {row['columns']}, {row['depth']} | {row['rows']} | {times} |\n"
    return text


def read_documents() -> tuple[Any, ...]:
    """Return what `markdown` takes: the rows of products, steps, peers, layers of one launch and streamed weights."""
    steps, gates = ([json.loads(path.read_text()) for path in paths] for paths in (STEPS, GATES))
    tail_steps = [json.loads(path.read_text()) for path in TAIL_STEPS]
    sliding = [json.loads(path.read_text()) for path in SLIDING_STEPS]
    tails = json.loads(TAIL.read_text())
    streams = [json.loads(path.read_text()) for path in STREAMED_STEPS]
    products, others, streamed_rows = (json.loads(path.read_text()) for path in (ROWS, PEERS, STREAMED))
    routed, *routed_steps = (json.loads(path.read_text()) for path in (EXPERTS, *EXPERTS_STEPS))
    dense, *dense_steps = (json.loads(path.read_text()) for path in (BESIDE, *BESIDE_STEPS))
    of_experts = routed, routed_steps, dense, dense_steps
    return products, steps, gates, others, sliding, tails, tail_steps, streamed_rows, streams, *of_experts


if __name__ == "__main__":
    PAGE.write_text(markdown(*read_documents()))
