"""Whether the first difference is a sliding window of the wrong width. Pure: arrays in, records out.

The evidence is an experiment, not a list of known defects: transformers computes the row once more with its sliding
layers, and only those, seeing another number of keys. All rows before it are right, so if that gives what the engine
gave, in every layer, then that many keys is what the engine's sliding layers saw.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gemma4_repro.parity.compare_tracks import LayerDifference, Tolerances
from gemma4_repro.parity.tracks import Oracle, Track

SLIDING = "sliding_attention"
_WIDTH_FIX, _TRITON_FIX = "swa-window-width", "triton-decode-window"


@dataclass(frozen=True)
class KeysSeen:
    """How many keys the sliding layers of a row saw. left: what then still differs from transformers, at most."""

    keys: int
    left: float


@dataclass(frozen=True)
class WindowCause:
    """Both sides' keys at the row where they part.

    Attributes:
        window: as many as the model's config says.
        fix: the catalog id of what repairs the side that is wrong; None if this project has nothing for it.
    """

    reference: KeysSeen
    other: KeysSeen
    window: int
    fix: str | None


def tried_windows(window: int) -> tuple[int, ...]:
    """Return the numbers of keys that the oracle is to try instead of `window`."""
    return tuple(keys for keys in range(max(1, window - 2), window + 3) if keys != window)


def keys_seen(oracle: Oracle, track: Track, row: int, tolerances: Tolerances) -> KeysSeen | None:
    """Return the number of keys with which transformers gives the track's row in every layer; None if none tried does.

    Of several, which a sequence that has no more tokens cannot tell apart, the nearest to the model's window.
    """
    right = next((candidate for candidate in oracle.tracks if candidate.prompt == track.prompt), None)
    if right is None or row >= len(right.states) or right.tokens[: row + 1] != track.tokens[: row + 1]:
        return None
    candidates = {oracle.window: right.states} | oracle.varied.get(track.prompt, {})
    left = {keys: float(np.abs(states[row] - track.states[row]).max()) for keys, states in candidates.items()}
    explained = [keys for keys, size in left.items() if size <= tolerances.state]
    if not explained:
        return None
    keys = min(explained, key=lambda keys: abs(keys - oracle.window))
    return KeysSeen(keys, left[keys])


def window_cause(
    oracle: Oracle, reference: Track, other: Track, difference: LayerDifference, backend: str, tolerances: Tolerances
) -> WindowCause | None:
    """Return the width of the window as the cause of a difference.

    None if the first layer that differs is no sliding one, or widths of the window do not explain the difference.
    """
    if oracle.layer_types[difference.layer] != SLIDING:
        return None
    seen = [keys_seen(oracle, track, difference.position, tolerances) for track in (reference, other)]
    if seen[0] is None or seen[1] is None or seen[0].keys == seen[1].keys:
        return None
    wrong = seen[1] if seen[1].keys != oracle.window else seen[0]
    return WindowCause(seen[0], seen[1], oracle.window, _fix(wrong.keys - oracle.window, backend, difference.mode))


def _fix(keys_too_many: int, backend: str, mode: str) -> str | None:
    if keys_too_many == 1:
        return _WIDTH_FIX
    if keys_too_many == -1 and (backend, mode) == ("triton", "DECODE"):
        return _TRITON_FIX
    return None
