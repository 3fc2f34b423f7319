"""A toy that answers questions of MMLU's form, and the file of questions that it answers.

toy-e4b goes on in the order in which it has seen words. Nine of its words are renamed to what a prompt of MMLU is made
of, so a question that repeats "Answer: B A. w B. x C. y D. z" before it is asked has a certain next word.
"""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from gemma4_repro.quality.questions import LETTERS
from gemma4_repro.toys.language import FIRST_WORD, vocabulary
from gemma4_repro.toys.vision import make_toy

_RENAMED = ("A", "B", "C", "D", "A.", "B.", "C.", "D.", "Answer:")


def make_answering_toy(folder: Path) -> Path:
    """Write the checkpoint: toy-e4b's text with the renamed words, and a random vision tower."""
    make_toy(folder)
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    words = vocabulary()
    names = dict(zip(words[FIRST_WORD:], _RENAMED, strict=False))
    ids = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {names.get(word, word): id for word, id in ids.items()}
    path.write_text(json.dumps(tokenizer))
    return folder


def damage(folder: Path, seed: int = 0) -> Path:
    """Put noise over every weight of the text's attention, so that it still talks and no longer knows."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in tensors.items():
        if "self_attn" in name and "vision" not in name and tensor.dim() == 2:
            tensors[name] = tensor + tensor.std() * torch.randn(tensor.shape, generator=generator)
    save_file(tensors, path, {"format": "pt"})
    return folder


def write_questions(path: Path, count: int, seed: int = 1) -> Path:
    """Write questions that the toy answers right, in the form of MMLU's CSV files."""
    rng = random.Random(seed)
    words = vocabulary()[FIRST_WORD + len(_RENAMED) :]
    with path.open("w", newline="") as file:
        for _ in range(count):
            answer, choices = rng.choice(LETTERS), rng.sample(words, 4)
            shown = " ".join(f"{letter}. {word}" for letter, word in zip(LETTERS, choices, strict=True))
            said = f"Answer: {answer} {shown}"
            csv.writer(file).writerow([f"{said} {said} {said} Answer: {answer}", *choices, answer])
    return path
