"""What people's tools put around the lines of a log, as functions of the log; times go on from line to line."""

import csv
import html
import io
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


def _lines(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n")


def _document(make: Callable[[str], object], indent: int | None = None) -> Wrapper:
    """Return a wrapper that puts the whole log into one JSON document.

    Args:
        make: Makes the document of the log.
        indent: As `json.dumps` takes it.
    """
    return lambda text: json.dumps(make(text), indent=indent) + "\n"


def _entries(form: Callable[[int, str], object]) -> Callable[[str], list]:
    return lambda text: [form(number, line) for number, line in enumerate(_lines(text))]


def _newest_first(form: Callable[[int, str], object]) -> Callable[[str], list]:
    return lambda text: _entries(form)(text)[::-1]


def _loki(text: str) -> dict:
    """Return an answer of Loki, which gives the newest line first, with a stream for each channel."""
    lines = [[str(1764000000_000000000 + number), line] for number, line in enumerate(_lines(text))]
    streams = [{"stream": {"app": "sglang", "channel": f"{at}"}, "values": lines[at::2][::-1]} for at in (0, 1)]
    return {"status": "success", "data": {"resultType": "streams", "result": streams, "stats": {"summary": {"a": 1}}}}


def _otel(text: str) -> dict:
    records = _entries(lambda n, line: {"timeUnixNano": str(10**18 + n), "body": {"stringValue": line}})(text)
    return {"resourceLogs": [{"resource": {"attributes": []}, "scopeLogs": [{"scope": {}, "logRecords": records}]}]}


def _table(form: Callable[[int, str], list], *head: str, delimiter: str = ",", newest_first: bool = False) -> Wrapper:
    """Return a wrapper that makes a table with a head of the whole log.

    Args:
        form: Makes the fields of a line, of its number and its text.
        head: The names of the columns.
        delimiter: Stands between two fields.
        newest_first: Whether the last line is the first one.
    """

    def wrap(text: str) -> str:
        rows = [form(number, line) for number, line in enumerate(_lines(text))]
        to = io.StringIO()
        table = csv.writer(to, delimiter=delimiter, lineterminator="\n")
        table.writerows([head, *(rows[::-1] if newest_first else rows)])
        return to.getvalue()

    return wrap


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
    "logcli": _each(lambda n, line: f'{_iso(n)} {{app="sglang", pod="g-0"}} {line}'),
    "logcli-no-labels": _each(lambda n, line: f"{_iso(n)} {{}} {line}"),
    "loki-columns": _each(lambda n, line: f'2026-11-24 {_clock(n)}.123\t{{"app":"sglang","pod":"g-0"}}\t{line}'),
    "bytes-of-python": _each(lambda n, line: f"{(line + chr(10)).encode()!r}"),
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
    # A whole log in one document.
    "whole-in-a-field": _document(lambda text: {"status": "ok", "logs": text}),
    "whole-in-an-unknown-field": _document(lambda text: {"id": 7, "job": {"name": "serve", "trace_output": text}}),
    "whole-as-text": _document(lambda text: {"text": text}),
    "whole-as-a-string": _document(lambda text: text),
    "whole-behind-a-command": lambda text: "$ curl -s host/logs\n" + json.dumps({"logs": text}) + "\n",
    "array-of-lines": _document(lambda text: _lines(text)),
    "array-of-lines-over-lines": _document(lambda text: _lines(text), indent=2),
    "lines-in-a-field": _document(lambda text: {"pod": "a", "lines": _lines(text)}, indent=2),
    "array-of-objects": _document(_entries(lambda n, line: {"timestamp": _iso(n), "message": line})),
    "cloud-logging-export": _document(
        _newest_first(lambda n, line: {"insertId": f"{n}", "textPayload": line, "timestamp": _iso(n)}), indent=2
    ),
    "cloud-logging-objects": _document(
        _newest_first(lambda n, line: {"jsonPayload": {"message": line, "pid": 7}, "timestamp": _iso(n)}), indent=2
    ),
    "loki-answer": _document(_loki),
    "cloudwatch-events": _document(
        lambda text: {"events": _entries(lambda n, line: {"timestamp": 1764000000000 + n, "message": line})(text)}
    ),
    "elastic-hits": _document(
        lambda text: {
            "took": 3,
            "hits": {
                "total": 9,
                "hits": _entries(lambda n, line: {"_id": f"{n}", "_source": {"@timestamp": _iso(n), "message": line}})(
                    text
                ),
            },
        }
    ),
    "elastic-fields": _each(lambda n, line: json.dumps({"_source": {"message": line, "@timestamp": _iso(n)}})),
    "datadog-answer": _document(
        lambda text: {
            "data": _newest_first(
                lambda n, line: {
                    "id": "a",
                    "type": "log",
                    "attributes": {"timestamp": _iso(n), "message": line, "status": "info"},
                }
            )(text),
            "meta": {"page": {}},
        }
    ),
    "otel-export": _document(_otel),
    "issue": _document(
        lambda text: {"number": 7, "title": "[Bug] it ends", "body": f"### Log\n\n```\n{text}```\n", "comments": 2}
    ),
    "issue-crlf": _document(lambda text: {"title": "[Bug]", "body": f"```\n{text}```\n".replace("\n", "\r\n")}),
    "csv": _table(lambda n, line: [_iso(n), line], "timestamp", "message"),
    "csv-newest-first": _table(lambda n, line: [_iso(n), "gpu-7", line], "Date", "Host", "Content", newest_first=True),
    "csv-splunk": _table(lambda n, line: [line, _iso(n), "gpu-7"], "_raw", "_time", "host"),
    "csv-semicolons": _table(lambda n, line: [_iso(n), line], "time", "log", delimiter=";"),
    "tsv": _table(lambda n, line: [_iso(n), line], "Time", "Line", delimiter="\t"),
    # Stamps in brackets, as SGLang's own.
    "jenkins": _each(lambda n, line: f"[{_iso(n)[:23]}Z] {line}"),
    "airflow": _each(lambda n, line: f"[2026-11-24, {_clock(n)} UTC] {{subprocess.py:93}} INFO - {line}"),
    "airflow-zone": _each(lambda n, line: f"[2026-11-24T{_clock(n)}.123+0000] {{pod_manager.py:418}} INFO - {line}"),
    "stamp-before-all": _each(lambda n, line: f"[2026-11-24 {_clock(n)}] {line}"),
    "stamp-and-level": _each(lambda n, line: f"[2026-11-24 {_clock(n)},{n % 1000:03d}] [INFO] {line}"),
    "slashes": _each(lambda n, line: f"[2026/11/24 {_clock(n)}] {line}"),
    # Bars and quotes.
    "bar": _each(lambda n, line: f"│ {line}"),
    "heavy-bar": _each(lambda n, line: f"┃ {line}"),
    "box": _each(lambda n, line: f"│ {line:<120} │"),
    "plain-bar": _each(lambda n, line: f"| {line}"),
    "container-bar": _each(lambda n, line: f"sglang-server | {line}"),
    "prompts": _each(lambda n, line: f">>> {line}"),
    "fences": lambda text: f"Log:\n\n```shell\n{text.removesuffix(chr(10))}\n```\n",
    "details": lambda text: f"<details>\n<summary>log</summary>\n\n```\n{text}```\n\n</details>\n",
    "list": _each(lambda n, line: f"- {line}"),
    # Fields with a name.
    "logfmt-first": _each(lambda n, line: f"msg={json.dumps(line)} level=info"),
    "logfmt-log": _each(lambda n, line: f"ts={_iso(n)} caller=main.go:7 level=info log={json.dumps(line)}"),
    "structlog": _each(lambda n, line: f"timestamp={_iso(n)} level=info event={json.dumps(line)} logger=server"),
    "structlog-repr": _each(lambda n, line: f"timestamp='{_iso(n)}' level='info' event={line!r}"),
    "journald-export": _each(lambda n, line: f"MESSAGE={line}"),
    "fluent-bit": _each(
        lambda n, line: (
            f"[{n}] kube.sglang: [[{1764000000 + n}.123456789, {{}}], "
            f'{{"stream"=>"stderr", "log"=>{json.dumps(line)}}}]'
        )
    ),
    "fluent-bit-old": _each(lambda n, line: f'[{n}] app: [{1764000000 + n}.1, {{"log"=>{json.dumps(line)}}}]'),
    "fluentd": _each(
        lambda n, line: f"2026-11-24 {_clock(n)}.123456789 +0000 kube.sglang: " + json.dumps({"log": line})
    ),
    "fluentd-file": _each(lambda n, line: f"{_iso(n)}\tkube.sglang\t" + json.dumps({"log": line})),
    "splunk-result": _each(lambda n, line: json.dumps({"preview": False, "result": {"_raw": line, "_time": _iso(n)}})),
    # Clocks and programs.
    "cloudwatch-tabs": _each(lambda n, line: f"{_iso(n)}\t{line}"),
    "aws-text": _each(lambda n, line: f"EVENTS\t{1764000000123 + n}\t{line}\t{1764000000000 + n}"),
    "epoch": _each(lambda n, line: f"{1764000000 + n}.123456 {line}"),
    "epoch-ms": _each(lambda n, line: f"{1764000000123 + n}\t{line}"),
    "monotonic": _each(lambda n, line: f"[{n:5d}.123456] gpu7 sglang[42]: {line}"),
    "journald-full": _each(lambda n, line: f"Tue 2026-11-24 {_clock(n)} UTC gpu7 sglang[42]: {line}"),
    "journald-iso": _each(lambda n, line: f"2026-11-24T{_clock(n)}+0100 gpu7 sglang[42]: {line}"),
    "gitlab": _each(lambda n, line: f"2026-11-24T{_clock(n)}.123456Z 01{'OE'[n % 2]} {line}"),
    "buildkite": _each(lambda n, line: f"\x1b_bk;t={1764000000123 + n}\x07{line}"),
    "foreman": _each(lambda n, line: f"{_clock(n)} sglang.1 | {line}"),
    "american": _each(lambda n, line: f"11/24/2026 {_clock(n)[1:]} AM {line}"),
    "ray-ip": _each(lambda n, line: f"(pid=812, ip=10.0.0.3) {line}"),
    "ray-actor": _each(lambda n, line: f"(RolloutWorker pid=812, ip=10.0.0.3) {line}"),
    "skypilot": _each(lambda n, line: f"(head, rank=0, pid=1234) {line}"),
    "skypilot-task": _each(lambda n, line: f"(sglang, pid=1234) {line}"),
    "default-and-rank": _each(lambda n, line: f"[default0]:[rank0]: {line}"),
    "default-spaced": _each(lambda n, line: f"[default0]: {line}"),
    "nomad": _each(lambda n, line: f"[serve/sglang] {line}"),
    "wsl": _each(lambda n, line: f"wsl: {line}\r"),
    # Web pages.
    "html": lambda text: html.escape(text),
    "html-page": lambda text: (
        "<html><body><pre>"
        + "\n".join(f'<span class="line">{html.escape(line)}</span><br/>' for line in _lines(text))
        + "\n</pre></body></html>\n"
    ),
    "html-with-prefix": _each(lambda n, line: html.escape(f"> {line}")),
    "hard-spaces": lambda text: text.replace("  ", "\u00a0\u00a0"),
    "curly-quotes": lambda text: text.replace(' "', " “").replace('"', "”"),
    "zero-width": _each(lambda n, line: f"\u200b{line}"),
}
"""Every one leaves what a log says unchanged."""
