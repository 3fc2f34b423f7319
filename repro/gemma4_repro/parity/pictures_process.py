"""Makes the load with pictures: `python -m gemma4_repro.parity.pictures_process PARENT_PID FOLDER`.

Writes below FOLDER/toy-and-pictures: toy/, a PNG per picture, and load.json last, a MadeLoad.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from transformers import Gemma4Processor

from gemma4_repro.engine.parent_death import die_with_parent
from gemma4_repro.parity.pictures import FOLDER_NAME, LOAD_NAME, PICTURES_OF, SEED, MadeLoad
from gemma4_repro.toys.vision import make_toy, picture

_WORDS = ("bal bel bil", "bol bul bal bel", "bil bol")
_SIZES = (48, 400)
"""Of a picture's sides, in pixels."""


def main() -> None:
    """See the module."""
    die_with_parent(int(sys.argv[1]))
    folder = Path(sys.argv[2]) / FOLDER_NAME
    toy = make_toy(folder / "toy", SEED)
    files = _draw(folder)
    pictures = [[files.pop(0) for _ in range(count)] for count in PICTURES_OF]
    texts = [_text(words, len(of)) for words, of in zip(_WORDS, pictures, strict=True)]
    processor = Gemma4Processor.from_pretrained(toy)
    prompts = [_ids(processor, text, of) for text, of in zip(texts, pictures, strict=True)]
    made = MadeLoad(model_path=str(toy), prompts=prompts, texts=texts, pictures=pictures)
    (folder / LOAD_NAME).write_text(made.model_dump_json(), encoding="utf-8")


def _draw(folder: Path) -> list[str]:
    rng, files = np.random.default_rng(SEED), []
    for number in range(sum(PICTURES_OF)):
        width, height = (int(side) for side in rng.integers(*_SIZES, size=2))
        path = folder / f"{number}_{width}x{height}.png"
        picture(width, height, SEED + number).save(path)
        files.append(str(path))
    return files


def _text(words: str, pictures: int) -> str:
    """Words ahead of each picture and behind the last."""
    return " ".join([words, *(f"<|image|> {words}" for _ in range(pictures))])


def _ids(processor: Gemma4Processor, text: str, pictures: list[str]) -> list[int]:
    images: Any = [[Image.open(path) for path in pictures]] if pictures else None
    return processor(text=[text], images=images)["input_ids"][0]


if __name__ == "__main__":
    main()
