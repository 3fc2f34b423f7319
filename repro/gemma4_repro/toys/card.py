"""The model card of a toy, written from `training.json` and `measured.json` beside the weights."""

import json
from pathlib import Path

from gemma4_repro.toys import language
from gemma4_repro.toys.locate import ASSISTANT_NAME, EXPERTS_ASSISTANT_NAME, EXPERTS_NAME, TARGET_NAME

_HEADER = """---
license: apache-2.0
library_name: transformers
tags: [gemma4-triage, toy]
---
"""

_ROLE = {
    TARGET_NAME: """A Gemma-4 E4B in miniature (`Gemma4ForConditionalGeneration`), trained on a synthetic language. With
it the real SGLang engine runs, with KV sharing, per-layer embeddings, a sliding window and MTP, in seconds on a CPU.
It speaks no human language. Its vision tower is random and it has no audio tower.""",
    ASSISTANT_NAME: """The MTP assistant of `toy-e4b` (`Gemma4AssistantForCausalLM`). Its layers own no KV: they read
the target's last KV owner of their type (layer 4 for sliding, layer 5 for full attention).""",
    EXPERTS_NAME: """A Gemma-4 26B-A4B in miniature (`Gemma4ForConditionalGeneration`), trained on the language of
`toy-e4b`. Beside the dense MLP of each layer stand experts, of which a router chooses some for each token. Full
attention layers have one KV head where sliding ones have two, and no value projection: their values are their keys
before norm and rope. It shares no KV and has no per-layer embeddings. Its MTP assistant is `toy-26b-assistant`. It
speaks no human language. Its vision tower is random and it has no audio tower.""",
    EXPERTS_ASSISTANT_NAME: """The MTP assistant of `toy-26b` (`Gemma4AssistantForCausalLM`). It has no experts. Its
layers own no KV: they read the target's last layer of their type (layer 4 for sliding; layer 5 for full attention,
whose one KV head holds keys and values of one projection).""",
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
    """Return the card's text."""
    parts = [
        f"{_HEADER}\n# {name}\n",
        _ROLE[name] + "\n",
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
    rows = _of_target(measured)
    drafts = ""
    if "accept_length" in measured:
        rows += _of_drafts(measured)
        steps = measured["draft_steps"]
        drafts = f"{steps} draft steps (at most {steps + 1} tokens a verify step, the bonus included), "
    if "experts" in measured:
        rows += _of_experts(measured)
    lines = [
        "## Measured",
        f"{measured['prompts']} held-out prompts of {measured['prompt_tokens']} tokens, {measured['new_tokens']} "
        f"greedy tokens each, {drafts}seed {measured['seed']}. `python -m gemma4_repro.toys.measure` writes these "
        "numbers to `measured.json` and here.",
        "",
        "| what | value |",
        "|---|---|",
        *(f"| {what} | {_shown(value)} |" for what, value in rows),
        "",
    ]
    return "\n".join(lines)


def _of_target(measured: dict) -> list[tuple[str, bool | float]]:
    accuracy, gap = measured["next_token_accuracy"], measured["top1_gap"]
    return [
        ("next-token accuracy, held out, known tokens", accuracy["known"]),
        ("next-token accuracy, held out, other tokens", accuracy["unknown"]),
        ("generated tokens that go on with the prompt's cycle", measured["continuation_follows_cycle"]),
        ("gap between the two highest logits, 1st percentile", gap["p01"]),
        ("gap between the two highest logits, median", gap["median"]),
        ("gap between the two highest logits, smallest", gap["min"]),
        ("greedy generation repeats exactly", measured["greedy_repeats_exactly"]),
        ("cached and uncached forward agree on every greedy token", measured["cached_equals_uncached"]),
    ]


def _of_drafts(measured: dict) -> list[tuple[str, bool | float]]:
    accept = measured["accept_length"]
    return [
        ("accept length, rope position as in SGLang", accept["sglang_rope"]),
        ("accept length, rope position as in transformers", accept["hf_rope"]),
        ("accept length, transformers' assisted generation", accept["hf_assisted_generation"]),
        ("accept length, sliding layers read another sequence's pages", accept["wrong_sliding_pages"]),
        ("accept length, full layer reads another sequence's pages", accept["wrong_full_pages"]),
        ("assisted generation emits the greedy tokens", measured["hf_assisted_equals_greedy"]),
    ]


def _of_experts(measured: dict) -> list[tuple[str, bool | float]]:
    share, gap, loss = measured["expert_share"], measured["expert_gap"], measured["loss"]
    choice = f"{measured['experts_per_token']} of {measured['experts']} experts"
    return [
        (f"share of a layer's work that its least used expert has, least of all layers ({choice})", share["min"]),
        ("share of a layer's work that its most used expert has, most of all layers", share["max"]),
        ("gap in router logits between the last expert chosen and the next, 1st percentile", gap["p01"]),
        ("gap in router logits between the last expert chosen and the next, smallest", gap["min"]),
        ("loss in nats, held out, known tokens", loss["right"]),
        ("loss, every token sent to the neighbours of its experts", loss["exchanged"]),
        *((f"mean error of logits with `{name}` left out", error) for name, error in measured["logit_error"].items()),
    ]


def _shown(value: bool | float) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else f"{value:.4f}"
