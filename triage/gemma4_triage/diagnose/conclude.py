"""From an incident to findings: every rule asked, consequences dropped, the rest ranked.

1. Every rule but fallbacks sees the whole incident, and speaks if nothing rules its cause out; see rule.py. One that
   raises is a note behind all others, or where nothing else is found a finding.
2. A finding is dropped if one that is at least as certain, and began no later, explains its rule and is of the same
   page or request. A possible one without a structure gives way to what is certain in that step, too.
   Its dumps become evidence of that one, as a consequence or, where one names neither, as what may follow.
   One of other pages and requests is a cause of its own.
   The exception that ended the server is evidence of the first cause that was seen before it.
   What `request-rows` found of another structure later is a finding below the first, which it may follow from.
3. Fallbacks, in the catalog's order and as often as they find something, see the dumps that nothing so far has
   explained, repetitions left out. After them every dump is in a finding.
4. What logs say joins its cause, as the table says.
5. A cause that is an injected fault says so. A fault that no finding accounts for stays a finding.
6. A cause whose fix was attached is no longer certain: the fix did not prevent it, and is not advised. Of a note, that
   is an incident.
7. A finding that rests on a damaged dump is likely at most, and possible if it rests on its files. Beside what
   cannot be read nothing is certain: that may be earlier.
8. Of what was violated in one step, two structures cannot both be certain to be the wrong one: then both are likely.
   Nor is a cause certain beside one that is likely of the same page or request, was seen no later and does not follow
   from it. Both say what would tell them apart.
9. What names the last owner of an audit's page names those before it, and other pages of which it is said again. What
   other dumps say alike of other pages and requests is counted: they may be of a fault of their own.
10. What was violated in an earlier step comes first, and of one step what a step comes to first: see `Access`. An
    audit ends its step: what an allocator hands out behind it is of the next one. Of one access the most certain does.
    What no dump shows comes before what is less certain. How the server served comes after, and notes come last.

| a finding of a log                 | becomes evidence of                                                        |
|------------------------------------|----------------------------------------------------------------------------|
| names a dump that is here          | the first finding that rests on that dump, or on the same violation again  |
| is the very cause (`Rule.in_logs`) | that cause, which is then as certain as the more certain of the two        |
| is what a cause leads to           | the first such cause; that stays as certain as it is, since others lead    |
| (`Rule.leads_to`)                  | there too                                                                  |
| anything else                      | nothing: it stays a finding. What several logs say alike is one finding    |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from gemma4_triage.diagnose.catalog import RULES
from gemma4_triage.diagnose.census import owners_before
from gemma4_triage.diagnose.evidence import guarded, in_a_file, resting_on, said
from gemma4_triage.diagnose.failed_rule import ask
from gemma4_triage.diagnose.incident import PROCESS_END, REQUEST_ROWS, Access, Incident
from gemma4_triage.diagnose.rules import injected_fault, request_state_differs
from gemma4_triage.diagnose.subjects import began, is_of_same, said_again, said_elsewhere, seen
from gemma4_triage.finding import Confidence, Evidence, Finding, Kind, at_most, causes, more_certain, ranked

_CERTAINTY = (Confidence.CERTAIN, Confidence.LIKELY, Confidence.POSSIBLE)
_BY_ID = {rule.id: rule for rule in RULES}
_WHICH_IS_FIRST = (
    "what {other} says was so before this: an audit after every step (GEMMA4_TRIAGE_LEAK_EVERY=1) and every probe show "
    "which came first"
)
_FIX_DID_NOT_HELP = "{fix}, which repairs this cause, was attached: it missed this path, or the cause is another one."
_ATTACHES = "--patches default"
_FOLLOWS = "it follows from what {other} says"
_DEATH = "what the server died of, later: it may follow from this"


def conclude(incident: Incident, from_logs: Iterable[Finding] = ()) -> tuple[Finding, ...]:
    """Return the findings about an incident, the most certain first; none if nothing is wrong.

    Args:
        incident: what belongs together.
        from_logs: what logs.catalog.findings made of the incident's logs.
    """
    failed: list[Finding] = []
    asked = [finding for rule in RULES if not rule.fallback and (finding := ask(rule, incident, failed)) is not None]
    found = _with_the_death(list(without_consequences(asked, incident)), incident)
    found += _of_other_structures(found, incident, failed)
    for rule in RULES:
        while rule.fallback:
            finding = ask(rule, incident.without(resting_on(found, incident)), failed)
            if finding is None:
                break
            found.append(finding)
    every = _account_for_faults(_join_logs(ranked(found), from_logs, incident))
    held = (_hold_against_fix(finding, incident) for finding in every)
    vouched = [_hold_against_damage(finding, incident) for finding in held]
    named = [_with_all_owners(finding, incident) for finding in hold_against_each_other(vouched, incident)]
    for at, piece in (*said_again(named, incident), *said_elsewhere(named, incident)):
        named[at] = named[at].model_copy(update={"evidence": (*named[at].evidence, piece)})
    ordered = _in_order(named, incident)
    kind = Kind.NOTE if causes(ordered) else Kind.CAUSE
    return (*ordered, *(one.model_copy(update={"kind": kind}) for one in failed))


def _join_logs(found: Sequence[Finding], from_logs: Iterable[Finding], incident: Incident) -> list[Finding]:
    """Return all findings, with what only logs say first.

    Those in `found` are of dumps, guard manifests and ledgers, in the order in which a log's finding looks for its
    cause.
    """
    grown = list(found)
    alone: dict[tuple[str, str], Finding] = {}
    for theirs in from_logs:
        at = _cause_of(theirs, grown, incident)
        if at is not None:
            grown[at] = _both(grown[at], theirs)
        elif (known := alone.get((theirs.rule, theirs.cause))) is not None:
            alone[theirs.rule, theirs.cause] = _with_evidence(known, theirs)
        else:
            alone[theirs.rule, theirs.cause] = theirs
    return [*alone.values(), *grown]


def _faults_of(rule: str) -> tuple[str, ...]:
    """Return the faults that make a finding of this rule, of dumps or of logs."""
    if rule in _BY_ID:
        return _BY_ID[rule].injected_by
    return tuple(fault for one in RULES if rule in (*one.in_logs, *one.leads_to) for fault in one.injected_by)


def _cause_of(theirs: Finding, found: Sequence[Finding], incident: Incident) -> int | None:
    named = [dump for piece in theirs.evidence if (dump := incident.dump(str(piece.value))) is not None]
    tests = (
        lambda one: any(incident.is_again(dump, resting_on([one], incident)) for dump in named),
        lambda one: theirs.rule in _BY_ID[one.rule].in_logs,
        lambda one: theirs.rule in _BY_ID[one.rule].leads_to,
    )
    return next((at for test in tests for at, one in enumerate(found) if test(one)), None)


def _both(cause: Finding, theirs: Finding) -> Finding:
    same = theirs.rule in _BY_ID[cause.rule].in_logs
    confidence = more_certain(cause.confidence, theirs.confidence) if same else cause.confidence
    return _with_evidence(cause, theirs).model_copy(update={"confidence": confidence})


def _with_evidence(finding: Finding, other: Finding) -> Finding:
    return finding.model_copy(update={"evidence": (*finding.evidence, *other.evidence)})


def _in_order(found: Iterable[Finding], incident: Incident) -> tuple[Finding, ...]:
    of_logs = {facts.name for facts in incident.logs}
    is_load = _load_test() if of_logs else lambda finding: False

    def last(finding: Finding) -> tuple[bool, bool]:
        return finding.is_note, is_load(finding)

    def certainty(finding: Finding) -> int:
        return _CERTAINTY.index(finding.confidence)

    every = ranked(found)
    dumped = [one for one in every if resting_on([one], incident)]

    def first_looked_at(finding: Finding) -> tuple[int, Access, int, float]:
        step, access, written = began(finding, incident)
        return step, access, certainty(finding), written

    ordered = sorted(dumped, key=lambda one: (*last(one), *first_looked_at(one)))
    # What a log or a guard manifest says has no step: it stands before what is less certain.
    for one in sorted((one for one in every if one not in dumped), key=lambda one: (*last(one), certainty(one))):
        place = (*last(one), certainty(one))
        at = next((at for at, other in enumerate(ordered) if (*last(other), certainty(other)) > place), len(ordered))
        ordered.insert(at, one)
    return tuple(ordered)


def _load_test() -> Callable[[Finding], bool]:
    """Return what says of a finding that it is about a load; the rules over logs are loaded where there is a log."""
    from gemma4_triage.logs.catalog import is_load

    return is_load


def without_consequences(asked: list[Finding], incident: Incident) -> Iterator[Finding]:
    """Yield what no other explains, each with the dumps of what it explains as evidence."""
    for finding in asked:
        if any(_explains(other, finding, incident) for other in asked):
            continue
        known = {piece.source for piece in finding.evidence}
        later = {
            piece.source: (dump, "a consequence" if is_of_same(finding, other, incident) else "it may follow from this")
            for other in asked
            if _explains(finding, other, incident)
            for piece in other.evidence
            if piece.source not in known and (dump := incident.dump(piece.source)) is not None
        }
        evidence = (said(dump, "verdict", meaning) for dump, meaning in later.values())
        yield finding.model_copy(update={"evidence": (*finding.evidence, *evidence)})


def _with_the_death(found: list[Finding], incident: Incident) -> list[Finding]:
    """Return `found` with the exception that ended the server as evidence of what was found first, and before it."""
    of_dumps = [finding for finding in found if not finding.is_note and resting_on([finding], incident)]
    first = sorted(ranked(of_dumps), key=lambda finding: began(finding, incident))[:1]
    places = incident.places
    deaths = [
        dump
        for dump in incident.of(rule=PROCESS_END)
        if first and began(first[0], incident) <= places[dump.manifest.dump_id]
    ]
    evidence = [said(dump, "scalars.message", _DEATH) for dump in deaths]
    return [
        finding.model_copy(update={"evidence": (*finding.evidence, *evidence)}) if finding in first else finding
        for finding in found
    ]


def _of_other_structures(found: Sequence[Finding], incident: Incident, failed: list[Finding]) -> list[Finding]:
    """Return what `request-rows` found of structures that nothing so far is about, beside the first that it found.

    Whether these follow from that one is not known.
    """
    first = next((one for one in found if one.rule == request_state_differs.ID), None)
    more: list[Finding] = []
    while first is not None:
        rest = incident.without(resting_on([*found, *more], incident))
        dumps = tuple(dump for dump in rest.dumps if dump.manifest.rule == REQUEST_ROWS)
        spoken = ask(request_state_differs.RULE, replace(rest, dumps=dumps), failed) if dumps else None
        if spoken is None or spoken.structure in {one.structure for one in (*found, *more)}:
            break
        told = (*spoken.ruled_out_if, _FOLLOWS.format(other=_what(first)))
        confidence = at_most(spoken.confidence, Confidence.LIKELY)
        more.append(spoken.model_copy(update={"confidence": confidence, "ruled_out_if": told}))
    return more


def _explains(cause: Finding, finding: Finding, incident: Incident) -> bool:
    return (
        finding.rule in _BY_ID[cause.rule].explains
        and _CERTAINTY.index(cause.confidence) <= _CERTAINTY.index(finding.confidence)
        and (seen(cause, incident) <= seen(finding, incident) or _settles(cause, finding, incident))
        and is_of_same(cause, finding, incident) is not False
    )


def _settles(cause: Finding, finding: Finding, incident: Incident) -> bool:
    """Return whether what is certain of the same step says what this is."""
    is_open = finding.confidence is Confidence.POSSIBLE and finding.structure is None
    at_once = seen(cause, incident)[0] == seen(finding, incident)[0]
    is_sure = cause.confidence is Confidence.CERTAIN and is_of_same(cause, finding, incident) is True
    return is_open and at_once and is_sure


def _account_for_faults(found: Sequence[Finding]) -> Iterator[Finding]:
    """Move each injected fault from its own finding to the cause that it is."""
    injected = next((finding for finding in found if finding.rule == injected_fault.ID), None)
    open_faults = {} if injected is None else {str(piece.value): piece for piece in injected.evidence}
    for finding in found:
        if finding is injected:
            continue
        mine = [open_faults.pop(fault) for fault in _faults_of(finding.rule) if fault in open_faults]
        if not mine:
            yield finding
            continue
        named = ", ".join(str(piece.value) for piece in mine)
        yield finding.model_copy(
            update={
                "cause": f"{finding.cause.removesuffix('.')} (injected on request: {named}).",
                "evidence": (*finding.evidence, *mine),
            }
        )
    if injected is not None and open_faults:
        yield injected.model_copy(update={"evidence": tuple(open_faults.values())})


def _hold_against_fix(finding: Finding, incident: Incident) -> Finding:
    attached = [(guards, guards.attached(finding.fix)) for guards in incident.guards if finding.fix]
    held = next(((guards, field) for guards, field in attached if field is not None), None)
    if held is None:
        return finding
    evidence = guarded(*held, f"the fix {finding.fix} was attached, and this happened all the same")
    confidence = Confidence.LIKELY if finding.confidence is Confidence.CERTAIN else finding.confidence
    # What was there already is nothing to do next.
    update = {
        "evidence": (*finding.evidence, evidence),
        "confidence": confidence,
        "kind": Kind.CAUSE,
        "fix": None,
        "advice": (*finding.advice, _FIX_DID_NOT_HELP.format(fix=finding.fix)),
        "next_commands": tuple(one for one in finding.next_commands if _ATTACHES not in one),
    }
    return finding.model_copy(update=update)


def _hold_against_damage(finding: Finding, incident: Incident) -> Finding:
    """Hold that nothing vouches for a manifest whose files are not what it says, and less for such a file."""
    damaged = [piece for piece in finding.evidence if rests_on_damage(piece, incident)]
    if not damaged and not (incident.beside_unread and not finding.is_note):
        return finding
    cap = Confidence.POSSIBLE if any(in_a_file(piece) for piece in damaged) else Confidence.LIKELY
    return finding.model_copy(update={"confidence": at_most(finding.confidence, cap)})


def hold_against_each_other(found: list[Finding], incident: Incident) -> list[Finding]:
    """Take certainty from findings beside which another one may be the first cause, and say what would tell."""

    def judged(finding: Finding) -> Finding:
        rivals = [other for other in found if other is not finding and _may_be_first(other, finding, incident)]
        if not rivals or finding.confidence is Confidence.POSSIBLE:
            return finding
        told = dict.fromkeys(_WHICH_IS_FIRST.format(other=_what(other)) for other in rivals)
        new = tuple(sentence for sentence in told if sentence not in finding.ruled_out_if)
        update = {"confidence": at_most(finding.confidence, Confidence.LIKELY)}
        return finding.model_copy(update=update | {"ruled_out_if": (*finding.ruled_out_if, *new)})

    return [judged(finding) for finding in found]


def _what(finding: Finding) -> str:
    return f"{finding.rule} of the {finding.structure.value}" if finding.structure else finding.rule


def _may_be_first(other: Finding, finding: Finding, incident: Incident) -> bool:
    """Return whether `other` says that something else was wrong, where it cannot follow from `finding`.

    What was looked at in a later step follows. Of one step two that are certain of different structures are both
    open, whatever they are about; one that is only likely is open where it is of the same page or request.
    """
    if not (resting_on([other], incident) and resting_on([finding], incident)) or other.is_note or finding.is_note:
        return False
    if other.confidence is Confidence.POSSIBLE:
        return False
    differs = bool(other.structure and finding.structure and other.structure is not finding.structure)
    at_once = seen(other, incident)[0] == seen(finding, incident)[0]
    if differs and at_once and other.confidence is finding.confidence is Confidence.CERTAIN:
        return True
    if seen(other, incident)[0] > began(finding, incident)[0]:
        return False
    same = (other.structure, other.defect) == (finding.structure, finding.defect)
    return other.rule != finding.rule and not same and is_of_same(other, finding, incident) is True


def _with_all_owners(finding: Finding, incident: Incident) -> Finding:
    # What a damaged dump says of them would be one more thing that nothing vouches for.
    whole = [piece for piece in finding.evidence if not rests_on_damage(piece, incident)]
    dumps = ((piece, incident.dump(piece.source)) for piece in whole)
    before = [one for piece, dump in dumps if dump is not None for one in owners_before(piece, dump)]
    return finding.model_copy(update={"evidence": (*finding.evidence, *before)}) if before else finding


def rests_on_damage(piece: Evidence, incident: Incident) -> bool:
    """Return whether a piece of evidence is of a dump whose files are not what its manifest says, or may not be."""
    dump = incident.dump(piece.source)
    return dump is not None and bool(dump.damage or dump.not_hashed)
