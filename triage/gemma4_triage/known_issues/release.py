"""Which release of SGLang a text says it is of: an image's name, pip's words, check_env's list or /server_info."""

from __future__ import annotations

import json
import re

_NUMBER = r"(\d{1,3}\.\d{1,3}\.\d{1,3}(?:\.?(?:post|rc|dev)\d{1,4})?)"
# "lmsysorg/sglang:v0.5.17", "sglang==0.5.17", "sglang-0.5.17.dist-info", "sglang: 0.5.17", "SGLang version 0.5.17"
_NAMED = re.compile(rf"(?i)\bsglang(?::v?|==|-|:? +(?:version:? *)?v?){_NUMBER}(?!\d)".encode())
MARKS = (b"glang", b"GLang")
"""One of them stands in a line that `release_in` is asked about; few, because each is looked for in all of a log."""


def release_in(line: bytes) -> str:
    """Return the release that a line of a log names; "" if it names none."""
    found = _NAMED.search(line)
    return "" if found is None else found[1].decode()


def release_of_server_info(text: str) -> str:
    """Return the release that an answer of /server_info names; "" if it is none or names none."""
    try:
        document = json.loads(text)
    except ValueError:
        return ""
    version = document.get("version") if isinstance(document, dict) else None
    return version if isinstance(version, str) else ""
