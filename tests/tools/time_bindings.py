"""Prints what one look at the bindings of 46 attention layers takes, 42 of a target and 4 of its draft.

python tests/tools/time_bindings.py
"""

import sys
import timeit
from pathlib import Path
from types import SimpleNamespace

import torch
from sglang import __version__
from sglang.srt.layers.radix_attention import RadixAttention

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from gemma4_runtime.binding_facts import bound_now, model_of
from swa_pools import make_swa_allocator

SLIDING, EVERY, LOOKS = 35, 16, 2000


def main() -> None:
    """Build the layers on a pool pair, and time looks at them."""
    pool = make_swa_allocator(
        64 * 16, 64 * 16, 16, heads=2, swa_layers=tuple(range(SLIDING)), full_layers=tuple(range(SLIDING, 42))
    ).get_kvcache()

    def runner(ids: list[int]) -> SimpleNamespace:
        layers = [RadixAttention(4, 8, 1, num_kv_heads=2, layer_id=one, sliding_window_size=31) for one in ids]
        return SimpleNamespace(model=torch.nn.ModuleList(layers), kv_cache_dtype=torch.float32)

    models = [
        model_of(role, runner(ids), lambda: pool) for role, ids in (("target", [*range(42)]), ("draft", [34] * 4))
    ]
    known = bound_now(models)
    each = min(timeit.repeat(lambda: bound_now(models) == known, number=LOOKS, repeat=5)) / LOOKS * 1e6
    layers = sum(len(model.layers) for model in models)
    print(f"SGLang {__version__}: {each:.0f} us a look at {layers} layers, {each / EVERY:.1f} us a step")


if __name__ == "__main__":
    main()
