"""Reads the records, once, and says which file is wrong and why."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from pydantic import ValidationError

from gemma4_triage.known_issues.record import KnownIssue


class RecordMistake(ValueError):
    """A record that cannot be read. Its text names the file and every mistake in it."""


@dataclass(frozen=True)
class Incident:
    """A public incident that somebody has read to its end.

    Attributes:
        thread: Its thread, as "sgl-project/sglang 9600".
        cause: What was wrong, as a sentence without its full stop.
        next: What helped, or is to be looked at; "" where the thread names nothing.
        signs: What its log says of the failure, see logs/likeness.py.
        arguments: What its server was started with, likewise.
    """

    thread: str
    cause: str
    next: str
    signs: tuple[str, ...]
    arguments: tuple[str, ...]


def records_folder() -> Traversable:
    """Return the folder of the records, which a checkout has."""
    return files("gemma4_triage.known_issues") / "records"


@cache
def _packed() -> dict[str, Any] | None:
    """Return what each file says, by its path, from the one that setup.py packs; None in a checkout."""
    packed = files("gemma4_triage.known_issues") / "records.json.gz"
    return json.loads(gzip.decompress(packed.read_bytes())) if packed.is_file() else None


@cache
def known_issues() -> tuple[KnownIssue, ...]:
    """Return every record, by id. Raises RecordMistake: a record has not the form."""
    packed = _packed()
    if packed is not None:
        return tuple(_record(name, said) for name, said in sorted(packed.items()) if "/" not in name)
    files_of_records = [file for file in records_folder().iterdir() if file.name.endswith(".toml")]
    return tuple(map(read_record, sorted(files_of_records, key=lambda file: file.name)))


@cache
def incidents() -> tuple[Incident, ...]:
    """Return every public incident that tests/tools/index_incidents.py has listed."""
    file = files("gemma4_triage.known_issues") / "incidents.json"
    packed = files("gemma4_triage.known_issues") / "incidents.json.gz"
    said = json.loads(gzip.decompress(packed.read_bytes()) if packed.is_file() else file.read_bytes())
    return tuple(
        Incident(one["thread"], one["cause"], one["next"], tuple(one["signs"]), tuple(one["arguments"])) for one in said
    )


def words(file: str) -> list[dict[str, Any]]:
    """Return the failures that a file of the folder `words` words."""
    packed = _packed()
    said = packed[f"words/{file}"] if packed is not None else _read(records_folder() / "words" / file)
    return said["failure"]


def quiet_suspects(file: str = "suspects.toml") -> list[dict[str, Any]]:
    """Return what to try where a log shows no failure, as a file of the folder `quiet` says it; its head has the form.

    Args:
        file: suspects.toml is of SGLang's arguments, vllm.toml of vLLM's, shown.toml of what a log shows by itself.
    """
    packed = _packed()
    said = packed[f"quiet/{file}"] if packed is not None else _read(records_folder() / "quiet" / file)
    return said["suspect"]


def read_record(file: Traversable) -> KnownIssue:
    """Return the record in a TOML file. Raises RecordMistake: it is no TOML, or has not the form."""
    try:
        return _record(file.name, _read(file))
    except RecordMistake:
        raise
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError
        raise RecordMistake(f"{file.name}: {error}") from error


def _read(file: Traversable) -> dict[str, Any]:
    # An installed package needs it not, and making its patterns takes time.
    import tomllib

    return tomllib.loads(file.read_text(encoding="utf-8"))


def _record(name: str, said: Mapping[str, Any]) -> KnownIssue:
    """Return the record that a file says. Raises RecordMistake: it has not the form."""
    try:
        return KnownIssue(id=name.removesuffix(".toml"), **said)
    except ValidationError as error:
        mistakes = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise RecordMistake(f"{name}: {mistakes}") from error
    except TypeError as error:
        raise RecordMistake(f"{name}: {error}") from error
