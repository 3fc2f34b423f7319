"""A grammar's mask of the vocabulary on a CPU: SGLang calls xgrammar's Triton form, and refuses other devices."""

from __future__ import annotations

from typing import Any

import torch


def apply_vocab_mask(grammar: Any, logits: torch.Tensor, vocab_mask: torch.Tensor) -> None:
    """Tokens that the grammar forbids become -inf in place. logits: [rows, vocabulary]; vocab_mask: int32 bits."""
    from xgrammar import apply_token_bitmask_inplace

    apply_token_bitmask_inplace(logits, vocab_mask)
