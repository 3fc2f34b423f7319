"""Makes the toys: trains the pair, saves it, measures it and writes the model cards.

`python -m gemma4_repro.toys.make --output repro/toys`
"""

import argparse
import json
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import torch
from transformers import PreTrainedModel

from gemma4_repro.toys import measure, train_assistant, train_target
from gemma4_repro.toys.locate import ASSISTANT_NAME, TARGET_NAME
from gemma4_repro.toys.processor import build_processor, build_tokenizer
from gemma4_repro.toys.stage import Stage

SEED = 2
COMMAND = "python -m gemma4_repro.toys.make --output repro/toys"


def save(model: PreTrainedModel, folder: Path) -> None:
    """Save weights and configuration as safetensors, readable by everyone."""
    model.save_pretrained(folder)
    for file in folder.glob("*.safetensors"):
        file.chmod(0o644)  # safetensors creates its files for the owner alone


def make(output: Path, seed: int, threads: int) -> dict:
    """Train and save both toys under `output`; returns what was measured."""
    torch.set_num_threads(threads)
    target, assistant, first = train_target.train(seed)
    second = train_assistant.train(target, assistant, seed)
    folders = {TARGET_NAME: output / TARGET_NAME, ASSISTANT_NAME: output / ASSISTANT_NAME}
    save(target, folders[TARGET_NAME])
    save(assistant, folders[ASSISTANT_NAME])
    build_processor().save_pretrained(folders[TARGET_NAME])
    build_tokenizer().save_pretrained(folders[ASSISTANT_NAME])
    record = json.dumps(training_record(seed, threads, [first, second]), indent=2) + "\n"
    for folder in folders.values():
        (folder / "training.json").write_text(record, encoding="utf-8")
    return measure.write(output)


def training_record(seed: int, threads: int, stages: list[Stage]) -> dict:
    """How the pair was made, for `training.json` and the cards."""
    return {
        "command": COMMAND,
        "seed": seed,
        "threads": threads,
        "versions": {package: version(package) for package in ("torch", "transformers", "numpy", "safetensors")},
        "stages": [asdict(stage) for stage in stages],
        "notes": [train_target.NOTE, train_assistant.NOTE, train_assistant.WITHHELD_NOTE],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="the folder to put both toys in")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument(
        "--threads", type=int, default=1, help="torch threads (the sums, and so the weights, depend on it)"
    )
    args = parser.parse_args()
    print(json.dumps(make(args.output, args.seed, args.threads), indent=2))


if __name__ == "__main__":
    main()
