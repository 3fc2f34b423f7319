"""verdict.json of a run's folder: what `repro` and `repro corpus` write. Anyone may have edited it.

Fields that a report does not use are passed over, and those that another release may lack have defaults.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gemma4_dumps.errors import DumpUnreadable
from gemma4_dumps.safe_file import read_regular
from gemma4_repro.run_folder import VERDICT_NAME
from gemma4_triage.errors import UsageMistake

MAX_BYTES = 32 * 1024**2

FolderName = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=200)]
"""One plain path component: a verdict must not make a reader look outside its run."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class CheckEntry(_Part):
    expected: str
    observed: str
    status: Literal["ok", "failed", "not checked"]


class ArmEntry(_Part):
    id: FolderName
    title: str = ""
    device_model: str = ""
    environment: dict[str, str] = {}
    status: str
    duration_s: float = Field(ge=0, allow_inf_nan=False)
    ending: str = ""
    exit_code: int | None = None
    signal: str | None = None
    problem: str | None = None
    checks: list[CheckEntry]
    numbers: dict[str, Any] = {}
    log_tail: list[str] = []
    dumps: list[dict[str, Any]] = []
    repeat: str = ""


class Origin(_Part):
    reference: str = ""


class ExpectedFinding(_Part):
    probe: str


class CaseEntry(_Part):
    id: FolderName
    title: str = ""
    origin: Origin = Origin()
    expected: list[ExpectedFinding] = []
    good: bool
    cause: str = ""
    unguarded: str | None = None
    objections: list[str] = []
    fired: dict[str, int] = {}
    steps_to_detection: int | None = None
    ending: str = ""
    duration_s: float = Field(default=0, ge=0, allow_inf_nan=False)
    repeat: str = ""


class StandIn(_Part):
    id: str
    title: str = ""


class HostEngine(_Part):
    stand_ins: list[StandIn] = []


class RootCause(_Part):
    text: str


class VerdictFile(_Part):
    kind: Literal["repro", "corpus"]
    sglang_version: str = ""
    duration_s: float = Field(default=0, ge=0, allow_inf_nan=False)
    import_s: float = Field(default=0, ge=0, allow_inf_nan=False)
    exit_code: int
    host_engine: HostEngine = HostEngine()
    scenario: str = ""
    symptom: str = ""
    arms: list[ArmEntry] = []
    root_cause: RootCause | None = None
    probes: list[str] = []
    faults: list[CaseEntry] = []
    clean: list[CaseEntry] = []


def read_verdict(folder: Path) -> VerdictFile:
    """Raises DumpUnreadable if verdict.json cannot be read or is not of a run; UsageMistake for one of `diff`."""
    content = read_regular(folder / VERDICT_NAME, MAX_BYTES)
    _refuse_diff(folder, content)
    try:
        return VerdictFile.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        said = f"{where}: {first['msg']}" if where else first["msg"]
        raise DumpUnreadable(f"{folder / VERDICT_NAME} is not the verdict of a run: {said:.300}") from error


class _Kind(_Part):
    kind: str


def _refuse_diff(folder: Path, content: bytes) -> None:
    """Raises UsageMistake: its verdict is of columns and tokens, for which a report has no part."""
    try:
        kind = _Kind.model_validate_json(content).kind
    except ValidationError:
        return
    if kind in ("diff-backends", "diff-patches"):
        raise UsageMistake(
            f"{folder} is a run of {kind.replace('-', ' ')}, of which there is no report",
            f"its table is in {folder / VERDICT_NAME}; a side's dumps can be reported: {folder}/SIDE/dumps",
        )
