"""What is said of a mapping that leads to a page's own SWA page, and to other places there than its slots have."""

from dataclasses import dataclass

from gemma4_dumps.structures import Defect
from gemma4_triage.diagnose.census import Listed


@dataclass(frozen=True)
class Within:
    """What is said of such a page, and in which way its mapping is wrong."""

    cause: str
    defect: Defect | None


def led_apart(listed: Listed) -> Within | None:
    """Return what is said of pages some of whose slots lead elsewhere than the rest of them; None if none do."""
    every = _slots_of(listed, "led_apart")
    if not every or listed.dump.manifest.scalars.get("led_apart_count") != len(every):
        return None
    size = listed.dump.manifest.page_size or 1
    own = [one for one in every if one[0] // size == listed.page]
    if not own:
        return None
    turned = len(every) > 1 and sorted(leads for _, leads, _ in every) == sorted(belongs for *_, belongs in every)
    slot, leads, belongs = own[0]
    slots = "A slot" if len(every) == 1 else f"{len(every)} slots"
    lead = "leads" if len(every) == 1 else "lead"
    exchanged = " Their entries are exchanged." if turned else ""
    cause = (
        f"{slots} of pages that are in use {lead} to another SWA page than the rest of the page, which leads to the "
        "one that was handed out with it: the hand-out was right, and entries of the full-to-SWA mapping were written "
        f"wrong, with it or since. Slot {slot} leads to {leads} where {belongs} belongs.{exchanged}"
    )
    apart = {abs(leads - belongs) for _, leads, belongs in every}
    defect = Defect.SWAPPED if turned else Defect.OFF_BY_ONE if apart <= {1, size} else None
    return Within(cause, defect)


def _slots_of(listed: Listed, name: str) -> list[tuple[int, ...]]:
    """Return the slots that an audit's dump lists by that name, where each leads, and where it belongs."""
    told = [one.split(":") for one in str(listed.dump.manifest.scalars.get(name) or "").split(",")]
    return [tuple(map(int, one)) for one in told if len(one) == 3 and all(part.isdecimal() for part in one)]


def within_its_page(listed: Listed) -> Within | None:
    """Return what is said of a page whose mapping leads to its own SWA page, and to other places there; None if not."""
    size = listed.dump.manifest.page_size or 1
    own = [one for one in _slots_of(listed, "out_of_place") if one[0] // size == listed.page]
    if not own:
        return None
    slot, leads, belongs = own[0]
    turned = len(own) > 1 and sorted(leads for _, leads, _ in own) == sorted(belongs for *_, belongs in own)
    how = ": they are exchanged" if turned and len(own) == 2 else ": they are in another order" if turned else ""
    slots = "a slot" if len(own) == 1 else f"{len(own)} slots"
    cause = (
        f"The full-to-SWA mapping of {slots} of a page that is in use leads to other places of the page's own SWA page "
        f"than {'its' if len(own) == 1 else 'their'} own{how}. Slot {slot} leads to {leads} where {belongs} belongs; "
        "sliding layers store and read such a token at another one's place."
    )
    apart = {abs(leads - belongs) for _, leads, belongs in own}
    return Within(cause, Defect.SWAPPED if turned else Defect.OFF_BY_ONE if apart == {1} else None)
