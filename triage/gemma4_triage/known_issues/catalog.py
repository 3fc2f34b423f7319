"""Reads the records, once, and says which file is wrong and why."""

from __future__ import annotations

import tomllib
import zipfile
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from io import BytesIO

from pydantic import ValidationError

from gemma4_triage.known_issues.record import KnownIssue


class RecordMistake(ValueError):
    """A record that cannot be read. Its text names the file and every mistake in it."""


def records_folder() -> Traversable:
    """Return the folder of the records in a checkout, and in an installed package the archive that setup.py packs."""
    package = files("gemma4_triage.known_issues")
    folder, archive = package / "records", package / "records.zip"
    return folder if folder.is_dir() else zipfile.Path(BytesIO(archive.read_bytes()))


@cache
def known_issues() -> tuple[KnownIssue, ...]:
    """Return every record, by id. Raises RecordMistake: a record has not the form."""
    # Asked once: an archive is opened and its list read each time.
    folder = records_folder()
    names = sorted(file.name for file in folder.iterdir() if file.name.endswith(".toml"))
    return tuple(read_record(folder / name) for name in names)


def read_record(file: Traversable) -> KnownIssue:
    """Return the record in a TOML file. Raises RecordMistake: it is no TOML, or has not the form."""
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
        return KnownIssue(id=file.name.removesuffix(".toml"), **document)
    except ValidationError as error:
        mistakes = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise RecordMistake(f"{file.name}: {mistakes}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, TypeError) as error:
        raise RecordMistake(f"{file.name}: {error}") from error
