"""Request slots that are free and held: what is said of them, and whether their hand-out left them on the list."""

from gemma4_dumps.audit_findings import suspects
from gemma4_dumps.errors import DumpError
from gemma4_dumps.reader import Dump
from gemma4_triage.diagnose.census import FREE_AND_HELD
from gemma4_triage.diagnose.freed_pages import of_request_slots

SLOTS = (
    "A request slot is on the list of free ones although its request runs, so that the next request may get the same "
    "row of req_to_token: it was given back too early or twice, or something else wrote the list."
)
SLOTS_LEFT = SLOTS.partition(":")[0] + ": the call that gave it to the request left it there (ReqToTokenPool.alloc)."
AT_SLOTS = (
    "The ledger keeps no history of request slots: look at who calls ReqToTokenPool.free, and how often.",
    "Look at how ReqToTokenPool.alloc takes slots off free_slots: as many as it gives.",
)
"""Where to look; the second where the hand-out left them."""


def left_by_the_hand_out(dump: Dump) -> bool:
    """Return whether all request slots that are free and held were on the list when they had just been given out."""
    text = str(dump.manifest.scalars.get("slots_left_listed") or "")
    try:
        slots = {one.page for one in suspects(dump) if one.fault == FREE_AND_HELD}
    except DumpError:
        return False
    return of_request_slots(dump, FREE_AND_HELD) and slots <= {int(one) for one in text.split(",") if one.isdecimal()}
