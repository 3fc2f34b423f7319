"""Measure capped_logits beside SGLang 0.5.13.post1's copy and kernel, as CUDA graphs.

    python kernels/bench/bench_capped_logits.py --output FILE

Options, clock and exit codes are those of bench_token_embeddings.py. The logits are in the L2 cache as far as they fit,
as they are behind the product that they come of.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import torch
from bench_token_embeddings import Arm, Cell, run

from gemma4_kernels.capped_logits.launch import capped_logits
from gemma4_kernels.capped_logits.spec import AXES

CAP = 30.0


def main(argv: list[str] | None = None) -> int:
    return run(argv, "capped_logits", __doc__ or "", cells())


def cells() -> Iterable[Cell]:
    for columns in AXES["columns"]:
        for rows in AXES["rows"]:
            yield {"rows": rows, "columns": columns}, make_arms(rows, columns)


def make_arms(rows: int, columns: int) -> dict[str, Arm]:
    from sglang.srt.layers.triton_ops.softcap import softcap_inplace_logits

    logits = torch.randn(rows, columns, device="cuda").mul_(20).bfloat16()
    buffers = {name: torch.empty(rows, columns, device="cuda") for name in ("sglang", "ours")}
    return {
        "sglang": lambda call: [softcap_inplace_logits(buffers["sglang"].copy_(logits), CAP)],
        "ours": lambda call: [capped_logits(logits, CAP, out=buffers["ours"])],
    }


if __name__ == "__main__":
    sys.exit(main())
