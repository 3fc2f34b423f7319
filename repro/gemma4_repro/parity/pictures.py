"""The load of the scenario `pictures`: made in the run's folder, by a process of its own. Imports no transformers.

Three prompts, of no picture, one and three, whose sizes are drawn from a seed, and the toy with the vision tower that
looks at them. A picture's shape says how many tokens stand for it, so the ids that transformers' processor makes of the
texts are kept beside them; SGLang is sent the texts. In its batch these tokens have other ids, so no hidden states are
found for their rows; logprobs are.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from gemma4_repro.parity.load import Load
from gemma4_repro.parity.module_run import ModuleRun

FOLDER_NAME, LOAD_NAME, LOG_NAME = "toy-and-pictures", "load.json", "pictures.txt"
SEED = 20
PICTURES_OF = (0, 1, 3)
"""Pictures of each prompt."""
NEW_TOKENS = (4, 4, 4)


class MadeLoad(BaseModel):
    """What `pictures_process` has made. model_path: the toy's folder; others: see Load."""

    model_config = ConfigDict(frozen=True)

    model_path: str
    prompts: list[list[int]]
    texts: list[str]
    pictures: list[list[str]]


def make_pictures(
    folder: Path, environment: Mapping[str, str], tick: Callable[[], Any] = lambda: None
) -> tuple[Path, Load]:
    """Return the toy's folder and the load. folder: the run's.

    Raises:
        EnvironmentLacks: the process failed or took too long.
    """
    remove_pictures(folder)
    (folder / FOLDER_NAME).mkdir(mode=0o700)
    failed = "the toy with a vision tower and its pictures could not be made"
    with ModuleRun("gemma4_repro.parity.pictures_process", folder, LOG_NAME, environment, failed) as run:
        run.wait(tick)
    made = MadeLoad.model_validate_json((folder / FOLDER_NAME / LOAD_NAME).read_text(encoding="utf-8"))
    return Path(made.model_path), Load(made.prompts, list(NEW_TOKENS), made.texts, made.pictures, tries_widths=False)


def remove_pictures(folder: Path) -> None:
    """Whatever `make_pictures` left in the run's folder, its log aside."""
    shutil.rmtree(folder / FOLDER_NAME, ignore_errors=True)
