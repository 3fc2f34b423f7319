"""Fix: sliding layers see exactly W keys, the query's own included, as in transformers.

`Gemma4Attention` hands `sliding_window` (W) to the attention layer, where kernels expect the distance to the oldest
visible key, W - 1; trtllm_mha then sees W + 1 keys. Fixed upstream in 0.5.23. Not a default: it changes what a server
of this release says once a sequence passes the window.
"""

from __future__ import annotations

from typing import Any


def narrow_window(result: Any, attention: Any, *args: Any, **kwargs: Any) -> None:
    """Run after `Gemma4Attention.__init__`: W becomes W - 1 on sliding layers; full layers have none."""
    if attention.sliding_window is not None:
        attention.attn.sliding_window_size = attention.sliding_window - 1
