"""Whether one incident of a log is a known issue: every part of the signature holds in it, letter by letter.

Nothing is weighed and nothing is nearly so: half a signature is no match. Parts never come from two incidents.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gemma4_triage.known_issues.record import Signature

_ABOVE = re.compile(r">(\d+)")
_BELOW = re.compile(r"<(\d+(?:\.\d+)?)")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_UNSET = ("None", "False", "")
# "[swa] total=1024, available=816, evictable=0, protected=96, session_held=0, uncached=0"
_POOL = re.compile(r"\] total=(\d+)((?:, *\w+=\d+)+)")


@dataclass(frozen=True)
class Occurrence:
    """What one traceback, or one line that tells of an end, says.

    Attributes:
        exception: The class's name; "" where a line tells of the end without one.
        message: What follows it.
        frames: "file.py:line function", the outermost first.
        arguments: Of the server's start, by their names in ServerArgs.
    """

    exception: str
    message: str
    frames: tuple[str, ...]
    arguments: Mapping[str, str]


def holds(signature: Signature, one: Occurrence) -> bool:
    """Say whether every given part of the signature is in the occurrence."""
    return (
        signature.exception in ("", one.exception)
        and all(word in one.message for word in signature.words)
        and _in_order(signature.frames, one.frames)
        and all(has_value(one.arguments.get(name), wanted) for name, wanted in signature.arguments.items())
        and signature.counted in ("", *_counts(one.message))
    )


def _counts(message: str) -> set[str]:
    """Return "over" if a pool's parts are more slots than it has, "under" if a pool's are fewer; both can be."""
    pools = [(int(total), sum(map(int, _NUMBER.findall(parts)))) for total, parts in _POOL.findall(message)]
    return {"over" if parts > total else "under" for total, parts in pools if parts != total}


def _in_order(wanted: tuple[str, ...], frames: tuple[str, ...]) -> bool:
    left = iter(frames)
    return all(any(_is_frame(frame, name) for frame in left) for name in wanted)


def _is_frame(frame: str, wanted: str) -> bool:
    file, _, rest = frame.partition(":")
    wanted_file, _, function = wanted.partition(":")
    return file == wanted_file and function in ("", rest.partition(" ")[2])


def has_value(value: str | None, wanted: str) -> bool:
    """Say whether an argument, None where the start line lacks it, is as a signature wants it."""
    if value is None:
        return False
    if above := _ABOVE.fullmatch(wanted):
        return value.isdecimal() and int(value) > int(above[1])
    if below := _BELOW.fullmatch(wanted):
        return _NUMBER.fullmatch(value) is not None and float(value) < float(below[1])
    return value not in _UNSET if wanted == "set" else value == wanted
