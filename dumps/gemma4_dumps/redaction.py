"""Keep secrets out of dumps: the values of launch arguments whose names say so.

Unknown names fail safe: `--my-new-token X` is redacted. Known serving arguments about tokens are listed, since a
diagnosis needs their sizes; a contract test holds the list against SGLang's arguments.
"""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

REDACTED = "[redacted]"

_SECRET_ENDINGS = (
    *("key", "token", "password", "passwd", "passphrase", "secret", "credential"),
    *("credentials", "secrets", "passwords"),
)
_HARMLESS_WORDS = frozenset({"monkey", "hotkey"})
_ABOUT_TOKENS_NOT_A_TOKEN = frozenset(
    {
        "bucket-inter-token-latency",
        "bucket-time-to-first-token",
        "kt-max-deferred-experts-per-token",
        "prefill-delayer-token-usage-low-watermark",
        "speculative-token-map",
        "tbo-token-distribution-threshold",
    }
)
_WORD_BREAK = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])")
_URL_USERINFO = re.compile(r"(?<=://)[^/@\s]+@")
_FLAG = re.compile(r"--?[A-Za-z]")


def names_a_secret(name: str) -> bool:
    """Say whether what has this name holds a secret: "--api-key", "HF_TOKEN"."""
    words = [word.lower() for word in _WORD_BREAK.split(name) if word]
    if "-".join(words) in _ABOUT_TOKENS_NOT_A_TOKEN:
        return False
    return any(word.endswith(_SECRET_ENDINGS) and word not in _HARMLESS_WORDS for word in words)


def redact_launch_args(args: Sequence[str]) -> list[str]:
    """Replace the values of secret arguments, in the forms `--api-key X`, `--api-key=X` and `API_KEY=X`.

    Also inside JSON values and in the user part of URLs. All up to the next flag belongs to a secret flag.
    """
    redacted: list[str] = []
    inside_secret = False
    for arg in map(str, args):
        is_flag = _FLAG.match(arg) is not None
        if inside_secret and not is_flag:
            redacted.append(REDACTED)
            continue
        name, equals, value = arg.partition("=")
        inside_secret = is_flag and not equals and names_a_secret(name)
        if equals and names_a_secret(name) and not name.lstrip().startswith("{"):
            redacted.append(f"{name}={REDACTED}")
        elif equals and is_flag:
            redacted.append(f"{name}={_redact_value(value)}")
        else:
            redacted.append(_redact_value(arg))
    return redacted


def redact_command(command: str) -> str:
    """Return the same for a command line in one string."""
    try:
        words = shlex.split(command)
    except ValueError:
        # Unbalanced quotes cannot be split with certainty: nothing after a secret's name is kept.
        head = re.split(r"(?i)[^\s]*(?:key|token|password|passwd|passphrase|secret)[\s=]", command, maxsplit=1)
        return command if len(head) == 1 else f"{head[0]}{REDACTED}"
    redacted = redact_launch_args(words)
    # An unchanged line keeps its own quoting.
    return command if redacted == words else shlex.join(redacted)


def redact_fields(value: Any) -> Any:
    """Redact string values under secret names in nested JSON; lists of strings are read as a command line."""
    if isinstance(value, Mapping):
        return {k: REDACTED if _is_secret_field(k, v) else redact_fields(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        if value and all(isinstance(item, str) for item in value):
            return redact_launch_args(value)
        return [redact_fields(item) for item in value]
    return _URL_USERINFO.sub(f"{REDACTED}@", value) if isinstance(value, str) else value


def _is_secret_field(name: Any, value: Any) -> bool:
    return isinstance(name, str) and isinstance(value, str) and names_a_secret(name)


def _redact_value(value: str) -> str:
    if value.lstrip().startswith(("{", "[")):
        try:
            fields = json.loads(value)
        except (ValueError, RecursionError):
            return value
        redacted = redact_fields(fields)
        return value if redacted == fields else json.dumps(redacted)
    return _URL_USERINFO.sub(f"{REDACTED}@", value)
