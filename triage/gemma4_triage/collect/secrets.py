"""Keeps secrets out of a bundle: by the name that a value stands under, and by the shape that keys have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from gemma4_dumps.redaction import REDACTED, names_a_secret, redact_fields, redact_launch_args

_SHAPES = re.compile(
    r"(?:\b|(?<=\\[nrt]))(?:hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|"
    r"(?:AKIA|ASIA)[0-9A-Z]{16}|xox[abprs]-[\w-]{10,}|AIza[\w-]{30,}|nvapi-[\w-]{20,}|ya29\.[\w-]{20,}|"
    r"eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*|(?:r8|gsk|npm|whsec|[rs]k_live|dop_v1|glsa)_[A-Za-z0-9]{20,}\w*|"
    r"(?:pypi-AgEI|pplx-|xapp-\d-)[\w-]{20,}|SG\.[\w-]{16,}\.[\w-]{16,}|hv[sb]\.[\w-]{20,}|dapi[0-9a-f]{32})"
)
_BEARER = re.compile(r"(?i)\b(bearer|basic) +[\w.~+/=-]{8,}")
# A password may hold @ and, where what stands before it is no port, / as well; JSON may escape the slashes.
_USERINFO = re.compile(
    r"(?:(?<=://)|(?<=:\\/\\/))(?:[^/@:\s'\"]{1,200}:(?!\d+(?:[/?#]|$))[^@\s'\"]{1,200}@)?(?:[^/\s'\"]{0,400}@)?(?<=@)"
)
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")
# In a JSON string or a Python repr a line's end is \n in letters, a quote is \", and in a string in a string \\\".
_NAME = re.compile(r"(?<![\w-])(?:(?<=\\)[nrt])?(-{0,2}[A-Za-z_][\w-]{0,60})")
_GAP = r"(?:\s|\\{1,16}(?:[nrt]|(?=\s)))"
_QUOTE = r"""\\{0,16}["']"""
_BETWEEN = re.compile(rf"(?:{_QUOTE})?(?:{_GAP}{{0,40}}[=:]{_GAP}{{0,40}}|{_GAP}{{1,40}}|\s?,\s{{0,2}})")
# b'KEY', and SecretStr('KEY') or SecretStr(value='KEY').
_BEFORE_QUOTE = re.compile(rf"(?:[\w.]{{1,60}}\((?:\w{{1,60}}=)?)?[bBuUrRfF]{{0,2}}(?P<quote>{_QUOTE})")
_LIST = re.compile(rf"[\[(]\s*[bBuU]?{_QUOTE}[^\])\n]*")
_BARE = re.compile(
    rf"""\[redacted\]|(?!\\{{1,16}}\s*$|[|>][-+]?\s*$|{{\s*(?:{_QUOTE}|$))"""
    rf"""(?:(?!\\{{1,16}}["']|(?:\\{{1,16}}[rn]){{1,4}}(?:{_QUOTE}|$))[^\s,;'")}}\]])+"""
)
_SIGNED = re.compile(r"(?i)(?:(?<=[?&])|(?<=\\u0026))((?:x-(?:amz|goog)-)?sig(?:nature)?=)[^&\s'\"]+")
_COOKIE = re.compile(
    rf"""(?i)(?P<opened>{_QUOTE})?(?<![\w-])-{{0,2}}(?:set-)?cookies?(?P<closed>{_QUOTE})?(?:\s{{0,9}}[=:]|\s?,)\s{{0,9}}"""
)
_CURL_LOGIN = re.compile(
    rf"""(?<![\w-])(?:-[A-Za-z]{{0,8}}[uUb]|--(?:(?:proxy-)?user|cookie))(?:{_QUOTE})?[=,\s]{{0,3}}(?={_QUOTE}|[^\s-])"""
)
# Colours part a name from its value, and hide where a name begins.
_COLOUR = re.compile(r"(?:\x1b|\\{1,16}(?:u001[bB]|x1[bB]|033|e))\[[0-?]{0,30}[ -/]?[@-~]")
# Before each line docker, a kubelet and docker compose write something of their own.
_WRAPPED = re.compile(
    r"""(\s*\{"log":"|\S+ std(?:out|err) [FP] |[\w.-]+ *\| )(.*?)((?:\\[rn])*","stream":".*)?""", re.S
)
_ENDS = re.compile(
    rf"(?<![\w-])(-{{0,2}}[A-Za-z_][\w-]{{0,60}})(?:{_QUOTE})?(\s*[=:]\s*(?:[|>][-+]?)?|\s*,|\s*\\+)?(?:\s|\\[rn])*$"
)
_ALONE = re.compile(rf"""\s*(?:{_QUOTE}|[,\\\]}})])*\s*(?:$|\\[rn]|{_QUOTE}?--?[A-Za-z]|--?[A-Za-z])""")
_FLAG = re.compile(r"""["']?--?[A-Za-z]""")
_HARMLESS_VALUES = frozenset({"none", "null", "true", "false", "auto", REDACTED})
# What is behind KeyError is the name that was not there.
_MISTAKES = ("Error", "Exception", "Warning")
_SECRET_WORD = re.compile(r"(?i)key|token|pass(?:w|phrase)|secret|credential")


def clean_line(line: str) -> str:
    """Return a line of text without what looks like a secret; one that held a secret loses its colours too."""
    if _PRIVATE_KEY.search(line):
        return REDACTED
    plain = _COLOUR.sub("", line)
    found = _SHAPES.sub(REDACTED, plain)
    found = _BEARER.sub(rf"\1 {REDACTED}", found)
    found = _USERINFO.sub(f"{REDACTED}@", found)
    found = _SIGNED.sub(rf"\1{REDACTED}", found)
    if "cookie" in found.lower():
        found = _cookies(found)
    if "curl" in found:
        found = _curl_logins(found)
    if _SECRET_WORD.search(found):
        found = _by_name(found)
    return line if found == plain else found


def clean_lines(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield lines without secrets; a private key goes with all its lines, a value also behind its name's line."""
    inside = waits = False
    for raw in lines:
        line = raw.decode(errors="replace")
        if inside:
            inside = "-----END" not in line
            continue
        inside = _PRIVATE_KEY.search(line) is not None and "-----END" not in line
        ending = "\n" if line.endswith("\n") else ""
        text = line.removesuffix("\n")
        wrapped = _WRAPPED.fullmatch(text)
        head, body, tail = (wrapped[1], wrapped[2], wrapped[3] or "") if wrapped else ("", text, "")
        plain = _COLOUR.sub("", body)
        if waits and (value := _lonely_value(plain)) is not None:
            body = plain = value
        waits = _waits(plain) or (waits and not plain.strip())
        yield (head + clean_line(body) + clean_line(tail) + ending).encode()


def clean_command(words: Sequence[str]) -> str:
    """Return a command as one line of text without secrets."""
    return clean_line(" ".join(redact_launch_args(words)))


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
        # Behind a backslash the first letter may belong to the name, and may be a line's end.
        secret = (names_a_secret(name[0]) or names_a_secret(name[1])) and not name[1].endswith(_MISTAKES)
        if secret and (value := _value_of(name[1], line, end)):
            start, at, quote = value
            kept += [line[end:start], quote, REDACTED, quote]
    return "".join([*kept, line[at:]])


def _value_of(name: str, line: str, end: int) -> tuple[int, int, str] | None:
    """Return where the value of a name that ends there begins and ends, and its quote.

    None if it has none, or one that is no secret.
    """
    between = _BETWEEN.match(line, end)
    if between is None:
        return None
    # A number of tokens is no token, and neither is what follows a sentence's word; a list has its words in quotes.
    assigned = "=" in between[0] or ":" in between[0]
    if not assigned and (not name.startswith("-") or _FLAG.match(line, between.end())):
        return None
    return _value_at(line, between.end())


def _value_at(line: str, start: int) -> tuple[int, int, str] | None:
    """Return where the value that begins there begins and ends, and its quote; None if there is no secret."""
    if (opened := _BEFORE_QUOTE.match(line, start)) is not None:
        quote, start = opened["quote"], opened.start("quote")
        end = _end_of_quoted(line, opened.end(), quote)
        inner = line[opened.end() : end].removesuffix(quote)
        return None if inner == REDACTED or not inner.strip(" ,:") else (start, end, quote)
    if (listed := _LIST.match(line, start)) is not None:
        return start, listed.end(), ""
    bare = _BARE.match(line, start)
    if bare is None or bare[0].lower() in _HARMLESS_VALUES or re.fullmatch(r"-?[\d.]+%?", bare[0]):
        return None
    return start, bare.end(), ""


def _end_of_quoted(line: str, at: int, quote: str) -> int:
    r"""Return where a quoted text ends that begins there.

    It ends behind a quote with as many backslashes as the first; one with more belongs to the text, and one with less
    ends the string around it. Without an end all that follows is taken, since it may be the rest of the secret.
    """
    begin, depth = at, len(quote) - 1
    while (found := line.find(quote[-1], at)) >= 0:
        backslashes = 0
        while found - backslashes > begin and line[found - backslashes - 1] == "\\":
            backslashes += 1
        if backslashes <= depth:
            return found + 1 if backslashes == depth else found - backslashes
        at = found + 1
    return len(line)


def _cookies(line: str) -> str:
    """Return the line without what stands behind `Cookie:` and `Set-Cookie:`."""
    kept, at = [], 0
    while (name := _COOKIE.search(line, at)) is not None:
        start, quote = name.end(), ""
        if name["closed"]:
            if (value := _value_at(line, start)) is None:
                end = start
            else:
                start, end, quote = value
        elif name["opened"]:
            # The header is one word: 'Cookie: a=b'.
            end = _end_of_quoted(line, start, name["opened"])
            end -= len(name["opened"]) if line.endswith(name["opened"], start, end) else 0
        else:
            end = len(line)
        kept.append(line[at:start] + (quote + REDACTED + quote if start < end else ""))
        at = end
    return "".join([*kept, line[at:]])


def _curl_logins(line: str) -> str:
    """Return the line without what curl gets as `-u USER:PASSWORD` or `-b COOKIE=VALUE`."""
    kept, at = [], 0
    while (flag := _CURL_LOGIN.search(line, at)) is not None:
        start, end, quote = _value_at(line, flag.end()) or (flag.end(), flag.end(), "")
        is_login = re.search("[:=]", line[start:end]) is not None
        kept.append(line[at:start] + (quote + REDACTED + quote if is_login else line[start:end]))
        at = end
    return "".join([*kept, line[at:]])


def _waits(line: str) -> bool:
    """Say whether a line ends with a secret's name, so that its value is on the next one."""
    found = _ENDS.search(line[-200:])
    if found is None or not names_a_secret(found[1]):
        return False
    return found[1].startswith("-") or (found[2] or " ").strip()[:1] in ("=", ":")


def _lonely_value(line: str) -> str | None:
    """Return the line without the value that it begins with; None if it begins with a flag, a name or a sentence."""
    start = len(line) - len(line.lstrip())
    if _FLAG.match(line, start) or (value := _value_at(line, start)) is None:
        return None
    begin, end, quote = value
    if line[begin:end].endswith(":") or line.startswith(":", end) or not _ALONE.match(line, end):
        return None
    return line[:begin] + quote + REDACTED + quote + line[end:]
