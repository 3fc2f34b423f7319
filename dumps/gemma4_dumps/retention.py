"""Which dumps have to go. Pure: entries and caps in, removals out.

Order of removal: older than the age cap, but never a signature's first or latest; then, while there are too many or
they are too large, oldest first: torn ones, then those in the middle of their signature, last whatever there is.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from .caps import StoreCaps
from .directory_name import TEMPORARY_PREFIX
from .listing import StoredDump, unread
from .manifest_file import Signature


@dataclass(frozen=True)
class Incoming:
    """A dump that is about to be published."""

    signature: Signature
    size_bytes: int


@dataclass(frozen=True)
class Removal:
    """reason: "age", "count" or "total_bytes"; "asked" by a person; "crowd", see `crowd_out`."""

    entry: StoredDump
    reason: str


CROWD = 1024
"""So many dumps above the cap on their number are a crowd: someone else has put them there, or lowered the cap."""
REMOVED_PER_WRITE = 256


def crowd_out(root: Path, names: Sequence[str], caps: StoreCaps) -> list[Removal]:
    """Return the removals for one write into a store that holds a crowd; nothing if it holds none.

    A process that is crashing cannot look at 10^5 dumps, so the oldest few of `names`, which has the newest first, go
    unread, whatever their signature, and more of them than are written: the store shrinks with every write.
    """
    if len(names) <= caps.count + CROWD:
        return []
    oldest = [name for name in names[-REMOVED_PER_WRITE:] if not name.startswith(TEMPORARY_PREFIX)]
    return [Removal(unread(root, name), "crowd") for name in oldest]


def plan_retention(
    entries: Iterable[StoredDump], caps: StoreCaps, now: datetime, incoming: Incoming | None = None
) -> list[Removal]:
    """Return the removals after which `entries`, with `incoming`, fit `caps`. Entries being written are left alone."""
    stored = sorted(
        (entry for entry in entries if entry.state != "writing"), key=lambda entry: (entry.created_utc, entry.dump_id)
    )
    spared = _first_and_latest(stored, incoming)
    oldest_allowed = _oldest_allowed(now, caps.age_days)
    removals = [Removal(e, "age") for e in stored if e.dump_id not in spared and e.created_utc < oldest_allowed]
    aged = {removal.entry.dump_id for removal in removals}
    stored = [entry for entry in stored if entry.dump_id not in aged]
    count = len(stored) + (incoming is not None)
    size_bytes = sum(entry.size_bytes for entry in stored) + (incoming.size_bytes if incoming else 0)
    # False sorts before True: torn before unspared before spared, each group oldest first.
    for entry in sorted(stored, key=lambda entry: (entry.dump_id in spared, entry.state != "torn")):
        if count <= caps.count and size_bytes <= caps.total_bytes:
            break
        removals.append(Removal(entry, "count" if count > caps.count else "total_bytes"))
        count -= 1
        size_bytes -= entry.size_bytes
    return removals


def _first_and_latest(stored: list[StoredDump], incoming: Incoming | None) -> set[str]:
    first: dict[Signature, str] = {}
    latest: dict[Signature, str] = {}
    for entry in stored:
        if entry.signature is not None:
            first.setdefault(entry.signature, entry.dump_id)
            latest[entry.signature] = entry.dump_id
    if incoming is not None:
        # The newcomer takes over as the latest.
        latest.pop(incoming.signature, None)
    return {*first.values(), *latest.values()}


def _oldest_allowed(now: datetime, age_days: float) -> datetime:
    try:
        return now - timedelta(days=age_days)
    except OverflowError:
        return datetime.min.replace(tzinfo=now.tzinfo)
