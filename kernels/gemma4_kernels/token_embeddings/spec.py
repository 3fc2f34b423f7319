"""tokens = table[ids] * factor, [T, H]; per_layer = per_layer_table[shown] * per_layer_factor, [T, L * P]. No triton.

shown is ids with pad in the place of the ids of pictures, videos and sounds, and then 0 in the place of what is not in
[0, rows of per_layer_table), as in SGLang 0.5.13.post1's `Gemma4ForConditionalGeneration.forward` and
`Gemma4TextModel.get_per_layer_inputs`. A factor is a number of Python: the product is of fp32 and is rounded once, as
torch's product of a tensor and a number, so all bits are torch's.

An id that is not in the embedding gives a row of NaN in tokens. torch's gather ends the process there.
"""

from __future__ import annotations

from typing import NamedTuple

from gemma4_kernels.rounding import Tolerance

BLOCK = 1024
"""Elements of a row that a program gathers: a vector load of bf16 for each thread of four warps."""


class Case(NamedTuple):
    """A size that the tests run, with the elements of a row in either embedding; the second may be 0: without one."""

    name: str
    tokens: int
    width: int
    per_layer: int
    interpreted: bool = True


CASES = (
    Case("no-tokens", 0, 64, 96),
    Case("one-token", 1, 1536, 2048),
    Case("seven-tokens", 7, 64, 1025),
    Case("odd-widths", 5, 1023, 77),
    Case("no-per-layer", 9, 1100, 0),
    Case("many-narrow", 256, 20, 33),
    Case("e4b", 8, 2560, 10752, interpreted=False),
    Case("e2b-many", 256, 1536, 8960, interpreted=False),
    Case("26b-many", 256, 2816, 0, interpreted=False),
)
AXES = {"tokens": (1, 8, 64, 256), "model": ("e2b", "e4b", "26b", "31b")}

TOLERANCES = {
    name: Tolerance(0, "one product in fp32, rounded once, as torch's") for name in ("bfloat16", "float16", "float32")
}
