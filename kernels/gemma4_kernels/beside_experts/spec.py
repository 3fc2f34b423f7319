"""A layer's dense MLP beside its experts, for 1..8 rows: four launches in the place of six. No triton here.

    1  gated = gelu_tanh(gate) * up, the halves of dense_x @ gate_up.T; and logits = router_x @ router.T
    2  shares, ids = routing(logits, per_expert_scale)
    3  the experts' gated rows, of experts_x and ids; and dense = gated @ down.T
    4  experts = the sum of the experts' parts

What is computed is what small_m_geglu, small_m_linear, routing and routed_experts compute, with their roundings and in
their order: under the same cut the bits are theirs, the same each time and with any other rows.

No depth is shared among programs: beside each other there are enough of them, and none has more to read than another.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch

from gemma4_kernels.rounding import Tolerance
from gemma4_kernels.routed_experts.spec import ANY_PLAN as ANY_EXPERTS
from gemma4_kernels.routed_experts.spec import MAX_ROWS as MOST_ROWS
from gemma4_kernels.routed_experts.spec import Plan as ExpertsPlan
from gemma4_kernels.small_m_linear.spec import Plan as ProductPlan

MAX_ROWS = MOST_ROWS
AXES = {"rows": (1, 2, 4, 8)}
FOLDER = Path(__file__).parent
"""Of the tables of plans by GPU, `tuned_*.json`."""


class Weights(NamedTuple):
    """Those of a layer, all of one dtype but for the scale.

    Attributes:
        gate_up: [2 * D, H], the dense MLP's gate, then its up.
        down: [H, D].
        router: [E, H].
        per_expert_scale: [E].
        experts_gate_up: [E, 2 * W, H].
        experts_down: [E, H, W].
    """

    gate_up: torch.Tensor
    down: torch.Tensor
    router: torch.Tensor
    per_expert_scale: torch.Tensor
    experts_gate_up: torch.Tensor
    experts_down: torch.Tensor


class Plan(NamedTuple):
    """How the launches are cut; a step is what a program multiplies at a time.

    Attributes:
        first_m: Rows that a program of the first launch holds: 1, which multiplies and adds, or 8, by tensor cores.
        first_n: Rows of either weight per program of it, half of them gates in the dense one.
        first_k: Depth of one step.
        first_stages: Steps whose weights are under way at a time.
        first_warps: Warps per program.
        first_ahead: Steps whose weights the L2 cache is asked for before the kernel ahead has ended.
        block_m: This and the nine behind it: the plan of routed_experts.
        gate_n: See there.
        gate_k: See there.
        gate_stages: See there.
        gate_warps: See there; of the dense programs of the third launch too.
        down_n: See there.
        down_k: See there.
        down_splits: See there.
        down_stages: See there.
        down_warps: See there.
        dense_m: Rows that a dense program of the third launch holds, as first_m.
        dense_n: Columns of the result per such program.
        dense_k: Depth of one step.
        dense_stages: Steps whose weights are under way at a time.
        dense_ahead: As first_ahead, of the dense programs; which experts are wanted is not known by then.
        dense_first: Whether the dense programs come ahead of those of the experts.
    """

    first_m: int
    first_n: int
    first_k: int
    first_stages: int
    first_warps: int
    first_ahead: int
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
    dense_m: int
    dense_n: int
    dense_k: int
    dense_stages: int
    dense_ahead: int
    dense_first: bool

    @property
    def experts(self) -> ExpertsPlan:
        """Return how routed_experts would be cut to have the same bits."""
        return ExpertsPlan(*self[6:16])

    @property
    def first(self) -> ProductPlan:
        """Return how small_m_geglu and the router's small_m_linear would be cut to have the same bits."""
        return ProductPlan(self.first_m, self.first_n, self.first_k, 1, self.first_stages, self.first_warps, False)

    @property
    def dense(self) -> ProductPlan:
        """Return how the down product's small_m_linear would be cut to have the same bits."""
        return ProductPlan(self.dense_m, self.dense_n, self.dense_k, 1, self.dense_stages, self.gate_warps, False)


def plan_of(first: ProductPlan, experts: ExpertsPlan, dense: ProductPlan, dense_first: bool = True) -> Plan:
    """Return the plan of parts whose depth is not shared; the dense product's warps are those of the experts."""
    products = [(one.block_m, one.block_n, one.block_k, one.stages) for one in (first, dense)]
    return Plan(*products[0], first.num_warps, 0, *experts, *products[1], 0, dense_first)


ANY_PLAN = plan_of(ProductPlan(8, 16, 128, 1, 4, 2, False), ANY_EXPERTS, ProductPlan(8, 32, 64, 1, 4, 4, False))
"""Right for every size, and measured for none."""


class Case(NamedTuple):
    """A size that the tests run. `interpreted`: small enough for the Triton interpreter."""

    name: str
    rows: int
    top_k: int
    experts: int
    hidden: int
    width: int
    dense_width: int
    interpreted: bool = True


CASES = (
    Case("no-rows", 0, 2, 4, 64, 32, 48),
    Case("one-row", 1, 4, 16, 64, 32, 96),
    Case("one-expert", 3, 1, 1, 64, 32, 48),
    Case("all-share", 8, 4, 4, 64, 32, 80),
    Case("odd-sizes", 3, 3, 5, 45, 19, 51),
    Case("most-pairs", 8, 8, 12, 32, 16, 33),
    Case("26b-one", 1, 8, 128, 2816, 704, 2112, interpreted=False),
    Case("26b-some", 3, 8, 128, 2816, 704, 2112, interpreted=False),
    Case("26b-most", 8, 8, 128, 2816, 704, 2112, interpreted=False),
)

# Of the magnitudes that were added, with |gate| * |up| for what is gated: a gate's slope is below 1.13.
TOLERANCES = {
    "bfloat16": Tolerance(2**-6, "three roundings to 8 bits, two of which a sum in another order may move by a unit"),
    "float16": Tolerance(2**-9, "the same of 11 bits"),
    "float32": Tolerance(2**-15, "fp32 sums of up to 2^12 products, whatever their order, one behind the other"),
}
