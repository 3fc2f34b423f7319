"""What lies in a dump store's root, torn dumps included.

Names come first, because they sort by time: what is asked about one dump, or about the newest few, opens no other.
"""

import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Literal, TypeVar

from .directory_name import TEMPORARY_PREFIX, ParsedName, parse_name, safe_part, time_in_name, time_key
from .errors import DumpIncompatible, DumpUnreadable
from .manifest_file import MANIFEST_NAME, Signature, load_heading, load_manifest, load_signature
from .schema import Heading, Manifest

WRITING_GRACE_S = 300
"""A temporary directory of a live process counts as being written for this long; then as torn."""

State = Literal["complete", "torn", "writing", "incompatible"]
Where = TypeVar("Where", Path, str)
Loaded = TypeVar("Loaded", Manifest, Heading)


@dataclass(frozen=True, slots=True)
class DumpEntry:
    """One directory. manifest: None unless complete. problem: why it is not complete."""

    path: Path
    dump_id: str
    created_utc: datetime
    size_bytes: int
    state: State
    manifest: Manifest | None
    problem: str | None


@dataclass(frozen=True, slots=True)
class ListedDump:
    """One directory as a list shows it.

    Attributes:
        heading: None where the manifest cannot be read.
        problem: why it is not complete.
        renamed: its directory has another name than it was written with.
    """

    root: Path
    dump_id: str
    created_utc: datetime
    size_bytes: int
    state: State
    heading: Heading | None
    problem: str | None
    renamed: bool = False

    @property
    def path(self) -> Path:
        return self.root / self.dump_id


@dataclass(frozen=True, slots=True)
class StoredDump:
    """What retention asks about a dump. signature: None unless complete, or if it was not looked for."""

    root: Path
    dump_id: str
    created_utc: datetime
    size_bytes: int
    state: State
    signature: Signature | None

    @property
    def path(self) -> Path:
        return self.root / self.dump_id


def dump_names(root: Path) -> list[str]:
    """Return the directory names of all dumps in root, newest first; empty if there is no such directory.

    Symlinks are left out. Raises OSError if root is not a directory or must not be read.
    """
    return _newest_first(_directories(root)[0])


def all_names(root: Path) -> tuple[list[str], list[str]]:
    """Return the same, and the names of directories that hold a dump's manifest under another name, sorted.

    Writers and retention know dumps by their own names, so the latter are only ever read. Raises like `dump_names`.
    """
    keys, others = _directories(root)
    return _newest_first(keys), sorted(name for name in others if os.path.lexists(root / name / MANIFEST_NAME))


def _directories(root: Path) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the time keys of what has a dump's name in root, and the names of the other directories."""
    keys, others = [], []
    try:
        with os.scandir(root) as found:
            for item in found:
                if item.is_dir(follow_symlinks=False):
                    key = time_key(item.name)
                    if key is None:
                        others.append(item.name)
                    else:
                        keys.append(key)
    except FileNotFoundError:
        pass
    return keys, others


def _newest_first(keys: list[tuple[str, str]]) -> list[str]:
    return [name for _, name in sorted(keys, reverse=True)]


def describe(root: Path, name: str) -> DumpEntry:
    """Read the manifest of one of `dump_names`."""
    path, parsed = root / name, _parsed(name)
    if (state := _state_of_name(path, parsed)) is not None:
        return DumpEntry(path, name, parsed.created_utc, _size_bytes(path), state, None, _why_temporary(parsed))
    return DumpEntry(path, name, parsed.created_utc, _size_bytes(path), *_load(path, load_manifest))


def show(root: Path, name: str) -> ListedDump:
    """Read what a list shows of one of `dump_names`, without what `describe` checks beyond it.

    There may be 10^5 of them: a name that `dump_names` has parsed is not parsed again, and no path is made of it.
    """
    if name.startswith(TEMPORARY_PREFIX):
        path, parsed = root / name, _parsed(name)
        if (state := _state_of_name(path, parsed)) is not None:
            return ListedDump(root, name, parsed.created_utc, _size_bytes(path), state, None, _why_temporary(parsed))
    place = f"{root}/{name}"
    size_bytes, state, heading, problem = _load_listed(place)
    return ListedDump(root, name, time_in_name(name), size_bytes, state, heading, problem)


def show_renamed(root: Path, name: str) -> ListedDump:
    """Read what a list shows of a renamed one of `all_names`; one that cannot be read has the time of its directory."""
    path = root / name
    size_bytes, state, heading, problem = _load_listed(str(path))
    created = heading.created_utc if heading else datetime.fromtimestamp(time.time() - _age_s(path), UTC)
    return ListedDump(root, name, created, size_bytes, state, heading, problem, renamed=True)


def _load_listed(path: str) -> tuple[int, State, Heading | None, str | None]:
    """Return a dump's size and what `_load` makes of its heading; torn if a file has not the size that it had.

    No file but the manifest is read: whether its bytes are the ones that were written is for `verify` to say. Those
    that it names are the dump's size; what else lies there is counted only where it names none.
    """
    state, heading, problem = _load(path, load_heading)
    if heading is None or not heading.files:
        return _size_bytes(path), state, heading, problem
    size_bytes = 0
    for name in (MANIFEST_NAME, *heading.files):
        try:
            found = os.lstat(f"{path}/{name}").st_size
        except OSError:
            state, problem = "torn", f"{name} is missing"
            continue
        size_bytes += found
        wanted = found if name == MANIFEST_NAME else heading.files[name].size_bytes
        if found != wanted:
            state, problem = "torn", f"{name}: {found} bytes, the manifest says {wanted}"
    return size_bytes, state, heading, problem


def _load(path: Where, load: Callable[[Where], Loaded]) -> tuple[State, Loaded | None, str | None]:
    """Return a dump's state, what `load` makes of its manifest if it is complete, and why it is not."""
    try:
        return "complete", load(path), None
    except DumpIncompatible as error:
        return "incompatible", None, str(error)
    except DumpUnreadable as error:
        return "torn", None, str(error)


def survey(root: Path, signatures: bool = True) -> Iterator[StoredDump]:
    """Yield every dump in root, newest first, without keeping their manifests. Raises like `dump_names`."""
    for name in dump_names(root):
        path, parsed = root / name, _parsed(name)
        state, signature = _state_of_name(path, parsed), None
        if state is None:
            state, signature = _signature(path) if signatures else ("complete", None)
        yield StoredDump(root, name, parsed.created_utc, _size_bytes(path), state, signature)


def unread(root: Path, name: str) -> StoredDump:
    """Return one of `dump_names` as retention takes it, without touching it: its size is taken for 0."""
    return StoredDump(root, name, _parsed(name).created_utc, 0, "complete", None)


def _parsed(name: str) -> ParsedName:
    parsed = parse_name(name)
    if parsed is None:
        raise ValueError(f"{name!r} does not come from dump_names")
    return parsed


def _state_of_name(path: Path, parsed: ParsedName) -> State | None:
    if not parsed.temporary:
        return None
    if parsed.removed:
        # Whoever removes holds the store's lock. What the next holder of the lock still finds is a remnant.
        return "torn"
    return "writing" if _writer_lives(parsed) and _age_s(path) < WRITING_GRACE_S else "torn"


def _why_temporary(parsed: ParsedName) -> str:
    if parsed.removed:
        return "its removal is under way, or was interrupted"
    return "still under its temporary name" + ("" if _writer_lives(parsed) else f": writer {parsed.pid} is gone")


def _writer_lives(parsed: ParsedName) -> bool:
    return parsed.host == safe_part(socket.gethostname()) and _is_alive(parsed.pid)


def _signature(path: Path) -> tuple[State, Signature | None]:
    try:
        status = (path / MANIFEST_NAME).lstat()
        return "complete", _cached_signature(path, status.st_ino, status.st_mtime_ns, status.st_size)
    except DumpIncompatible:
        return "incompatible", None
    except (DumpUnreadable, OSError):
        return "torn", None


@lru_cache(maxsize=4096)
def _cached_signature(path: Path, inode: int, mtime_ns: int, size_bytes: int) -> Signature:
    # A server that logs many violations surveys its store for each; a published manifest never changes.
    return load_signature(path)


def _size_bytes(path: Path | str) -> int:
    return sum(_sizes(path).values())


def _sizes(path: Path | str) -> dict[str, int]:
    """Return the size of each file of a dump, that of a link as the link's own."""
    try:
        with os.scandir(path) as found:
            return {item.name: item.stat(follow_symlinks=False).st_size for item in found}
    except OSError:
        # Another process is removing it.
        return {}


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.lstat().st_mtime
    except OSError:
        return 0.0


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True
