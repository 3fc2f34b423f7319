"""The name of a dump's directory: `<utc>_<host>_r<rank>_p<pid>_<rule>_<seq>`. Names sort by time."""

import hashlib
import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime

TEMPORARY_PREFIX = ".tmp-"
REMOVED_PREFIX = ".tmp-removed-"

SHORT_ID_LENGTH = 7
LEAST_SHORT_ID = 4
_LETTERS = "zyxwvutsrqponmlk"
_TO_LETTERS = str.maketrans("0123456789abcdef", _LETTERS)

_TIME_FORMAT = "%Y%m%dT%H%M%S.%fZ"
_PATTERN = re.compile(
    r"(?P<utc>\d{8}T\d{6}\.\d{6}Z)_(?P<host>[A-Za-z0-9.-]+)_r(?P<rank>\d+)_p(?P<pid>\d+)_(?P<rule>[A-Za-z0-9.-]+)_(?P<seq>\d+)",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class ParsedName:
    """A directory name's parts.

    Attributes:
        temporary: still under the name that it has while being written, or again under one because it is being removed.
        removed: it is being removed.
    """

    created_utc: datetime
    host: str
    rank: int
    pid: int
    rule: str
    temporary: bool
    removed: bool


def format_name(created_utc: datetime, host: str, rank: int, pid: int, rule: str, seq: int) -> str:
    """Build a name; host and rule lose every character that is not a letter, a digit, a dot or a dash."""
    time = created_utc.astimezone(UTC).strftime(_TIME_FORMAT)
    return f"{time}_{safe_part(host)}_r{max(rank, 0)}_p{pid}_{safe_part(rule)}_{seq:04d}"


def parse_name(name: str) -> ParsedName | None:
    """Return the parts of a dump's directory name, temporary or not; None if it is not one."""
    temporary = name.startswith(TEMPORARY_PREFIX)
    match = _PATTERN.fullmatch(name.removeprefix(REMOVED_PREFIX).removeprefix(TEMPORARY_PREFIX))
    if match is None:
        return None
    try:
        created_utc = datetime.fromisoformat(match["utc"])
        return ParsedName(
            created_utc,
            match["host"],
            int(match["rank"]),
            int(match["pid"]),
            match["rule"],
            temporary,
            removed=name.startswith(REMOVED_PREFIX),
        )
    except ValueError:
        return None


def time_key(name: str) -> tuple[str, str] | None:
    """Say what sorts a dump's directory name by time, temporary or not; None if it is not one.

    A folder may hold 10^5 names: this costs a tenth of `parse_name`.
    """
    bare = name.removeprefix(REMOVED_PREFIX).removeprefix(TEMPORARY_PREFIX)
    match = _PATTERN.fullmatch(bare)
    if match is None:
        return None
    try:
        datetime.fromisoformat(match["utc"])
    except ValueError:
        return None
    return match["utc"], name


def time_in_name(name: str) -> datetime:
    """Return the time in a name that `time_key` knows, without parsing the rest of it."""
    bare = name.removeprefix(REMOVED_PREFIX).removeprefix(TEMPORARY_PREFIX)
    return datetime.fromisoformat(bare.partition("_")[0])


def short_id(name: str) -> str:
    """Return the short id of a dump: a hash of its directory name, in letters that no such name begins with."""
    bare = name.removeprefix(REMOVED_PREFIX).removeprefix(TEMPORARY_PREFIX)
    return hashlib.sha256(os.fsencode(bare)).hexdigest()[:SHORT_ID_LENGTH].translate(_TO_LETTERS)


def is_short_id(text: str) -> bool:
    """Return whether it can be a short id, or the beginning of one that is long enough to be meant."""
    return LEAST_SHORT_ID <= len(text) <= SHORT_ID_LENGTH and set(text) <= set(_LETTERS)


def safe_part(text: str) -> str:
    """Return a host or rule as it stands in a name."""
    return re.sub(r"[^A-Za-z0-9.-]+", "-", text)[:48] or "unknown"
