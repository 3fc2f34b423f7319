"""The loads of a comparison, short enough for Triton's interpreter.

| name     | holds                                                                                         |
|----------|-----------------------------------------------------------------------------------------------|
| prompts  | three prompts on both sides of the sliding window; of the scenario `pictures` see pictures.py |
| pressure | 24 requests that nearly fill the SWA pool, while page ids of the full pool pass its end       |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gemma4_repro.errors import UnknownName
from gemma4_repro.scenarios.e4b_engine import E4B_TOYS
from gemma4_repro.toys.language import held_out_prompts
from gemma4_runtime.catalog import CATALOG

ENGINE: dict[str, Any] = {
    "max_total_tokens": 1024,
    "max_running_requests": 4,
    # The interpreter runs each split in turn; two are enough to have partial results merged.
    "triton_attention_num_kv_splits": 2,
}
"""Engine arguments that differ from the scenarios'; a load may have others."""

PICTURES = "pictures"
SCENARIOS = {"e4b": E4B_TOYS, "26b": ("toy-26b", "toy-26b-assistant"), PICTURES: E4B_TOYS}
"""What can be compared: the toy checkpoints of each, target first, then its MTP assistant. That with pictures is
compared on a toy made of its target, with a vision tower; the text weights, for which the assistant drafts, are its."""

PROMPTS, PRESSURE = "prompts", "pressure"
LOADS = {PROMPTS: tuple(SCENARIOS), PRESSURE: ("e4b", "26b")}
"""Which load is there for which scenarios."""

NEEDED_FIXES = {PROMPTS: (), PRESSURE: ("swa-window-width", "triton-decode-window")}
"""Fixes that a load needs beside the default ones. Requests under pressure pass the window, or they would hold as many
pages of one pool as of the other. What the release gets wrong there, which `prompts` shows, must not hide the rest."""

PRESSURE_SWA_ABOVE = 0.85
"""The share of the SWA pool that has to be in use at once for a run to count as one under pressure."""

_PRESSURE_ENGINE: dict[str, Any] = {
    # 64 pages in the full pool and 32 in the SWA pool. A finished request leaves more of the former than of the latter
    # in the prefix cache, so that the next ones get full-pool page ids past the end of the SWA pool.
    "max_total_tokens": 1024,
    "swa_full_tokens_ratio": 0.5,
    "max_running_requests": 8,
}
_PRESSURE_REQUESTS = 24
_PRESSURE_TOKENS = 47
_PRESSURE_NEW = (4, 5, 6)
"""Prompt tokens, and new tokens in turn, so that requests leave the batch one by one. With its answer a request holds a
page more than its prompt, and its prompt's pages alone may lose their SWA side in the prefix cache."""

_SHARE_KEYS = ("e4b", PICTURES)
"""Scenarios whose target has layers that share the keys of others."""

_LENGTHS_AND_NEW = ((24, 14), (40, 4), (5, 2))
"""Prompt tokens and new tokens. The toys' window is 32: the first prompt passes it while decoding, with tokens before
that to show agreement; the second is past it in prefill, whose keys every later position reads. The third has so few
keys that one of another token tells, wherever it stands: of the others' a toy hardly looks at the query's own."""
_SEED = 20


def toys_of(scenario: str) -> tuple[str, ...]:
    """Return the toys of a key of SCENARIOS. Raises UnknownName."""
    if scenario not in SCENARIOS:
        raise UnknownName(f"there is no scenario {scenario!r} to compare", f"known: {', '.join(SCENARIOS)}")
    return SCENARIOS[scenario]


def asks_for_prompts(scenario: str, compared: Sequence[str]) -> bool:
    """Say whether the prompts' logprobs are asked for. compared: ids of the patches in which the sides differ.

    Not if one of them serves none, where the model lets it do its work: it would step aside, and not be compared.
    """
    return scenario not in _SHARE_KEYS or not hides_prompts(compared)


def hides_prompts(compared: Sequence[str]) -> tuple[str, ...]:
    """Return those patches that serve a prefill without the prompt's logprobs."""
    return tuple(patch.id for patch in CATALOG if patch.last_rows_only and patch.id in compared)


@dataclass(frozen=True)
class Load:
    """What is asked of each side.

    Attributes:
        prompts: token ids of each.
        new_tokens: how many each is continued for.
        texts, pictures: what is sent in the place of the ids, and each prompt's files; empty where ids are sent.
        engine: engine arguments of its own.
        tries_widths: have transformers try other widths of the sliding window.
        swa_above: the share of the SWA pool that it is there to exceed; None: none.
    """

    prompts: list[list[int]]
    new_tokens: list[int]
    texts: list[str]
    pictures: list[list[str]]
    engine: dict[str, Any] = field(default_factory=dict)
    tries_widths: bool = True
    swa_above: float | None = None


def check_load(name: str, scenario: str) -> None:
    """Raises UnknownName: no such load, no such scenario, or the one is not there for the other."""
    toys_of(scenario)
    if name not in LOADS:
        raise UnknownName(f"there is no load {name!r}", f"known: {', '.join(LOADS)}")
    if scenario not in LOADS[name]:
        allowed = ", ".join(LOADS[name])
        raise UnknownName(f"--load {name} cannot run on scenario {scenario!r}", f"it runs on: {allowed}")


def text_load(name: str) -> Load:
    """Return the load of that name, a key of LOADS; the same every time."""
    if name == PRESSURE:
        lengths = [_PRESSURE_TOKENS] * _PRESSURE_REQUESTS
        new_tokens = [_PRESSURE_NEW[i % len(_PRESSURE_NEW)] for i in range(_PRESSURE_REQUESTS)]
        # A row's experiment costs a copy of its sequence, and the load `prompts` makes it on the same model.
        own = {"engine": _PRESSURE_ENGINE, "tries_widths": False, "swa_above": PRESSURE_SWA_ABOVE}
    else:
        lengths, new_tokens = [length for length, _ in _LENGTHS_AND_NEW], [new for _, new in _LENGTHS_AND_NEW]
        own = {}
    prompts = [held_out_prompts(1, length, _SEED + i)[0] for i, length in enumerate(lengths)]
    return Load(prompts, new_tokens, [], [], **own)
