"""What the runner hands to an arm's process: a JSON file in the arm's folder, and the phases that come back."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from gemma4_repro.mutations.draw import Mutation

REQUEST_NAME = "request.json"
RESULT_NAME = "result.json"
PHASE_NAME = "phase.txt"
LOG_NAME = "log.txt"
LEFTOVERS_NAME = "leftovers.txt"
"""Files outside the folder that SGLang leaves behind, one path per line; removed when the arm has ended."""


class Phase(StrEnum):
    """Phases say how far an arm has come; the file holds the latest. One that ends before SERVING died at start."""

    STARTING = "starting the engine"
    SERVING = "serving the load"
    IDLE = "checking pools at idle"
    DONE = "done"


class ArmRequest(BaseModel):
    """What an arm's process is to do.

    Attributes:
        arm: Its name.
        folder: Absolute; the process writes nowhere else.
        command: What a user types to run this arm; guard manifests and dumps name it as how the engine was launched.
        environment: Set before SGLang's plugins are loaded.
        engine_arguments: Of sglang's Engine.
        prompts: Token ids, [prompts][tokens].
        new_tokens: Per prompt, how long its answer is; None: to the context's end.
        ignore_eos: Whether answers go on past the end token, to their full length.
        stage_of: Per prompt, when it is sent (see StagedWorkload); empty: all at once.
        pause_s: How long nothing is sent between two stages, so that the server comes to idle.
        aborted: Prompt -> aborted after so many output tokens.
        recorders: Keys of recorders.catalog.RECORDERS; some are used without being named, see there.
        vocabulary_size: Have the logprobs of token ids below this written down; None: none.
        prompt_logprobs: Those of prompts too, not only of answers.
        watched: Target keys of which the recorder `reach` writes down whether the engine came to them.
        texts: Sent in the place of ids where there are pictures; SGLang's processor has to make the prompts' ids.
        pictures: Per prompt the files of its pictures.
        one_by_one: See recorders.arrivals.AfterLastRounds.
        mutation: What the recorder `mutator` corrupts; None: it only shuffles the pools' ids, as for every mutation.
    """

    model_config = ConfigDict(frozen=True)

    arm: str
    folder: Path
    command: list[str]
    environment: dict[str, str]
    engine_arguments: dict[str, Any]
    prompts: list[list[int]]
    new_tokens: Sequence[int | None]
    ignore_eos: bool = True
    stage_of: list[int] = []
    pause_s: float = 0.0
    aborted: dict[int, int] = {}
    recorders: list[str] = ["drafts"]
    vocabulary_size: int | None = None
    prompt_logprobs: bool = True
    watched: list[str] = []
    texts: list[str] = []
    pictures: list[list[str]] = []
    one_by_one: bool = False
    mutation: Mutation | None = None


def read_phase(folder: Path) -> Phase | None:
    """Return the arm's latest phase, None before the first."""
    try:
        return Phase((folder / PHASE_NAME).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
