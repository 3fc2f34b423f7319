"""The learned scale of Gemma-4's router on a CPU.

SGLang folds it into the weight of a norm that is marked as having none. CUDA's kernel multiplies by the weight all the
same; the torch form of that norm, which a CPU and ROCm run, does not, so tokens go to other experts there. Upstream:
https://github.com/sgl-project/sglang/pull/32131 (closed), for a CPU; with a release that has it this can go.
"""

from __future__ import annotations

from typing import Any


def forward(router: Any, x: Any) -> Any:
    """Router logits [T, E] of hidden states [T, H], as `Gemma4Router.forward` gives them on CUDA."""
    if not router._scale_fused:
        router.fuse_scale()
    logits, _ = router.proj(router.norm(x) * router.norm.weight)
    return logits
