"""What a server prints of its arguments when it starts: ServerArgs(name=value, ...), or {'name': value, ...} in 0.5.23.

Values are Python's notation of anything, also of objects. None is evaluated.
"""

from __future__ import annotations

import re

from gemma4_dumps.redaction import REDACTED, names_a_secret
from gemma4_triage.logs.events import SERVER_ARGS

MAX_ARGUMENTS = 2000
LONGEST_VALUE = 1000
CUT = "..."
"""Stands for a value that is longer than LONGEST_VALUE."""
_NAME = re.compile(r"\s*(?:'(\w{1,80})'\s*:|(\w{1,80})=)\s*")
_TOKEN = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[()\[\]{},]")


def arguments(line: bytes) -> dict[str, str]:
    """Return each argument by name as printed, text without quotes; a secret's value is REDACTED."""
    begin = next((at + len(mark) for mark in SERVER_ARGS if (at := line.find(mark)) >= 0), None)
    if begin is None:
        return {}
    begin -= line[begin - 2 : begin] == b"{'"
    return _listed(line[begin:].decode(errors="replace"))


def _listed(text: str) -> dict[str, str]:
    """Return what stands as name=value or 'name': value, one behind another, up to the bracket that closes them."""
    found: dict[str, str] = {}
    at = 0
    while len(found) < MAX_ARGUMENTS and (name := _NAME.match(text, at)) is not None:
        end = _end_of_value(text, name.end())
        if end is None:
            break
        said, value = name[1] or name[2], text[name.end() : end].strip()
        found[said] = REDACTED if names_a_secret(said) and value not in ("None", "False", "True") else _plain(value)
        at = end + 1
    return found


OF_VLLM = b"non-default args: {"
COMMANDS = (
    *(b"sglang.launch_server ", b"sglang serve ", b"vllm serve ", b"vllm.entrypoints.", b"vllm/vllm-openai"),
    *(b"-m dynamo.vllm ", b"-m dynamo.sglang "),
    # What vLLM prints of them itself.
    OF_VLLM,
    *(b"--model-path ", b"launch_router ", b"smg launch "),
)
"""How a server is started at a shell, which people paste above its log."""
NOTES = (b" --", b"# ", b"same request", b"server_args: ", b"env: ", b"export ", b"HiCache +", b"SGLANG_")
"""What a line may have in which somebody noted arguments or the environment beside a log."""
_NOTE = re.compile(
    rb"\s*(?:#+ |\(|--[a-z]|(?:\$ )?export |env: |server_args: )|[^\[\]{}]{0,200}\bHiCache \+|"
    # Variables alone, as they stand ahead of a command.
    rb"\s*(?:\$ )?(?:[A-Z][A-Z0-9_]{2,60}=[^\s=]{1,80}\s*)+\\?\s*$"
)
_STAMP = re.compile(rb"\[\d{4}-\d\d-\d\d [^\]\n]{8,40}\] (?=server_args: )")
_SPOKEN = (
    (re.compile(r"\bHiCache\b"), "enable_hierarchical_cache", "True"),
    (re.compile(r"(?i)\bmooncake\b"), "hicache_storage_backend", "mooncake"),
    (re.compile(r"\bEAGLE\b|\bMTP\b"), "speculative_algorithm", "EAGLE"),
)
_MODEL = re.compile(r"\b(?:vllm|sglang) serve +(?!\.\.\.|…)(<[^>\n]{1,200}>|[^\s<-][^\s\\]*)")
_PAIR = re.compile(r"\b([a-z][a-z0-9]*_[a-z0-9_]{1,60})=(True|\d{1,9}|'[^']{1,200}')")
_VARIABLE = re.compile(r"\b((?:SGLANG|SGL|VLLM|MOONCAKE|CUDA_LAUNCH)_[A-Z0-9_]{2,80})=([\w./:-]{1,80})")
_SIZE = re.compile(r"(?i)(?<![\w-])(tp|pp|dp|ep)[ =](\d{1,3})\b")
_FLAG = re.compile(
    r"(?<![\w`'-])--([a-z][a-z0-9_-]{1,60})(?:[= ]+(?!-)('[^']*'|\"[^\"]*\"|<[^<>\n]{1,200}>|[^\s\\]+))?"
)
_COMMENT = re.compile(r"(?<=\S)\s+#+ [^'\"]+$")
_SHORT = {
    "tp": "tp_size",
    "tensor_parallel_size": "tp_size",
    "pipeline_parallel_size": "pp_size",
    "data_parallel_size": "dp_size",
    "expert_parallel_size": "ep_size",
    "dp": "dp_size",
    "pp": "pp_size",
    "ep": "ep_size",
    "model": "model_path",
    "mem_frac": "mem_fraction_static",
}


def typed(line: bytes) -> dict[str, str]:
    """Return the arguments of a command that starts a server, by their names in ServerArgs; a switch is "True"."""
    begin = next((at for mark in COMMANDS if (at := line.find(mark)) >= 0), None)
    if begin is None:
        return {}
    if (printed := line.find(OF_VLLM)) >= 0:
        return _of_vllm(_listed(line[printed + len(OF_VLLM) :].decode(errors="replace")))
    text = line[begin : begin + LONGEST_VALUE * 4].decode(errors="replace")
    if (comment := _COMMENT.search(text)) is not None:
        text = text[: comment.start()]
    model = _MODEL.match(text)
    variables = dict(_VARIABLE.findall(line[:begin][-LONGEST_VALUE:].decode(errors="replace")))
    return variables | ({"model_path": model[1]} if model else {}) | _flags(text)


_BACKEND = re.compile(r"'backend': '?(\w+)")


def _of_vllm(printed: dict[str, str]) -> dict[str, str]:
    """Return vLLM's arguments by the names that a command would have."""
    found = {_SHORT.get(name, name): value for name, value in printed.items()}
    if backend := _BACKEND.search(found.get("attention_config", "")):
        found.setdefault("attention_backend", backend[1])
    return found


_ENVIRONMENT = re.compile(
    rb"\s*(?:#+ *(?:\w+ ){0,2}(?:env|environment|variables)\b(?! (?:without|before|of the (?:old|other)))|"
    rb"(?:#+ *)?(?:export )?(?:[A-Z][A-Z0-9_]{2,60}=[^\s=]{1,80}[,;]?\s*)+$)"
)


def environment(line: bytes) -> dict[str, str]:
    """Return the variables in a line that somebody wrote beside a log as this server's environment; else nothing."""
    return dict(_VARIABLE.findall(line[:LONGEST_VALUE].decode(errors="replace"))) if _ENVIRONMENT.match(line) else {}


def comment(line: bytes) -> bytes:
    """Return what somebody wrote behind a command, as a note of its own; b"" if there is nothing."""
    found = _COMMENT.search(line[: LONGEST_VALUE * 4].decode(errors="replace"))
    return b"" if found is None else found[0].strip().encode()


def noted(line: bytes) -> dict[str, str]:
    """Return the arguments and variables in a line that somebody wrote beside a log, or that goes on with a command."""
    line = _STAMP.sub(b"", line, count=1)
    if not _NOTE.match(line):
        return {}
    text = line[: LONGEST_VALUE * 4].decode(errors="replace")
    sizes = {f"{name.lower()}_size": number for name, number in _SIZE.findall(text)}
    pairs = {name: _plain(value) for name, value in _PAIR.findall(text) if not names_a_secret(name)}
    spoken = {name: value for words, name, value in _SPOKEN if "HiCache" in text and words.search(text)}
    flags = {name: value.rstrip(";,.)") or "True" for name, value in _flags(text).items()}
    return sizes | spoken | pairs | dict(_VARIABLE.findall(text)) | flags


def _flags(text: str) -> dict[str, str]:
    found = {}
    for name, value in _FLAG.findall(text)[:MAX_ARGUMENTS]:
        plain: str = name.replace("-", "_")
        said = _SHORT.get(plain, plain)
        found[said] = REDACTED if names_a_secret(said) and value else _plain(value) or "True"
    return found


def _end_of_value(text: str, at: int) -> int | None:
    """Return where a value ends: at its comma, or at the bracket that closes the arguments."""
    depth = 0
    for token in _TOKEN.finditer(text, at):
        if token[0] in "([{":
            depth += 1
        elif token[0] == "," and not depth:
            return token.start()
        elif token[0] in ")]}":
            if not depth:
                return token.start()
            depth -= 1
    return None


def _plain(value: str) -> str:
    if len(value) > LONGEST_VALUE:
        return CUT
    if len(value) > 1 and value[0] in "'\"" and value[-1] == value[0]:
        return re.sub(r"\\(['\"\\])", r"\1", value[1:-1])
    return value
