"""New slots of a batch that were written into a row at another place, or into another request's row."""

from __future__ import annotations

from dataclasses import dataclass

from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect
from gemma4_triage.diagnose.evidence import said
from gemma4_triage.finding import Evidence

_FEWEST = 2
"""New slots of a run, before where it stands tells how it came there."""


@dataclass(frozen=True)
class Misplaced:
    """What a row has in the place of its request's new slots.

    Attributes:
        cause: The sentence.
        defect: In which way the row is wrong.
        evidence: Where they stand and where they belong.
        sure: Whether something else than who owns the pages says that the row is wrong, and not the list.
    """

    cause: str
    defect: Defect | None
    evidence: tuple[Evidence, ...]
    sure: bool


def misplaced_slots(dump: Dump) -> Misplaced | None:
    """Return where the new slots of a wrong row's request stand, or whose stand in their place; None if it is not seen.

    Args:
        dump: One of `request-rows`.
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
        return Misplaced(cause, Defect.OFF_BY_ONE if abs(at - belong) == 1 else None, shown, sure)
    if not isinstance(apart, int):
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
    return Misplaced(cause, Defect.FOREIGN if of != slot else None, shown, sure)
