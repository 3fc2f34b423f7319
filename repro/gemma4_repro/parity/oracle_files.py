"""What goes to the oracle's process and comes back from it, by file. Imports neither torch nor transformers."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

REQUEST_NAME, ARRAYS_NAME, LOG_NAME = "oracle_request.json", "oracle.npz", "oracle.txt"


class OracleRequest(BaseModel):
    """What transformers is asked.

    Attributes:
        windows: numbers of keys to try on sliding layers instead of the model's own.
        pictures: per prompt the files of those that its ids have places for; empty: none.
    """

    model_config = ConfigDict(frozen=True)

    model_path: str
    prompts: list[list[int]]
    new_tokens: list[int]
    windows: list[int]
    pictures: list[list[str]] = []
