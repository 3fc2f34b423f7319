"""The guard manifest inside a dump, in a few lines: what was attached, by kind, and whether it was verified."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gemma4_dumps.wording import number_of

_KINDS = ("fault", "fix", "optimisation", "probe", "host leaf")


def guard_lines(guards: Mapping[str, Any]) -> Iterator[str]:
    """Yield one line for the verdict, one per kind of patch, one per setting that was set.

    A manifest from another version may hold anything; what is not understood is shown as it is.
    """
    rows = guards.get("patches")
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) and "id" in row for row in rows):
        yield from (f"{key}  {value}" for key, value in guards.items())
        return
    yield "verified" if guards.get("verified") else "NOT verified: a patch may be missing"
    for kind in sorted({str(row.get("kind")) for row in rows}, key=_rank):
        names = ", ".join(_patch(row) for row in rows if str(row.get("kind")) == kind)
        yield f"{kind + ':':<13} {names}"
    settings = guards.get("settings")
    if isinstance(settings, Mapping):
        chosen = [f"{key}={_text(value)}" for key, value in settings.items() if value not in (None, [], "off", False)]
        yield f"{'settings:':<13} {', '.join(chosen)}"


def _rank(kind: str) -> int:
    return _KINDS.index(kind) if kind in _KINDS else len(_KINDS)


def _patch(row: Mapping[str, Any]) -> str:
    notes = [] if row.get("attached") else ["NOT ATTACHED" + (f": {row['reason']}" if row.get("reason") else "")]
    if row.get("untested"):
        notes.append(f"UNTESTED on {row['untested']}")
    if isinstance(row.get("injected"), bool):
        notes.append("has acted" if row["injected"] else "has not acted")
    if "self_test" in row:
        notes.append(f"self test {row['self_test']}")
    if isinstance(row.get("findings"), list) and row["findings"]:
        notes.append(f"{number_of(len(row['findings']), 'finding')} at start-up")
    return f"{row['id']}{' (' + ', '.join(notes) + ')' if notes else ''}"


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
