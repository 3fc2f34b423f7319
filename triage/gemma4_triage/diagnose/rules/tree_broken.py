"""Nodes of the prefix cache do not hang together: a link, a lock or a list of them is wrong."""

from collections.abc import Iterator

from gemma4_dumps.reader import Dump
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import said
from gemma4_triage.diagnose.incident import LEAK, PROCESS_END, Incident
from gemma4_triage.diagnose.rule import FOLLOWS_FROM_AN_ENTRY, LOSES_PAGES, Exclusion, Rule, in_dump
from gemma4_triage.diagnose.tree_kinds import (
    COUNTS,
    GONE,
    KINDS,
    LEFT_OVER,
    OF_LOCKS,
    OF_VALUES,
    OTHER_TEXT,
    OTHER_WINDOW,
    PROTECTED,
    SAME_TEXT,
    SPLIT,
    WINDOW,
    counts_of,
    half_done,
)
from gemma4_triage.finding import Confidence, Finding

ID = "tree-broken"
_FIELD, _BESIDE = "tree_broken", "the same, beside what else is wrong"
_FOLLOW = ("scheduler-exception", "pool-count-wrong", "lock-left-over", "lock-released-twice")
_SLOTS = ("fewer slots than tokens", "more slots than tokens")
_BEFORE_PAGES = ("child of two", "another parent", GONE, *_SLOTS, *OF_VALUES, "not a child", "cut off")


def find(incident: Incident) -> Finding | None:
    """Return a finding where an audit, or the dump of an exception, found a node wrong that way."""
    for dump in (*incident.of(rule=LEAK), *incident.of(rule=PROCESS_END)):
        counts = counts_of(dump)
        kind = next((one for one in KINDS if one in counts), None)
        # Beside pages that are lost, shared or freed, what else is wrong in the tree may follow from that.
        if kind is not None and (dump.manifest.verdict in ("tree_broken", "exception") or kind in _BEFORE_PAGES):
            return _finding(incident, dump, kind, counts)
    return None


def _finding(incident: Incident, dump: Dump, kind: str, counts: dict[str, int]) -> Finding:
    structure, defect, words, advice = KINDS[kind]
    parted = all(one in counts for one in _SLOTS)
    others = [f"{one} ({count})" for one, count in counts.items() if one != kind and not (parted and one in _SLOTS)]
    beside = f" Nodes are wrong in other ways too, which may follow from it: {', '.join(others)}." if others else ""
    beside = (SPLIT if parted and kind in _SLOTS else "") + beside
    idle = _idle_with_windows_locked(incident, dump) if kind == WINDOW else None
    if idle is not None:
        words, defect, advice = LEFT_OVER
    number = counts[kind]
    died = dump.manifest.rule == PROCESS_END
    nodes = "a node" if number == 1 else f"each of {number} nodes"
    # Of stamps it is requests that are counted, and of counts tokens.
    nodes = "a node" if kind in (*OF_LOCKS, *COUNTS) else nodes
    when = f"As the scheduler died of an exception, {nodes}" if died else nodes.capitalize()
    return Finding(
        rule=ID,
        structure=structure,
        defect=defect,
        cause=f"{when} of the prefix cache {words}.{beside}",
        confidence=Confidence.LIKELY if kind in (OTHER_WINDOW, OTHER_TEXT, SAME_TEXT) else Confidence.CERTAIN,
        evidence=(
            said(dump, f"scalars.{_FIELD}", "what is wrong with how many nodes"),
            said(dump, "step", "when it was seen first"),
            *((said(dump, "scalars.message", "what the exception said"),) if died else ()),
            *(said(one, f"scalars.{name}", "with no request left") for one in [idle] if one for name in PROTECTED),
            *(said(one, f"scalars.{_FIELD}", _BESIDE) for one in _beside(incident, dump, kind)),
        ),
        advice=(advice, "A flush_cache makes the tree anew."),
        next_commands=(commands.show(dump) if died else commands.audit(dump),),
    )


def _idle_with_windows_locked(incident: Incident, first: Dump) -> Dump | None:
    """Return a later audit of the same process with no request left, in which windows alone have locks still.

    No node of its own is locked then, so that none lacks one.
    """
    began = first.manifest
    for dump in incident.of(rule=LEAK):
        scalars, host, step = dump.manifest.scalars, dump.manifest.host, dump.manifest.step
        same = (host.pid, host.hostname) == (began.host.pid, began.host.hostname) and WINDOW in counts_of(dump)
        same &= step is not None and began.step is not None and step >= began.step
        held = [scalars.get(name) for name in (*PROTECTED, "full_session_held")]
        if (
            same
            and dump.manifest.site in ("idle", "standstill")
            and not scalars.get("running")
            and held[0] == held[2] == 0
            and held[1]
        ):
            return dump
    return None


def _beside(incident: Incident, dump: Dump, kind: str) -> Iterator[Dump]:
    """Yield, of each other verdict of an audit, the first dump that has such a node as well."""
    known = {dump.manifest.verdict}
    for one in incident.of(rule=LEAK):
        if kind in _BEFORE_PAGES and kind in counts_of(one) and one.manifest.verdict not in known:
            known.add(one.manifest.verdict)
            yield one


def _may_be_the_other(dump: Dump) -> bool | None:
    """Return None where a node and what it is held against differ, and nothing says which of them was changed."""
    first = next((one for one in KINDS if one in counts_of(dump)), None)
    return None if first in (OTHER_WINDOW, OTHER_TEXT) else False


def _may_be_the_count(dump: Dump) -> bool | None:
    """Return None where either the link or what the cache counts as its nodes is wrong."""
    counts = counts_of(dump)
    kind = next((one for one in KINDS if one in counts), None)
    return None if kind in (GONE, "not a child") else False


RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion(
            "the node has what it was given, and the map was changed, or its slots were written again",
            in_dump(_may_be_the_other),
        ),
        Exclusion(
            "two requests with the same text were given the same slots, and put them in one after the other",
            in_dump(lambda dump: None if SAME_TEXT in counts_of(dump) else False),
        ),
        Exclusion("the link is right, and the cache lost count of the node or kept it", in_dump(_may_be_the_count)),
        Exclusion(
            "the exception came out of the middle of a change to the tree, which was half done", in_dump(half_done)
        ),
    ),
    explains=(*FOLLOWS_FROM_AN_ENTRY, *_FOLLOW),
    leads_to=LOSES_PAGES,
)
