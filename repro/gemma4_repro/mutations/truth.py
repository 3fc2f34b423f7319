"""The ground truth of one mutation, as the mutator writes it in the engine: truth.json in the run's folder.

It lies beside the dumps and not among them, so that no diagnosis reads it.
"""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

TRUTH_NAME = "truth.json"


class Moment(BaseModel):
    """A call of SGLang's. step: the scheduler's step, counted from 1, that had begun last, as of a dump."""

    model_config = ConfigDict(frozen=True)

    site: str
    step: int


class Truth(BaseModel):
    """What a mutator did.

    Attributes:
        opportunities: How many there were until it acted, or until the engine ended.
        acted: When it changed the entry; None if it never could.
        where: Which entry.
        before: The right value, in the structure's unit.
        after: The wrong one; None for an entry that was taken away.
        prompt: Whose the entry is.
        row: The owner's row of req_to_token.
        partner_row: That of the entry that it was exchanged with.
        read: The first call afterwards that may have read the entry.
        overwritten: The call before which the entry had another value again, or none, and nothing had read it until
            then; the change itself where SGLang takes the new value for the old one.
        problem: What went wrong in the mutator; such a run shows nothing.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    opportunities: int = 0
    acted: Moment | None = None
    where: str = ""
    before: int | None = None
    after: int | None = None
    prompt: int | None = None
    row: int | None = None
    partner_row: int | None = None
    read: Moment | None = None
    overwritten: Moment | None = None
    problem: str | None = None

    @property
    def inert(self) -> bool:
        """The value was overwritten, and no call in between reads that structure."""
        return self.overwritten is not None and self.read is None

    def write(self, folder: Path) -> None:
        """Write it whole, so that an engine that dies leaves the latest."""
        temporary = folder / f".{TRUTH_NAME}.{os.getpid()}"
        temporary.write_text(self.model_dump_json(), encoding="utf-8")
        temporary.replace(folder / TRUTH_NAME)


def read_truth(folder: Path) -> Truth:
    """Return what the mutator wrote; one that never acted if there is nothing."""
    try:
        return Truth.model_validate_json((folder / TRUTH_NAME).read_bytes())
    except FileNotFoundError:
        return Truth()
    except (OSError, ValidationError) as error:
        return Truth(problem=f"{TRUTH_NAME} cannot be read: {error}")
