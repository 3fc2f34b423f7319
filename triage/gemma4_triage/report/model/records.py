"""The records of a report. Frozen; `Report.model_dump(mode="json")` is the document of `report --json`.

Every list that could grow with its input is cut where it is made, and `left_out` of the nearest record says what is not
there.
"""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict

from gemma4_dumps import schema
from gemma4_triage.report.model.pictures import Chart, Grid, Ledger, Record, Timeline
from gemma4_triage.report.model.text import Text

Status = Literal["ok", "bad", "unchecked"]
"""ok: as expected, or nothing wrong. bad: not as expected, or a cause was found. unchecked: nothing was compared."""


class Pair(Record):
    name: Text
    value: Text


class Group(Record):
    """Pairs under a heading, for example the versions of one process."""

    title: Text
    pairs: tuple[Pair, ...]


class Command(Record):
    """what: what it is for, in words."""

    what: Text
    line: Text


class Check(Record):
    expected: Text
    observed: Text
    status: Literal["ok", "failed", "not checked"]


class Arm(Record):
    """One arm of a scenario. status: `ok`, `surprise` or `not checked`. numbers: what its checks measured."""

    id: Text
    title: Text
    device_model: Text
    status: Text
    ending: Text
    duration_s: float
    checks: tuple[Check, ...]
    numbers: tuple[Pair, ...]
    environment: tuple[Pair, ...]
    log_tail: tuple[Text, ...]
    dump_count: int
    repeat: Text


class Sighting(Record):
    """What one probe made of a case. expected: it should have fired."""

    probe: Text
    dumps: int
    expected: bool


class Case(Record):
    """One row of the corpus' matrix. clean: no fault was injected. steps: to the first dump, None if there is none."""

    id: Text
    title: Text
    origin: Text
    clean: bool
    good: bool
    sightings: tuple[Sighting, ...]
    cause: Text
    steps: int | None
    ending: Text
    unguarded: Text
    duration_s: float
    objections: tuple[Text, ...]
    repeat: Text


class Run(Record):
    """What ran, as its verdict.json has it. A scenario has arms, as a comparison has sides; the corpus has cases.

    Attributes:
        repeat: The command that runs all of it again.
        causes: Of a comparison, why its sides differ.
    """

    kind: Literal["repro", "corpus", "diff-backends", "diff-patches"]
    name: Text
    symptom: Text
    status: Status
    exit_code: int
    sglang_version: Text
    duration_s: float
    import_s: float
    arms: tuple[Arm, ...]
    probes: tuple[Text, ...]
    cases: tuple[Case, ...]
    root_cause: Text
    causes: tuple[Text, ...] = ()
    repeat: Text
    stand_ins: tuple[Pair, ...]


class Offence(schema.Offence):
    """One bad index, as the dump has it, with its table's name cleaned for a report."""

    model_config = ConfigDict(extra="ignore")

    table: Text


class Dump(Record):
    """A dump of an incident.

    Attributes:
        number: In its incident, from 1.
        after_s: Since the incident's first dump.
        repeat: How its server was started, as far as it is recorded.
    """

    number: int
    id: Text
    path: Text
    created_utc: Text
    after_s: float
    host: Text
    rank: int
    pid: int
    rule: Text
    verdict: Text
    action: Text
    site: Text
    place: Text
    step: int | None
    summary: Text
    sentence: Text
    offence_count: int
    entries: tuple[Offence, ...]
    facts: tuple[Pair, ...]
    repeat: Text = ""
    grid: Grid | None = None
    ledger: Ledger | None = None
    problems: tuple[Text, ...] = ()


class Evidence(Record):
    """source: a dump's id or a file's name. number: of that dump in its incident, None for anything else."""

    source: Text
    number: int | None
    field: Text
    value: Text
    meaning: Text


class Finding(Record):
    """A finding of `diagnose` or `logs`.

    Attributes:
        kind: A note is a known property of the release, and no incident.
        fingerprint: Equal for the same cause at the same kind of place in another run.
    """

    rule: Text
    kind: Literal["cause", "note"] = "cause"
    confidence: Literal["certain", "likely", "possible"]
    cause: Text
    evidence: tuple[Evidence, ...]
    ruled_out_if: tuple[Text, ...]
    advice: tuple[Text, ...]
    commands: tuple[Text, ...]
    upstream: tuple[Text, ...]
    fingerprint: str
    left_out: tuple[Text, ...] = ()

    @property
    def is_note(self) -> bool:
        """Whether it is a note."""
        return self.kind == "note"

    @property
    def label(self) -> str:
        """What stands beside the rule: `note`, or how certain the cause is."""
        return self.kind if self.is_note else self.confidence


class Event(Record):
    """Something that happened.

    Attributes:
        time_utc: To the second.
        source: The dump, log or file that says so.
        text: What happened, in a clause.
    """

    time_utc: Text
    source: Text
    text: Text


class Incident(Record):
    """What one launch left and what it comes to.

    Attributes:
        label: The arm or case that it is of, empty outside a run.
        expected: Whether it is of an arm or case that went as expected, so that its findings are no news.
        open_end: What is not known of the end of a launch without a cause, which then is not said to be well.
        readings: What other files than dumps and logs are, and how each stands to the incident.
        events: What happened by all evidence, in the order of time; empty if only one kind of it has times.
    """

    label: Text
    title: Text
    expected: bool
    findings: tuple[Finding, ...]
    dumps: tuple[Dump, ...]
    timeline: Timeline | None
    environment: tuple[Group, ...]
    notes: tuple[Text, ...]
    open_end: Text = ""
    readings: tuple[Text, ...] = ()
    events: tuple[Event, ...] = ()
    left_out: tuple[Text, ...] = ()


class Scheduler(Record):
    rank: Text
    charts: tuple[Chart, ...]
    facts: tuple[Pair, ...]


class Log(Record):
    """A serving log.

    Attributes:
        label: The arm that it is of, empty outside a run. Findings of an arm's log are left to `logs`.
        relation: How it stands to the dumps that were read, in a sentence; empty if there are none.
    """

    label: Text
    name: Text
    relation: Text = ""
    facts: tuple[Pair, ...]
    schedulers: tuple[Scheduler, ...]
    findings: tuple[Finding, ...]
    left_out: tuple[Text, ...] = ()


class Problem(Record):
    """Something that looked like evidence and could not be read."""

    path: Text
    problem: Text


class Verdict(Record):
    """headline: one line. sentences: why, in words."""

    status: Status
    headline: Text
    sentences: tuple[Text, ...]


class Report(Record):
    """Everything that a report shows. Equal input gives an equal report: it does not say when it was made.

    Attributes:
        unreadable: The first of what could not be read.
        unreadable_count: How much there is, what is left out included.
        damaged: The first of the dumps that were read although their files are not what they should be.
        damaged_count: How many there are, likewise.
        exit_code: Of the command.
    """

    title: Text
    sources: tuple[Text, ...]
    verdict: Verdict
    run: Run | None
    timeline: Timeline | None
    incidents: tuple[Incident, ...]
    logs: tuple[Log, ...]
    environment: tuple[Group, ...]
    commands: tuple[Command, ...]
    unreadable: tuple[Problem, ...]
    unreadable_count: int = 0
    damaged: tuple[Problem, ...] = ()
    damaged_count: int = 0
    left_out: tuple[Text, ...]
    exit_code: int
