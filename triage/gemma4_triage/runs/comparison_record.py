"""The record of a `diff`: each side with its answers, and what it was held against."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gemma4_triage.runs.record import (
    SCHEMA_VERSION,
    Finite,
    FolderName,
    HostEngine,
    RaisedError,
    RecordPart,
    Seconds,
    StoredDump,
    Version,
)

ComparisonKind = Literal["diff-backends", "diff-patches"]


BASE = "base"
"""The status of a side that is the measure of others."""


OWN_COUNT = "its own count"
"""How it is known that a patch did its work, if the patch says so itself."""


class ComparedLoad(RecordPart):
    """What every side was sent. swa_peak_above: the share of the SWA pool that the load is there to exceed."""

    name: str = "prompts"
    requests: int | None = None
    swa_peak_above: Finite | None = None


class ToleranceRecord(RecordPart):
    """The largest differences that count as equal. top_tokens: of how many tokens logprobs are compared."""

    logprob: Finite
    state: Finite
    top_tokens: int


class ComparedPatch(RecordPart):
    """A patch in which the sides differ, or a fault that all have. sides: those on which it did its work."""

    id: str
    exercised: bool
    known_by: str = ""
    sides: tuple[str, ...] = ()
    why_not: tuple[str, ...] = ()


class ComparedPrompt(RecordPart):
    """A prompt and its length in tokens. new_tokens: those of its answer."""

    prompt: int
    tokens: int
    new_tokens: int


class UsageRecord(RecordPart):
    """The shares of both KV pools in use: the most at once, and after each step."""

    full_peak: Finite = 0
    swa_peak: Finite = 0
    full: tuple[Finite, ...] = ()
    swa: tuple[Finite, ...] = ()


class DeathRecord(RecordPart):
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


class TokenRecord(RecordPart):
    """The first token that differs. Logprobs are the reference's, None if not finite. text: all of it in a sentence."""

    output: int = 0
    position: int = 0
    reference_token: int = 0
    token: int = 0
    reference_logprob: Finite | None = None
    token_logprob: Finite | None = None
    near_tie: bool = False
    text: str


class PromptRecord(RecordPart):
    """One prompt, held against the reference's. logprob_difference: the largest; None if it is not finite."""

    prompt: int
    positions_compared: int = 0
    agrees: bool
    logprob_difference: Finite | None = None
    logprob_difference_position: int | None = None
    first_position_over_tolerance: int | None = None
    first_token_difference: TokenRecord | None = None


class WindowRecord(RecordPart):
    """How many keys the sliding layers of both saw. difference_left: in states, with that many keys."""

    keys: int
    reference_keys: int
    window: int
    difference_left: Finite | None


class SideCause(RecordPart):
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


class Against(RecordPart):
    """A side held against its reference: transformers, or another side's id. agrees: None if nothing was compared."""

    reference: str
    agrees: bool | None = None
    prompts: tuple[PromptRecord, ...]
    causes: tuple[SideCause, ...] = ()


class SideRecord(RecordPart):
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


class ComparisonRun(RecordPart):
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
