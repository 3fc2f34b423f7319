"""The record that every reader ends in: what a file says, when, of which process, and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gemma4_triage.finding import Finding

MAX_MOMENTS = 64
MAX_FACTS = 24
LONGEST_TEXT = 400
_LAST_S = 253_402_300_799.0
"""The last second of the year 9999, behind which Python has no date."""
SERVE_GUARDED = "gemma4-triage serve --debug 1 -- --model-path MODEL"
"""What starts the server again under probes; its own arguments are put in where something says them."""
MAX_SECONDS = 20.0
"""How long a reader works on one file before it says what it has so far."""


@dataclass(frozen=True)
class Moment:
    """Something that happened at a time.

    Attributes:
        time_s: since the epoch; None where the file gives no time, or one that no calendar has.
        text: what happened, in a clause.
        field: where the file says so.
    """

    time_s: float | None
    text: str
    field: str = ""

    def __post_init__(self) -> None:
        """Believe no time that cannot be shown; such a number is not one of a server either."""
        # What is no number compares to nothing, and NaN is in no range.
        known = self.time_s is not None and 0 <= self.time_s <= _LAST_S
        object.__setattr__(self, "time_s", float(self.time_s) if known and self.time_s is not None else None)


@dataclass(frozen=True)
class Identity:
    """What a file says about the launch that it is of.

    Attributes:
        pids: processes of the server.
        running: those of them that are known to have run when the file was written.
        host: the machine; "" if the file does not say.
        command: the launch command, a word each; secrets are redacted.
        settings: SGLang's arguments by name, as its log prints them.
        release: SGLang's; "" if the file does not say.
        folder: where all that lies is of this server, as in a bundle; "" for none.
    """

    pids: tuple[int, ...] = ()
    running: tuple[int, ...] = ()
    host: str = ""
    command: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    release: str = ""
    folder: str = ""


@dataclass(frozen=True)
class Reading:
    """One piece of evidence that is neither a dump nor a log.

    Attributes:
        name: how to name the file to a reader.
        kind: id of the reader.
        title: what it is, in a clause.
        identity: whose it is.
        moments: what happened when, in the order of the file.
        facts: what it says, a name and a value each.
        findings: what follows from it.
        problem: why reading ended early; "" if it did not.
    """

    name: str
    kind: str
    title: str
    identity: Identity = Identity()
    moments: tuple[Moment, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    findings: tuple[Finding, ...] = ()
    problem: str = ""

    @property
    def times_s(self) -> tuple[float, ...]:
        """Return every time that it gives, in no order."""
        return tuple(moment.time_s for moment in self.moments if moment.time_s is not None)


class NotThis(Exception):
    """A file is not what its beginning looked like; another reader may take it."""


def cut(text: str) -> str:
    """Return a text as it may stand in a record: one that is not longer than LONGEST_TEXT."""
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"
