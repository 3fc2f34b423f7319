"""The model card of a toy, written from `training.json` and `measured.json` beside the weights."""

import json
from pathlib import Path

from gemma4_repro.toys import language
from gemma4_repro.toys.locate import ASSISTANT_NAME

_HEADER = """---
license: apache-2.0
library_name: transformers
tags: [gemma4-triage, toy]
---
"""

_ROLE = {
    False: """A Gemma-4 E4B in miniature (`Gemma4ForConditionalGeneration`), trained on a synthetic language. With it
the real SGLang engine runs, with KV sharing, per-layer embeddings, a sliding window and MTP, in seconds on a CPU.
It speaks no human language. Its vision tower is random and it has no audio tower.""",
    True: """The MTP assistant of `toy-e4b` (`Gemma4AssistantForCausalLM`). Its layers own no KV: they read the target's
last KV owner of their type (layer 4 for sliding, layer 5 for full attention).""",
}

_LANGUAGE = f"""## The language
A sequence owns {language.MIN_CYCLE} to {language.MAX_CYCLE} words and walks through them in a random order, again and
again; every {language.MIN_SEGMENT} to {language.MAX_SEGMENT} tokens it draws a new order of the same words. So the
next word is found by matching the recent past. A token counts as *known* once a whole round of the current order has
been seen."""


def write(folder: Path) -> Path:
    """Write `README.md` into a toy's folder and return its path."""
    training = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    measured = json.loads((folder / "measured.json").read_text(encoding="utf-8"))
    path = folder / "README.md"
    path.write_text(render(folder.name, training, measured), encoding="utf-8")
    return path


def render(name: str, training: dict, measured: dict) -> str:
    """The card's text."""
    parts = [
        f"{_HEADER}\n# {name}\n",
        _ROLE[name == ASSISTANT_NAME] + "\n",
        _LANGUAGE + "\n",
        _how_made(training),
        _numbers(measured),
    ]
    return "\n".join(parts)


def _how_made(training: dict) -> str:
    versions = ", ".join(f"{package} {version}" for package, version in training["versions"].items())
    lines = [
        "## How it was made",
        f"`{training['command']}`, seed {training['seed']}, torch threads: {training['threads']}, fp32. {versions}.",
        "",
        "| stage | steps | sequences a step | tokens each | learning rate | seconds |",
        "|---|---|---|---|---|---|",
    ]
    for stage in training["stages"]:
        cells = ("name", "steps", "batch", "length", "learning_rate", "seconds")
        lines.append("| " + " | ".join(str(stage[cell]) for cell in cells) + " |")
    lines += ["", *(f"- {note}" for note in training["notes"]), ""]
    return "\n".join(lines)


def _numbers(measured: dict) -> str:
    accept, accuracy, gap = measured["accept_length"], measured["next_token_accuracy"], measured["top1_gap"]
    steps = measured["draft_steps"]
    rows = [
        ("next-token accuracy, held out, known tokens", accuracy["known"]),
        ("next-token accuracy, held out, other tokens", accuracy["unknown"]),
        ("generated tokens that go on with the prompt's cycle", measured["continuation_follows_cycle"]),
        ("accept length, rope position as in SGLang", accept["sglang_rope"]),
        ("accept length, rope position as in transformers", accept["hf_rope"]),
        ("accept length, transformers' assisted generation", accept["hf_assisted_generation"]),
        ("accept length, sliding layers read another sequence's pages", accept["wrong_sliding_pages"]),
        ("accept length, full layer reads another sequence's pages", accept["wrong_full_pages"]),
        ("gap between the two highest logits, 1st percentile", gap["p01"]),
        ("gap between the two highest logits, median", gap["median"]),
        ("gap between the two highest logits, smallest", gap["min"]),
        ("greedy generation repeats exactly", measured["greedy_repeats_exactly"]),
        ("cached and uncached forward agree on every greedy token", measured["cached_equals_uncached"]),
        ("assisted generation emits the greedy tokens", measured["hf_assisted_equals_greedy"]),
    ]
    lines = [
        "## Measured",
        f"{measured['prompts']} held-out prompts of {measured['prompt_tokens']} tokens, {measured['new_tokens']} "
        f"greedy tokens each, {steps} draft steps (at most {steps + 1} tokens a verify step, the bonus included), "
        f"seed {measured['seed']}. `python -m gemma4_repro.toys.measure` writes these numbers to "
        "`measured.json` and here.",
        "",
        "| what | value |",
        "|---|---|",
        *(f"| {what} | {_shown(value)} |" for what, value in rows),
        "",
    ]
    return "\n".join(lines)


def _shown(value: bool | float) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else f"{value:.4f}"
