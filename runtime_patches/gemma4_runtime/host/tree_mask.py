"""Which layout a draft tree's mask has: SGLang asks its platform, and Triton's kernels read the one of a GPU."""

from __future__ import annotations

from typing import Any


def full_mask_mode() -> Any:
    """Returns the mode in which a row of the mask spans all keys of its request."""
    from gemma4_runtime.release import TreeMaskMode

    return TreeMaskMode.FULL_MASK
