"""The smallest dump that still fails in the same way: fewest rows, then columns, then keys, by delta debugging.

It fails in the same way if the worst that is read is of the same kind. What comes out is 1-minimal: without any one of
its rows, columns or keys it fails no more, or otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gemma4_dumps.errors import DumpUnreadable
from gemma4_dumps.reader import Dump, read_dump
from gemma4_dumps.store import DumpStore
from gemma4_dumps.tensor_file import TENSORS_NAME
from gemma4_triage.errors import EnvironmentCannot, NothingChecked
from gemma4_triage.replay.call import AttentionCall
from gemma4_triage.replay.cut import Cut, keep_columns, keep_keys, keep_rows, renumbered, whole
from gemma4_triage.replay.damage import Kind, worst_read
from gemma4_triage.replay.delta_debugging import smallest_failing, smallest_failing_count
from gemma4_triage.replay.options import ReplayOptions
from gemma4_triage.replay.rebuild import rebuild
from gemma4_triage.replay.shrunk_draft import shrunk_draft

Fails = Callable[[Cut], bool]


@dataclass(frozen=True)
class Shrunk:
    """before, after: rows, columns and keys together; bytes of the tensors' file. tried: calls that were looked at."""

    dump: Dump
    kind: Kind
    before: tuple[int, int, int]
    after: tuple[int, int, int]
    bytes_before: int
    bytes_after: int
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    tried: int


def shrink(dump: Dump, options: ReplayOptions, root: Path, renumber: bool = False) -> Shrunk:
    """Write the smallest dump that fails like `dump` into the store at `root`.

    Raises:
        NothingChecked: there is nothing to replay, or nothing fails.
        EnvironmentCannot: it cannot be written, or `dump` exceeds a cap.
        DumpError: `dump` cannot be read, or holds what no dump can.
    """
    call = rebuild(dump, options)
    kind = worst_read(call)
    if kind is Kind.RIGHT:
        raise NothingChecked(f"{dump.manifest.dump_id} reads nothing wrong: there is nothing to shrink")
    search = _Search(kind)
    cut = smallest_cut(whole(call), search)
    if renumber:
        cut = renumbered(cut)
    outcome = DumpStore(root).write(shrunk_draft(dump, call, cut, kind, same_pages=not renumber))
    if outcome.path is None:
        if outcome.cause is not None and not isinstance(outcome.cause, OSError):
            # The first dump's manifest is what it is written with.
            said = " ".join(str(outcome.cause).split())
            raise DumpUnreadable(f"{dump.manifest.dump_id} holds what cannot be written again: {said:.300}")
        if isinstance(outcome.cause, OSError) and outcome.cause.strerror:
            said = f"{outcome.cause.filename or root} cannot be written: {outcome.cause.strerror}"
            raise EnvironmentCannot(said, "name another --output")
        raise EnvironmentCannot(
            f"no dump was written: {outcome.error or outcome.dropped_reason}", "name another --output"
        )
    written = read_dump(outcome.path)
    return Shrunk(
        dump=written,
        kind=kind,
        before=_size(call),
        after=_size(cut.call),
        bytes_before=_tensor_bytes(dump),
        bytes_after=_tensor_bytes(written),
        rows=cut.rows,
        columns=cut.columns,
        tried=search.tried,
    )


def smallest_cut(cut: Cut, fails: Fails) -> Cut:
    """Return a part of `cut` that fails and is 1-minimal. `cut` fails."""
    while True:
        before = (cut.rows, cut.columns, cut.call.key_counts.tolist())
        cut = _fewest(cut, range(cut.call.rows), keep_rows, fails)
        cut = _fewest(cut, range(len(cut.columns)), keep_columns, fails)
        cut = _fewest_keys(cut, fails)
        if before == (cut.rows, cut.columns, cut.call.key_counts.tolist()):
            return cut


class _Search:
    """Whether a part fails as the whole does; counts what it was asked."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self.tried = 0

    def __call__(self, cut: Cut) -> bool:
        self.tried += 1
        return worst_read(cut.call) is self._kind


def _fewest(cut: Cut, items: range, keep: Callable[[Cut, list[int]], Cut], fails: Fails) -> Cut:
    return keep(cut, smallest_failing(items, lambda some: fails(keep(cut, some))))


def _fewest_keys(cut: Cut, fails: Fails) -> Cut:
    for row in range(cut.call.rows):
        cut = _fewest_keys_of(cut, row, fails)
    return cut


def _fewest_keys_of(cut: Cut, row: int, fails: Fails) -> Cut:
    keys = int(cut.call.key_counts[row])
    return keep_keys(cut, row, smallest_failing_count(keys, lambda some: fails(keep_keys(cut, row, some))))


def _size(call: AttentionCall) -> tuple[int, int, int]:
    return call.rows, call.ids.shape[1], int(call.key_counts.sum())


def _tensor_bytes(dump: Dump) -> int:
    record = dump.manifest.files.get(TENSORS_NAME)
    return 0 if record is None else record.size_bytes
