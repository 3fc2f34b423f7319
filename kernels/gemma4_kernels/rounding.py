"""What every op states about its numbers: where it rounds, and how far a test lets it be off."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Rounding(Enum):
    """Where a fused op rounds to the tensors' dtype. Compiled in, so the other mode costs nothing.

    EAGER: after every operation after which Hugging Face's eager model has a tensor in memory; of qk_norm_rope SGLang's
    kernels, see its spec. Same bits as eager, except where the order of a sum of squares moves the last bit of fp32
    over a rounding boundary. Such an element is a unit off, and every later rounding on its way to the output can add
    one: an output with n roundings after its first sum (EAGER_ROUNDINGS of the op's spec) is up to n units off; most
    elements have the same bits. Nothing narrower can be promised: torch's own CPU and CUDA sums have different orders.
    The tests hold every element to its op's units, and how many elements may have other bits, or be more than a unit
    off.
    FP32: at the stores only. Closer to the exact result, and not the bits of any unfused model.
    """

    EAGER = "eager"
    FP32 = "fp32"


class Tolerance(NamedTuple):
    """relative: to the magnitudes that were added, not to what is left after they cancel. reason: why not less."""

    relative: float
    reason: str


class RowCase(NamedTuple):
    """A size that the tests run. `interpreted`: small enough for the Triton interpreter."""

    name: str
    rows: int
    width: int
    interpreted: bool = True


# The widths are those of E2B, E4B and 26B; an odd one, for which no load is a vector; and one below a warp.
ROW_CASES = (
    RowCase("no-rows", 0, 1536),
    RowCase("one-row", 1, 1536),
    RowCase("e4b", 2, 2560),
    RowCase("odd-width", 2, 1537),
    RowCase("narrow", 9, 20),
    RowCase("power-of-two", 3, 2048),
    RowCase("26b", 7, 2816),
    RowCase("decode", 64, 2816, interpreted=False),
    RowCase("prefill", 4097, 2816, interpreted=False),
    RowCase("prefill-e2b", 4097, 1536, interpreted=False),
    RowCase("prefill-31b", 4097, 5376, interpreted=False),
    RowCase("prefill-odd", 4097, 1537, interpreted=False),
)
