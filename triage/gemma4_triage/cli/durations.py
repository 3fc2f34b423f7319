"""Times on the command line: ages such as 14d, and limits such as 90, 90s, 5m or 1.5h."""

import math
import re
from collections.abc import Callable
from datetime import timedelta

from gemma4_triage.errors import UsageMistake

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_TIME = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)([smhdw]?)")
METAVAR = "TIME"


def parse_age(text: str) -> timedelta:
    """Read an age. Raises UsageMistake if it is not a number with one of the units s, m, h, d, w."""
    match = _TIME.fullmatch(text.strip())
    if match is None or not match[2] or len(match[1].partition(".")[0]) > 6:
        raise UsageMistake(f"{text!r} is not an age", "a number and a unit: 90s, 30m, 12h, 14d, 2w")
    return timedelta(seconds=float(match[1]) * _SECONDS[match[2]])


def time_from(least_s: float, most_s: float = math.inf, option: str = "--timeout") -> Callable[[str | float], float]:
    """Return what reads a limit of time in seconds; a number without a unit is seconds.

    Args:
        least_s: The shortest that makes sense.
        most_s: The longest.
        option: Whose value it is, for the error.
    """

    def read(text: str | float) -> float:
        # A default comes as the number that it is.
        match = _TIME.fullmatch(str(text).strip())
        seconds = float(match[1]) * _SECONDS[match[2] or "s"] if match else math.nan
        if not least_s <= seconds <= most_s:
            most = f" to {_text(most_s)}" if most_s < math.inf else " on"
            hint = f"a number of seconds, or with a unit: 90s, 5m, 1.5h; from {_text(least_s)}{most}"
            raise UsageMistake(f"{option} {text!r} cannot be read", hint)
        return seconds

    return read


def _text(seconds: float) -> str:
    for unit in ("d", "h", "m"):
        if seconds >= _SECONDS[unit] and seconds % _SECONDS[unit] == 0:
            return f"{seconds / _SECONDS[unit]:g}{unit}"
    return f"{seconds:g}s"
