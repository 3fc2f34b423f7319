"""A directory of dumps: write, list, find, prune."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import platformdirs

from .caps import DEFAULT_CAPS, StoreCaps
from .directory_name import TEMPORARY_PREFIX
from .draft import DumpDraft
from .drop_counters import load_counters
from .errors import DumpNotFound, DumpUnreadable
from .listing import DumpEntry, scan_store
from .lock import store_lock
from .removal import remove_dumps
from .retention import Removal, plan_retention
from .writer import LOCK_TIMEOUT_S, WriteOutcome, write_dump

__all__ = ["DumpEntry", "DumpStore", "StoreCaps", "default_root"]


def default_root() -> Path:
    """Where dumps go unless told otherwise: under the platform's user state directory."""
    return Path(platformdirs.user_state_dir("gemma4-triage")) / "dumps"


class DumpStore:
    """Dumps below one root. Making one touches no disk."""

    def __init__(self, root: Path | str | None = None, caps: StoreCaps = DEFAULT_CAPS) -> None:
        self.root = Path(root) if root is not None else default_root()
        self.caps = caps

    def write(self, draft: DumpDraft) -> WriteOutcome:
        """Store a dump, making room as the caps demand. Raises nothing, see `write_dump`."""
        return write_dump(self.root, draft, self.caps)

    def list(self) -> "list[DumpEntry]":
        """All dumps, newest first, torn ones too; empty if there is no root. Raises DumpUnreadable."""
        try:
            return scan_store(self.root)
        except OSError as error:
            raise DumpUnreadable(f"{self.root} cannot be listed: {error.strerror}") from error

    def dropped_dumps(self) -> dict[str, int]:
        """How many dumps the caps removed or refused, by reason."""
        return dict(load_counters(self.root))

    def resolve(self, wanted: str | Path) -> Path:
        """The directory of a dump given as a path, a name, an unambiguous prefix of a name, or "latest".

        Raises DumpNotFound, DumpUnreadable.
        """
        text = str(wanted)
        if ("/" in text or text in (".", "..")) and os.path.isdir(text):
            return Path(text)
        entries = self.list()
        if text == "latest":
            complete = [entry for entry in entries if entry.state == "complete"]
            if not complete:
                raise DumpNotFound(f"no complete dump in {self.root}")
            return complete[0].path
        matches = [entry.path for entry in entries if entry.dump_id == text] or [
            entry.path for entry in entries if text and entry.dump_id.removeprefix(TEMPORARY_PREFIX).startswith(text)
        ]
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise DumpNotFound(f"{text!r} is the beginning of {len(matches)} dumps in {self.root}")
        if os.path.isdir(text):
            return Path(text)
        raise DumpNotFound(f"no dump {text!r} in {self.root}")

    def prune(
        self, older_than: timedelta | None = None, keep: int | None = None, dry_run: bool = False
    ) -> "list[Removal]":
        """Apply the caps; or, if told so, remove all that is older than `older_than` and all but the newest `keep`.

        What is asked for by name takes a signature's first and latest too. Returns what was (would be) removed.
        Raises DumpUnreadable if the root cannot be listed or another process holds its lock.
        """
        if dry_run or not self.root.exists():
            return self._plan(older_than, keep)
        try:
            with store_lock(self.root, LOCK_TIMEOUT_S) as locked:
                if not locked:
                    raise DumpUnreadable(f"{self.root} is locked by another process")
                return remove_dumps(self.root, self._plan(older_than, keep))
        except OSError as error:
            raise DumpUnreadable(f"{self.root} cannot be pruned: {error.strerror}") from error

    def _plan(self, older_than: timedelta | None, keep: int | None) -> "list[Removal]":
        now, entries = datetime.now(UTC), self.list()
        if older_than is None and keep is None:
            return plan_retention(entries, self.caps, now)
        entries = [entry for entry in entries if entry.state != "writing"]
        return [
            Removal(entry, "asked")
            for position, entry in enumerate(entries)
            if (older_than is not None and now - entry.created_utc > older_than)
            or (keep is not None and position >= keep)
        ]
