"""The experts of 1..8 rows: out[r] = sum over r's experts of share * (gated(x[r]) @ down[expert].T). No triton here.

    gate, up = the halves of x[r] @ gate_up[expert].T
    gated = gelu(gate) * up, with the exact gelu of SGLang's experts on CUDA, which has erf

Products are accumulated in fp32. What SGLang has in memory between two kernels is rounded here too: the product ahead
of the gate, and what is gated. Shares are applied, and experts added up, in fp32, and the sum is rounded once; SGLang
rounds each expert's part before. A row's experts are added up in the order of their ids, or of their places where
rows are not grouped, whatever stands beside it: the same bits each time, and with any other rows under the same plan.

Ids of a row differ from each other. One outside 0..E-1, as SGLang marks a row that is none, takes no part.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from gemma4_kernels.rounding import Tolerance

MAX_ROWS = 8
MAX_PAIRS = 64
"""Rows times experts of each."""
AXES = {"rows": (1, 2, 4, 8)}
FOLDER = Path(__file__).parent
"""Of the tables of plans by GPU, `tuned_*.json`."""


class Plan(NamedTuple):
    """How both launches are cut; a step is what a program multiplies at a time.

    Attributes:
        block_m: 1: each pair of a row and an expert is read for itself, multiplied and added. 8: rows that chose the
            same expert share what is read of it, by tensor cores.
        gate_n: Rows of an expert's gate_up per program of the first launch, half of them gates.
        gate_k: Depth of one step.
        gate_stages: Steps whose weights are under way at a time.
        gate_warps: Warps per program.
        down_n: Columns of the result per program of the second launch.
        down_k: Depth of one step.
        down_splits: Programs that share the depth of one tile.
        down_stages: Steps whose weights are under way at a time.
        down_warps: Warps per program.
    """

    block_m: int
    gate_n: int
    gate_k: int
    gate_stages: int
    gate_warps: int
    down_n: int
    down_k: int
    down_splits: int
    down_stages: int
    down_warps: int


ANY_PLAN = Plan(8, 32, 128, 4, 4, 32, 128, 1, 4, 2)
"""Right for every size, and measured for none."""


class Case(NamedTuple):
    """A size that the tests run. `interpreted`: small enough for the Triton interpreter."""

    name: str
    rows: int
    top_k: int
    experts: int
    hidden: int
    width: int
    interpreted: bool = True


CASES = (
    Case("no-rows", 0, 2, 4, 64, 32),
    Case("one-row", 1, 4, 16, 64, 32),
    Case("one-expert", 3, 1, 1, 64, 32),
    Case("all-share", 8, 4, 4, 64, 32),
    Case("odd-sizes", 3, 3, 5, 45, 19),
    Case("most-pairs", 8, 8, 12, 32, 16),
    Case("26b-one", 1, 8, 128, 2816, 704, interpreted=False),
    Case("26b-some", 3, 8, 128, 2816, 704, interpreted=False),
    Case("26b-most", 8, 8, 128, 2816, 704, interpreted=False),
)

# Of the magnitudes that were added, with |gate| * |up| for what is gated: a gate's slope is below 1.13.
TOLERANCES = {
    "bfloat16": Tolerance(2**-6, "three roundings to 8 bits, two of which a sum in another order may move by a unit"),
    "float16": Tolerance(2**-9, "the same of 11 bits"),
    "float32": Tolerance(2**-15, "fp32 sums of up to 2^12 products, whatever their order, one behind the other"),
}
