"""Golden files: how one is compared, and how what depends on the machine is taken out of a command's words first."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gemma4_runtime.releases import installed_or_base

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "contract" / "golden"

_OF_THE_MACHINE: dict[str, Any] = {
    "duration_s": 0,
    "import_s": 0,
    "cores": 0,
    "date": "DATE",
    "project": "PROJECT",
    "versions": "VERSIONS",
}
"""Keys whose value another machine, day or commit changes, and what stands for it. None stays None."""
_SECONDS = re.compile(r"\b\d+(\.\d+)? s\b")
_ALWAYS = (
    (re.compile(r"\d+ MiB free"), "N MiB free"),
    (re.compile(r"Python \d+\.\d+\.\d+"), "Python VERSION"),
    # The name of a run's folder; that of a dump has a dot in its time.
    (re.compile(r"\b\d{8}T\d{12}Z_"), "TIME_"),
)
_DIGITS = 6
_ROUND_OFF = 1e-12


def compare(name: str, text: str, by_release: bool = False) -> None:
    """Hold `text` against the golden file of this name; `UPDATE_GOLDEN=1` writes the file first.

    Args:
        name: Of the file.
        text: What was said now.
        by_release: Whether each release of SGLang has its own, in a folder of its name.
    """
    path = GOLDEN / installed_or_base() / name if by_release else GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN") == "1":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{path} differs; UPDATE_GOLDEN=1 rewrites it"


def neutral_text(text: str, replaced: Mapping[str, str] | None = None, timed: bool = False) -> str:
    """Return the text as every machine prints it.

    Args:
        text: What a command printed.
        replaced: Further texts of this run, such as a port, and what stands for each.
        timed: Whether the seconds in it were measured just now.
    """
    own = {str(ROOT): "CHECKOUT", sys.executable: "PYTHON", str(Path(sys.executable).with_name("sglang")): "SGLANG"}
    # The longest first: a folder of the run may lie below another that is replaced.
    for found, name in sorted((own | dict(replaced or {})).items(), key=lambda pair: -len(pair[0])):
        text = text.replace(found, name)
    for pattern, name in _ALWAYS:
        text = pattern.sub(name, text)
    if timed:
        text = _SECONDS.sub("N s", text)
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def neutral_json(text: str, replaced: Mapping[str, str] | None = None, timed: bool = False) -> str:
    """Return a JSON document as every machine prints it, with its keys in the document's order.

    Args:
        text: What a command printed.
        replaced: As of neutral_text.
        timed: Whether it was made just now; else a date or a number of seconds in it is part of the evidence.
    """
    document = json.loads(neutral_text(text, replaced, timed))
    return json.dumps(_neutral(document, _OF_THE_MACHINE if timed else {}), indent=1, ensure_ascii=False) + "\n"


def _neutral(value: Any, named: Mapping[str, Any]) -> Any:
    if isinstance(value, dict):
        return {
            key: named[key] if key in named and one is not None else _neutral(one, named) for key, one in value.items()
        }
    if isinstance(value, list):
        return [_neutral(one, named) for one in value]
    if isinstance(value, float) and math.isfinite(value):
        # The last digits depend on the order in which a processor's library adds.
        return 0.0 if abs(value) < _ROUND_OFF else float(f"{value:.{_DIGITS}g}")
    return value
