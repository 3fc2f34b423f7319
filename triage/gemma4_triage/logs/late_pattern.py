"""Regular expressions that are compiled at their first use, since a log needs some of hundreds."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any, cast, overload

_ESCAPED_OR_SET = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_GROUP = re.compile(r"\([^()]*\)(?:(?:[?*+]|\{[^}]*\})[?+]?)?")
_OPTIONAL = re.compile(r".(?:[?*]|\{[^}]*\})[?+]?", re.DOTALL)
_NOT_PLAIN = re.compile(r"[\n.^$+]+")


def needed_words(text: str) -> tuple[str, ...]:
    """Return words, in lower case, of which one stands in whatever an expression finds; empty if it may do without.

    It takes a tenth of the time that compiling takes, and most expressions find nothing in a log.
    """
    text = _ESCAPED_OR_SET.sub("\n", text)
    while (without := _GROUP.sub("\n", text)) != text:
        text = without
    plain = [max(_NOT_PLAIN.split(one), key=len).lower() for one in _OPTIONAL.sub("\n", text).split("|")]
    return tuple(plain) if all(plain) else ()


class _LatePattern:
    """A pattern that is compiled when it is first asked for something that its text does not answer."""

    def __init__(self, pattern: str | bytes, flags: int) -> None:
        self.pattern, self.flags_of_text = pattern, flags
        self._needed: tuple[str, ...] | None = None

    def search(self, text: Any) -> re.Match[Any] | None:
        """Return where the text first has it, as a compiled one does."""
        if self._needed is None:
            self._needed = needed_words(self.pattern) if isinstance(self.pattern, str) else ()
        if self._needed and not any(word in text.lower() for word in self._needed):
            return None
        # In the instance it stands ahead of this method.
        self.search = self.compiled.search  # type: ignore[method-assign]
        return self.search(text)

    @cached_property
    def compiled(self) -> re.Pattern[Any]:
        """The compiled pattern, of which the instance keeps what it was asked for."""
        return re.compile(self.pattern, self.flags_of_text)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.compiled, name)
        setattr(self, name, found)
        return found


@overload
def pattern(text: str, flags: int = 0) -> re.Pattern[str]: ...
@overload
def pattern(text: bytes, flags: int = 0) -> re.Pattern[bytes]: ...
def pattern(text: str | bytes, flags: int = 0) -> re.Pattern[Any]:
    """Return a regular expression that is compiled at its first use.

    Compiling all of them at once would take a tenth of a short command's time.
    """
    return cast("re.Pattern[Any]", _LatePattern(text, flags))
