"""The record of a finished run: of `repro`, `repro corpus` or `diff`. It is written as verdict.json, and read from it.

A record is its own document: `model_dump(mode="json")` gives what is written. Records hold what a file of this schema's
first minor version may lack with a default, and pass over what a later one adds.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from gemma4_dumps.wording import DUMP_MARK, number_of

SCHEMA_VERSION = "1.1"
"""1.1 adds: of a check the dump that it names, of a dump its rule, of a side that died how many answers were compared.
"""

FolderName = Annotated[str, Field(pattern=r"^[a-z0-9]+([-_][a-z0-9]+)*$", max_length=200)]
"""One plain path component: a verdict must not make a reader look outside its run."""

Version = Annotated[str, Field(pattern=r"^\d{1,6}\.\d{1,6}$")]

Finite = Annotated[float, Field(allow_inf_nan=False)]

Seconds = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
"""Bounded, so that a reader may add them up."""


class RecordPart(BaseModel):
    """A part of a record: it does not change, and fields that it does not know are passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class StandIn(RecordPart):
    """What the host engine has in the place of a part that needs CUDA."""

    id: str
    title: str = ""


class HostEngine(RecordPart):
    """The engine on a CPU; empty for a run on a GPU."""

    stand_ins: tuple[StandIn, ...] = ()


class RaisedError(RecordPart):
    """An exception in a log. type: without its module."""

    type: str
    message: str = ""


class StoredDump(RecordPart):
    """A dump of a run. rule: None if its manifest cannot be read."""

    path: str
    state: str = ""
    rule: str | None = None


class CheckRecord(RecordPart):
    """What was expected and what was observed. dump: the path of the dump that `observed` names, if it names one."""

    expected: str
    observed: str
    status: Literal["ok", "failed", "not checked"]
    dump: str | None = None

    @property
    def brief(self) -> str:
        """Return what was observed up to the path of the dump, which is long."""
        return self.observed if self.dump is None else self.observed.partition(DUMP_MARK)[0]


class ArmRecord(RecordPart):
    """One arm of a scenario, or a cell of the crash matrix. repeat: the command that runs it again."""

    id: FolderName
    title: str = ""
    device_model: str = ""
    environment: dict[str, str] = {}
    status: str
    duration_s: Seconds
    ending: str = ""
    exit_code: int | None = None
    signal: str | None = None
    problem: str | None = None
    raised: tuple[RaisedError, ...] = ()
    checks: tuple[CheckRecord, ...]
    numbers: dict[str, Any] = {}
    log: str = ""
    log_tail: tuple[str, ...] = ()
    dumps: tuple[StoredDump, ...] = ()
    repeat: str = ""


class RootCause(RecordPart):
    """What the dump that explains a run says."""

    text: str
    dump: str = ""


class ScenarioRun(RecordPart):
    """A run of `repro SCENARIO`."""

    schema_version: Version = SCHEMA_VERSION
    kind: Literal["repro"] = "repro"
    scenario: str = ""
    symptom: str = ""
    folder: str = ""
    sglang_version: str = ""
    duration_s: Seconds = 0
    import_s: Seconds = 0
    host_engine: HostEngine = HostEngine()
    arms: tuple[ArmRecord, ...] = ()
    root_cause: RootCause | None = None
    exit_code: int

    @property
    def parts(self) -> list[tuple[str, bool]]:
        """Return the folders of the arms, and whether each went as expected."""
        return [(arm.id, arm.status == "ok") for arm in self.arms]

    @property
    def with_logs(self) -> list[str]:
        """Return the parts whose serving logs are worth a picture."""
        return [arm.id for arm in self.arms]


class RanCell(RecordPart):
    """Which cell of the crash matrix ran, and where."""

    id: str
    toy: bool
    device: str


class CellExpectation(RecordPart):
    """What a cell is expected to do, why, and who measured that."""

    text: str
    why: str
    measured: str


class LoadRecord(RecordPart):
    """What a client made of a load. answered: None if it did not live to say."""

    id: str
    requests: int
    answered: int | None
    duration_s: Finite
    exit_code: int | None
    accept_length: Finite | None = None


class CellRun(ScenarioRun):
    """A run of `repro crash CELL`: a scenario of one arm, and what a cell has beside it. stop: why it was stopped."""

    arms: tuple[ArmRecord, ...] = Field(min_length=1, max_length=1)
    cell: RanCell
    expected: CellExpectation
    stop: str
    loads: tuple[LoadRecord, ...]
    shell_lines: tuple[str, ...]


def dump_named(text: str, dumps: Sequence[str]) -> str | None:
    """Return which of these paths `text` names as the dump of an error in a log; None if it names none of them.

    A dump is known by its folder's name: a run may have been moved since the error was logged.
    """
    named = text.partition(DUMP_MARK)[2]
    return next((path for path in dumps if f"/{PurePath(path).name}]" in named), None)


def checks_not_made(statuses: Sequence[str]) -> str:
    """Return in words how many of a run's checks were not made; empty if all were."""
    count = statuses.count("not checked")
    if not count:
        return ""
    were = "was" if count == 1 else "were"
    return f" as far as checked: {count} of {number_of(len(statuses), 'check')} {were} not made"
