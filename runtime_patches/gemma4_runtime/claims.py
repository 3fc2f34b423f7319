"""Conflict detection: collect every claim first, look for conflicts, and only then let anything be changed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from gemma4_runtime.errors import PatchConflict
from gemma4_runtime.patch import Patch


def check_conflicts(patches: Iterable[Patch]) -> None:
    """Refuse two exclusive claims (a replacement, an edit, a binding) on one target by different patches.

    Raises:
        PatchConflict: naming the target and every patch that claims it.
    """
    owners: dict[str, set[str]] = defaultdict(set)
    for patch in patches:
        for attachment in patch.attachments:
            if attachment.exclusive:
                owners[attachment.target].add(patch.id)
    clashes = {target: ids for target, ids in owners.items() if len(ids) > 1}
    if clashes:
        lines = [f"{target}: {', '.join(sorted(ids))}" for target, ids in sorted(clashes.items())]
        raise PatchConflict("patches claim the same target: " + "; ".join(lines) + ". Choose one of each.")
