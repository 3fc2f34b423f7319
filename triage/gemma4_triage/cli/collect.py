"""`gemma4-triage collect`: one zip of what a live, hanging or dead server shows."""

from __future__ import annotations

import os
import re
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from gemma4_dumps.wording import number_of
from gemma4_triage.cli.durations import METAVAR, time_from
from gemma4_triage.cli.shared_options import AsJson
from gemma4_triage.cli.store_options import Directory, open_store
from gemma4_triage.errors import EnvironmentCannot, NothingChecked, UsageMistake
from gemma4_triage.output_file import refuse_existing
from gemma4_triage.terminal import emit_json, print_line, say, stdout_console

if TYPE_CHECKING:
    from gemma4_triage.collect.gather_bundle import Bundle, Target

_HINT = "name the server's address, such as http://127.0.0.1:30000, or the id of its process"
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0"})


def register(app: typer.Typer) -> None:
    """Add the `collect` verb to the application."""
    app.command("collect")(collect)


def collect(
    target: Annotated[
        str, typer.Argument(metavar="URL|PID", help="The server's address, or the id of one of its processes.")
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="X.zip", help="Where to write. Default: collect_HOST_TIME.zip here."),
    ] = None,
    log: Annotated[
        list[str] | None,
        typer.Option("--log", metavar="FILE", help="A log of it, where stdout is a pipe or the server is gone."),
    ] = None,
    directory: Directory = None,
    timeout_s: Annotated[
        float,
        typer.Option(
            "--timeout",
            parser=time_from(0.1, 60),
            metavar=METAVAR,
            show_default="5s",
            help="How long to wait for an answer.",
        ),
    ] = 5.0,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")] = False,
    as_json: AsJson = False,
) -> None:
    """Pack what a live, hanging or dead server shows into one zip that `diagnose` and `report` read.

    For example: gemma4-triage collect http://127.0.0.1:30000 -o bundle.zip

    Health, server and model info, metrics, the end of the log, command and variables, status of its processes, stacks
    by py-spy where that is installed, GPU state, guard manifests and dumps. It only reads, and stops nothing: five GET
    requests are sent, of which /health may generate one token. What cannot be had is listed with the reason. Secrets
    are left out by name and by shape; look through the zip before you pass it on: a log may quote prompts.

    A server that wants a key gets it from GEMMA4_TRIAGE_API_KEY. Exits 0 if the zip was written, 2 if what answers is
    no server of SGLang, 5 if nothing is left of such a server.
    """
    from gemma4_triage.collect import gather_bundle

    wanted = _target(target, directory, log or [], timeout_s)
    out = output or Path(f"collect_{_safe(socket.gethostname())}_{datetime.now(UTC):%Y%m%dT%H%M%SZ}.zip")
    refuse_existing(out, force)
    try:
        bundle = gather_bundle.collect(wanted, out, open_store(None).root)
    except OSError as error:
        raise EnvironmentCannot(f"{out} cannot be written: {error.strerror or error}", "name another file") from error
    if bundle.not_sglang and not bundle.pieces:
        raise UsageMistake(
            f"what answers at {target} is no server of SGLang: {bundle.not_sglang}",
            "name the address that the server itself listens on; if it is gone, --log adds its log, --dir its dumps",
        )
    if not bundle.pieces:
        first = next((item.problem for item in bundle.items if not item.ok), "nothing answered")
        raise NothingChecked(
            f"nothing is left of {target}: {first}", "--log adds its log, --dir the folder of its dumps"
        )
    say(f"Wrote {out}")
    if as_json:
        emit_json("collect", {"file": str(out), "items": _items(bundle)})
    else:
        _print(bundle, out)


def _target(text: str, directory: Path | None, logs: list[str], timeout_s: float) -> Target:
    from gemma4_triage.collect import ask_server, processes
    from gemma4_triage.collect.gather_bundle import Target
    from gemma4_triage.collect.secrets import clean_command

    for name in logs:
        if not os.path.isfile(name):
            raise UsageMistake(f"{name} is no file", "--log takes the server's log")
        try:
            open(name, "rb").close()
        except OSError as error:
            raise UsageMistake(f"{name} cannot be read: {error.strerror}", "check who may read it") from error
    store = None if directory is None else open_store(directory).root
    key = os.environ.get(ask_server.API_KEY_VARIABLE, "")
    if text.isdecimal() and 0 < int(text) < 2**31:
        pid = int(text)
        found = processes.server_of(pid)
        # Of one that has ended there are no words left to tell it by: it may have been the server.
        foreign = found and not processes.serves(found) and not processes.has_ended(found[0])
        if foreign and not logs and store is None:
            shown = clean_command(found[0].command) or found[0].title
            raise UsageMistake(
                f"process {pid} is no server of SGLang: {shown[:80]}",
                "name one of its processes, or its address; if it is gone, its log with --log or its dumps with --dir",
            )
        port = processes.port_of(found[0].command) if found else None
        url = "" if port is None else f"http://127.0.0.1:{port}"
        return Target(url, pid, store, [Path(name) for name in logs], key, timeout_s)
    odd = next((letter for letter in text if not "!" <= letter <= "~"), "")
    if odd and "://" in text:
        raise UsageMistake(
            # Not what else is in it: that may be a password.
            f"the address has {odd!r} in it, and an address is of ASCII letters without a space",
            "write what is none in a path as %XX, and a host's name as xn--…",
        )
    try:
        parts = urlsplit(text)
        port, host = parts.port, parts.hostname
    except ValueError as error:
        raise UsageMistake(f"{text[:200]} is no address: {error}", _HINT) from error
    if parts.scheme not in ("http", "https") or not host:
        raise UsageMistake(f"{text[:200]!r} is neither an address nor a process id", _HINT)
    if parts.username or parts.password or parts.query:
        raise UsageMistake(
            "the address holds a name, a key or a query",
            f"leave it out; {ask_server.API_KEY_VARIABLE} is the server's key",
        )
    number = (443 if parts.scheme == "https" else 80) if port is None else port
    pid = processes.listening_on(number) if host in (*_LOCAL, socket.gethostname()) else None
    url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
    return Target(url, pid, store, [Path(name) for name in logs], key, timeout_s)


def _safe(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.-]+", "-", text)[:48]


def _items(bundle: Bundle) -> list[dict]:
    return [vars(item) for item in bundle.items]


def _print(bundle: Bundle, out: Path) -> None:
    import shlex

    console = stdout_console()
    good = [item for item in bundle.items if item.ok]
    print_line(console, f"{out}: {number_of(len(good), 'item')}", style="bold")
    for item in bundle.items:
        if item.ok:
            print_line(console, f"  {item.name}")
    for item in bundle.items:
        if not item.ok:
            print_line(console, f"  not in it: {item.name}: {item.problem}", style="yellow")
    print_line(console, f"next: gemma4-triage diagnose {shlex.quote(str(out))}", style="cyan")
