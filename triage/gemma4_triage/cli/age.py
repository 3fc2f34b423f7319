"""Ages on the command line: 90s, 30m, 12h, 14d, 2w."""

import re
from datetime import timedelta

from gemma4_triage.errors import UsageMistake

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def parse_age(text: str) -> timedelta:
    """Read an age. Raises UsageMistake if it is not a number with one of the units s, m, h, d, w."""
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)([smhdw])", text.strip())
    if match is None:
        raise UsageMistake(f"{text!r} is not an age", "a number and a unit: 90s, 30m, 12h, 14d, 2w")
    return timedelta(seconds=float(match[1]) * _SECONDS[match[2]])
