"""What a run said about each prompt, position by position: read from the files of an engine's arm or of the oracle."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gemma4_repro.engine.outcome import ArmResult
from gemma4_repro.parity.oracle_files import ARRAYS_NAME
from gemma4_repro.recorders.layers import ROWS_NAME, STATES_NAME
from gemma4_repro.recorders.logprobs import read_logprobs
from gemma4_repro.recorders.usage import FINISHED_NAME, read_finished_answers


@dataclass(frozen=True)
class Track:
    """One prompt and its greedy continuation, n tokens. Row p belongs to the query at position p, counted from 0.

    Attributes:
        tokens: [n], the prompt's first prompt_length.
        logprobs: float64 [n - 1, vocabulary], of what follows token p; from row asked_from on, and NaN before it.
        states: float32 [n - 1, layers, hidden], behind each decoder layer; NaN where nothing was recorded.
        modes: the forward mode in which row p was computed, such as EXTEND, DECODE or TARGET_VERIFY; empty where nobody
            knows.
    """

    prompt: int
    tokens: tuple[int, ...]
    prompt_length: int
    logprobs: np.ndarray
    states: np.ndarray
    modes: tuple[str, ...]
    asked_from: int = 0

    def mode(self, position: int) -> str:
        """EXTEND, DECODE, TARGET_VERIFY; "" where it is not known."""
        return self.modes[position] if position < len(self.modes) else ""

    def recorded(self, position: int) -> bool:
        """Say whether there are states of that row. Only an engine's recorder may have missed one."""
        return not self.modes or self.mode(position) != ""


@dataclass(frozen=True)
class Oracle:
    """What transformers says.

    Attributes:
        window: keys that a sliding layer sees.
        layer_types: as in the model's config.
        varied: prompt -> number of keys -> states [n - 1, layers, hidden]: row p as it would be if its sliding layers
            saw that many keys, and all rows before it the right ones.
    """

    tracks: tuple[Track, ...]
    window: int
    layer_types: tuple[str, ...]
    varied: dict[int, dict[int, np.ndarray]]


def read_arm(folder: Path, prompts: Sequence[Sequence[int]], result: ArmResult | None) -> tuple[Track, ...]:
    """Return the tracks of an arm, one per prompt; empty if it did not come to its end or recorded no logprobs."""
    logprobs = read_logprobs(folder)
    if result is None or not logprobs:
        return ()
    recorded = _Recorded(folder)
    tracks = []
    for answer in result.answers:
        prompt = prompts[answer.prompt]
        tokens = (*prompt, *answer.output_ids)
        states, modes = recorded.of(answer.prompt, tokens)
        said = logprobs[answer.prompt]
        unasked = len(tokens) - 1 - len(said)
        rows = np.concatenate([np.full((unasked, said.shape[1]), np.nan), said])
        tracks.append(Track(answer.prompt, tokens, len(prompt), rows, states, modes, unasked))
    return tuple(tracks)


def read_finished(folder: Path, prompts: Sequence[Sequence[int]], vocabulary: int) -> tuple[Track, ...]:
    """Return the tracks of the answers that an arm had finished before it died: tokens and states, and no logprobs.

    Args:
        folder: the arm's.
        prompts: token ids of each.
        vocabulary: how many tokens there are.
    """
    finished = read_finished_answers(folder / FINISHED_NAME)
    if not finished:
        return ()
    recorded = _Recorded(folder)
    tracks = []
    for number, answer in sorted(finished.items()):
        tokens = (*prompts[number], *answer)
        rows = len(tokens) - 1
        states, modes = recorded.of(number, tokens)
        unknown = np.full((rows, vocabulary), np.nan)
        tracks.append(Track(number, tokens, len(prompts[number]), unknown, states, modes, rows))
    return tuple(tracks)


def read_oracle(
    folder: Path, prompt_lengths: Sequence[int], windows: Sequence[int], window: int, layer_types: Sequence[str]
) -> Oracle:
    """Say what `oracle_process` wrote. Raises FileNotFoundError, KeyError."""
    with np.load(folder / ARRAYS_NAME, allow_pickle=False) as arrays:
        tracks = tuple(
            Track(
                number,
                tuple(arrays[f"tokens_{number}"].tolist()),
                length,
                arrays[f"logprobs_{number}"],
                arrays[f"states_{number}"],
                (),
            )
            for number, length in enumerate(prompt_lengths)
        )
        varied = {
            number: {keys: arrays[f"states_{number}_keys_{keys}"] for keys in windows}
            for number in range(len(prompt_lengths))
        }
    return Oracle(tracks, window, tuple(layer_types), varied)


class _Recorded:
    """The files of LayerRecorder. A part that was cut off by a crash is left out."""

    def __init__(self, folder: Path) -> None:
        self._rows: dict[tuple[int, int, int], tuple[str, int]] = {}
        self._states = np.zeros((0, 0, 0), np.float32)
        lines = (folder / ROWS_NAME).read_text(encoding="utf-8").splitlines(keepends=True)
        forwards = [json.loads(line) for line in lines if line.endswith("\n")]
        if not forwards:
            return
        shape = (forwards[0]["layers"], forwards[0]["hidden"])
        values = np.fromfile(folder / STATES_NAME, "<f4")
        whole = len(values) // (shape[0] * shape[1])
        self._states = values[: whole * shape[0] * shape[1]].reshape(whole, *shape)
        listed = [(forward["mode"], tuple(row)) for forward in forwards for row in forward["rows"]]
        for number, (mode, row) in enumerate(listed[:whole]):
            # A draft that was refused is followed by another row of its position; the last one counts.
            self._rows[row] = (mode, number)

    def of(self, prompt: int, tokens: Sequence[int]) -> tuple[np.ndarray, tuple[str, ...]]:
        """States [n - 1, layers, hidden] and modes of the sequence's rows."""
        states = np.full((len(tokens) - 1, *self._states.shape[1:]), np.nan, np.float32)
        modes = []
        for position, token in enumerate(tokens[:-1]):
            mode, number = self._rows.get((prompt, position, token), ("", -1))
            if number >= 0:
                states[position] = self._states[number]
            modes.append(mode)
        return states, tuple(modes)
