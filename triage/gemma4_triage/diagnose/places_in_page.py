"""What is said of a mapping that leads to a page's own SWA page, and to other places there than its slots have."""

from dataclasses import dataclass

from gemma4_dumps.structures import Defect
from gemma4_triage.diagnose.census import Listed


@dataclass(frozen=True)
class Within:
    """What is said of such a page, and in which way its mapping is wrong."""

    cause: str
    defect: Defect | None


def within_its_page(listed: Listed) -> Within | None:
    """Return what is said of a page whose mapping leads to its own SWA page, and to other places there; None if not."""
    scalars, size = listed.dump.manifest.scalars, listed.dump.manifest.page_size or 1
    told = [one.split(":") for one in str(scalars.get("out_of_place") or "").split(",")]
    every = [tuple(map(int, one)) for one in told if len(one) == 3 and all(part.isdecimal() for part in one)]
    own = [one for one in every if one[0] // size == listed.page]
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
