"""What was named and was not read, or not to its end: whoever says "nothing wrong" has to say this with it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gemma4_dumps.errors import DumpUnreadable
from gemma4_dumps.wording import number_of
from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.readers.reading import Reading


@dataclass(frozen=True)
class Unread:
    """How much of the evidence says nothing.

    Attributes:
        unreadable: files and dumps that cannot be read.
        in_part: files and logs of which only a part was read, for damage or for a limit.
        beyond: files, folders and logs beyond a limit.
        older: dumps that `--limit` left out.
    """

    unreadable: int = 0
    in_part: int = 0
    beyond: int = 0
    older: int = 0

    @property
    def is_a_lack(self) -> bool:
        """Return whether it may hide an incident that was asked for; `--limit` asks for the newest dumps only."""
        return bool(self.unreadable or self.in_part or self.beyond)

    @property
    def text(self) -> str:
        """Return it as a clause, as "2 files read in part"; "" if everything was read."""
        parts = (
            (self.unreadable, number_of(self.unreadable, "unreadable file or dump", "unreadable files and dumps")),
            (self.in_part, f"{number_of(self.in_part, 'file')} read in part"),
            (self.beyond, f"{number_of(self.beyond, 'file or folder', 'files and folders')} not read"),
            (self.older, f"{number_of(self.older, 'older dump')} not read"),
        )
        return ", ".join(said for count, said in parts if count)


EVERYTHING = Unread()
"""Nothing is unread."""


def in_part(readings: Iterable[Reading], logs: Iterable[LogFacts]) -> int:
    """Return how many of these were not read to their end."""
    return sum(bool(one.problem) for one in (*readings, *logs))


def refuse_unread(count: int, hint: str) -> None:
    """Raise DumpUnreadable if there were that many files and folders that are not read; for where nothing else is."""
    if count:
        what = number_of(count, "file or folder", "files and folders")
        raise DumpUnreadable(f"{what} there could not be read, and nothing else is there", hint)


def refuse_torn(read: Iterable[LogFacts]) -> None:
    """Raise DumpUnreadable if no log has a line that says anything, and one of them was not read to its end."""
    logs = list(read)
    torn = next((facts for facts in logs if facts.problem), None)
    if torn is not None and not any(facts.understood_lines for facts in logs):
        raise DumpUnreadable(
            f"{torn.name} {torn.problem}, and no line of SGLang's scheduler comes before",
            "bring the whole file: what was written to it last says what the server died of",
        )
