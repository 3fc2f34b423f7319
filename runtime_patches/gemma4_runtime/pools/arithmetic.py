"""SGLang's own arithmetic, to the bit: model_executor/pool_configurator.py, HybridSWAPoolConfigurator, 0.5.13.post1."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

SGLANG_DEFAULT = 0.8
"""ServerArgs.swa_full_tokens_ratio."""


@dataclass(frozen=True)
class TokenBytes:
    """Bytes that one token takes on one GPU, over all layers of a kind: keys and values."""

    full: int
    swa: int


@dataclass(frozen=True)
class PoolSizes:
    """Tokens, whole pages. ratio: swa_full_tokens_ratio."""

    ratio: float
    full_tokens: int
    swa_tokens: int


def pool_sizes(
    available_bytes: int, cell: TokenBytes, ratio: float, page_size: int, most_tokens: int | None = None
) -> PoolSizes:
    """Say what SGLang makes of `available_bytes`: whole pages, at least 0 tokens. most_tokens: --max-total-tokens.

    The order of the operations is SGLang's, because the ratio is a float.
    """
    per_token = cell.full + ratio * cell.swa
    full = _whole_pages(int(available_bytes // per_token), page_size)
    if most_tokens is not None and most_tokens < full:
        full = _whole_pages(most_tokens, page_size)
    return PoolSizes(ratio, full, _whole_pages(int(full * ratio), page_size))


def _whole_pages(tokens: int, page_size: int) -> int:
    return max(0, tokens // page_size * page_size)


def own_kv(layer_ids: Iterable[int], layers: int, shared_layers: int) -> list[int]:
    """Return those of `layer_ids` that own KV, in their order.

    Gemma4Attention of models/gemma4_causal.py binds the others, which are the last, to an earlier layer's id.

    Args:
        layer_ids: Any of the model's.
        layers: Of the whole model.
        shared_layers: How many of them read an earlier one's.
    """
    return [layer for layer in layer_ids if layer < layers - shared_layers]
