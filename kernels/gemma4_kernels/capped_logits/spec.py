"""out = cap * tanh(logits / cap), [T, V] fp32 of logits [T, V] bf16 or fp16. No triton here.

SGLang 0.5.13.post1 copies to fp32 and then caps in place. The arithmetic is that of its softcap_inplace_logits_kernel,
operation by operation, so on CUDA all bits are its own. Triton's interpreter has no tanh: there it is made of an
exponential, and off by a unit of 1.
"""

from __future__ import annotations

from gemma4_kernels.rounding import RowCase, Tolerance

BLOCK = 1024
"""Logits of a program: a vector load for each thread of four warps, and a wave of programs for eight rows of E4B."""

CASES = (
    RowCase("no-rows", 0, 96),
    RowCase("one-row", 1, 1024),
    RowCase("toy", 7, 512),
    RowCase("odd-width", 3, 2049),
    RowCase("narrow", 9, 20),
    RowCase("decode", 8, 262144, interpreted=False),
    RowCase("many", 256, 262144, interpreted=False),
)
AXES = {"rows": (1, 8, 64, 256), "columns": (262144,)}

TOLERANCES = {
    name: Tolerance(2**-21, "of the cap: tanh in fp32, in the interpreter by an exponential, and two roundings")
    for name in ("bfloat16", "float16")
}
