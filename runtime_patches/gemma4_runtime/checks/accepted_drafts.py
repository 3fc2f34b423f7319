"""How many tokens a verification may take of its drafts. Pure: host arrays in, numbers out."""

from __future__ import annotations

import numpy as np


def agreed_in_chain(drafts: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Return of each request how many tokens the target agreed to, the one that it adds itself included, [requests].

    Args:
        drafts: The tokens of a chain, its root first, [requests, tokens].
        predicted: What the target has behind each of them, [requests, tokens].
    """
    agrees = drafts[:, 1:] == predicted[:, :-1]
    return 1 + np.logical_and.accumulate(agrees, axis=1).sum(axis=1)


def listed_tokens(taken: np.ndarray) -> np.ndarray:
    """Return of each request how many tokens a verification says it took, [requests].

    Args:
        taken: Their places in the forward, [requests, depth]; -1 behind them.
    """
    return np.logical_and.accumulate(taken >= 0, axis=1).sum(axis=1)
