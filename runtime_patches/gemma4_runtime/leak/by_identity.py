"""What belongs to an object of SGLang's, found by its identity: a hook asks several times per scheduler step."""

from __future__ import annotations

import weakref
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")


class ByIdentity(Generic[_T]):
    """Object -> value, until the object is gone. A lookup is one of a dict; a WeakKeyDictionary makes a reference."""

    def __init__(self) -> None:
        self._values: dict[int, _T] = {}

    def get(self, owner: Any) -> _T | None:
        return self._values.get(id(owner))

    def put(self, owner: Any, value: _T) -> _T:
        """`value`, which must not hold `owner`. An owner that has one gets another."""
        if id(owner) not in self._values:
            weakref.finalize(owner, self._values.pop, id(owner)).atexit = False
        self._values[id(owner)] = value
        return value
