"""What else dumps of `request-rows` tell: new slots at another place, nodes that were evicted, counts of others."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose.evidence import said
from gemma4_triage.finding import Evidence

_FEWEST = 2
"""New slots of a run, before where it stands tells how it came there."""


@dataclass(frozen=True)
class Told:
    """What is wrong, and how.

    Attributes:
        cause: The sentence.
        defect: In which way it is wrong.
        evidence: What says so.
        sure: Whether nothing else can be wrong.
        structure: What is wrong.
    """

    cause: str
    defect: Defect | None
    evidence: tuple[Evidence, ...]
    sure: bool
    structure: Structure = Structure.REQUEST_ROW


def told_by(dump: Dump) -> Told | None:
    """Return what a dump of `request-rows` tells by more than its first entry; None where it does not."""
    return _misplaced_slots(dump) or _evicted_nodes(dump) or _counts_of_others(dump)


def _evicted_nodes(dump: Dump) -> Told | None:
    """Return that the cache evicted what a running request reads of it, where its nodes are gone."""
    scalars = dump.manifest.scalars
    names = ("why", "as_before", "nodes_are_gone", "page_free_site")
    if tuple(scalars.get(name) for name in names) != ("shared", True, True, "evict_tree"):
        return None
    cause = (
        f"The prefix cache evicted nodes that the running request in slot {scalars.get('request_slot')} reads, and "
        "another has their pages: what chooses the leaves to evict does not heed the request's lock, or the lock was "
        "released before."
    )
    shown = (
        said(dump, "scalars.page_free_site", "who gave that page back"),
        said(dump, "scalars.page_free_step", "when that was"),
        said(dump, "scalars.nodes_are_gone", "whether the cache has the request's nodes no more"),
    )
    return Told(cause, Defect.EARLY, shown, False, Structure.TREE_LOCK)


def _counts_of_others(dump: Dump) -> Told | None:
    """Return that requests count as theirs what others of the batch were given slots up to; None where they do not."""
    scalars = dump.manifest.scalars
    begins, ends, counts = (_numbers(scalars.get(name)) for name in ("taken_from", "taken_until", "counted"))
    if scalars.get("structure") != Structure.REQUEST_COUNTERS or not len(begins) == len(ends) == len(counts) > 1:
        return None
    raised = [count for begin, count in zip(begins, counts, strict=True) if count > begin]
    kept = [count for begin, count in zip(begins, counts, strict=True) if count == begin]
    left = Counter(ends) - Counter(raised)
    # A count is never made smaller: who got a smaller length than its own has what it had.
    in_order = zip(sorted(left.elements()), sorted(kept), strict=False)
    if not raised or len(raised) + len(kept) < len(counts) or left.total() != len(kept):
        return None
    if not all(end <= count for end, count in in_order) or all(map(int.__eq__, counts, ends)):
        return None
    cause = (
        "The lengths up to which a step took slots ahead were noted at other requests of the batch than it took them "
        f"for: that in slot {scalars.get('request_slot')} counts {scalars.get('value')}, too few for what it writes."
    )
    shown = (
        said(dump, "scalars.taken_until", "up to where each request of the batch was given slots"),
        said(dump, "scalars.counted", "what each counts: the same lengths in another order, or what it had before"),
    )
    return Told(cause, Defect.SWAPPED, shown, True, Structure.REQUEST_COUNTERS)


def _numbers(listed: object) -> list[int]:
    return [int(one) for one in listed.split(",") if one] if isinstance(listed, str) else []


def _misplaced_slots(dump: Dump) -> Told | None:
    """Return where the new slots of a wrong row's request stand, or whose stand in their place; None if it is not seen.

    It is sure where more than the owners of pages says that the row is wrong, and not the list of new slots.
    """
    scalars = dump.manifest.scalars
    slot, sure = scalars.get("request_slot"), scalars.get("why") != "owner"
    names = ("new_slots_at", "new_slots_belong", "new_slots_of", "new_slots_apart", "new_slots")
    at, belong, of, apart, count = (scalars.get(name) for name in names)
    if not isinstance(count, int) or count < _FEWEST:
        return None
    its = f"The row of the request in slot {slot}"
    if isinstance(at, int) and isinstance(belong, int):
        place = "its begin" if at == 0 else f"token {at}"
        rest = "what it had of a prefix is overwritten" if at < belong else "tokens before them are without one"
        cause = (
            f"{its} has the step's {count} new slots from {place} on, and they belong from token {belong} on: {rest}, "
            "and the new tokens keep what stood there."
        )
        shown = (
            said(dump, "scalars.new_slots_at", "the token from which on the row has this forward's new slots"),
            said(dump, "scalars.new_slots_belong", "the token from which on it should"),
        )
        return Told(cause, Defect.OFF_BY_ONE if abs(at - belong) == 1 else None, shown, sure)
    # What changed since it was looked at, or was exchanged, was not written so as the slots came.
    if not isinstance(apart, int) or scalars.get("why") == "changed" or scalars.get("defect") == Defect.SWAPPED:
        return None
    cause = (
        f"{its} has other new slots of the step's list than its own: those that stand {abs(apart)} entries "
        f"{'before' if apart < 0 else 'behind'} them, beginning with those of the request in slot {of}. What writes "
        "the list into rows counts wrongly where each request's begin."
    )
    shown = (
        said(dump, "scalars.new_slots_of", "the request whose new slots stand there, by the forward's list"),
        said(dump, "scalars.new_slots_apart", "so far from its own in that list"),
    )
    return Told(cause, Defect.FOREIGN if of != slot else None, shown, sure)
