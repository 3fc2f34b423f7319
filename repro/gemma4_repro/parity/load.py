"""The load of a comparison: prompts on both sides of the sliding window, short enough for Triton's interpreter.

That of the scenario `pictures` is made for the run, see `pictures.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
"""Engine arguments that differ from the scenarios'."""

PICTURES = "pictures"
SCENARIOS = {"e4b": E4B_TOYS, "26b": ("toy-26b", "toy-26b-assistant"), PICTURES: E4B_TOYS}
"""What can be compared: the toy checkpoints of each, target first, then its MTP assistant. That with pictures is
compared on a toy made of its target, with a vision tower; the text weights, for which the assistant drafts, are its."""

_SHARE_KEYS = ("e4b", PICTURES)
"""Scenarios whose target has layers that share the keys of others."""

_LENGTHS_AND_NEW = ((24, 14), (40, 4), (5, 2))
"""Prompt tokens and new tokens. The toys' window is 32: the first prompt passes it while decoding, with tokens before
that to show agreement; the second is past it in prefill, whose keys every later position reads. The third has so few
keys that one of another token tells, wherever it stands: of the others' a toy hardly looks at the query's own."""
_SEED = 20


def toys_of(scenario: str) -> tuple[str, ...]:
    """The toys of a key of SCENARIOS. Raises UnknownName."""
    if scenario not in SCENARIOS:
        raise UnknownName(f"there is no scenario {scenario!r} to compare", f"known: {', '.join(SCENARIOS)}")
    return SCENARIOS[scenario]


def asks_for_prompts(scenario: str, compared: Sequence[str]) -> bool:
    """Whether the prompts' logprobs are asked for. compared: ids of the patches in which the sides differ.

    Not if one of them serves none, where the model lets it do its work: it would step aside, and not be compared.
    """
    return scenario not in _SHARE_KEYS or not hides_prompts(compared)


def hides_prompts(compared: Sequence[str]) -> tuple[str, ...]:
    """Those patches that serve a prefill without the prompt's logprobs."""
    return tuple(patch.id for patch in CATALOG if patch.last_rows_only and patch.id in compared)


@dataclass(frozen=True)
class Load:
    """prompts: token ids of each. new_tokens: how many each is continued for.

    texts, pictures: what is sent in the place of the ids, and each prompt's files; empty where ids are sent.
    """

    prompts: list[list[int]]
    new_tokens: list[int]
    texts: list[str]
    pictures: list[list[str]]


def text_load() -> Load:
    """The same every time."""
    prompts = [held_out_prompts(1, length, _SEED + i)[0] for i, (length, _) in enumerate(_LENGTHS_AND_NEW)]
    return Load(prompts, [new for _, new in _LENGTHS_AND_NEW], [], [])
