"""What belongs to an object of SGLang's, for as long as that lives."""

from __future__ import annotations

import weakref
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")


class ByIdentity(Generic[_T]):
    """A map from an object of SGLang's to what belongs to it, until the object is gone.

    A hook asks several times per step: a lookup is one of a dict, where a WeakKeyDictionary makes a reference.
    """

    def __init__(self) -> None:
        self._values: dict[int, _T] = {}

    def get(self, owner: Any) -> _T | None:
        """Return what belongs to an object; None if nothing does."""
        return self._values.get(id(owner))

    def put(self, owner: Any, value: _T) -> _T:
        """Let `value`, which must not hold `owner`, belong to it in place of what did before, and return it."""
        if id(owner) not in self._values:
            weakref.finalize(owner, self._values.pop, id(owner)).atexit = False
        self._values[id(owner)] = value
        return value
