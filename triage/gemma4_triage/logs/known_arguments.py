"""The table of SGLang's arguments, of each release that is known: no advice names an argument that is not there."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

_DATA = Path(__file__).parents[1] / "diagnose" / "sglang_arguments.json"


@cache
def known_arguments() -> dict[str, dict[str, list[Any]]]:
    """Return form, defaults and, where it is another one, option of the arguments of each release that is known.

    Defaults are the parser's and what SGLang makes of it on every machine, which says nothing of what was asked for.
    """
    packed = _DATA.with_suffix(".json.gz")  # of a wheel, see setup.py
    return json.loads(gzip.decompress(packed.read_bytes()) if packed.exists() else _DATA.read_bytes())


def is_an_argument(name: str) -> bool:
    """Say whether a release has an argument of that name; of a switch's name earlier ones may have had it."""
    return name.startswith(("enable_", "disable_")) or any(name in known for known in known_arguments().values())
