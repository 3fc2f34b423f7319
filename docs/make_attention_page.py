"""Write docs/attention.md from the committed rows of decode_attention, of steps and of a server with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gemma4_kernels.decode_attention.spec import CLUSTER_PARTS, CLUSTER_REQUESTS, CLUSTER_TEAMS, WIDE_PARTS
from gemma4_triage.cli.option_names import todays_line

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "attention.md"
ROWS = ROOT / "kernels" / "bench" / "rows" / "decode_attention_h200_2026-11-23.json"
BENCH = ROOT / "docs" / "bench"
STEPS = [
    *(BENCH / f"step_attention_h200_2026-11-25_{name}.json" for name in ("e2b", "e4b", "26b", "e4b_128", "26b_128")),
    BENCH / "step_attention_h200_2026-11-23_e4b_8192.json",
    BENCH / "step_attention_h200_2026-11-25_e4b_32000.json",
]
WIDE = ROOT / "kernels" / "bench" / "rows" / "decode_attention_fronts_h200_2026-11-30.json"
WIDE_STEPS = [BENCH / f"step_wide_h200_2026-11-30_{name}.json" for name in ("e4b", "e4b_8192", "e2b", "26b")]
FRONTS = [
    *WIDE_STEPS,
    *(BENCH / f"step_tail_h200_2026-11-28_{name}.json" for name in ("e4b", "e2b", "26b")),
    *(BENCH / f"step_front_h200_2026-11-28_{name}.json" for name in ("e4b_128", "e4b_8192", "e4b_32000", "e2b_8192")),
    *(BENCH / f"step_many_h200_2026-11-28_{name}.json" for name in ("e4b", "e2b")),
    *(BENCH / f"step_front_h200_2026-11-27_{name}.json" for name in ("e4b", "e2b", "26b")),
]
"""The newest first: of a model's batch and context that several have, it is the one that is shown."""
OLD_FRONTS = 3
"""So many of them, the last, are of clusters without tensor cores."""
MANY = [BENCH / f"step_front_of_many_h200_2026-11-28_{name}.json" for name in ("e4b", "e2b")]
"""Steps of more requests than have it today, with it."""
SERVING = BENCH / "serving_decode_e4b_h200_2026-11-23.json"
SERVING_TODAY = BENCH / "load_decode_e4b_h200_2026-11-28.json"

HEAD = """# Attention of a decode step

Made by `docs/make_attention_page.py` from [rows](../kernels/bench/rows/{rows})
and [steps](bench/); {gpu}, torch {torch}, Triton {triton}.

`decode-attention`, a default, computes the attention of a decode step on Triton in one launch. SGLang has at most
eight programs read a request's keys for one key head, and a second launch add them up; here as many do as
multiprocessors have room for, they start while the kernel ahead still runs, and whoever is last adds up.

## The kernel

```
{command}
```

Medians in microseconds of one attention behind the norm that reads the result of the one before, in a CUDA graph; keys
and values come from memory. *limit* is their size over {rate:.2f} TB/s. Every answer is within 1% of fp32's norm. In
{cells} cells ours takes {best:.2f} to {worst:.2f} of SGLang's time.

| layer | requests | keys of each | SGLang | ours | limit | SGLang / ours |
|---|---|---|---|---|---|---|
"""

STEP_HEAD = """
## Whole steps

```
{commands}
```

*SGLang's* is the step with all our other kernels, `small-m-linear` among them (arm `all-sglang-attention`), *ours* with
`decode-attention` as well (arm `all`). Logits were compared before anything was timed.

| model, batch, context | as shipped, ms | SGLang's, ms | ours, ms | SGLang's / ours | as shipped / ours |
|---|---|---|---|---|---|
"""

FRONT_HEAD = """
## With what is ahead of it in the same launch

```
{commands}
```

With `attention-front`, a default, queries and the new key of up to {most_requests} requests are normed and turned, and
the new key and value stored, with no launches of their own. On Hopper and later a kernel in CUDA C++ does so
([clustered.cu](../kernels/gemma4_kernels/decode_attention/clustered.cu)): {most} blocks, or {least} where that many do
not run at a time, are a cluster that shares a request's keys and adds up in each other's memory, and their first keys
and values are under way while the kernel ahead still runs. Elsewhere it is the kernel above; each of its programs norms
the heads it needs, and the one with the newest slot begins its sum with the key and value that it has made.

The keys of a full layer may be many. There up to {teams} clusters share those of a request, of which as many begin as
its length asks for, and the last adds up what all left in memory; {wide} blocks are a cluster, whichever is the most
with which nearly all multiprocessors read.

```
{wide_command}
```

Microseconds of one attention of a full layer with what is ahead of it, behind a norm, in a CUDA graph: by the kernel
above (*programs*) and by clusters, whose answers are compared with it. *limit* as above:

| layer | requests | keys of each | programs | clusters | limit | programs / clusters |
|---|---|---|---|---|---|---|
{wide_rows}

*apart* is the step without it (arm `all-apart`), *ours* with it (arm `all`). Logits were compared before anything was
timed. The first {new} commands are of clusters in full layers too, which the rows of the others are without: those of
128 and 32000 tokens, of E2B with 8192, and of other numbers of requests. Rows of {most_requests} and of 26B's 3
requests come from the last {old} commands, with clusters that multiplied without tensor cores and kept only a part of a
request's keys under way, and with full layers apart in both arms. With
more than {most_requests} requests both arms have the same graph today, because one launch was slower in most of these:

```
{many_commands}
```

| model, batch | apart, ms | one launch, ms | apart / one launch |
|---|---|---|---|
{many}
What is in force today, but for full layers as said above, and for `layer-tail` in the rows of E4B's 4 requests with 128
and 32000 tokens, which have it no more
([measured without it](products.md#a-layer-behind-its-attention-in-one-launch)):

| model, batch, context | as shipped, ms | apart, ms | ours, ms | apart / ours | as shipped / ours | kernels |
|---|---|---|---|---|---|---|
"""

SERVING_HEAD = """
## A whole server

```
{command}
```

E4B; milliseconds per token after the first, medians of {rounds} rounds. *products* has all defaults but
`decode-attention`, *attention* all of them. *same tokens*: how many of the first tokens of its answers are those
as shipped, up to an answer's first other one, with random weights, whose best tokens are near ties.

| requests x tokens in/out | as shipped | without products | products | attention | same tokens, in that order |
|---|---|---|---|---|---|
"""

TODAY_HEAD = """
The same of all defaults, with the kernels of {date}:

```
{command}
```

| requests x tokens in/out | as shipped | all defaults | as shipped / defaults | whole load, as shipped / defaults |
|---|---|---|---|---|
"""

END = """
In none of the cells, steps and loads is it slower than SGLang's; with MTP it is as fast ([drafts](drafts.md)). Other
GPUs are not measured.
"""


def cells(rows: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], float, float]]:
    """Yield our row of each cell, SGLang's time and ours."""
    others = {(row["layer"], row["requests"], row["slots"]): row for row in rows if row["arm"] == "sglang"}
    for row in (row for row in rows if row["arm"] == "ours"):
        other = others[row["layer"], row["requests"], row["slots"]]
        yield row, other["us"]["median"], row["us"]["median"]


def broken(command: str) -> str:
    """Return the command on two lines."""
    return todays_line(command).replace(" --rounds", " \\\n    --rounds")


def step_lines(document: dict[str, Any]) -> Iterator[str]:
    """Yield a line per batch."""
    rows = {(row["batch"], row["arm"]): row["step_us"]["median"] / 1000 for row in document["rows"]}
    (model,) = document["models"]
    for batch in sorted({batch for batch, _ in rows}):
        shipped, theirs, ours = (rows[batch, arm] for arm in ("shipped", "all-sglang-attention", "all"))
        ratios = f"x{theirs / ours:.3f} | x{shipped / ours:.3f}"
        context = document["method"]["context_tokens"]
        yield f"| {model}, {batch}, {context} | {shipped:.2f} | {theirs:.2f} | {ours:.2f} | {ratios} |"


def front_lines(document: dict[str, Any], shown: set[tuple[str, int, int]]) -> Iterator[str]:
    """Yield a line per batch of a step with and without `attention-front` that is not shown yet, and add it to them."""
    rows = {(row["batch"], row["arm"]): row for row in document["rows"]}
    (model,) = document["models"]
    context = document["method"]["context_tokens"]
    for batch in sorted({batch for batch, _ in rows if (model, batch, context) not in shown}):
        shown.add((model, batch, context))
        shipped, apart, ours = (rows[batch, arm]["step_us"]["median"] / 1000 for arm in ("shipped", "all-apart", "all"))
        kernels = rows[batch, "all"]["kernels"]
        yield (
            f"| {model}, {batch}, {context} | {shipped:.2f} | {apart:.2f} | {ours:.2f} | x{apart / ours:.3f} | "
            f"x{shipped / ours:.3f} | {kernels} |"
        )


def wide_lines(document: dict[str, Any]) -> Iterator[str]:
    """Yield a line per cell of a full layer's attention with its front, by both kernels."""
    rows = {(row["layer"], row["requests"], row["slots"], row["arm"]): row for row in document["rows"]}
    for layer, requests, slots in sorted({key[:3] for key in rows}, key=lambda key: (key[1], key[0], key[2])):
        programs, clusters = (rows[layer, requests, slots, arm]["us"]["median"] for arm in ("programs", "clusters"))
        limit = rows[layer, requests, slots, "clusters"]["limit_us"]
        times = f"{programs:.2f} | {clusters:.2f} | {limit:.2f} | x{programs / clusters:.2f}"
        yield f"| {layer} | {requests} | {slots} | {times} |"


def many_lines(document: dict[str, Any]) -> Iterator[str]:
    """Yield a line per batch of a step of more requests than have `attention-front` today."""
    us = {(row["batch"], row["arm"]): row["step_us"]["median"] / 1000 for row in document["rows"]}
    (model,) = document["models"]
    for batch in sorted({batch for batch, _ in us}):
        apart, one = us[batch, "all-apart"], us[batch, "all"]
        yield f"| {model}, {batch} | {apart:.2f} | {one:.2f} | x{apart / one:.3f} |"


def serving_lines(document: dict[str, Any]) -> Iterator[str]:
    """Yield a line per shape."""
    arms = tuple(document["arms"])
    rows = {(row["shape"], row["arm"]): row for row in document["rows"]}
    for shape in dict.fromkeys(shape for shape, _ in rows):
        times = " | ".join(f"{rows[shape, arm]['tpot_ms']['median']:.2f}" for arm in arms)
        same = ", ".join(str(rows[shape, arm]["same_tokens"][0]) for arm in arms[1:])
        yield f"| {shape} | {times} | {same} of {rows[shape, arms[0]]['same_tokens'][1]} |"


def today_lines(document: dict[str, Any]) -> Iterator[str]:
    """Yield a line per shape of a load with all defaults and with none."""
    rows = {(row["shape"], row["arm"]): row for row in document["rows"]}
    for shape in dict.fromkeys(shape for shape, _ in rows):
        shipped, ours = (rows[shape, arm]["tpot_ms"]["median"] for arm in ("none", "attention"))
        whole = rows[shape, "attention"]["speedup"]["median"]
        yield f"| {shape} | {shipped:.2f} | {ours:.2f} | x{shipped / ours:.2f} | x{whole:.2f} |"


def markdown(
    document: dict[str, Any],
    steps: list[dict[str, Any]],
    fronts: list[dict[str, Any]],
    many: list[dict[str, Any]],
    serving: list[dict[str, Any]],
    wide: dict[str, Any],
) -> str:
    """Return the page."""
    found = list(cells(document["rows"]))
    text = HEAD.format(
        rows=ROWS.name,
        gpu=document["gpu"]["name"],
        torch=document["versions"]["torch"],
        triton=document["versions"]["triton"],
        command=document["command"],
        rate=document["rate"] / 1e12,
        cells=len(found),
        best=min(ours / theirs for _, theirs, ours in found),
        worst=max(ours / theirs for _, theirs, ours in found),
    )
    for row, theirs, ours in found:
        times = f"{theirs:.2f} | {ours:.2f} | {row['limit_us']:.2f} | x{theirs / ours:.2f}"
        text += f"| {row['layer']} | {row['requests']} | {row['slots']} | {times} |\n"
    text += STEP_HEAD.format(commands="\n".join(broken(step["command"]) for step in steps))
    text += "".join(f"{line}\n" for step in steps for line in step_lines(step))
    most, least = CLUSTER_PARTS
    text += FRONT_HEAD.format(
        commands="\n".join(broken(one["command"]) for one in fronts),
        many_commands="\n".join(broken(one["command"]) for one in many),
        many="".join(f"{line}\n" for one in many for line in many_lines(one)),
        most=most,
        least=least,
        most_requests=CLUSTER_REQUESTS,
        old=OLD_FRONTS,
        new=len(WIDE_STEPS),
        teams=CLUSTER_TEAMS,
        wide=", ".join(map(str, WIDE_PARTS[:-1])) + f" or {WIDE_PARTS[-1]}",
        wide_command=wide["command"],
        wide_rows="".join(f"{line}\n" for line in wide_lines(wide)),
    )
    shown: set[tuple[str, int, int]] = set()
    text += "".join(f"{line}\n" for front in fronts for line in front_lines(front, shown))
    of_each, today = serving
    text += SERVING_HEAD.format(command=broken(of_each["command"]), rounds=of_each["method"]["rounds"])
    text += "".join(f"{line}\n" for line in serving_lines(of_each))
    text += TODAY_HEAD.format(command=broken(today["command"]), date=today["date"][:10])
    text += "".join(f"{line}\n" for line in today_lines(today))
    return text + END


def read_documents() -> tuple[
    dict[str, Any],
    list[dict[str, Any]],
    list[dict[str, Any]],
    list[dict[str, Any]],
    list[dict[str, Any]],
    dict[str, Any],
]:
    """Return the kernel's rows, steps, those with and without a front, of many requests, loads, and full layers."""
    groups = STEPS, FRONTS, MANY, [SERVING, SERVING_TODAY]
    steps, fronts, many, serving = ([json.loads(path.read_text()) for path in paths] for paths in groups)
    return json.loads(ROWS.read_text()), steps, fronts, many, serving, json.loads(WIDE.read_text())


if __name__ == "__main__":
    PAGE.write_text(markdown(*read_documents()))
