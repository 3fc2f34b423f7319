"""The section of docs/products.md on how a step begins and ends, which make_product_page.py puts there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from product_page_experts import commands_of

BENCH = Path(__file__).resolve().parent / "bench"
STEPS = [BENCH / f"step_begins_h200_2026-11-30_{model}.json" for model in ("e4b", "e2b", "26b")]

HEAD = """## How a step begins and ends

`token-embeddings` makes both embeddings of a step's ids in one launch instead of 17 (26B, which has no per-layer ones,
has fewer), and `capped-logits` caps the logits as it makes them fp32. Whole steps, all defaults with and without the
two, 768 tokens of context:

```
{commands}
```

| model, batch | as shipped, ms | without, ms | ours, ms | without / ours | as shipped / ours | kernels |
|---|---|---|---|---|---|---|
"""


def read_steps() -> list[dict[str, Any]]:
    """Return the runs whose rows the section shows."""
    return [json.loads(path.read_text()) for path in STEPS]


def begins(steps: list[dict[str, Any]]) -> str:
    """Return the section."""
    text = HEAD.format(commands="\n".join(commands_of(steps)))
    for step in steps:
        rows = {(row["batch"], row["arm"]): row for row in step["rows"]}
        (model,) = step["models"]
        for batch in sorted({batch for batch, _ in rows}):
            cells = [rows[batch, arm] for arm in ("shipped", "all-front-apart", "all")]
            shipped, without, ours = (cell["step_us"]["median"] / 1000 for cell in cells)
            ratios = f"x{without / ours:.3f} | x{shipped / ours:.3f} | {cells[-1]['kernels']}"
            text += f"| {model}, {batch} | {shipped:.2f} | {without:.2f} | {ours:.2f} | {ratios} |\n"
    return text + "\n"
