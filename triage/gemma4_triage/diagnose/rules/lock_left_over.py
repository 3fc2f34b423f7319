"""Nodes of the prefix cache stay locked, and no request is left."""

from gemma4_dumps.audit_findings import TABLE
from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.census import LOCKED, first_census
from gemma4_triage.diagnose.evidence import cell, said
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.diagnose.rule import LOSES_PAGES, Exclusion, Rule, Seen
from gemma4_triage.finding import Confidence, Finding

ID = "lock-left-over"


_AT_IDLE = (
    "The prefix cache counts one lock too many: every request has ended and given its pages and its slot back, and "
    "nodes are locked all the same."
)
_OF_WINDOW = (
    " What is locked is of the window alone (SWA), whose part of a lock may be given back ahead of the rest "
    "(dec_swa_lock_only), after which a mark at the lock (swa_released) has its release leave that part out: it was "
    "set without that, or the release left it out without the mark."
)
_WAITS = (
    "Requests wait and none runs: the prefix cache counts locks that nobody holds, as of requests that were retracted "
    "or ended, and evicts nothing of what is locked. "
)
_NO_ROOM = "The pool has little room beside it, so that it may be all that they wait for."
_HAS_ROOM = "The pool has room beside it: whether that is what they wait for is not known."
_SIZES = ("available", "evictable", "total")
_LITTLE = 0.25  # of the pool's tokens


def find(incident: Incident) -> Finding | None:
    """Return a finding where an audit found locks alone."""
    census = first_census(incident)
    locked = () if census is None else tuple(one for one in census.listed if one.suspect.fault == LOCKED)
    if not locked:
        return None
    first = locked[0]
    # A node's two counts are told apart by whose pool has locked tokens left.
    stands = first.dump.manifest.site == "standstill"
    pool = "full" if first.dump.manifest.scalars.get("full_protected") else "swa"
    return Finding(
        rule=ID,
        structure=Structure.TREE_LOCK,
        defect=Defect.OFF_BY_ONE,
        cause=_at_standstill(first.dump) if stands else _AT_IDLE + (_OF_WINDOW if pool == "swa" else ""),
        confidence=Confidence.CERTAIN,
        evidence=(
            said(first.dump, "offence_count", "their pages"),
            cell(first.dump, TABLE, (first.row, 0), "the first of them"),
            said(first.dump, f"scalars.{pool}_protected", "tokens locked in the cache, with no request that runs"),
            said(first.dump, "site", "when it ran"),
        ),
        advice=(
            "Compare inc_lock_ref and dec_lock_ref of the last owner: each hold has to end on the node it began on.",
            "They are never evicted until a flush_cache"
            + (", which is refused while requests wait (abort them, or pause generation, first)" if stands else "")
            + " or a restart.",
        ),
        next_commands=(commands.audit(first.dump),),
    )


def _at_standstill(dump: Dump) -> str:
    """Return what is said of locks while requests wait: whether there is room beside what is locked."""
    scalars, lists = dump.manifest.scalars, []
    for pool in ("full", "swa"):
        named = (scalars.get(f"{pool}_{name}") for name in _SIZES)
        numbers = [one for one in named if isinstance(one, int)]
        if len(numbers) == len(_SIZES) and numbers[-1]:
            lists.append(sum(numbers[:-1]) / numbers[-1])
    return _WAITS + (_NO_ROOM if lists and min(lists) < _LITTLE else _HAS_ROOM)


def _others_are_wrong(seen: Seen) -> bool:
    census = first_census(seen.incident)
    return census is not None and any(one.suspect.fault != LOCKED for one in census.listed)


RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion(
            "a page or a request slot is out of place too: then its request was never released", _others_are_wrong
        ),
        Exclusion("a request never ended its hold, and nobody raised the count"),
    ),
    explains=("pages-leaked",),
    leads_to=LOSES_PAGES,
)
