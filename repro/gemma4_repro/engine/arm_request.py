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
DRAFTS_NAME = "drafts.jsonl"
LEFTOVERS_NAME = "leftovers.txt"
"""Files outside the folder that SGLang leaves behind, one path per line; removed when the arm has ended."""


class Phase(StrEnum):
    """How far an arm has come; the file holds the latest. An arm that ends before SERVING died at start."""

    STARTING = "starting the engine"
    SERVING = "serving the load"
    IDLE = "checking pools at idle"
    DONE = "done"


class ArmRequest(BaseModel):
    """folder: absolute; the process writes nowhere else. environment: set before SGLang's plugins are loaded.

    command: what a user types to run this arm; guard manifests and dumps name it as how the engine was launched.
    new_tokens: per prompt, how long its answer is; None: to the context's end.
    stage_of: per prompt, when it is sent (see StagedWorkload); empty: all at once. aborted: prompt -> aborted after so
    many output tokens. recorders: keys of recorders.catalog.RECORDERS.
    vocabulary_size: have the logprobs of token ids below this written down; None: none. prompt_logprobs: those of
    prompts too, not only of answers. watched: target keys of which the recorder `reach` writes down whether the engine
    came to them. pictures: per prompt the files of its pictures; then texts are sent, of which
    SGLang's processor has to make the prompts' ids. one_by_one: see arrivals.AfterLastRounds. mutation: what the
    recorder `mutator` corrupts; None: it only shuffles the pools' ids, as for every mutation.
    """

    model_config = ConfigDict(frozen=True)

    arm: str
    folder: Path
    command: list[str]
    environment: dict[str, str]
    engine_arguments: dict[str, Any]
    prompts: list[list[int]]
    new_tokens: Sequence[int | None]
    stage_of: list[int] = []
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
    """The arm's latest phase, None before the first."""
    try:
        return Phase((folder / PHASE_NAME).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
