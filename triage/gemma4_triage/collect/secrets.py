"""Keeps secrets out of a bundle: by the name that a value stands under, and by the shape that keys have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from gemma4_dumps.redaction import REDACTED, names_a_secret, redact_fields

_SHAPES = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|"
    r"(?:AKIA|ASIA)[0-9A-Z]{16}|xox[abprs]-[\w-]{10,}|AIza[\w-]{30,}|nvapi-[\w-]{20,}|ya29\.[\w-]{20,}|"
    r"eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*)"
)
_BEARER = re.compile(r"(?i)\b(bearer|basic) +[\w.~+/=-]{8,}")
_USERINFO = re.compile(r"(?<=://)[^/@\s'\"]{1,200}@")
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")
_NAME = re.compile(r"(?<![\w-])-{0,2}[A-Za-z_][\w-]{0,60}")
_BETWEEN = re.compile(r"""["']?(?:\s{0,2}[=:]\s{0,2}|\s{1,3}|\s?,\s{0,2})""")
# A quote that is not closed is taken as far as it goes: what is behind it may be the rest of the secret.
_VALUE = re.compile(r"""\[redacted\]|'(?:[^'\\\n]|\\.){1,4000}'?|"(?:[^"\\\n]|\\.){1,4000}"?|[^\s,;'")}\]]{1,4000}""")
_SIGNED = re.compile(r"(?i)(?<=[?&])((?:x-(?:amz|goog)-)?sig(?:nature)?=)[^&\s'\"]+")
_FLAG = re.compile(r"""["']?--?[A-Za-z]""")
_HARMLESS_VALUES = frozenset({"none", "null", "true", "false", "auto", "[redacted]", "'[redacted]'", '"[redacted]"'})
_SECRET_WORD = re.compile(r"(?i)key|token|passw|secret|credential")


def clean_line(line: str) -> str:
    """Return a line of text without what looks like a secret."""
    if _PRIVATE_KEY.search(line):
        return REDACTED
    line = _SHAPES.sub(REDACTED, line)
    line = _BEARER.sub(rf"\1 {REDACTED}", line)
    line = _USERINFO.sub(f"{REDACTED}@", line)
    line = _SIGNED.sub(rf"\1{REDACTED}", line)
    return _by_name(line) if _SECRET_WORD.search(line) else line


def clean_lines(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield lines without secrets; a private key goes with all its lines."""
    inside = False
    for raw in lines:
        line = raw.decode(errors="replace")
        if inside:
            inside = "-----END" not in line
            continue
        inside = _PRIVATE_KEY.search(line) is not None and "-----END" not in line
        ending = "\n" if line.endswith("\n") else ""
        yield (clean_line(line.removesuffix("\n")) + ending).encode()


def clean_json(value: Any) -> Any:
    """Return nested JSON without secrets, by the names of fields and the shape of strings."""
    return _by_shape(redact_fields(value))


def clean_body(body: bytes) -> bytes:
    """Return a reply of a server without secrets: JSON by its fields, anything else line by line."""
    try:
        return json.dumps(clean_json(json.loads(body)), indent=1).encode()
    except (ValueError, RecursionError):
        return b"".join(clean_lines(body.splitlines(keepends=True)))


def clean_variables(variables: dict[str, str]) -> dict[str, str]:
    """Return an environment without secrets."""
    return {name: REDACTED if names_a_secret(name) else clean_line(value) for name, value in variables.items()}


def without_value(data: bytes, secret: str) -> bytes:
    """Return text without a secret that is known, whatever it stands under; a short one only as a word of its own."""
    if not secret:
        return data
    value = re.escape(secret.encode())
    return re.sub(value if len(secret) >= 8 else rb"(?<!\w)" + value + rb"(?!\w)", REDACTED.encode(), data)


def _by_shape(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _by_shape(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_by_shape(one) for one in value]
    return clean_line(value) if isinstance(value, str) else value


def _by_name(line: str) -> str:
    """Return the line without the values of names that are secrets' names.

    What stands behind any other name is looked at as well: `--trust-remote-code --api-key KEY`, `args: --api-key=KEY`.
    """
    kept, at = [], 0
    while (name := _NAME.search(line, at)) is not None:
        end = name.end()
        kept.append(line[at:end])
        at = end
        if names_a_secret(name[0]) and (value := _value_of(name[0], line, end)) is not None:
            quote = value[0][0] if value[0][0] in "'\"" else ""
            kept += [line[at : value.start()], quote, REDACTED, quote]
            at = value.end()
    return "".join([*kept, line[at:]])


def _value_of(name: str, line: str, end: int) -> re.Match[str] | None:
    """Return the value of a name that ends there; None if it has none, or one that is no secret."""
    between = _BETWEEN.match(line, end)
    if between is None or (value := _VALUE.match(line, between.end())) is None:
        return None
    # A number of tokens is no token, and neither is what follows a sentence's word; a list has its words in quotes.
    assigned = "=" in between[0] or ":" in between[0]
    if not assigned and (not name.startswith("-") or _FLAG.match(line, between.end())):
        return None
    if value[0].lower() in _HARMLESS_VALUES or re.fullmatch(r"-?[\d.]+%?", value[0]):
        return None
    return value
