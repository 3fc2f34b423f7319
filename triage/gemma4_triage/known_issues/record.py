"""The form of a record: what a contributor writes down of one public issue, and what is refused."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from gemma4_runtime.releases import is_release, order
from gemma4_triage.finding import Confidence
from gemma4_triage.threads import thread_url

_SHORTEST_WORDS = 8


def _a_release(text: str) -> str:
    if not is_release(text):
        raise ValueError(f"{text!r} is no release of SGLang, such as 0.5.13.post1")
    return text


Release = Annotated[str, AfterValidator(_a_release)]
Sentence = Annotated[str, Field(min_length=12, max_length=400, pattern=r"\S$")]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Signature(_Strict):
    """What one traceback, or one line that tells of an end, has to hold. Every part that is given must hold.

    Attributes:
        exception: The class's name, without its module.
        words: Parts of the message, letter by letter.
        frames: Frames in the order of the traceback, as "file.py" or "file.py:function"; others may lie between.
        arguments: Of the start line: a value, "set" for any but None and False, ">N" or "<N" for more or less than N.
        counted: Of a line that counts a pool's slots: "over" if a pool's parts are more than it has, "under" if fewer.
    """

    exception: str = ""
    words: tuple[str, ...] = ()
    frames: tuple[Annotated[str, Field(pattern=r"^\w+\.py(:[\w<>.]+)?$")], ...] = ()
    arguments: dict[str, str] = {}
    counted: Literal["", "over", "under"] = ""

    @model_validator(mode="after")
    def _says_enough(self) -> Signature:
        """Refuse one word or one class alone: it would fit half of all logs."""
        if not self.words and not self.frames:
            raise ValueError("a signature needs words of the message or frames: an exception alone fits too much")
        if not self.exception and not self.frames and sum(map(len, self.words)) < _SHORTEST_WORDS:
            raise ValueError(f"words alone need {_SHORTEST_WORDS} characters: fewer fit too much")
        return self


class KnownIssue(_Strict):
    """One public issue.

    Attributes:
        id: The file's name without its ending.
        threads: Numbers of issues and pull requests of sgl-project/sglang; the first one names the record.
        title: In our own words.
        topic: What part of the engine it is of.
        signature: What a log of it holds.
        cause: In our own words.
        reported: Releases that a thread reports it for, or whose source shows it.
        since: The first release that has it; None if no thread says so.
        fixed: The first release without it; None if that is not known.
        gone_by: A release whose source no longer has it, where it is not known which was the first.
        workaround: What a thread advises, or what switches the code at fault off; "" if neither is known.
        patch: The id of our patch, if there is one.
        confidence: What a match is worth; never certain, since a log shows what broke and not why.
        also_matches: Ids of records whose logs this signature fits too, because one log cannot tell them apart.
        log: A minimal log that must match.
        other_logs: Logs, near to it, that must not.
    """

    id: Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
    threads: Annotated[tuple[Annotated[int, Field(gt=0)], ...], Field(min_length=1)]
    title: Sentence
    topic: Literal[
        "gemma", "gpt-oss", "sliding-window", "speculative", "hicache", "pd", "dp-attention", "lora", "quantised",
        "vision", "structured-output", "requests", "memory", "start-up",
    ]  # fmt: skip
    signature: Signature
    cause: Sentence
    reported: tuple[Release, ...] = ()
    since: Release | None = None
    fixed: Release | None = None
    gone_by: Release | None = None
    workaround: str = ""
    patch: str | None = None
    confidence: Literal[Confidence.LIKELY, Confidence.POSSIBLE] = Confidence.LIKELY
    also_matches: tuple[str, ...] = ()
    log: Annotated[str, Field(min_length=1)]
    other_logs: Annotated[tuple[str, ...], Field(min_length=1)]

    @property
    def name(self) -> str:
        """Return the first thread as findings name it: "SGLang 29616"."""
        return f"SGLang {self.threads[0]}"

    @property
    def urls(self) -> tuple[str, ...]:
        """Return the addresses of its threads."""
        return tuple(thread_url(f"SGLang {thread}") for thread in self.threads)

    @property
    def fix(self) -> str:
        """Return "in" the first release without it, or "by" one that is not known to be the first; "" if none is."""
        return f"in {self.fixed}" if self.fixed else f"by {self.gone_by} at the latest" if self.gone_by else ""

    def concerns(self, release: str | None) -> bool | None:
        """Say whether a release has the issue; None where that is not known.

        Args:
            release: That somebody runs; None, or something that is no version, if it is not known.
        """
        version = order(release or "")
        if not version:
            return None
        without = self.fixed or self.gone_by
        if without is not None and version >= order(without):
            return False
        if self.since is not None:
            return version >= order(self.since)
        return True if version in map(order, self.reported) else None

    @property
    def fix_told(self) -> str:
        """Return the release with the fix, or that none is known."""
        return self.fix or "no release with a fix is known here"

    def state(self, release: str | None) -> str:
        """Return name, fix and the release that is run, as one line of a report."""
        fix = f"fixed {self.fix}" if self.fix else self.fix_told
        runs = f"you run {release}" if is_release(release or "") else "the release that you run is not known"
        return f"{self.name}, {fix}; {runs}"
