"""verdict.json in a run's folder: a record is written whole or not at all, and read as if anyone had edited it."""

from __future__ import annotations

import json
import os
from pathlib import Path

from pydantic import ValidationError

from gemma4_dumps.errors import DumpIncompatible, DumpUnreadable
from gemma4_dumps.safe_file import read_regular
from gemma4_dumps.strict_json import strict_json
from gemma4_repro.engine.run_folder import VERDICT_NAME, writing
from gemma4_triage.runs.comparison_record import ComparisonRun
from gemma4_triage.runs.corpus_record import CorpusRun
from gemma4_triage.runs.record import SCHEMA_VERSION, ArmRecord, CellRun, ScenarioRun, dump_named

MAX_BYTES = 32 * 1024**2
_HINT = "the dumps below the run's folder can be named themselves"
RunRecord = ScenarioRun | CorpusRun | ComparisonRun

_MODELS: dict[object, type[RunRecord]] = {
    "repro": ScenarioRun,
    "corpus": CorpusRun,
    "diff-backends": ComparisonRun,
    "diff-patches": ComparisonRun,
}


def encode_record(record: RunRecord) -> str:
    """Return the text of verdict.json. Raises ValueError if a number that is not finite got in."""
    return json.dumps(record.model_dump(mode="json"), indent=2, allow_nan=False)


def write_record(record: RunRecord, folder: Path) -> Path:
    """Write verdict.json into the run's folder and return its path. Raises OutputUnwritable."""
    path = folder / VERDICT_NAME
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with writing(path):
        try:
            temporary.write_text(encode_record(record), encoding="utf-8")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    return path


def read_record(place: Path) -> RunRecord:
    """Read the record of a finished run, by its folder or by the file itself.

    Raises:
        DumpUnreadable: verdict.json cannot be read, is damaged, or is not the verdict of a run.
        DumpIncompatible: a later release wrote it, under another major version of the schema.
    """
    path = place if place.is_file() else place / VERDICT_NAME
    data = read_regular(path, MAX_BYTES)
    try:
        return decode_record(data)
    except DumpIncompatible as error:
        raise DumpIncompatible(f"{path} {error}") from error
    except DumpUnreadable as error:
        raise DumpUnreadable(f"{path} is not the verdict of a run: {error}", _HINT) from error


def decode_record(data: bytes) -> RunRecord:
    """Return the record that these bytes hold. Raises like `read_record`, without naming a file."""
    fields = strict_json(data, "it")
    if not isinstance(fields, dict):
        raise DumpUnreadable(f"it holds {_named(fields)}, not an object")
    _require_same_major(fields.get("schema_version"))
    model = _model_of(fields)
    try:
        record = model.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise DumpUnreadable(f"{where}: {first['msg']}"[:300]) from error
    return _since_1_1(record) if fields["schema_version"] == "1.0" else record


def _named(value: object) -> str:
    """Return what JSON calls a value that is no object, with an article."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return {str: "a string", list: "an array"}.get(type(value), "a number")


def _require_same_major(version: object) -> None:
    if not isinstance(version, str) or not version.partition(".")[0].isdecimal():
        raise DumpUnreadable(f"schema_version: there is none that can be read (found {str(version)[:40]!r})")
    if version.partition(".")[0] != SCHEMA_VERSION.partition(".")[0]:
        raise DumpIncompatible(f"has schema {version[:40]}; this release reads {SCHEMA_VERSION[:2]}x")


def _model_of(fields: dict[str, object]) -> type[RunRecord]:
    kind = fields.get("kind")
    model = _MODELS.get(kind) if isinstance(kind, str) else None
    if model is None:
        raise DumpUnreadable(f"kind: {str(kind)[:40]!r} is none of {', '.join(map(str, _MODELS))}")
    return CellRun if model is ScenarioRun and "cell" in fields else model


def _since_1_1(record: RunRecord) -> RunRecord:
    """Return the record of a 1.0 file with what 1.1 says in a field of its own, as far as it can be known."""
    if isinstance(record, ScenarioRun):
        record = record.model_copy(update={"arms": tuple(_with_dumps(arm) for arm in record.arms)})
    return record.model_copy(update={"schema_version": SCHEMA_VERSION})


def _with_dumps(arm: ArmRecord) -> ArmRecord:
    paths = [dump.path for dump in arm.dumps]
    checks = (check.model_copy(update={"dump": dump_named(check.observed, paths)}) for check in arm.checks)
    return arm.model_copy(update={"checks": tuple(checks)})
