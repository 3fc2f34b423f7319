"""How a bench process says what it has: lines of JSON behind a mark, among whatever libraries print."""

from __future__ import annotations

import json
from typing import Any

MARK = "gemma4-bench: "


def tell(kind: str, fields: dict[str, Any]) -> None:
    """Print one result, in the bench process."""
    print(MARK + json.dumps({"kind": kind} | fields), flush=True)


def marked(line: str) -> dict[str, Any] | None:
    """Say what the line holds, or None for one that is not ours."""
    return json.loads(line.removeprefix(MARK)) if line.startswith(MARK) else None


def last_error(tail: str) -> str:
    """Return the line that says why: an exception's, and not the hints and warnings that CUDA prints after it."""
    lines = [line.strip()[:300] for line in tail.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line.split(":")[0]]
    return (errors or lines or ["no last words"])[-1]
