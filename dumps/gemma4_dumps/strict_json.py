"""JSON from a file that someone else may have written: one meaning or none."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from pydantic_core import from_json

from .errors import DumpUnreadable


def strict_json(data: bytes, source: str, unique_keys: bool = True) -> Any:
    """Parse; nesting is bounded, NaN and lone surrogates are refused, and so is an object that has a key twice.

    Args:
        data: the document.
        source: the file's name, for the error.
        unique_keys: False leaves out the last check, two thirds of the time.

    Raises:
        DumpUnreadable: it is no such document.
    """
    try:
        # pydantic's parser, not json's: it bounds nesting.
        value = from_json(data, allow_inf_nan=False)
        if unique_keys:
            _UNIQUE.decode(data.decode())
    except ValueError as error:
        raise DumpUnreadable(f"{source} is not JSON: {error}") from error
    return value


def _refuse_duplicates(pairs: Sequence[tuple[str, Any]]) -> None:
    # Two readers may take different ones for true. Nothing is returned: only the looking matters.
    if len(dict(pairs)) != len(pairs):
        [(twice, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {twice[:80]!r} stands twice in one object")


_UNIQUE = json.JSONDecoder(object_pairs_hook=_refuse_duplicates)
