"""SGLang's pickles of requests: what `--crash-dump-folder` leaves when a server ends, and `dump_requests_folder`.

Both hold server_args and a list of (request, output, created, finished); a crash snapshot has the launch command too.
Source: managers/tokenizer_manager.py, dump_requests_before_crash and _dump_data_to_file. Prompts, token ids and answers
are counted, never kept.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gemma4_dumps.errors import DumpUnreadable
from gemma4_dumps.redaction import REDACTED, names_a_secret, redact_launch_args
from gemma4_dumps.unpacked import origin
from gemma4_dumps.wording import number_of
from gemma4_triage.finding import Confidence, Evidence, Finding
from gemma4_triage.logs.start_line import CUT, LONGEST_VALUE
from gemma4_triage.readers.opcodes import Blob, Thing, read_pickle
from gemma4_triage.readers.reading import Identity, Moment, NotThis, Reading

KIND = "sglang-requests"
RULE, TITLE = "ended-with-requests", "SGLang wrote down the requests that were there when it ended"
_HOSTS_FOLDER = "crash_dump_"
_SIMPLE = str | int | float | bool | None
_PRINTED = str | int | float | bool | list | dict
_LONGEST_LIST = 64
_ADAPTER = "LoRARef"
_OF_AN_ADAPTER = ("lora_id", "lora_name", "lora_path", "pinned")
"""In the order in which a release that keeps no names has them."""


def takes(head: bytes) -> bool:
    """Return whether a file begins as such a pickle does."""
    return head[:1] == b"\x80" and b"server_args" in head[:256]


def read(paths: Sequence[Path]) -> Iterator[Reading]:
    """Yield a reading for each file. Raises NotThis, DumpUnreadable."""
    for path in paths:
        yield _read(path)


def _read(path: Path) -> Reading:
    unpickled = read_pickle(path)
    fields = unpickled.value
    listed = fields.get("requests") if isinstance(fields, dict) else None
    if not isinstance(fields, dict) or not isinstance(listed, list | None):
        if unpickled.problem:
            raise DumpUnreadable(f"{path.name} {unpickled.problem}")
        raise NotThis
    requests = [one for one in listed or () if isinstance(one, tuple) and len(one) == 4]
    problem = unpickled.problem or _lack(listed, len(requests))
    # The launch command comes last, so that a torn snapshot has lost it and is told by its name.
    crashed = "launch_command" in fields or path.name.startswith(_HOSTS_FOLDER)
    what = "a crash snapshot of SGLang" if crashed else "a dump of requests of SGLang"
    if problem:
        what = f"{what}{'' if crashed else ', or a crash snapshot'}, damaged, of which can be read"
    open_ones = [one for one in requests if not _finish_reason(one[1])]
    times = [time for one in requests for time in one[2:] if isinstance(time, float | int) and time > 10**9]
    moments = [Moment(min(times), "the first request in it came in", "requests")] if times else []
    if times and crashed:
        moments.append(Moment(max(times), "SGLang wrote down its requests and ended", "requests"))
    return Reading(
        name=str(path),
        kind=KIND,
        title=f"{what}{'' if problem else ','} "
        f"{len(requests) - len(open_ones)} finished and {len(open_ones)} unfinished requests",
        identity=_identity(path, fields),
        moments=tuple(moments),
        facts=_facts(requests, open_ones),
        findings=(_finding(path, requests, open_ones, bool(problem)),) if crashed else (),
        problem=problem,
    )


def _lack(listed: list[Any] | None, read_count: int) -> str:
    """Say what a file that ends as a pickle does has not, though SGLang writes it; "" if nothing is missing."""
    if listed is None:
        return "is damaged: it has no list of requests"
    lost = len(listed) - read_count
    return f"is damaged: {lost} of {number_of(len(listed), 'request')} cannot be read" if lost else ""


def _identity(path: Path, fields: dict[Any, Any]) -> Identity:
    arguments = fields.get("server_args")
    state = arguments.state if isinstance(arguments, Thing) and isinstance(arguments.state, dict) else {}
    settings = {str(name): _printed(str(name), value) for name, value in state.items() if isinstance(value, _PRINTED)}
    command = fields.get("launch_command")
    words: list[str] = []
    if isinstance(command, str):
        try:
            words = shlex.split(command)
        except ValueError:
            words = command.split()
    # SGLang puts a crash snapshot into a folder of its host's name.
    host = path.parent.name if path.name.startswith(_HOSTS_FOLDER) else ""
    return Identity(host=host, command=tuple(redact_launch_args(words)), settings=settings)


def _printed(name: str, value: Any) -> str:
    """Return an argument as SGLang's log prints it: a secret redacted, CUT for one that is too long or is an object."""
    if names_a_secret(name) and isinstance(value, str):
        return REDACTED
    if isinstance(value, list):
        shown = [_adapter(part) or (repr(part) if isinstance(part, _SIMPLE) else CUT) for part in value[:_LONGEST_LIST]]
        text = CUT if len(value) > _LONGEST_LIST or CUT in shown else f"[{', '.join(shown)}]"
    elif isinstance(value, dict):
        text = "{}" if not value else CUT
    else:
        text = str(value)
    return text if len(text) <= LONGEST_VALUE else CUT


def _adapter(part: Any) -> str:
    """Return an adapter of --lora-paths as the log prints one; "" for anything else."""
    if not isinstance(part, Thing) or part.made_by.rpartition(".")[2] != _ADAPTER:
        return ""
    fields = part.state if isinstance(part.state, dict) else dict(zip(_OF_AN_ADAPTER, part.args, strict=False))
    known = (f"{name}={fields[name]!r}" for name in _OF_AN_ADAPTER if isinstance(fields.get(name), _SIMPLE))
    return f"{_ADAPTER}({', '.join(known)})"


def _finish_reason(output: Any) -> Any:
    meta = output.get("meta_info") if isinstance(output, dict) else None
    return meta.get("finish_reason") if isinstance(meta, dict) else None


def _facts(requests: Sequence[tuple], open_ones: Sequence[tuple]) -> tuple[tuple[str, str], ...]:
    found = [("requests", f"{len(requests)}, of them {len(open_ones)} unfinished")]
    for name, chosen in (("of all", requests), ("of the unfinished", open_ones)):
        sizes = [size for one in chosen if (size := _prompt_size(one[0]))]
        if sizes:
            found.append((f"longest prompt {name}", max(sizes, key=lambda size: size[0])[1]))
        asked = [most for one in chosen if isinstance(most := _most_tokens(one[0]), int)]
        if asked:
            found.append((f"most new tokens asked for {name}", str(max(asked))))
    return tuple(found)


def _prompt_size(request: Any) -> tuple[int, str] | None:
    if not isinstance(request, Thing):
        return None
    ids, text = request.get("input_ids"), request.get("text")
    if isinstance(ids, list) and ids:
        return len(ids), f"{len(ids)} token ids"
    if isinstance(text, str) and text:
        return len(text), f"{len(text)} characters" + (" or more" if len(text) >= 2000 else "")
    return (text.size_bytes, f"{text.size_bytes} bytes") if isinstance(text, Blob) else None


def _most_tokens(request: Any) -> Any:
    parameters = request.get("sampling_params") if isinstance(request, Thing) else None
    return parameters.get("max_new_tokens") if isinstance(parameters, dict) else None


def _finding(path: Path, requests: Sequence[tuple], open_ones: Sequence[tuple], damaged: bool) -> Finding:
    name = str(path)
    count = number_of(len(open_ones), "unfinished request")
    return Finding(
        rule=RULE,
        cause=f"SGLang ended and wrote down the requests that it had; {count} can be read, for the file is damaged."
        if damaged
        else f"SGLang ended with {count} and wrote down all that it had; why it ended is not in this file.",
        confidence=Confidence.POSSIBLE,
        evidence=(
            Evidence(source=name, field="requests", value=len(requests), meaning="requests of the last five minutes"),
            Evidence(source=name, field="unfinished", value=len(open_ones), meaning="of them without an end"),
        ),
        ruled_out_if=("somebody stopped the server while its health check failed: SGLang writes this then, too",),
        advice=("The server's log of that time says why: give it to diagnose together with this file.",),
        next_commands=(f"gemma4-triage diagnose {shlex.quote(origin(path))} SERVER_LOG",),
    )
