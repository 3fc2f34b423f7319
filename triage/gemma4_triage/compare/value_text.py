"""Two values of two dumps, each in a line."""

from __future__ import annotations

import json
from typing import Any

from gemma4_triage.compare.difference import ABSENT

MAX_CHARS = 100


def value_texts(a: Any, b: Any, limit: int = MAX_CHARS) -> tuple[str, str]:
    """Return both as JSON has them, cut to about `limit` characters around the first that differs."""
    texts = (_whole(a), _whole(b))
    if max(map(len, texts)) <= limit:
        return texts
    common = next((place for place, (x, y) in enumerate(zip(*texts, strict=False)) if x != y), min(map(len, texts)))
    begin = max(common - limit // 3, 0)
    return _cut(texts[0], begin, limit), _cut(texts[1], begin, limit)


def _cut(text: str, begin: int, limit: int) -> str:
    if len(text) <= limit // 3:
        # Nothing is gained by cutting "null" off where a long text would begin.
        return text
    before, after = "... " if begin else "", " ..." if len(text) > begin + limit else ""
    return f"{before}{text[begin : begin + limit]}{after}"


def _whole(value: Any) -> str:
    return "absent" if value is ABSENT else _patch(value) or json.dumps(value, ensure_ascii=False)


def _patch(value: Any) -> str:
    """Say of a guard manifest's patch whether it is there; its title and targets say nothing about that."""
    if not (isinstance(value, dict) and {"kind", "attached"} <= value.keys()):
        return ""
    return f"{value['kind']}, {'attached' if value['attached'] else 'NOT attached'}"
