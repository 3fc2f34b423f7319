"""verdict.json of a run's folder: what `repro`, `repro corpus` and `diff` write. Anyone may have edited it.

Fields that a report does not use are passed over, and those that another release may lack have defaults.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gemma4_dumps.errors import DumpUnreadable
from gemma4_dumps.safe_file import read_regular
from gemma4_repro.run_folder import VERDICT_NAME

MAX_BYTES = 32 * 1024**2

FolderName = Annotated[str, Field(pattern=r"^[a-z0-9]+([-_][a-z0-9]+)*$", max_length=200)]
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


class _RunFile(_Part):
    sglang_version: str = ""
    duration_s: float = Field(default=0, ge=0, allow_inf_nan=False)
    import_s: float = Field(default=0, ge=0, allow_inf_nan=False)
    exit_code: int
    host_engine: HostEngine = HostEngine()


class Usage(_Part):
    full_peak: float = Field(default=0, allow_inf_nan=False)
    swa_peak: float = Field(default=0, allow_inf_nan=False)


class TokenEntry(_Part):
    text: str


class PromptEntry(_Part):
    prompt: int
    agrees: bool
    logprob_difference: float | None = None
    logprob_difference_position: int | None = None
    first_position_over_tolerance: int | None = None
    first_token_difference: TokenEntry | None = None


class SideCause(_Part):
    text: str


class AgainstEntry(_Part):
    reference: str
    prompts: list[PromptEntry]
    causes: list[SideCause] = []


class DeathEntry(_Part):
    step: int | None = None
    phase: str | None = None
    prompts_at_fault: list[int] = []
    requests_finished: int = 0
    full: float | None = Field(default=None, allow_inf_nan=False)
    swa: float | None = Field(default=None, allow_inf_nan=False)
    dumps: list[str] = []


class SideEntry(_Part):
    """One engine run of a comparison. against: transformers, then, of a `with` side, its base."""

    id: FolderName
    backend: str
    mtp: bool
    patches: str
    attached: list[str] = []
    faults: list[str] = []
    probes: str = ""
    device_model: str = ""
    status: str
    duration_s: float = Field(ge=0, allow_inf_nan=False)
    ending: str
    exit_code: int | None = None
    signal: str | None = None
    problem: str | None = None
    hint: str | None = None
    accept_length: float | None = Field(default=None, allow_inf_nan=False)
    usage: Usage = Usage()
    died: DeathEntry | None = None
    dumps: list[dict[str, Any]] = []
    log_tail: list[str] = []
    against: list[AgainstEntry] = Field(min_length=1)


class ComparedPatch(_Part):
    id: str
    exercised: bool
    why_not: list[str] = []


class LoadEntry(_Part):
    """swa_peak_above: the share of the SWA pool that the load is there to exceed."""

    name: str = "prompts"
    requests: int | None = None
    swa_peak_above: float | None = Field(default=None, allow_inf_nan=False)


class ComparisonFile(_RunFile):
    """Of `diff backends` and `diff patches`."""

    kind: Literal["diff-backends", "diff-patches"]
    sides: list[SideEntry] = Field(min_length=1)
    scenario: str = "e4b"
    load: LoadEntry = LoadEntry()
    summary: list[str] = []
    fixes_added: list[str] = []
    fixes_left_out: list[str] = []
    nothing_checked_why: str | None = None
    patches_compared: list[ComparedPatch] = []
    prompt_logprobs_why_not: str | None = None
    fixes: list[str] = []

    @property
    def parts(self) -> list[tuple[str, bool]]:
        """Folders of the sides, and whether each was as it should be; a base is a measure."""
        return [(side.id, side.status in ("agrees", "base")) for side in self.sides]

    @property
    def with_logs(self) -> list[str]:
        return [side.id for side in self.sides]


class VerdictFile(_RunFile):
    """Of `repro` and `repro corpus`."""

    kind: Literal["repro", "corpus"]
    scenario: str = ""
    symptom: str = ""
    arms: list[ArmEntry] = []
    root_cause: RootCause | None = None
    probes: list[str] = []
    faults: list[CaseEntry] = []
    clean: list[CaseEntry] = []

    @property
    def parts(self) -> list[tuple[str, bool]]:
        """Folders of the arms or cases, and whether each went as expected."""
        arms = [(arm.id, arm.status == "ok") for arm in self.arms]
        return arms + [(case.id, case.good) for case in (*self.faults, *self.clean)]

    @property
    def with_logs(self) -> list[str]:
        """Those whose serving logs are worth a picture: the corpus has too many, and each is short."""
        return [arm.id for arm in self.arms]


class _Kind(_Part):
    kind: str


def read_verdict(folder: Path) -> VerdictFile | ComparisonFile:
    """Raises DumpUnreadable if verdict.json cannot be read or is not of a run."""
    content = read_regular(folder / VERDICT_NAME, MAX_BYTES)
    try:
        kind = _Kind.model_validate_json(content).kind
        return (ComparisonFile if kind.startswith("diff-") else VerdictFile).model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        said = f"{where}: {first['msg']}" if where else first["msg"]
        raise DumpUnreadable(f"{folder / VERDICT_NAME} is not the verdict of a run: {said:.300}") from error
