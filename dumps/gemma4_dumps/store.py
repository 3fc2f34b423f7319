"""A directory of dumps: write, list, find, prune."""

import os
import shlex
import sys
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from .caps import DEFAULT_CAPS, StoreCaps
from .directory_name import LEAST_SHORT_ID, TEMPORARY_PREFIX, is_short_id, short_id
from .drop_counters import load_counters
from .errors import DumpNotFound, DumpUnreadable, StoreUnreadable
from .listing import DumpEntry, ListedDump, all_names, describe, dump_names, show, show_renamed, survey
from .lock import LOCK_TIMEOUT_S, store_lock
from .manifest_file import MANIFEST_NAME
from .removal import remove_dumps
from .retention import Removal, plan_retention
from .unpacked import inside

if TYPE_CHECKING:
    from .draft import DumpDraft
    from .writer import WriteOutcome

REMOVED_PER_LOCK = 256
PAUSE_S = 0.03
"""Between two holds of the lock: a writer that waits for it looks every 10 ms."""

__all__ = ["DumpEntry", "DumpStore", "StoreCaps", "default_root"]


def state_folder() -> Path:
    """Return our folder below the user's state directory: XDG_STATE_HOME, or what stands for it where that is unset."""
    below = "~/Library/Application Support" if sys.platform == "darwin" else "~/.local/state"
    # Unset and blank mean the same.
    home = os.environ.get("XDG_STATE_HOME", "").strip() or os.path.expanduser(below)
    return Path(home) / "gemma4-triage"


def default_root() -> Path:
    """Return where dumps go unless told otherwise: under the platform's user state directory."""
    return state_folder() / "dumps"


def _not_found(root: Path, message: str) -> DumpNotFound:
    where = "" if root == default_root() else f" --dir {shlex.quote(str(root))}"
    return DumpNotFound(message, f"gemma4-triage dumps list{where} shows the dumps; --dir names another directory")


def _refuse_what_may_not_be_entered(path: str) -> None:
    """Raise DumpUnreadable for a path that nobody may look at, which is not the same as none that is there."""
    try:
        if "/" in path:
            os.stat(path)
    except PermissionError as error:
        raise DumpUnreadable(f"{path} cannot be read: {error.strerror}") from error
    except (OSError, ValueError):
        # What it is instead is said by whoever looks for it next.
        return


def _one_dump(path: Path, text: str) -> Path:
    """Return the dump that an unpacked path is, or the only one below it. Raises DumpNotFound."""
    if os.path.lexists(path / MANIFEST_NAME):
        return path
    found = sorted(one.parent for one in path.glob(f"**/{MANIFEST_NAME}")) if path.is_dir() else []
    if len(found) == 1:
        return found[0]
    if not found:
        raise DumpNotFound(f"there is no dump in {text:.200}")
    named = ", ".join(one.name for one in found[:3])
    raise DumpNotFound(f"{text:.200} holds {len(found)} dumps: {named}" + (", …" if len(found) > 3 else ""))


class DumpStore:
    """Dumps below one root. Making one touches no disk."""

    def __init__(self, root: Path | str | None = None, caps: StoreCaps = DEFAULT_CAPS) -> None:
        self.root = Path(root) if root is not None else default_root()
        self.caps = caps

    def write(self, draft: "DumpDraft") -> "WriteOutcome":
        """Store a dump, making room as the caps demand. Raises nothing, see `write_dump`."""
        # Loaded here: most of what opens a store only reads.
        from .writer import write_dump

        return write_dump(self.root, draft, self.caps)

    def names(self) -> "list[str]":
        """Return the names of all dumps, newest first, unread; empty if there is no root. Raises DumpUnreadable."""
        try:
            return dump_names(self.root)
        except OSError as error:
            raise StoreUnreadable(f"{self.root} cannot be listed: {error.strerror}") from error

    def all_names(self) -> "tuple[list[str], list[str]]":
        """Return the same, and the names of dumps whose directory somebody has renamed, sorted. Raises likewise."""
        try:
            return all_names(self.root)
        except OSError as error:
            raise StoreUnreadable(f"{self.root} cannot be listed: {error.strerror}") from error

    def each_renamed(self, names: "Iterable[str]") -> "Iterator[ListedDump]":
        """Read renamed dumps of `all_names()` one by one."""
        return (show_renamed(self.root, name) for name in names)

    def list(self, limit: int | None = None) -> "list[DumpEntry]":
        """Return the newest `limit` dumps, or all, with their manifests; torn ones too. Raises DumpUnreadable."""
        return self.describe(self.names()[:limit])

    def describe(self, names: "Iterable[str]") -> "list[DumpEntry]":
        """Return some of `names()` with their manifests."""
        return [describe(self.root, name) for name in names]

    def each(self, names: "Iterable[str]") -> "Iterator[ListedDump]":
        """Read what a list shows of some of `names()`, one by one, for names without number."""
        return (show(self.root, name) for name in names)

    def dropped_dumps(self) -> dict[str, int]:
        """Count the dumps that were not kept, by reason: removed or refused by the caps, or repeated and counted."""
        return dict(load_counters(self.root))

    def resolve(self, wanted: str | Path) -> Path:
        """Return the directory of a dump given as a path, a name or its beginning, a short id, or "latest".

        A zip with one dump stands for that dump, `a.zip/NAME` for one of several.

        Raises DumpNotFound, DumpUnreadable.
        """
        text = str(wanted)
        if (unpacked := inside(text)) is not None:
            return _one_dump(unpacked, text)
        if ("/" in text or text in (".", "..")) and os.path.isdir(text):
            return Path(text)
        _refuse_what_may_not_be_entered(text)
        names, renamed = self.all_names()
        if text == "latest":
            # Opens no more than it has to, and takes none that a list calls torn.
            newest = next((one.dump_id for one in self.each(names) if one.state == "complete"), None)
            if newest is None:
                raise _not_found(self.root, f"no complete dump in {self.root}")
            return self.root / newest
        matches = [name for name in names if name == text] or [
            name for name in names if text and name.removeprefix(TEMPORARY_PREFIX).startswith(text)
        ]
        if not matches and is_short_id(text) and not os.path.lexists(text):
            matches = [name for name in (*names, *renamed) if short_id(name).startswith(text)]
        if len(matches) == 1:
            return self.root / matches[0]
        if matches:
            named = ", ".join(matches[:3]) + (", …" if len(matches) > 3 else "")
            raise _not_found(self.root, f"{text!r} is the beginning of {len(matches)} dumps in {self.root}: {named}")
        if text in renamed:
            return self.root / text
        if os.path.isdir(text):
            return Path(text)
        if os.path.isfile(text):
            raise DumpNotFound(f"{text} is a file, and a dump is a directory or lies in a zip")
        if os.path.lexists(text):
            raise DumpNotFound(f"{text} is no directory, and a dump is one")
        if "/" in text:
            raise DumpNotFound(f"there is no {text:.200}")
        # Whatever it is the beginning of would have been found, had it been long enough.
        is_cut = 0 < len(text) < LEAST_SHORT_ID and is_short_id(text.ljust(LEAST_SHORT_ID, text[-1]))
        too_short = f"; a short id needs {LEAST_SHORT_ID} letters" if is_cut else ""
        raise _not_found(self.root, f"no dump {text!r} in {self.root}{too_short}")

    def prune(
        self, older_than: timedelta | None = None, keep: int | None = None, dry_run: bool = False
    ) -> "list[Removal]":
        """Apply the caps; or, if told so, remove all that is older than `older_than` and all but the newest `keep`.

        What is asked for by name takes a signature's first and latest too. Returns what was (would be) removed.
        Raises DumpUnreadable if the root cannot be listed or another process holds its lock.
        """
        planned, done = self._plan(older_than, keep), list[Removal]()
        if dry_run:
            return planned
        try:
            for begin in range(0, len(planned), REMOVED_PER_LOCK):
                # A server that has something to write waits two seconds for the lock, and 10^5 dumps take minutes.
                time.sleep(PAUSE_S if begin else 0)
                with store_lock(self.root, LOCK_TIMEOUT_S) as locked:
                    if not locked:
                        said = f"{self.root} is locked by another process; {len(done)} of {len(planned)} were removed"
                        raise DumpUnreadable(said)
                    done += remove_dumps(self.root, planned[begin : begin + REMOVED_PER_LOCK])
        except OSError as error:
            raise DumpUnreadable(f"{self.root} cannot be pruned: {error.strerror}") from error
        return done

    def _plan(self, older_than: timedelta | None, keep: int | None) -> "list[Removal]":
        now = datetime.now(UTC)
        by_caps = older_than is None and keep is None
        try:
            stored = survey(self.root, signatures=by_caps)
            if by_caps:
                return plan_retention(stored, self.caps, now)
            stored = [dump for dump in stored if dump.state != "writing"]
        except OSError as error:
            raise StoreUnreadable(f"{self.root} cannot be listed: {error.strerror}") from error
        return [
            Removal(dump, "asked")
            for position, dump in enumerate(stored)
            if (older_than is not None and now - dump.created_utc > older_than)
            or (keep is not None and position >= keep)
        ]
