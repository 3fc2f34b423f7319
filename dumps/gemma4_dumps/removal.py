"""Take dumps away so that no reader ever sees half of one."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from .directory_name import REMOVED_PREFIX
from .drop_counters import add_pending, count_dropped
from .retention import Removal


def remove_dumps(root: Path, removals: Iterable[Removal]) -> list[Removal]:
    """Remove what was planned and count it. The caller holds the store's lock.

    Returns what was really removed: one that another user owns stays.
    """
    done = [removal for removal in removals if _remove(removal.entry.path)]
    for removal in done:
        count_dropped(root, removal.reason)
    add_pending(root)
    return done


def _remove(path: Path) -> bool:
    hidden = path.with_name(f"{REMOVED_PREFIX}{path.name.removeprefix(REMOVED_PREFIX)}")
    try:
        # Gone for readers at once, under a name that the next scan takes for torn if this process dies here.
        os.rename(path, hidden)
    except OSError:
        return False
    shutil.rmtree(hidden, ignore_errors=True)
    return True
