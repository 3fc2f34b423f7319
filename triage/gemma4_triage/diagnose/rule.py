"""The record of a rule. A rule is one cause; it may show under several verdicts.

A rule's `find` says what its premises come to. What would rule the cause out stands beside it, as `ruled_out_if`, and
is asked before the rule speaks:

| the evidence says that it | the rule                                                                             |
|---------------------------|--------------------------------------------------------------------------------------|
| holds                     | says nothing                                                                         |
| does not hold             | may be as certain as its premises are                                                |
| neither                   | is likely at most, and the sentence stands in the finding: it is what would tell     |

So a certain finding names nothing that would rule it out: all of that was looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Structure
from gemma4_triage.diagnose.evidence import said
from gemma4_triage.diagnose.guards import Guards
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.finding import Confidence, Evidence, Finding, at_most

# Rules over logs, by what a cause does to the server.
LEAVES_BUFFERS = ("illegal-access", "index-outside-tensor")
LOSES_PAGES = ("pool-leak", "no-slot")
SPOILS_DRAFTS = ("accept-length-drop",)

# Rules over dumps whose findings follow once one entry of a list, the mapping, a row or the cache is another's.
FOLLOWS_FROM_AN_ENTRY = (
    "allocator-past-pool-end",
    "evicted-page-counted",
    "freed-while-held",
    "mapping-outlives-page",
    "null-page-in-live-column",
    "page-freed-twice",
    "page-given-twice",
    "pages-leaked",
    "swa-page-replaced-before-free",
    "swa-page-shared",
    "unset-slot-freed",
)


@dataclass(frozen=True)
class Seen:
    """What a rule has found, and the incident that it found it in."""

    finding: Finding
    incident: Incident

    @property
    def dump(self) -> Dump | None:
        """Return the dump that the finding's first piece of evidence stands in; None if that is no dump."""
        return self.incident.dump(self.finding.evidence[0].source) if self.finding.evidence else None


def _no_dump_says(_: Seen) -> None:
    """Return None: this is never known from a dump."""


@dataclass(frozen=True)
class Exclusion:
    """What would rule a cause out.

    Attributes:
        sentence: In words, behind "ruled out if".
        holds: Whether the evidence says so; None where it does not say. Left out where no dump can say it.
    """

    sentence: str
    holds: Callable[[Seen], bool | None] = _no_dump_says


_UNSEEN_CALLS = (
    "a hand-out or a free before it was wrong: with probes in contain and the audit at idle nobody looked at those"
)


def calls_went_unseen(dump: Dump) -> bool:
    """Return whether the server ran in `contain`, without `swa-allocator` and `request-rows`, audited at idle alone."""
    guards = Guards(dump.manifest.dump_id, "guards.", dump.manifest.guards)
    watched = any(guards.attached(probe) for probe in ("swa-allocator", "request-rows"))
    return guards.setting("mode") == "contain" and not guards.setting("leak_every") and not watched


def met_by(dump: Dump, structure: Structure | None) -> Evidence:
    """Return the request in whose row a bad entry is; the row alone where a call of another's may be the cause."""
    if structure is None and calls_went_unseen(dump):
        return said(dump, "offences.0.row", "the row of the batch that meets it; whose call led there is not known")
    return said(dump, "offences.0.request_slot", "the request whose row it is")


def in_dump(says: Callable[[Dump], bool | None]) -> Callable[[Seen], bool | None]:
    """Return `says` asked of the dump that a finding rests on first; of other evidence it is not known."""
    return lambda seen: None if seen.dump is None else says(seen.dump)


def of_layers(kind: str) -> Callable[[Seen], bool | None]:
    """Return what says whether the layers that read are of this kind; of a dump that names no kind it is not known."""
    return in_dump(lambda dump: None if dump.manifest.layer.type is None else dump.manifest.layer.type == kind)


def open_of(structure: Structure) -> Callable[[Seen], bool | None]:
    """Return what says that it is not known of a finding about this structure, and does not hold of another."""
    return lambda seen: None if seen.finding.structure is structure else False


@dataclass(frozen=True)
class Rule:
    """A rule, whose `find` is pure and gives None where the incident does not show this cause.

    Attributes:
        find: pure; None where the incident does not show this cause. It names no exclusions.
        ruled_out_if: what would rule the cause out, asked of each finding.
        in_logs: rules over logs (logs/catalog.py) that find this very cause there.
        leads_to: such as find what this cause leads to.
        injected_by: faults of the catalog that put this cause into a server.
        explains: rules whose findings are consequences of this one, or say less about the same dumps.
        fallback: is asked last, and sees only dumps that no other finding has explained.
        follows_calls: what it accuses may have come wrong out of a hand-out or a free: where no probe looked at those
            as they were made, it is likely at most; and where it cannot say in which way a structure is wrong either,
            it is possible and accuses none.
    """

    id: str
    find: Callable[[Incident], Finding | None]
    ruled_out_if: tuple[Exclusion, ...] = ()
    injected_by: tuple[str, ...] = ()
    in_logs: tuple[str, ...] = ()
    leads_to: tuple[str, ...] = ()
    explains: tuple[str, ...] = ()
    fallback: bool = False
    follows_calls: bool = False

    def speak(self, incident: Incident) -> Finding | None:
        """Return what the rule finds, as sure as what would rule it out allows; None if it is ruled out."""
        found = self.find(incident)
        if found is None:
            return None
        seen = Seen(found, incident)
        answers = [(one.sentence, one.holds(seen)) for one in self.ruled_out_if]
        if any(answer is True for _, answer in answers):
            return None
        unknown = tuple(sentence for sentence, answer in answers if answer is None)
        if self.follows_calls and seen.dump is not None and calls_went_unseen(seen.dump):
            unknown += (_UNSEEN_CALLS,)
            if found.structure is not None and found.defect is None:
                found = found.model_copy(update={"structure": None, "confidence": Confidence.POSSIBLE})
        confidence = at_most(found.confidence, Confidence.LIKELY) if unknown else found.confidence
        return found.model_copy(update={"ruled_out_if": unknown, "confidence": confidence})
