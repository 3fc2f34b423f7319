"""The record of a finished run: of `repro`, `repro corpus` or `diff`. It is written as verdict.json, and read from it.

A record is its own document: `model_dump(mode="json")` gives what is written. Records hold what a file of this schema's
first minor version may lack with a default, and pass over what a later one adds.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from gemma4_dumps.wording import number_of

SCHEMA_VERSION = "1.1"
"""1.1 adds: of a check the dump that it names, of a dump its rule, of a side that died how many answers were compared.
"""

FolderName = Annotated[str, Field(pattern=r"^[a-z0-9]+([-_][a-z0-9]+)*$", max_length=200)]
"""One plain path component: a verdict must not make a reader look outside its run."""

Version = Annotated[str, Field(pattern=r"^\d{1,6}\.\d{1,6}$")]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
"""Bounded, so that a reader may add them up."""

ComparisonKind = Literal["diff-backends", "diff-patches"]

BASE = "base"
"""The status of a side that is the measure of others."""
_DUMP_MARK = " [dump: "
"""How an error in a log begins to name the dump that tells of it."""
OWN_COUNT = "its own count"
"""How it is known that a patch did its work, if the patch says so itself."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class StandIn(_Part):
    """What the host engine has in the place of a part that needs CUDA."""

    id: str
    title: str = ""


class HostEngine(_Part):
    """The engine on a CPU; empty for a run on a GPU."""

    stand_ins: tuple[StandIn, ...] = ()


class RaisedError(_Part):
    """An exception in a log. type: without its module."""

    type: str
    message: str = ""


class StoredDump(_Part):
    """A dump of a run. rule: None if its manifest cannot be read."""

    path: str
    state: str = ""
    rule: str | None = None


class CheckRecord(_Part):
    """What was expected and what was observed. dump: the path of the dump that `observed` names, if it names one."""

    expected: str
    observed: str
    status: Literal["ok", "failed", "not checked"]
    dump: str | None = None

    @property
    def brief(self) -> str:
        """Return what was observed up to the path of the dump, which is long."""
        return self.observed if self.dump is None else self.observed.partition(_DUMP_MARK)[0]


class ArmRecord(_Part):
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


class RootCause(_Part):
    """What the dump that explains a run says."""

    text: str
    dump: str = ""


class ScenarioRun(_Part):
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


class RanCell(_Part):
    """Which cell of the crash matrix ran, and where."""

    id: str
    toy: bool
    device: str


class CellExpectation(_Part):
    """What a cell is expected to do, why, and who measured that."""

    text: str
    why: str
    measured: str


class LoadRecord(_Part):
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


class Origin(_Part):
    """The public report of a fault. reported: what its users saw."""

    reference: str = ""
    reported: str = ""


class ExpectedFinding(_Part):
    """What a probe has to say of a fault. proofs: names of what is checked beyond the dump's fields."""

    probe: str
    rule: str = ""
    verdict: str = ""
    evidence: dict[str, Any] = {}
    proofs: tuple[str, ...] = ()


class CaseRecord(_Part):
    """A case of the corpus. engine: arguments that differ from the scenarios'."""

    id: FolderName
    title: str = ""
    engine: dict[str, Any] = {}
    mtp: bool = True


class FaultCaseRecord(CaseRecord):
    """A fault and what it must lead to. faults: ids that are injected. fixes_off: fixes that are left off."""

    origin: Origin = Origin()
    injected: str = ""
    faults: tuple[str, ...] = ()
    fixes_off: tuple[str, ...] = ()
    expected: tuple[ExpectedFinding, ...] = ()

    @property
    def probes(self) -> list[str]:
        """Return the probes that have to fire, each once."""
        return list(dict.fromkeys(finding.probe for finding in self.expected))


class LogitFaultRecord(_Part):
    """A fault that no probe can see. caught_by: the command that does."""

    id: str
    title: str = ""
    origin: Origin = Origin()
    injected: str = ""
    faults: tuple[str, ...] = ()
    caught_by: str = ""


class CaseList(_Part):
    """What `repro corpus --list` says."""

    faults: tuple[FaultCaseRecord, ...]
    clean: tuple[CaseRecord, ...]
    logit_faults: tuple[LogitFaultRecord, ...]


class SightingRecord(_Part):
    """A readable dump of a case. step: the scheduler's step at which it was written. runner_step: the engine's own."""

    probe: str
    rule: str
    verdict: str
    summary: str
    step: int
    runner_step: int | None
    path: str


class FaultRecord(FaultCaseRecord):
    """A fault that was injected. fired: dumps per probe. unguarded: how it ended without probes, None if not tried."""

    good: bool
    detected: bool = False
    silent_probes: tuple[str, ...] = ()
    cause: str = ""
    objections: tuple[str, ...] = ()
    root_cause: str | None = None
    unguarded: str | None = None
    fired: dict[str, int] = {}
    steps_to_detection: int | None = None
    dumps: tuple[SightingRecord, ...] = ()
    unreadable_dumps: int = 0
    ending: str = ""
    duration_s: Seconds = 0
    repeat: str = ""


class CleanRecord(CaseRecord):
    """A clean load that was run. false_alarms: dumps of any state. Other fields as of a fault."""

    good: bool
    false_alarms: int = 0
    objections: tuple[str, ...] = ()
    fired: dict[str, int] = {}
    steps_to_detection: int | None = None
    dumps: tuple[SightingRecord, ...] = ()
    unreadable_dumps: int = 0
    ending: str = ""
    duration_s: Seconds = 0
    repeat: str = ""


class Totals(_Part):
    """The corpus in numbers."""

    faults: int = 0
    missed: int = 0
    wrong_causes: int = 0
    clean_runs: int = 0
    false_alarms: int = 0
    unfit_clean_runs: int = 0


class CorpusRun(_Part):
    """A run of `repro corpus`. cores: of the machine."""

    schema_version: Version = SCHEMA_VERSION
    kind: Literal["corpus"] = "corpus"
    folder: str = ""
    sglang_version: str = ""
    duration_s: Seconds = 0
    import_s: Seconds = 0
    cores: int | None = None
    host_engine: HostEngine = HostEngine()
    probes: tuple[str, ...] = ()
    faults: tuple[FaultRecord, ...] = ()
    clean: tuple[CleanRecord, ...] = ()
    logit_faults: tuple[LogitFaultRecord, ...] = ()
    totals: Totals = Totals()
    exit_code: int

    @property
    def parts(self) -> list[tuple[str, bool]]:
        """Return the folders of the cases, and whether each went as expected."""
        return [(case.id, case.good) for case in (*self.faults, *self.clean)]

    @property
    def with_logs(self) -> list[str]:
        """Return nothing: there are too many cases, and each log is short."""
        return []


class ComparedLoad(_Part):
    """What every side was sent. swa_peak_above: the share of the SWA pool that the load is there to exceed."""

    name: str = "prompts"
    requests: int | None = None
    swa_peak_above: Finite | None = None


class ToleranceRecord(_Part):
    """The largest differences that count as equal. top_tokens: of how many tokens logprobs are compared."""

    logprob: Finite
    state: Finite
    top_tokens: int


class ComparedPatch(_Part):
    """A patch in which the sides differ, or a fault that all have. sides: those on which it did its work."""

    id: str
    exercised: bool
    known_by: str = ""
    sides: tuple[str, ...] = ()
    why_not: tuple[str, ...] = ()


class ComparedPrompt(_Part):
    """A prompt and its length in tokens. new_tokens: those of its answer."""

    prompt: int
    tokens: int
    new_tokens: int


class UsageRecord(_Part):
    """The shares of both KV pools in use: the most at once, and after each step."""

    full_peak: Finite = 0
    swa_peak: Finite = 0
    full: tuple[Finite, ...] = ()
    swa: tuple[Finite, ...] = ()


class DeathRecord(_Part):
    """How far a side came that did not come to its end.

    Attributes:
        type: Of what ended it.
        message: Of what ended it.
        between_steps: After `step`, not in it.
        prompts_at_fault: Those in whose rows the dumps of that step list bad pages.
        full: The share of the full pool in use then; None if nobody could write it down.
        swa: The same of the SWA pool.
        answers_compared: How many finished answers were held against transformers.
    """

    type: str | None = None
    message: str | None = None
    step: int | None = None
    phase: str | None = None
    between_steps: bool = False
    prompts_in_step: tuple[int, ...] = ()
    prompts_at_fault: tuple[int, ...] = ()
    requests_finished: int = 0
    finished_agree_with_transformers: bool | None = None
    full: Finite | None = None
    swa: Finite | None = None
    dumps: tuple[str, ...] = ()
    answers_compared: int = 0


class TokenRecord(_Part):
    """The first token that differs. Logprobs are the reference's, None if not finite. text: all of it in a sentence."""

    output: int = 0
    position: int = 0
    reference_token: int = 0
    token: int = 0
    reference_logprob: Finite | None = None
    token_logprob: Finite | None = None
    near_tie: bool = False
    text: str


class PromptRecord(_Part):
    """One prompt, held against the reference's. logprob_difference: the largest; None if it is not finite."""

    prompt: int
    positions_compared: int = 0
    agrees: bool
    logprob_difference: Finite | None = None
    logprob_difference_position: int | None = None
    first_position_over_tolerance: int | None = None
    first_token_difference: TokenRecord | None = None


class WindowRecord(_Part):
    """How many keys the sliding layers of both saw. difference_left: in states, with that many keys."""

    keys: int
    reference_keys: int
    window: int
    difference_left: Finite | None


class SideCause(_Part):
    """Where a side parts from its reference first. State differences are None if not finite. text: a sentence."""

    prompt: int = 0
    prompts: tuple[int, ...] = ()
    position: int = 0
    layer: int = 0
    layer_type: str = ""
    phase: str = ""
    state_difference: Finite | None = None
    largest_state_difference: Finite | None = None
    window: WindowRecord | None = None
    fix: str | None = None
    text: str


class Against(_Part):
    """A side held against its reference: transformers, or another side's id. agrees: None if nothing was compared."""

    reference: str
    agrees: bool | None = None
    prompts: tuple[PromptRecord, ...]
    causes: tuple[SideCause, ...] = ()


class SideRecord(_Part):
    """One engine run of a comparison. against: transformers, then, of a `with` side, its base."""

    id: FolderName
    backend: str
    mtp: bool
    patches: str
    attached: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    probes: str = ""
    device_model: str = ""
    status: str
    duration_s: Seconds
    ending: str
    exit_code: int | None = None
    signal: str | None = None
    problem: str | None = None
    raised: tuple[RaisedError, ...] = ()
    hint: str | None = None
    accept_length: Finite | None = None
    usage: UsageRecord = UsageRecord()
    died: DeathRecord | None = None
    dumps: tuple[StoredDump, ...] = ()
    log: str = ""
    log_tail: tuple[str, ...] = ()
    against: tuple[Against, ...] = Field(min_length=1)

    @property
    def is_base(self) -> bool:
        """Say whether it is the measure of another side."""
        return self.status == BASE

    @property
    def completed(self) -> bool:
        """Say whether it came to its end."""
        return self.ending == "completed"

    @property
    def title(self) -> str:
        """Return the backend and whether MTP is on."""
        return f"{self.backend}, MTP {'on' if self.mtp else 'off'}"


class ComparisonRun(_Part):
    """A run of `diff backends` or `diff patches`. fixes: those that would repair a side."""

    schema_version: Version = SCHEMA_VERSION
    kind: ComparisonKind
    folder: str = ""
    scenario: str = "e4b"
    load: ComparedLoad = ComparedLoad()
    summary: tuple[str, ...] = ()
    sglang_version: str = ""
    duration_s: Seconds = 0
    import_s: Seconds = 0
    host_engine: HostEngine = HostEngine()
    tolerances: ToleranceRecord | None = None
    window: int | None = None
    prompt_logprobs: bool = True
    prompt_logprobs_why_not: str | None = None
    fixes_added: tuple[str, ...] = ()
    fixes_left_out: tuple[str, ...] = ()
    patches_compared: tuple[ComparedPatch, ...] = ()
    prompts: tuple[ComparedPrompt, ...] = ()
    sides: tuple[SideRecord, ...] = Field(min_length=1)
    fixes: tuple[str, ...] = ()
    nothing_checked_why: str | None = None
    exit_code: int

    @property
    def parts(self) -> list[tuple[str, bool]]:
        """Return the folders of the sides, and whether each was as it should be; a base is a measure."""
        return [(side.id, side.status in ("agrees", BASE)) for side in self.sides]

    @property
    def with_logs(self) -> list[str]:
        """Return the sides: each has a log that is worth a picture."""
        return [side.id for side in self.sides]

    @property
    def fixes_sentence(self) -> str:
        """Return which fixes would repair the sides and how they are switched on; empty if there are none."""
        if not self.fixes:
            return ""
        words = ",".join(f"+{fix}" for fix in self.fixes)
        return f"Fixes that this asks for: {', '.join(self.fixes)}; as a patch set: default,{words}"


RunRecord = ScenarioRun | CorpusRun | ComparisonRun


def dump_named(text: str, dumps: Sequence[str]) -> str | None:
    """Return which of these paths `text` names as the dump of an error in a log; None if it names none of them.

    A dump is known by its folder's name: a run may have been moved since the error was logged.
    """
    named = text.partition(_DUMP_MARK)[2]
    return next((path for path in dumps if f"/{PurePath(path).name}]" in named), None)


def checks_not_made(statuses: Sequence[str]) -> str:
    """Return in words how many of a run's checks were not made; empty if all were."""
    count = statuses.count("not checked")
    if not count:
        return ""
    were = "was" if count == 1 else "were"
    return f" as far as checked: {count} of {number_of(len(statuses), 'check')} {were} not made"
