"""Two runs of one prompt, row by row, as long as both had read the same tokens. Pure: arrays in, records out.

After the first token in which they differ nothing is compared: from there on they answer different questions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gemma4_repro.parity.tracks import Track

TOP_TOKENS = 8
"""Logprobs are compared for the tokens that the reference finds most likely, at every position. The greedy token alone
would hide a difference: of a trained toy its logprob is close to 0, whatever attention did."""

LOGPROB_TOLERANCE = 2e-4
STATE_TOLERANCE = 2e-4
"""Both sides compute in fp32 and add up in different orders. On the toy (8 layers, states up to 27, logits up to 30)
that came to at most 3e-5 in logprobs and 4e-5 in states, on both backends, with MTP and without; one key more or less
in the window is 1e-3 and more in logprobs at the first position that has it."""


@dataclass(frozen=True)
class Tolerances:
    """Largest absolute differences that count as equal. logprob: natural. state: of a hidden state behind a layer."""

    logprob: float = LOGPROB_TOLERANCE
    state: float = STATE_TOLERANCE


@dataclass(frozen=True)
class TokenDifference:
    """The first token that differs. position: of the query that both answered differently.

    reference_logprob, other_logprob: what the *reference* gave its own token and the other's.
    """

    position: int
    output_index: int
    reference_token: int
    other_token: int
    reference_logprob: float
    other_logprob: float
    near_tie: bool

    @property
    def gap(self) -> float:
        return self.reference_logprob - self.other_logprob


@dataclass(frozen=True)
class LayerDifference:
    """The first row whose states differ, and in it the first layer. largest: over all layers of that row."""

    position: int
    layer: int
    difference: float
    largest: float
    mode: str


@dataclass(frozen=True)
class PromptComparison:
    """How the tracks of one prompt compare.

    Of the `rows` positions whose logprobs both were asked for, the largest difference in logprobs, and where;
    `first_over` is the first position whose logprobs differ by more than the tolerance.
    """

    prompt: int
    prompt_length: int
    rows: int
    worst: float
    worst_position: int
    first_over: int | None
    token: TokenDifference | None
    layer: LayerDifference | None

    @property
    def agrees(self) -> bool:
        """Logprobs within tolerance, and tokens equal or parted by a tie that round-off may decide."""
        return self.first_over is None and (self.token is None or self.token.near_tie)


def compare_tracks(reference: Track, other: Track, tolerances: Tolerances) -> PromptComparison:
    """Hold `other` against `reference`, of the same prompt."""
    token = _token_difference(reference, other, tolerances)
    rows = min(len(reference.logprobs), len(other.logprobs))
    if token is not None:
        rows = token.position + 1
    begin = min(rows, max(reference.asked_from, other.asked_from))
    differences = _logprob_differences(reference.logprobs[begin:rows], other.logprobs[begin:rows])
    over = np.flatnonzero(~(differences <= tolerances.logprob))
    worst = int(np.argmax(np.nan_to_num(differences, nan=np.inf))) if rows > begin else 0
    return PromptComparison(
        prompt=reference.prompt,
        prompt_length=reference.prompt_length,
        rows=rows - begin,
        worst=float(differences[worst]) if rows > begin else 0.0,
        worst_position=begin + worst,
        first_over=begin + int(over[0]) if len(over) else None,
        token=token,
        layer=_layer_difference(reference, other, rows, tolerances),
    )


def _logprob_differences(reference: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return per row [rows] the largest difference over the reference's TOP_TOKENS."""
    count = min(TOP_TOKENS, reference.shape[1])
    top = np.argsort(-reference, axis=1, kind="stable")[:, :count]
    return np.abs(np.take_along_axis(other - reference, top, axis=1)).max(axis=1, initial=0.0)


def _token_difference(reference: Track, other: Track, tolerances: Tolerances) -> TokenDifference | None:
    first = reference.prompt_length
    for place in range(first, min(len(reference.tokens), len(other.tokens))):
        ours, theirs = reference.tokens[place], other.tokens[place]
        if ours != theirs:
            row = reference.logprobs[place - 1]
            gap = float(row[ours] - row[theirs])
            return TokenDifference(
                position=place - 1,
                output_index=place - first,
                reference_token=ours,
                other_token=theirs,
                reference_logprob=float(row[ours]),
                other_logprob=float(row[theirs]),
                near_tie=gap <= tolerances.logprob,
            )
    return None


def _layer_difference(reference: Track, other: Track, rows: int, tolerances: Tolerances) -> LayerDifference | None:
    """Return None as well where the states were not recorded."""
    if reference.states.shape[1:] != other.states.shape[1:]:
        return None
    differences = np.abs(reference.states[:rows] - other.states[:rows]).max(axis=2, initial=0.0)
    # What a forward gave and is no number differs from everything.
    differences[np.isnan(differences)] = np.inf
    known = [reference.recorded(row) and other.recorded(row) for row in range(rows)]
    places = np.argwhere((differences > tolerances.state) & np.array(known, bool)[:, None])
    if not len(places):
        return None
    position, layer = (int(number) for number in places[0])
    return LayerDifference(
        position, layer, float(differences[position, layer]), float(differences[position].max()), other.mode(position)
    )
