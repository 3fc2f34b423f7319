"""What people's tools put around the lines of a log, as functions of the log; times go on from line to line."""

import json
from collections.abc import Callable, Iterator

Wrapper = Callable[[str], str]


def _each(form: Callable[[int, str], str]) -> Wrapper:
    """Return a wrapper that puts something around every line. form: takes the line's number and the line."""

    def wrap(text: str) -> str:
        whole = text.endswith("\n")
        lines = text.removesuffix("\n").split("\n")
        return "\n".join(form(number, line) for number, line in enumerate(lines)) + ("\n" if whole else "")

    return wrap


def _clock(number: int) -> str:
    return f"{3 + number // 3600:02d}:{number // 60 % 60:02d}:{number % 60:02d}"


def _iso(number: int) -> str:
    return f"2026-11-24T{_clock(number)}.{number * 7919 % 10**9:09d}Z"


def _json(**fields: str) -> Wrapper:
    """Return one object a line; the field whose value is "LINE" holds the line."""
    return _each(
        lambda number, line: json.dumps({name: line if value == "LINE" else value for name, value in fields.items()})
    )


def _nested(line: str) -> str:
    return json.dumps({"insertId": "a1", "jsonPayload": {"message": line, "level": "INFO"}, "severity": "ERROR"})


def _records(text: str) -> Iterator[str]:
    """Lines with those that belong to them: one log record, as a logger that writes JSON sends it."""
    record: list[str] = []
    for line in text.removesuffix("\n").split("\n"):
        if line.startswith("[2") and record:
            yield "\n".join(record)
            record = []
        record.append(line)
    yield "\n".join(record)


def _one_object_a_record(text: str) -> str:
    return "".join(json.dumps({"time": "2026-11-24", "message": record + "\n"}) + "\n" for record in _records(text))


def _cri_in_parts(text: str) -> str:
    """Long lines in two parts, as containerd cuts them."""
    rows = []
    for number, line in enumerate(text.removesuffix("\n").split("\n")):
        if len(line) > 60:
            rows.append(f"{_iso(number)} stdout P {line[:50]}")
            line = line[50:]
        rows.append(f"{_iso(number)} stdout F {line}")
    return "\n".join(rows) + "\n"


WRAPPERS: dict[str, Wrapper] = {
    "compose": _each(lambda n, line: f"sglang-1  | {line}"),
    "compose-stripped": _each(lambda n, line: f"gemma4_server-1  | {line}".rstrip()),
    "swarm": _each(lambda n, line: f"llm_sglang.1.k3j2h1g0@node-3    | {line}"),
    "kubectl-timestamps": _each(lambda n, line: f"{_iso(n)} {line}"),
    "kubectl-prefix": _each(lambda n, line: f"[pod/sglang-0/server] {line}"),
    "kubectl-both": _each(lambda n, line: f"[pod/sglang-0/server] {_iso(n)} {line}"),
    "cri": _each(lambda n, line: f"{_iso(n)} stderr F {line}"),
    "cri-parts": _cri_in_parts,
    "journald": _each(lambda n, line: f"Nov 24 {_clock(n)} gpu-7 sglang[4242]: {line}"),
    "journald-unit": _each(lambda n, line: f"Nov  4 {_clock(n)} gpu7.lan start-server.sh[99]: {line}"),
    "rsyslog": _each(lambda n, line: f"2026-11-24T{_clock(n)}.123456+01:00 gpu7 python3[311]: {line}"),
    "ts": _each(lambda n, line: f"Nov 24 {_clock(n)} {line}"),
    "compose-timestamps": _each(lambda n, line: f"sglang-1  | {_iso(n)} {line}"),
    "actions": _each(lambda n, line: f"2026-11-24T{_clock(n)}.1234567Z {line}"),
    "gh-run-view": _each(lambda n, line: f"e2e (h100)\tRun server\t2026-11-24T{_clock(n)}.1234567Z {line}"),
    "own-time": _each(lambda n, line: f"2026-11-24 {_clock(n)},{n % 1000:03d} {line}"),
    "ray": _each(lambda n, line: f"\x1b[36m(SGLangActor pid=812, ip=10.0.0.3)\x1b[0m {line}"),
    "ray-pasted": _each(lambda n, line: f"[36m(pid=812)[0m {line}"),
    "quoted": _each(lambda n, line: f"> {line}"),
    "quoted-twice": _each(lambda n, line: f"> > {line}"),
    "rank": _each(lambda n, line: f"[rank0]: {line}"),
    "torchrun": _each(lambda n, line: f"[default0]:{line}"),
    "mpirun": _each(lambda n, line: f"[1,0]<stderr>: {line}"),
    "pm2": _each(lambda n, line: f"0|sglang  | {line}"),
    "colour": _each(lambda n, line: f"\x1b[0;31m{line}\x1b[0m"),
    "crlf": _each(lambda n, line: f"{line}\r"),
    "compose-crlf": _each(lambda n, line: f"sglang-1  | {line}\r"),
    "bar-redrawn": _each(lambda n, line: f"Loading: 10%|# | 1/9 [00:01<00:09,  1.10s/it]\r{line}" if n else line),
    "aws-tail": _each(lambda n, line: f"{_iso(n)} server/sglang/0a1b2c3d {line}"),
    "endpoints": _each(lambda n, line: f"2026/11/24 {_clock(n)} ~ {line}"),
    "docker-json": _each(lambda n, line: json.dumps({"log": line + "\n", "stream": "stderr", "time": _iso(n)})),
    "cloud-text": _json(insertId="x", textPayload="LINE", severity="DEFAULT"),
    "cloud-json": _each(lambda n, line: _nested(line)),
    "otel": _each(lambda n, line: json.dumps({"body": {"stringValue": line}, "severityText": "INFO"})),
    "msg": _json(ts="1", level="info", msg="LINE"),
    "journald-json": _json(_PID="81", MESSAGE="LINE", PRIORITY="6"),
    "json-records": _one_object_a_record,
    "logfmt": _each(lambda n, line: f"time={_iso(n)} level=info msg={json.dumps(line)}"),
    "gcloud": _each(lambda n, line: f'    "textPayload": {json.dumps(line)},'),
    "compose-json": _each(lambda n, line: f"sglang-1  | {json.dumps({'message': line})}"),
    # Forms that no list knows.
    "indented": _each(lambda n, line: f"    {line}"),
    "indented-by-a-tab": _each(lambda n, line: f"\t{line}"),
    "diff": _each(lambda n, line: f"+{line}"),
    "srun": _each(lambda n, line: f"0: {line}"),
    "cat-n": _each(lambda n, line: f"{n + 1:6d}\t{line}"),
    "stern": _each(lambda n, line: f"sglang-5d9f-x2 server {line}"),
    "own-words": _each(lambda n, line: f"<<gpu-box #{n % 7}>> {_clock(n)} :: {line}"),
    "own-level": _each(lambda n, line: f"{('INFO', 'ERROR')[n % 2]} [worker/{n}] {line}"),
    "own-stamp": _each(lambda n, line: f"[{_clock(n)}] {line}"),
}
"""Every one leaves what a log says unchanged."""
