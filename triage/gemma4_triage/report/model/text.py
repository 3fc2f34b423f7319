"""Text of a report: from dumps and logs, which anyone may have written, into HTML, XML and terminals."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator

from gemma4_dumps.wording import number_of
from gemma4_triage.terminal import printable

MAX_CHARS = 4000

# Not allowed in XML 1.0, whatever the escaping; control characters `printable` has removed by then.
_NO_XML = re.compile("[\ufffe\uffff]")


def clean(value: Any) -> Any:
    """Return a string without what no document can hold, cut to MAX_CHARS; anything else as it is.

    Lone surrogates (undecodable file names, JSON escapes) become backslash escapes: UTF-8 has none.
    """
    if not isinstance(value, str):
        return value
    cut = value[:MAX_CHARS]
    text = printable(cut.encode("utf-8", "backslashreplace").decode("utf-8"))
    text = _NO_XML.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    return text if len(value) <= MAX_CHARS else f"{text} ... ({number_of(len(value) - MAX_CHARS, 'more character')})"


Text = Annotated[str, BeforeValidator(clean)]


def code_spans(text: str) -> list[tuple[bool, str]]:
    """(is it code, the words) for each part of a sentence that has `code` in backticks."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return [(False, text)]
    return [(at % 2 == 1, part) for at, part in enumerate(parts) if part]
