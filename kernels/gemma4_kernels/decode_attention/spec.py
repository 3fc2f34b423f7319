"""out = softmax(scale * q @ keys.T) @ values, of one query per request over slots of two pools. No triton here.

q is [R, H, D]; keys and values are [S, G, D]; head h reads the keys of head h // (H / G). Request r reads the slots
`slots[starts[r] : starts[r + 1]]`, in any order. Scores and sums are fp32; the probabilities are rounded to the values'
dtype before the second product, as in SGLang's own kernel. A request without slots has zeros.

With a front q is as the projection has it, and what qk_norm_rope computes (rounded at the store only) is done first.
New keys and values go into rows of the pools, each the last that its request reads. A request without slots stores all
the same. What a request attends to is what it stored: rounded, and not read back in the same launch. Few requests have
a kernel of their own there on CUDA (clustered.cu).

A request's slots are shared among programs. Each leaves its part of the sum, and whoever is last adds all parts up in
their order: the same call has the same bits each time. Another number of requests may share the slots otherwise.
"""

from __future__ import annotations

from typing import NamedTuple

from gemma4_kernels.rounding import Tolerance

HEAD_DIMS = (16, 32, 64, 128, 256, 512)
GROUPS = (1, 2, 4, 8, 16)
"""Query heads of one key head."""
MAX_PARTS = 64
"""Programs that share the slots of one request and key head."""
CLUSTER_PARTS, CLUSTER_HEADS, CLUSTER_SLOTS = (8, 4), 8, {256: 512, 512: 512}
"""Of clustered.cu: blocks of a cluster, the most query heads of a block, and by head dim how many slots of a request
are read ahead."""
CLUSTER_TEAMS = 12
"""The most clusters that share a request's slots, of wide heads: those of a sliding window are few."""
WIDE_PARTS = (8, 4, 2)
"""Blocks of a cluster of wide heads. Those of two take all multiprocessors of a GPU, others about three of four."""
CLUSTER_REQUESTS = 12
"""Of so many at most, its clusters were measured beside the launches one by one."""
SPARED = 16
"""Multiprocessors that a kernel which fills a GPU leaves to the attention behind it, if it leaves any (layer_tail)."""
AXES = {"requests": (1, 2, 4, 8, 16, 32, 64), "slots": (128, 512, 2048, 8192, 32768), "head_dim": (256, 512)}


class Case(NamedTuple):
    """Sizes that the tests run. lengths: slots of each request. `interpreted`: small enough for the interpreter."""

    name: str
    lengths: tuple[int, ...]
    kv_heads: int
    group: int
    head_dim: int
    interpreted: bool = True


CASES = (
    Case("no-requests", (), 1, 4, 32),
    Case("no-slots", (0, 3), 1, 4, 32),
    Case("one-slot", (1,), 2, 4, 32),
    Case("one-part", (37,), 2, 2, 16),
    Case("parts", (129, 64, 200, 1), 2, 4, 32),
    Case("one-query-head", (70,), 1, 1, 16),
    Case("many-query-heads", (70, 130), 1, 16, 16),
    Case("e4b-sliding", (512,) * 8, 2, 4, 256, interpreted=False),
    Case("e4b-full", (768, 4000, 1), 2, 4, 512, interpreted=False),
    Case("e2b-full", (32768,), 1, 8, 512, interpreted=False),
    Case("26b-sliding", (1024,) * 64, 8, 2, 256, interpreted=False),
)

# Of the largest magnitude of a value that a request reads: the probabilities add up to 1.
TOLERANCES = {
    "bfloat16": Tolerance(2**-7, "probabilities and the result are rounded to 8 bits each"),
    "float16": Tolerance(2**-10, "probabilities and the result are rounded to 11 bits each"),
    "float32": Tolerance(2**-16, "fp32 sums of up to 2^15 products, and exponentials of scores so summed"),
}
