"""Nodes of the prefix cache do not hang together: a link, a lock or a list of them is wrong."""

from collections.abc import Iterator

from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import said
from gemma4_triage.diagnose.incident import LEAK, PROCESS_END, Incident
from gemma4_triage.diagnose.rule import FOLLOWS_FROM_AN_ENTRY, LOSES_PAGES, Exclusion, Rule, in_dump
from gemma4_triage.finding import Confidence, Finding

ID = "tree-broken"
_FIELD = "tree_broken"
_KINDS: dict[str, tuple[Structure, Defect, str, str]] = {
    "another parent": (
        *(Structure.TREE_NODE, Defect.STALE),
        "names another node as its parent than the one that has it as a child, so that walks to the root (locks, "
        "unlocks, prefixes) pass that one by",
        "Look at what moves a node: _split_node has to give the lower part its new parent, and that its old one.",
    ),
    "gone and still a child": (
        *(Structure.TREE_NODE, Defect.STALE),
        "was evicted or removed and is still among its parent's children, so that a match finds it, and pages that are "
        "free or somebody else's",
        "Look at what takes a node out of its parent (_remove_leaf_from_parent): its key has to be the one that it has "
        "there.",
    ),
    "cut off": (
        *(Structure.TREE_NODE, Defect.LOST),
        "cannot be reached from its root, and it counts it as its own all the same: what lay above was evicted or "
        "removed while this hung on it",
        "Look at which nodes count as leaves (_is_device_leaf), and at what takes a node out of its parent.",
    ),
    "locks below zero": (
        *(Structure.TREE_LOCK, Defect.NEGATIVE),
        "has fewer than no locks: it was unlocked once more than it was locked",
        "Compare inc_lock_ref and dec_lock_ref: each hold has to end once, on the node it began on.",
    ),
    "fewer locks than below": (
        *(Structure.TREE_LOCK, Defect.LOST),
        "has fewer locks than its children have together, where who locks a node locks all above it: a lock was left "
        "out on the way to the root, or taken off twice",
        "Compare inc_lock_ref and dec_lock_ref, and what _split_node copies: both walk from a node to the root.",
    ),
    "window locked alone": (
        *(Structure.TREE_LOCK, Defect.LOST),
        "has more locks on its sliding window than on itself: its own were taken off, or never taken",
        "Compare inc_lock_ref and dec_lock_ref of both of a node's counts.",
    ),
    "not a leaf": (
        *(Structure.TREE_LOCK, Defect.EARLY),
        "is on the list of leaves that may be evicted, and has children, a lock or no tokens: evicting it cuts off, or "
        "takes away, what is in use",
        "Look at which nodes count as leaves (_is_device_leaf, _update_evictable_leaf_sets).",
    ),
    "listed without a window": (
        *(Structure.TREE_NODE, Defect.STALE),
        "is on the list by which sliding windows are evicted, and has none any more",
        "Look at what gives a node's window up: it has to leave that list then.",
    ),
    "unlisted window": (
        *(Structure.TREE_NODE, Defect.LOST),
        "has a sliding window and is not on the list by which these are evicted, so that it is never given back",
        "Look at what gives a node its window (insert, _split_node): it has to join that list then.",
    ),
    "unlisted leaf": (
        *(Structure.TREE_NODE, Defect.LOST),
        "is a leaf without a lock and not on the list of those that may be evicted, so that it is never given back",
        "Look at what updates that list when a child or a lock goes (_update_evictable_leaf_sets).",
    ),
}
"""In the order in which one is what the others follow from."""
_FOLLOW = ("scheduler-exception", "pool-count-wrong", "lock-left-over", "lock-released-twice")
_BEFORE_PAGES = ("another parent", "gone and still a child", "cut off")


def find(incident: Incident) -> Finding | None:
    """Return a finding where an audit, or the dump of an exception, found a node wrong that way."""
    for dump in (*incident.of(rule=LEAK), *incident.of(rule=PROCESS_END)):
        counts = _counts(dump)
        kind = next((one for one in _KINDS if one in counts), None)
        # Beside pages that are lost, shared or freed, what else is wrong in the tree may follow from that.
        if kind is not None and (dump.manifest.verdict in ("tree_broken", "exception") or kind in _BEFORE_PAGES):
            return _finding(incident, dump, kind, counts)
    return None


def _counts(dump: Dump) -> dict[str, int]:
    text = dump.manifest.scalars.get(_FIELD)
    pairs = (one.rpartition(":") for one in str(text or "").split(","))
    return {kind: int(count) for kind, _, count in pairs if kind in _KINDS and count.isdecimal()}


def _finding(incident: Incident, dump: Dump, kind: str, counts: dict[str, int]) -> Finding:
    structure, defect, words, advice = _KINDS[kind]
    others = [f"{one} ({count})" for one, count in counts.items() if one != kind]
    beside = f" Nodes are wrong in other ways too, which may follow from it: {', '.join(others)}." if others else ""
    number = counts[kind]
    nodes = "A node" if number == 1 else f"Each of {number} nodes"
    died = dump.manifest.rule == PROCESS_END
    when = " when the scheduler died of an exception" if died else ""
    return Finding(
        rule=ID,
        structure=structure,
        defect=defect,
        cause=f"{nodes} of the prefix cache{when} {words}.{beside}",
        confidence=Confidence.CERTAIN,
        evidence=(
            said(dump, f"scalars.{_FIELD}", "what is wrong with how many nodes"),
            said(dump, "step", "when it was seen first"),
            *((said(dump, "scalars.message", "what the exception said"),) if died else ()),
            *(
                said(one, f"scalars.{_FIELD}", "the same, beside what else is wrong")
                for one in _beside(incident, dump, kind)
            ),
        ),
        advice=(advice, "A flush_cache makes the tree anew."),
        next_commands=(commands.show(dump) if died else commands.audit(dump),),
    )


def _beside(incident: Incident, dump: Dump, kind: str) -> Iterator[Dump]:
    """Yield, of each other verdict of an audit, the first dump that has such a node as well."""
    known = {dump.manifest.verdict}
    for one in incident.of(rule=LEAK):
        if kind in _BEFORE_PAGES and kind in _counts(one) and one.manifest.verdict not in known:
            known.add(one.manifest.verdict)
            yield one


def _half_done(dump: Dump) -> bool | None:
    """Return None of an exception, which may have come out of the middle of a change; an audit runs between steps."""
    return None if dump.manifest.rule == PROCESS_END else False


RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion(
            "the exception came out of the middle of a change to the tree, which was half done", in_dump(_half_done)
        ),
    ),
    explains=(
        *FOLLOWS_FROM_AN_ENTRY,
        "scheduler-exception",
        "pool-count-wrong",
        "lock-left-over",
        "lock-released-twice",
    ),
    leads_to=LOSES_PAGES,
)
