"""events.jsonl: one record a line, what led to a dump, oldest first.

Allocator calls and the ledger's events share it. Whatever a field is named there is of one type, and a line in which it
is of another is damaged: what reads events asks for no types of its own.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from .errors import DumpError, DumpUnreadable
from .manifest_file import EVENTS_NAME
from .safe_file import as_unreadable, open_regular
from .strict_json import strict_json

MAX_EVENT_BYTES = 1024**2
"""The longest line that is read."""


def read_events(directory: Path, is_listed: bool) -> Iterator[Any]:
    """Yield the records of a dump's events.

    Args:
        directory: Of the dump.
        is_listed: Whether the manifest names the file; one that it does not name may be missing.

    Raises:
        DumpUnreadable: The file is missing, or at the first damaged line.
    """
    path = directory / EVENTS_NAME
    if not is_listed and not os.path.lexists(path):
        return
    with open_regular(path) as file:
        number = 0
        while line := _read_line(file, path):
            number += 1
            where = f"{EVENTS_NAME} line {number}"
            if len(line) > MAX_EVENT_BYTES:
                raise DumpUnreadable(f"{where} has more than {MAX_EVENT_BYTES} bytes")
            record = strict_json(line, where)
            if isinstance(record, Mapping) and (field := _wrong_field(record)) is not None:
                raise DumpUnreadable(f"{where} has a {field} of another type than events have")
            yield record


def damage_of_events(directory: Path, is_listed: bool) -> str | None:
    """Return what is wrong with the file of events; None where all of it can be read."""
    try:
        for _ in read_events(directory, is_listed):
            pass
    except DumpError as error:
        return str(error)
    return None


def _read_line(file: BinaryIO, path: Path) -> bytes:
    with as_unreadable(path):
        return file.readline(MAX_EVENT_BYTES + 1)


def _wrong_field(record: Mapping[str, Any]) -> str | None:
    return next((name for name, fits in _FIELDS.items() if name in record and not fits(record[name])), None)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 62


def _or_none(fits: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or fits(value)


def _listed(fits: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, list) and all(map(fits, value))


def _is_text(value: object) -> bool:
    return isinstance(value, str)


_NUMBERS = _or_none(_listed(_is_number))
_RUNS = _or_none(_listed(_listed(_is_number)))
_FIELDS: Mapping[str, Callable[[object], bool]] = {
    **dict.fromkeys(("step", "number", "by_request_slot", "slots"), _or_none(_is_number)),
    "pages": _is_number,
    **dict.fromkeys(("first_pages", "request_slots", "prefix_lens", "seq_lens", "last_loc"), _NUMBERS),
    **dict.fromkeys(("free_before", "free_after"), _NUMBERS),
    **dict.fromkeys(("full", "swa"), _RUNS),
    **dict.fromkeys(("kind", "pool", "call"), _is_text),
    "site": _or_none(_is_text),
    **dict.fromkeys(("returned", "grouped", "settled"), lambda value: isinstance(value, bool)),
}
