"""The ids under which an arm's prompts are sent to SGLang.

SGLang aborts every request whose id *begins* with the one named, so no id may be the beginning of another: all have the
same width.
"""

from __future__ import annotations

_PREFIX, _DIGITS = "prompt-", 6


def request_id(prompt: int) -> str:
    """Return the id under which prompt number `prompt` is sent.

    Raises:
        ValueError: the number is negative or has too many digits.
    """
    if not 0 <= prompt < 10**_DIGITS:
        raise ValueError(f"prompts are numbered from 0 to {10**_DIGITS - 1}, not {prompt}")
    return f"{_PREFIX}{prompt:0{_DIGITS}}"


def prompt_of(rid: str) -> int:
    """Return the number of the prompt that was sent under this id, of any width."""
    return int(rid.removeprefix(_PREFIX))
