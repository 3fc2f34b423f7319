"""All of a dense decoder layer with per-layer embeddings behind its attention, for 1..8 rows. No triton here.

With rms(x) = x / sqrt(mean(x²) + eps):

    attention = attended @ o.T
    residual' = residual + rms(attention) * post_attention
    mlp = (gelu_tanh(a) * b) @ down.T, where (a, b) are the halves of (rms(residual') * pre_feed_forward) @ gate_up.T
    residual'' = residual' + rms(mlp) * post_feed_forward
    ple = (gelu_tanh(residual'' @ ple_gate.T) * per_layer_input) @ ple_projection.T
    hidden = (residual'' + rms(ple) * post_ple) * scalar
    normed = rms(hidden) * next_norm
    projected = normed @ next_projection.T

Products are accumulated in fp32. What is in memory between two steps for eager is rounded here too, but for a norm's
result: its input times its weight is rounded, and multiplied by 1 / rms in fp32 behind the sum or the product it goes
into. A block of the grid has whole columns of each product: the same bits each time, whatever stands beside a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gemma4_kernels.rounding import Tolerance

if TYPE_CHECKING:
    import torch

MAX_ROWS = 8
AXES = {"rows": (1, 2, 4, 8)}


class TailPlan(NamedTuple):
    """How layer_tail.cu streams the weights: each multiprocessor's rows of them go through a ring in shared memory.

    Attributes:
        stage_depth: Columns of a weight in a stage of the ring, a multiple of 32.
        stages: Of the ring, of 8 rows each.
        in_flight: Stages that may be under way at a time.
        num_warps: Warps that multiply, at least 4; one more fills the ring.
        spared: Multiprocessors that have no block of it, for the attention ahead: a block on one of its begins late,
            and all others wait for that.
    """

    stage_depth: int
    stages: int
    in_flight: int
    num_warps: int
    spared: int = 0


class TailWeights(NamedTuple):
    """What a layer has behind its attention; spec.py's formula names each.

    Attributes:
        o: [H, A].
        gate_up: [2 W, H]: the rows of the gate, then those of its partner.
        down: [H, W].
        ple_gate: [P, H].
        ple_projection: [H, P].
        post_attention: [H].
        pre_feed_forward: [H].
        post_feed_forward: [H].
        post_ple: [H].
        scalar: One element.
    """

    o: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    ple_gate: torch.Tensor
    ple_projection: torch.Tensor
    post_attention: torch.Tensor
    pre_feed_forward: torch.Tensor
    post_feed_forward: torch.Tensor
    post_ple: torch.Tensor
    scalar: torch.Tensor


class Case(NamedTuple):
    """A size that the tests run: rows, and the widths of attention, residual stream, MLP and next projection."""

    name: str
    rows: int
    inner: int
    hidden: int
    wide: int
    ple: int
    next_columns: int


CASES = (
    Case("one-row", 1, 64, 96, 160, 32, 64),
    Case("some-rows", 5, 128, 64, 96, 32, 32),
    Case("last-layer", 3, 64, 96, 160, 32, 0),
    Case("most-rows", 8, 96, 128, 320, 64, 288),
    Case("e2b-full", 8, 4096, 1536, 12288, 256, 2048),
    Case("e4b-sliding", 8, 2048, 2560, 10240, 256, 3072),
    Case("e4b-full", 2, 4096, 2560, 10240, 256, 0),
)

# Of the root mean square of an output: what six products and five norms make of roundings to 8 bits.
TOLERANCES = {
    "bfloat16": Tolerance(2**-5, "a dozen roundings to 8 bits, of half a unit each, on the way to the last product"),
    "float32": Tolerance(2**-14, "fp32 sums of up to 2^14 products, one behind the other"),
}
