"""Makes the toys: trains them, saves them, measures them and writes the model cards.

`python -m gemma4_repro.toys.make --output repro/toys [--only e4b|26b|26b-assistant]`
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import torch
from transformers import PreTrainedModel

from gemma4_repro.toys import measure, train_assistant, train_experts, train_target
from gemma4_repro.toys.locate import ASSISTANT_NAME, EXPERTS_ASSISTANT_NAME, EXPERTS_NAME, TARGET_NAME
from gemma4_repro.toys.measure_target import load_target
from gemma4_repro.toys.processor import build_processor, build_tokenizer
from gemma4_repro.toys.stage import Stage

SEED = 2
COMMAND = "python -m gemma4_repro.toys.make --output repro/toys"


def save(model: PreTrainedModel, folder: Path) -> None:
    """Save weights and configuration as safetensors, readable by everyone."""
    model.save_pretrained(folder)
    for file in folder.glob("*.safetensors"):
        file.chmod(0o644)  # safetensors creates its files for the owner alone


def save_in_bf16(model: PreTrainedModel, folder: Path) -> None:
    """Save weights rounded to bf16, and a configuration that says so of each of its parts."""
    model.to(torch.bfloat16)  # pyright: ignore[reportArgumentType]
    config = model.config
    for name in ("", *config.sub_configs):
        part = getattr(config, name, None) if name else config
        if part is not None:
            part.dtype = torch.bfloat16
    save(model, folder)


def make_pair(output: Path, seed: int, threads: int) -> None:
    """Train and save the E4B target and its assistant."""
    target, assistant, first = train_target.train(seed)
    second = train_assistant.train(target, assistant, seed)
    save(target, output / TARGET_NAME)
    save(assistant, output / ASSISTANT_NAME)
    build_processor().save_pretrained(output / TARGET_NAME)
    build_tokenizer().save_pretrained(output / ASSISTANT_NAME)
    notes = [train_target.NOTE, train_assistant.NOTE, train_assistant.WITHHELD_NOTE]
    for name in (TARGET_NAME, ASSISTANT_NAME):
        record(output / name, seed, threads, [first, second], notes)


def make_experts(output: Path, seed: int, threads: int) -> None:
    """Train and save the 26B target, in bf16."""
    target, stages = train_experts.train(seed)
    save_in_bf16(target, output / EXPERTS_NAME)
    build_processor().save_pretrained(output / EXPERTS_NAME)
    notes = [train_experts.NOTE, train_experts.ROUTING_NOTE, train_experts.SCALES_NOTE, train_experts.DTYPE_NOTE]
    record(output / EXPERTS_NAME, seed, threads, stages, notes)


def make_experts_assistant(output: Path, seed: int, threads: int) -> None:
    """Train and save the assistant, in bf16, of the 26B target that lies in `output`."""
    assistant = train_assistant.start_for_experts(seed)
    stage = train_assistant.train(load_target(output / EXPERTS_NAME), assistant, seed, train_assistant.EXPERTS_STAGE)
    folder = output / EXPERTS_ASSISTANT_NAME
    save_in_bf16(assistant, folder)
    build_tokenizer().save_pretrained(folder)
    notes = [
        train_assistant.START_NOTE,
        train_assistant.NOTE,
        train_assistant.WITHHELD_NOTE,
        train_experts.DTYPE_NOTE,
    ]
    record(folder, seed, threads, [stage], notes)


MAKERS: dict[str, Callable[[Path, int, int], None]] = {
    "e4b": make_pair,
    "26b": make_experts,
    "26b-assistant": make_experts_assistant,
}
"""By model, in the order in which they are made: an assistant for a target that lies there already comes after it."""


def make(output: Path, kind: str, seed: int, threads: int) -> dict:
    """Train and save one model of MAKERS under `output`; returns what was measured."""
    torch.set_num_threads(threads)
    MAKERS[kind](output, seed, threads)
    return measure.write(output, kind)


def record(folder: Path, seed: int, threads: int, stages: list[Stage], notes: list[str]) -> None:
    """Write how a toy was made to `training.json`, for its card."""
    found = {
        "command": COMMAND,
        "seed": seed,
        "threads": threads,
        "versions": {package: version(package) for package in ("torch", "transformers", "numpy", "safetensors")},
        "stages": [asdict(stage) for stage in stages],
        "notes": notes,
    }
    (folder / "training.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="the folder to put the toys in")
    parser.add_argument("--only", choices=MAKERS, help="make this model alone")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument(
        "--threads", type=int, default=1, help="torch threads (the sums, and so the weights, depend on it)"
    )
    args = parser.parse_args()
    for kind in [args.only] if args.only else MAKERS:
        print(json.dumps(make(args.output, kind, args.seed, args.threads), indent=2))


if __name__ == "__main__":
    main()
