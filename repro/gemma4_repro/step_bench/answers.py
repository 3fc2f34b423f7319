"""Logits of two arms beside each other."""

from __future__ import annotations

from typing import Any

import torch

from gemma4_repro.step_bench.plan import MARGIN, MOST_RELATIVE


def compare(logits: torch.Tensor, reference: torch.Tensor) -> dict[str, Any]:
    """Compare [B, V] fp32 with a reference.

    max_abs_difference; relative_difference: its root mean square over the reference's standard deviation; bit_equal;
    same_tokens: the share of rows whose greedy token is the reference's; logits_std: of the reference. The first two
    are None where something is not finite, or the reference has no spread.
    """
    spread = reference.std().item()
    finite = bool(torch.isfinite(logits).all() and torch.isfinite(reference).all())
    difference = (logits - reference).abs()
    comparable = finite and spread > 0
    return {
        "max_abs_difference": difference.max().item() if finite else None,
        "relative_difference": (difference.square().mean().sqrt().item() / spread) if comparable else None,
        "bit_equal": torch.equal(logits, reference),
        "same_tokens": (logits.argmax(-1) == reference.argmax(-1)).double().mean().item(),
        "logits_std": spread if finite else None,
    }


def tolerance(moved: dict[str, Any]) -> float | None:
    """Return the tolerance of relative_difference, from what moved norms make of it; None if that says nothing."""
    found = moved["relative_difference"]
    return None if found is None else min(MARGIN * found, MOST_RELATIVE)


def is_right(answer: dict[str, Any], limit: float | None) -> bool:
    """Is the arm's step, as far as rounding lets one tell, the reference's?"""
    found = answer["relative_difference"]
    return found is not None and limit is not None and found <= limit
