"""The synthetic language that the toys speak. Needs numpy only, so that workloads can use it without torch.

A sequence owns a small set of words. It walks through them in a random order, again and again, and now and then
draws a new order of the same words. So what follows a word is told by the *recent* past alone: no table learnt in
the weights helps, and older text of the same sequence says something else about the same words.
"""

from dataclasses import dataclass

import numpy as np

VOCAB_SIZE = 512

PAD, EOS, BOS, UNK = "<pad>", "<eos>", "<bos>", "<unk>"
IMAGE, BEGIN_IMAGE, END_IMAGE = "<|image|>", "<|image>", "<image|>"
AUDIO, BEGIN_AUDIO, END_AUDIO = "<|audio|>", "<|audio>", "<audio|>"
VIDEO = "<|video|>"
BEGIN_TURN, END_TURN = "<|turn>", "<turn|>"
SPECIAL_TOKENS = (
    *(PAD, EOS, BOS, UNK),
    *(IMAGE, BEGIN_IMAGE, END_IMAGE),
    *(AUDIO, BEGIN_AUDIO, END_AUDIO),
    VIDEO,
    *(BEGIN_TURN, END_TURN),
)
FIRST_WORD = 16  # ids between the special tokens and here are reserved
WORD_COUNT = VOCAB_SIZE - FIRST_WORD

MIN_CYCLE, MAX_CYCLE = 6, 12  # words per sequence; the window of 32 tokens holds at least two rounds
MIN_SEGMENT, MAX_SEGMENT = 30, 60  # tokens before the order is drawn again
SETTLED_ROUNDS = 2  # a prompt ends at least this many rounds into an order, so that what follows is determined


@dataclass(frozen=True)
class Corpus:
    """Sequences with a mark on what can be known. Both arrays are [n, length].

    `tokens` is int64. `known[i, t]` (bool) says that `tokens[i, t]` follows from the tokens before it.
    """

    tokens: np.ndarray
    known: np.ndarray


def vocabulary() -> list[str]:
    """Return the `VOCAB_SIZE` tokens by id: special tokens, reserved ones, then made-up three-letter words."""
    words = [a + b + c for a in "bdfgklmnprstvz" for b in "aeiou" for c in "lmnrstx"]
    reserved = [f"<reserved_{i}>" for i in range(len(SPECIAL_TOKENS), FIRST_WORD)]
    # 490 words of the pattern above and a few two-letter ones to fill the table
    words += [a + "o" for a in "bdfgkl"]
    return [*SPECIAL_TOKENS, *reserved, *words[:WORD_COUNT]]


def token_id(token: str) -> int:
    """Return the id of a special token."""
    return SPECIAL_TOKENS.index(token)


def _sequence(rng: np.random.Generator, length: int, settled: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return one sequence of `length` tokens that starts with the begin-of-sequence token, and its `known` marks."""
    cycle = int(rng.integers(MIN_CYCLE, MAX_CYCLE + 1))
    words = FIRST_WORD + rng.choice(WORD_COUNT, size=cycle, replace=False)
    body = length - 1
    tokens: list[np.ndarray] = []
    known: list[np.ndarray] = []
    # Laid out from the end backwards: the last order's length decides whether the sequence ends settled.
    shortest_last = SETTLED_ROUNDS * cycle + 1 if settled else 1
    remaining = body
    while remaining > 0:
        low = shortest_last if not tokens else MIN_SEGMENT
        span = int(rng.integers(low, MAX_SEGMENT + 1))
        offsets = np.arange(span)
        tokens.append(np.resize(rng.permutation(words), span))
        # One round shows every word, and one more step shows what follows the last of them.
        known.append(offsets > cycle)
        remaining -= span
    start = token_id(BOS)
    row = np.concatenate([[start], np.concatenate(tokens[::-1])[-body:]]) if body else np.array([start])
    marks = np.concatenate([[False], np.concatenate(known[::-1])[-body:]]) if body else np.array([False])
    if remaining < 0 and body:
        # The first order is cut on the left, so a round must be seen again before anything is known.
        marks[1 : min(cycle + 2, len(marks))] = False
    return row, marks


def sample(n: int, length: int, rng: np.random.Generator, settled: bool = False) -> Corpus:
    """Draw `n` sequences of `length` tokens; `settled` ones end where what follows is determined."""
    rows, marks = zip(*(_sequence(rng, length, settled) for _ in range(n)), strict=True)
    return Corpus(tokens=np.stack(rows).astype(np.int64), known=np.stack(marks))


def held_out_rng(seed: int) -> np.random.Generator:
    """Return a random stream that training never uses (training seeds carry no such key)."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(0x4E1D,))))


def training_rng(seed: int) -> np.random.Generator:
    """Return the random stream of training data."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed)))


def held_out_prompts(n: int, length: int, seed: int) -> list[list[int]]:
    """`n` prompts of `length` token ids (begin-of-sequence included) that training never saw.

    The same arguments give the same prompts. Each ends at a place from which a trained toy can go on for as long
    as it likes.

    Raises:
        ValueError: if `length` is below 1.
    """
    if length < 1:
        raise ValueError(f"a prompt needs at least 1 token (the begin-of-sequence token), got length={length}")
    return sample(n, length, held_out_rng(seed), settled=True).tokens.tolist()
