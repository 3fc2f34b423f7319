"""The sections of docs/products.md on the experts of 26B, which make_product_page.py puts there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gemma4_triage.cli.option_names import todays_line

EXPERTS_HEAD = """## Experts

`routed-experts` takes the experts of a few rows in two launches: a program of the first has a tile of one expert's gate
and up for all rows that chose this expert, which it finds in the ids; one of the second has a tile of columns through
all experts that were chosen. Experts are read once, gates and sums are part of the products, and a sum's order is that
of the experts' ids: the same bits each time, and with any other rows under the same plan.

```
{command}
```

Microseconds of the experts of a 26B layer, medians of one run, with experts drawn evenly; *SGLang's* is its
`fused_experts`, *limit* is the size of the experts that were drawn over {rate:.2f} TB/s:

| rows | experts drawn | SGLang's | ours | limit | of limit |
|---|---|---|---|---|---|
"""
EXPERTS_STEP_HEAD = """
Whole steps, all defaults with and without it. The table names no plan for {none} rows, where ours was not faster by 3%:

```
{commands}
```

| model, batch, context | as shipped, ms | SGLang's, ms | ours, ms | SGLang's / ours | as shipped / ours | kernels |
|---|---|---|---|---|---|---|
"""


BESIDE_HEAD = """## Experts beside the dense MLP

Between the products of a layer with experts stand launches that have little to read. With `dense-beside-experts` the
router's logits are computed beside the dense gate, and the dense down product beside the experts' gates: four launches
in the place of six, with the numbers that they have one by one under the same cut.

```
{command}
```

Microseconds of a 26B layer behind its attention, medians of one run; *one by one* are the ops above, each with the plan
of its own table, *limit* is the size of what is read over {rate:.2f} TB/s. The norms ahead let the first launch start
before their own inputs are there (*early*), or do not (*waiting*); *of limit* is of the latter:

| rows | one by one | early | waiting | limit | of limit |
|---|---|---|---|---|---|
"""
BESIDE_STEP_HEAD = """
Whole steps, all defaults with and without it. In these the norms wait, which is in force. Rejected, of which no rows
are kept: norms that let it start early, with which a step of 2 requests was slower than one by one (in a step the
output projection stands ahead of them), and two streams in a captured graph, which gained nothing with 1 and 2 requests
and up to 2% with 4 and 8.

```
{commands}
```

| model, batch, context | as shipped, ms | one by one, ms | ours, ms | one by one / ours | as shipped / ours | kernels |
|---|---|---|---|---|---|---|
"""


def commands_of(steps: list[dict[str, Any]]) -> list[str]:
    """Return the commands of runs with today's names of options, in two lines each."""
    return [todays_line(step["command"]).replace(" --rounds", " \\\n    --rounds") for step in steps]


def experts(document: dict[str, Any], steps: list[dict[str, Any]]) -> str:
    """Return the section on experts."""
    text = EXPERTS_HEAD.format(command=document["command"], rate=document["limit_bytes_per_us"] / 1e6)
    for row in document["rows"]:
        theirs, ours = (row["us"][arm]["median"] for arm in ("sglang", "ours"))
        times = f"{theirs:.1f} | {ours:.1f} | {row['limit_us']:.1f} | {row['limit_us'] / ours:.0%}"
        text += f"| {row['rows']} | {row['experts_drawn']:.1f} | {times} |\n"
    none = [
        str(row["rows"])
        for row in document["rows"]
        if row["us"]["ours"]["median"] > document["gain"] * row["us"]["sglang"]["median"]
    ]
    commands = commands_of(steps)
    text += EXPERTS_STEP_HEAD.format(none=" and ".join(none), commands="\n".join(commands))
    return text + "".join(steps_against("all-sglang-experts", steps)) + "\n"


def steps_against(arm: str, steps: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a line of each batch: as shipped, without one op, and with all."""
    for step in steps:
        rows = {(row["batch"], row["arm"]): row for row in step["rows"]}
        (model,), context = step["models"], step["method"]["context_tokens"]
        for batch in (batch for batch, one in rows if one == "all"):
            cells = [rows[batch, one] for one in ("shipped", arm, "all")]
            shipped, without, ours = (cell["step_us"]["median"] / 1000 for cell in cells)
            ratios = f"x{without / ours:.3f} | x{shipped / ours:.3f} | {cells[-1]['kernels']}"
            yield f"| {model}, {batch}, {context} | {shipped:.2f} | {without:.2f} | {ours:.2f} | {ratios} |\n"


def beside(document: dict[str, Any], steps: list[dict[str, Any]]) -> str:
    """Return the section on experts beside the dense MLP."""
    text = BESIDE_HEAD.format(command=document["command"], rate=document["limit_bytes_per_us"] / 1e6)
    for row in document["rows"]:
        apart = min(us["median"] for arm, us in row["us"].items() if arm not in ("ours", "norms-wait"))
        early, waits = (row["us"][arm]["median"] for arm in ("ours", "norms-wait"))
        limit = row["limit_us"]
        text += f"| {row['rows']} | {apart:.1f} | {early:.1f} | {waits:.1f} | {limit:.1f} | {limit / waits:.0%} |\n"
    commands = commands_of(steps)
    text += BESIDE_STEP_HEAD.format(commands="\n".join(commands))
    return text + "".join(steps_against("all-dense-alone", steps)) + "\n"
