"""What a rule over a log is, and how it names its evidence."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from gemma4_triage.finding import Confidence, Evidence, Finding
from gemma4_triage.logs.facts import Death, Drop, LogFacts, Place, RankFacts
from gemma4_triage.logs.late_pattern import pattern

COLLECT = "gemma4-triage collect URL"
"""What shows where a server that hangs stands; its address is put in where something says it."""
PLAN_POOLS = "gemma4-triage pools --config CONFIG --gpu-mem 80GiB --weights 20GiB --workload 64x8000+1000"
"""What plans the pools; config, sizes and load are put in where something says them."""
_LONGEST_EXCEPTION = 300
_INNERMOST = 3  # frames
_READS_JSON = re.compile(r"(?:__init__\.py:\S* loads?|decoder\.py:\S* (?:raw_)?decode)$")


@dataclass(frozen=True)
class Rule:
    """What a rule over a log is.

    Attributes:
        id: as findings name it.
        title: what it is about.
        find: what the rule makes of a log, usually nothing.
        explains: whether an end of a process is this rule's.
        alarms: kinds of alarms that a finding of this rule accounts for.
    """

    id: str
    title: str
    find: Callable[[LogFacts], Iterator[Finding]]
    explains: Callable[[Death], bool] = lambda death: False
    alarms: frozenset[str] = frozenset()


def of_death(
    rule_id: str,
    title: str,
    explains: Callable[[Death], bool],
    tell: Callable[[LogFacts, Death], Finding],
    alarms: Iterable[str] = (),
) -> Rule:
    """Return a rule over what a process died of.

    Args:
        rule_id: as findings name it.
        title: what it is about.
        explains: whether an end of a process is this rule's.
        tell: makes a finding of the first death that it explains.
        alarms: kinds of alarms that come with such a death.
    """

    def find(facts: LogFacts) -> Iterator[Finding]:
        death = next(filter(explains, facts.failures), None)
        if death is not None:
            yield tell(facts, death)

    return Rule(rule_id, title, find, explains, frozenset(alarms))


def says(words: re.Pattern[str]) -> Callable[[Death], bool]:
    """Return whether a failure's type and message hold some words."""
    return lambda death: words.search(f"{death.type_name}: {death.message}") is not None


def words_of(death: Death) -> str:
    """Return type and message of a failure; of an assertion without a message the condition that does not hold."""
    bare = death.type_name == "AssertionError" and not death.message
    return f"{death.type_name}: {death.statement if bare else death.message}"


@dataclass(frozen=True)
class Wording:
    """How a failure with one cause is worded.

    Attributes:
        words: Stand in its type and message. A named group stands for its text, as {name}, in cause and advice.
        cause: What that says.
        advice: What to do about it.
        frames: One of the innermost frames has to match it, too; None if any will do.
        confidence: Where it is not the rule's.
        package: The name of the package whose file raised it has to match it, too; None if any will do.
        first: Whether it says more than the part of SGLang or the library whose file raised it.
        apart: Whether what this server has switched on is to be left out beside, one at a time.
    """

    words: re.Pattern[str]
    cause: str
    advice: str
    frames: re.Pattern[str] | None = None
    confidence: Confidence | None = None
    package: re.Pattern[str] | None = None
    first: bool = False
    apart: bool = False

    def fits(self, death: Death) -> bool:
        """Say whether a failure is worded so, and stands where it has to."""
        if self.words.search(words_of(death)) is None:
            return False
        if self.package is not None and self.package.fullmatch(death.package) is None:
            return False
        return self.frames is None or any(map(self.frames.match, _innermost(death)))

    def clause(self, said: str) -> str:
        """Return the cause, with what the words name in this text."""
        found = self.words.search(said)
        return self.cause.format_map({name: text or "" for name, text in found.groupdict().items()} if found else {})


def _innermost(death: Death) -> tuple[str, ...]:
    """Return the innermost frames, and of what Python's own reader of JSON raised those of whoever called it, too."""
    inner = death.frames[-_INNERMOST:]
    if death.type_name != "JSONDecodeError":
        return inner
    return (*inner, *[frame for frame in death.frames if not _READS_JSON.match(frame)][-_INNERMOST:])


@cache
def written(file: str) -> tuple[Wording, ...]:
    """Return the wordings of a file below known_issues/records/words, whose head says what an entry has."""
    # Most logs have no failure, and what reads records takes time to import.
    from gemma4_triage.known_issues.catalog import words

    return tuple(
        Wording(
            pattern(entry["words"]),
            entry["cause"],
            entry["advice"],
            frames=pattern(entry["frames"]) if "frames" in entry else None,
            confidence=Confidence(entry["confidence"]) if "confidence" in entry else None,
            package=pattern(entry["package"]) if "package" in entry else None,
            first=entry.get("first", False),
            apart=entry.get("apart", False),
        )
        for entry in words(file)
    )


def of_kind(death: Death) -> Wording | None:
    """Return what kind of fault a failure is that no rule knows more of; None if not even that can be told."""
    return next((one for one in written("other_crash.toml") if one.fits(death)), None)


def kind_by_words(text: str) -> Wording | None:
    """Return what kind of fault a line's words alone tell of; None if they tell of none."""
    alone = (one for one in written("other_crash.toml") if one.package is None and one.frames is None)
    return next((one for one in alone if one.words.search(text)), None)


def is_of_a_kind_first(death: Death) -> bool:
    """Say whether its kind tells more of it than the file that raised it, such as a package that is missing."""
    return (kind := of_kind(death)) is not None and kind.first


def _of_a_draft(facts: LogFacts, death: Death) -> tuple[str, ...]:
    from gemma4_triage.logs.switched_on import as_the_draft_was_loaded

    return as_the_draft_was_loaded(facts, death)


def _switched_on(facts: LogFacts) -> tuple[str, ...]:
    # suspects.py asks for what a log says of a start, as rules do.
    from gemma4_triage.logs.switched_on import features

    return tuple(f"once {one.without}, which this server has" for one in features(facts))


def of_wordings(
    rule_id: str,
    title: str,
    wordings: Iterable[Wording] | str,
    confidence: Confidence,
    *,
    types: Iterable[str] = (),
    what: str = "what the process died of",
    settings: Iterable[str] = (),
    ruled_out_if: tuple[str, ...] = (),
    advice: tuple[str, ...] = (),
    next_commands: tuple[str, ...] = (),
    alarms: Iterable[str] = (),
) -> Rule:
    """Return a rule over failures whose words alone say the cause.

    Args:
        rule_id: As findings name it.
        title: What it is about.
        wordings: The first whose words stand in the failure says the cause; or the name of the file that has them,
            which is read where a log has a failure.
        confidence: How sure that is.
        types: Of exceptions; a failure of another type is not this rule's. Empty for all.
        what: What the line of the failure is.
        settings: Names of server arguments that are evidence where the log has them.
        ruled_out_if: What would say that it is something else.
        advice: What to do beside the wording's own advice, whichever it is.
        next_commands: Commands of this tool.
        alarms: Kinds of alarms that come with such a failure.
    """
    known = wordings if isinstance(wordings, str) else tuple(wordings)
    of_types, names = frozenset(types), tuple(settings)

    def wording_of(death: Death) -> Wording | None:
        if of_types and death.type_name not in of_types:
            return None
        worded = written(known) if isinstance(known, str) else known
        return next((wording for wording in worded if wording.fits(death)), None)

    def find(facts: LogFacts) -> Iterator[Finding]:
        for death in facts.failures:
            if (wording := wording_of(death)) is not None:
                found = wording.words.search(words_of(death))
                named = {name: text or "" for name, text in found.groupdict().items()} if found else {}
                yield Finding(
                    rule=rule_id,
                    cause=wording.cause.format_map(named) if named else wording.cause,
                    confidence=wording.confidence or confidence,
                    evidence=(*of_failure(facts, death, what), *of_settings(facts, *names)),
                    ruled_out_if=ruled_out_if,
                    advice=(
                        wording.advice.format_map(named) if named else wording.advice,
                        *_of_a_draft(facts, death),
                        *advice,
                        *(_switched_on(facts) if wording.apart else ()),
                    ),
                    next_commands=next_commands,
                )
                return

    return Rule(rule_id, title, find, lambda death: wording_of(death) is not None, frozenset(alarms))


def of_failure(facts: LogFacts, death: Death, what: str = "what the process died of") -> list[Evidence]:
    """Return the failure with rank and innermost frame, then the last pool usage before it, if one is known."""
    where = f"{what}{on_rank(death.rank)}{', in ' + death.frame if death.frame else ''}"
    found = [at(facts, death.place, exception_text(death), where)]
    if (usage := death.usage) is not None and usage.full is not None:
        found.append(at(facts, usage.place, usage_text(usage.full, usage.swa), "the last pool usage before it"))
    return found


def of_settings(facts: LogFacts, *names: str) -> list[Evidence]:
    """Return those settings of the last start that the log names and that are set."""
    values = ((name, facts.settings.get(name, "None")) for name in names)
    return [over(facts, "server_args", value, name) for name, value in values if value not in ("None", "False")]


def remarked(facts: LogFacts, name: str, meaning: str) -> list[Evidence]:
    """Return the last line of a kind of remarks.py, or nothing."""
    found = facts.remarks.get(name)
    return [] if found is None else [at(facts, found.place, found.text, meaning)]


def cause_in(death: Death, causes: Mapping[str, str]) -> str:
    """Return the cause under the first sentence that stands in what the process died of, or nothing."""
    return next((cause for sentence, cause in causes.items() if sentence in death.message), "")


def worst_drop(facts: LogFacts, drop_of: Callable[[RankFacts], Drop | None]) -> tuple[Drop, RankFacts] | None:
    """Return the drop, of all schedulers', that left the smallest share of what was, and the scheduler that had it."""
    drops = [(drop, rank) for rank in facts.schedulers if (drop := drop_of(rank)) is not None]
    return min(drops, key=lambda found: found[0].ratio, default=None)


def at(facts: LogFacts, place: Place, value: str | int | float | None, meaning: str) -> Evidence:
    """Return a value that stands in a line of the log, and when, as far as the log says."""
    when = f"; {place.time}" if place.time else ""
    return Evidence(source=facts.name, field=f"line {place.line}", value=value, meaning=meaning + when)


def over(facts: LogFacts, what: str, value: str | int | float | None, meaning: str) -> Evidence:
    """Return a value of the whole log."""
    return Evidence(source=facts.name, field=what, value=value, meaning=meaning)


def exception_text(death: Death) -> str:
    """Return its type and message, in at most a few lines' length."""
    return f"{death.type_name}: {death.message}".removeprefix(": ")[:_LONGEST_EXCEPTION]


def of_memory(facts: LogFacts, death: Death) -> list[Evidence]:
    """Return what a process without memory died of, how full the pools were, and the share that they were given."""
    evidence = [at(facts, death.place, death.message[:_LONGEST_EXCEPTION], "what the process died of")]
    if (usage := death.usage) is not None:
        evidence.append(at(facts, usage.place, usage_text(usage.full, usage.swa), "the last pool usage before it"))
    if fraction := facts.settings.get("mem_fraction_static"):
        evidence.append(over(facts, "server_args", fraction, "mem_fraction_static"))
    return evidence


_PROBED = re.compile(
    r"(?:\w*attention\w*|\w+_mha\w*|flashinfer\w*|triton_backend|memory_pool\w*|\w+_memory_pool|\w*allocator\w*|"
    r"\w*radix_cache\w*|schedule_batch|common|\w*eagle\w*|frozen_kv_mtp\w*|spec_\w+|swa_\w+)\.py:"
)


def probe_could_see(death: Death) -> bool:
    """Say whether it was raised where probes look: page tables, pools, batches and drafts of a running server."""
    return death.usage is not None and any(_PROBED.match(frame) for frame in death.frames[-3:])


def last_work(facts: LogFacts) -> int:
    """Return the last line of a batch, 0 if there is none."""
    columns = (rank.series["line"] for rank in facts.schedulers)
    return max((int(line) for column in columns for line in column if line), default=0)


def last_sign_of_life(facts: LogFacts, before: Place) -> list[Evidence]:
    """Return the last batch line before a place, as far as the series still tells it apart, or nothing."""
    lines = [
        (line, rank.rank)
        for rank in facts.schedulers
        for line in rank.series.get("line", ())
        if line is not None and line < before.line
    ]
    if not lines:
        return []
    line, rank = max(lines)
    return [at(facts, Place(line), None, f"a batch before it{on_rank(rank)}")]


def on_rank(rank: str) -> str:
    """Return " on DP0 TP1", or nothing where there is one scheduler."""
    return f" on {rank}" if rank else ""


def of_drop(facts: LogFacts, drop: Drop, what: str, digits: int) -> list[Evidence]:
    """Return what a moving mean came from, what it went to, and whether it came back.

    Args:
        facts: the log.
        drop: the fall of the mean.
        what: what the mean is of, with its unit.
        digits: to how many decimal digits the mean is rounded.
    """
    found = [
        at(facts, drop.first, round(drop.before, digits), f"{what}, mean until here"),
        at(facts, drop.last, round(drop.after, digits), f"{what}, mean since line {drop.first.line}"),
    ]
    if drop.recovered:
        found.append(at(facts, drop.recovered, None, "back at 90% of what it was"))
    return found


def usage_text(full: float | None, swa: float | None) -> str:
    """Return both pools, as the log has them."""
    parts = [f"{name} {share:.2f}" for name, share in (("full", full), ("swa", swa)) if share is not None]
    return ", ".join(parts) or "not said"
