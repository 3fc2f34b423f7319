"""out = x @ weight.T for x [M, K] of 1..16 rows and weight [N, K], row-major. No triton here.

The products are accumulated in fp32 and rounded once. The order of the sum is fixed by the plan: the same call has the
same bits each time. Another number of rows may have another plan and so another order, as with cuBLAS.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from gemma4_kernels.rounding import Tolerance

MAX_ROWS = 16
Gate = Literal["none", "halves", "factor"]
GATES: tuple[Gate, ...] = ("none", "halves", "factor")
AXES = {"rows": (1, 2, 4, 8, 12, 16)}


class Plan(NamedTuple):
    """How a product is cut.

    Args:
        block_m: Rows of x that a program holds: 1, 8 or 16. With 1 it multiplies and adds; else it uses tensor cores.
        block_n: Rows of the weight, which are columns of the result, per program.
        block_k: Depth of one step of a program.
        splits: Programs that share the depth of one tile.
        stages: Steps whose weights are under way at a time.
        num_warps: Warps per program.
        ahead: Whether a program loads its first block of weights before the kernel ahead has ended.
    """

    block_m: int
    block_n: int
    block_k: int
    splits: int
    stages: int
    num_warps: int
    ahead: bool


class StreamedPlan(NamedTuple):
    """How streamed.cu streams a weight: each multiprocessor's rows of it go through a ring in shared memory.

    Args:
        stage_depth: Columns of the weight in a stage of the ring, a multiple of 32.
        stages: Of the ring, of 8 rows each.
        in_flight: Stages that may be under way at a time.
        num_warps: Warps that multiply; one more fills the ring.
        co_resident: Blocks of which a multiprocessor has room, so that the next product's may fill its ring.
    """

    stage_depth: int
    stages: int
    in_flight: int
    num_warps: int
    co_resident: int


class Case(NamedTuple):
    """A size that the tests run. `interpreted`: small enough for the Triton interpreter."""

    name: str
    rows: int
    columns: int
    depth: int
    interpreted: bool = True


CASES = (
    Case("no-rows", 0, 40, 128),
    Case("one-row", 1, 40, 128),
    Case("one-column", 3, 1, 128),
    Case("tail-of-columns", 8, 65, 256),
    Case("tail-of-depth", 5, 33, 100),
    Case("depth-of-one", 2, 16, 1),
    Case("most-rows", 16, 48, 192),
    Case("e4b-o", 8, 2560, 2048, interpreted=False),
    Case("e4b-down", 16, 2560, 10240, interpreted=False),
    Case("26b-down", 4, 2816, 2112, interpreted=False),
    Case("router", 12, 128, 2816, interpreted=False),
)

# Of the sum of the products' magnitudes, which is what fp32 rounds and the store too where nothing cancels.
TOLERANCES = {
    "bfloat16": Tolerance(2**-8 + 2**-16, "half a unit of the result's 8 bits, and fp32 sums of up to 2^14 products"),
    "float16": Tolerance(2**-11 + 2**-16, "half a unit of the result's 11 bits, and the same sums"),
    "float32": Tolerance(2**-16, "fp32 sums of up to 2^14 products, whatever their order"),
}
