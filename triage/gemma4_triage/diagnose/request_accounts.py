"""Accounts of one request that contradict each other in a dump of `request-rows`, and which of them is outvoted."""

from collections.abc import Iterator

from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose.accounts_of_a_batch import (
    BEHIND,
    ENTRIES,
    GONE_AHEAD,
    NOT_LOCKED,
    PASSED_OVER,
)
from gemma4_triage.diagnose.evidence import said
from gemma4_triage.diagnose.freed_pages import lost_by_a_count
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.diagnose.relation import is_within_its_page
from gemma4_triage.finding import Evidence

BOUNDS = {"cu_seqlens_q": "queries", "cu_seqlens_k": "keys"}
"""Why an entry is wrong that says where a request's part of a forward ends, and what that is a part of."""
NAMESPACE, IN_PAGE, PART_OF_PAGE = "namespace", "place in its page", "part of a page"
BOTH_SIDES = (
    *("changed", "unlike", "fell", "moved", "owner", "unlocked", "reserved", "host", "begin", "size", "again"),
    *(NAMESPACE, IN_PAGE, PART_OF_PAGE, *BOUNDS, ENTRIES, PASSED_OVER, BEHIND, GONE_AHEAD, NOT_LOCKED),
)
"""Why an entry is wrong, where the dump has what it should be as well."""
TOKENS, NONE = "tokens", "none"
"""Which account of a request's length the two others outvote, where it is not what stands in `structure`."""
# PREFIX: the row and the nodes that its request holds differ; which of them changed, what the row had before says.
RELEASED, PREFIX, UNLOCKED, SAME_ROW, SHARED = "released", "prefix", "unlocked", "same row", "shared"
RESERVED, EMPTY, ANOTHERS = "reserved", "empty", "another's lock"
CHECKED = "checked"
"""What a dump says of owners where the leak ledger was asked."""


def may_have_been_evicted(dump: Dump) -> bool | None:
    """Return None where a request counts more as gone from its window than it did, and may have given that back.

    What it counts more has no slots of the window then; where all of it has, the count alone has changed.
    """
    scalars = dump.manifest.scalars
    value, expected, kept, left = (scalars.get(name) for name in ("value", "expected", "own_kept", "own_left"))
    grown = isinstance(value, int) and isinstance(expected, int) and value > expected
    of_window = scalars.get("why") == "changed" and scalars.get("counter") == "swa_evicted_seqlen"
    return None if of_window and grown and (not kept or kept != left) else False


def missed_pages(incident: Incident) -> Iterator[Evidence]:
    """Yield what an audit took for lost because the request's wrong count does not reach it."""
    audit = lost_by_a_count(incident)
    if audit is not None:
        yield said(
            audit, "offence_count", "pages of its own that an audit took for lost: the count does not reach them"
        )


def counter_of(dump: Dump) -> str:
    """Return the name of the request's count that is wrong, in parentheses; "" where the dump has none."""
    name = dump.manifest.scalars.get("counter")
    return f" ({name})" if isinstance(name, str) and name.isidentifier() else ""


def is_known(dump: Dump) -> bool:
    """Return whether the dump has both sides, and which of them is wrong."""
    scalars = dump.manifest.scalars
    why, expected, had = scalars.get("why"), scalars.get("expected"), scalars.get("row_had")
    of_row = why == PREFIX and ((isinstance(had, int) and had == expected) or scalars.get("first_look") is True)
    return (why in BOTH_SIDES and isinstance(expected, int)) or of_row


def is_left_behind(dump: Dump) -> bool:
    """Return whether a row has a page that the prefix cache was never given, and its node one that it was given."""
    scalars = dump.manifest.scalars
    is_old = scalars.get("why") == PREFIX and scalars.get("as_before") is True
    apart = scalars.get("page_event") in ("handed_out", "owned", "free_asked", "freed")
    return is_old and apart and scalars.get("node_page_event") == "given"


def is_reordered(dump: Dump) -> bool:
    """Return whether a row got its own pages in another order since the check before, when the cache had them."""
    scalars = dump.manifest.scalars
    had, swapped = scalars.get("row_had"), scalars.get("defect") == Defect.SWAPPED
    return scalars.get("why") == "moved" and swapped and isinstance(had, int) and had == scalars.get("expected")


def slots_given_again(dump: Dump) -> tuple[str, bool] | None:
    """Return as a clause that tokens which had slots got others; None where the page that stands there is not new.

    With it, whether that page is the request's own; another's may have come into the row.
    """
    scalars = dump.manifest.scalars
    event, why, slot = (scalars.get(name) for name in ("page_event", "why", "request_slot"))
    if is_within_its_page(dump):
        return None
    if why == "owner" and event == "handed_out" and scalars.get("page_was_own") is False:
        said = "that page was handed out and is nobody's yet: these tokens got slots once more, or another request's "
        return f"{said}slots went into this row", False
    had, expected = scalars.get("row_had"), scalars.get("expected")
    of_cache = why == PREFIX and isinstance(had, int) and had == expected and scalars.get("node_page_event") == "given"
    # A page that the row has elsewhere too is no new one, and of one entry alone it is not told.
    of_cache &= scalars.get("defect") is None and (dump.manifest.offence_count > 1 or dump.manifest.page_size == 1)
    if of_cache and event in ("owned", "handed_out") and scalars.get("page_owner") == slot:
        said = "the page is a new one of its own: these tokens, which the prefix cache has, got slots once more, as "
        return f"{said}where a prefix is taken to be shorter than it is", True
    in_use, owner = ("owned", "handed_out"), scalars.get("page_owner")
    # A page that the row has elsewhere, or another's, is not new: its defect says so.
    is_new = why == "changed" and scalars.get("as_before") is False and scalars.get("defect") is None
    kept = scalars.get("had_page_event") in in_use and scalars.get("had_page_owner") == slot
    if is_new and kept and event in in_use and owner in (None, slot):
        said = (
            "that page is a new one, and nobody gave back the one that these tokens had: they got slots once more, as "
            "where the count of those that it has (kv_allocated_len) is too small"
        )
        return (said, True) if owner == slot else (f"{said}, or another request's slots went into this row", False)
    return None


def may_be_the_node(dump: Dump) -> bool | None:
    """Return None where a row was written again in another order: whether its nodes have that order is not known."""
    return None if is_reordered(dump) and dump.manifest.scalars.get("structure") == Structure.TREE_NODE else False


def own_slot_changed(dump: Dump) -> bool:
    """Return whether the request's own record of its slot changed since its row was looked at, and not the batch."""
    before = dump.manifest.scalars.get("slot_before")
    return before is not None and before != dump.manifest.scalars.get("expected")


def moved_alone(dump: Dump) -> bool:
    """Return whether the batch has the slot where the request was when its row was looked at, whatever its order is."""
    scalars = dump.manifest.scalars
    return own_slot_changed(dump) and scalars.get("slot_before") == scalars.get("value")


def of_its_slot(dump: Dump) -> tuple[Structure | None, str, Defect | None] | None:
    """Return what is wrong, and how, where a request's record has another slot than it had; None where it has not."""
    if not own_slot_changed(dump):
        return None
    slot, now = (dump.manifest.scalars.get(name) for name in ("request_slot", "expected"))
    said = f"The request that was in slot {slot}, as its batch still has it, is in {now} by its own record"
    if not moved_alone(dump):
        return None, f"{said}.", None
    if dump.manifest.scalars.get("one_record") is True:
        said = (
            f"The request that was in slot {slot}, as its batch still has it, has the record (Req.kv) of the request "
            f"in slot {now}: one object for two requests. Both count in it from here on, and the row, the pages and "
            f"the counts of slot {slot} are nobody's."
        )
        return Structure.REQUEST_COUNTERS, said, Defect.FOREIGN
    return Structure.REQUEST_COUNTERS, f"{said} (req_pool_idx), which never changes while it runs.", None


def may_be_the_request(dump: Dump) -> bool | None:
    """Return None where a batch and its request have two slots, and it is not known which of them has changed.

    Of a request that is new nobody knows where it was; two that are exchanged may be exchanged in the list of requests.
    """
    scalars = dump.manifest.scalars
    if scalars.get("structure") != Structure.ROW_INDICES or scalars.get("why") != "unlike":
        return False
    told = scalars.get("defect") != Defect.SWAPPED or scalars.get("lengths_of") == "rows"
    is_told = scalars.get("slot_before") is not None and told
    return False if is_told or moved_alone(dump) else None


def is_as_it_should(dump: Dump) -> bool | None:
    """Return whether the value is what it should be; None where the dump does not have both."""
    scalars = dump.manifest.scalars
    return scalars.get("value") == scalars.get("expected") if is_known(dump) else None


def are_independent(dump: Dump) -> bool | None:
    """Return False where what contradicts the value is not known to share its source; None where it may."""
    scalars = dump.manifest.scalars
    return None if scalars.get("account") == TOKENS or scalars.get("agreed_before") is False else False


def may_be_the_count(dump: Dump) -> bool | None:
    """Return None where only the sum of what is locked says that a lock is missing."""
    scalars = dump.manifest.scalars
    return None if scalars.get("why") == UNLOCKED and scalars.get("request_slot") is None else False


def may_be_another(dump: Dump) -> bool:
    """Return whether what is named is likely wrong, and another structure may be."""
    return may_be_the_row(dump) or is_left_behind(dump) or is_reordered(dump)


def may_be_the_row(dump: Dump) -> bool:
    """Return whether slots of one prefill stand in another order in its row and in what it writes.

    Nobody has looked at such a row before, and either of the two may have been put in another order since they were
    handed out.
    """
    manifest, scalars = dump.manifest, dump.manifest.scalars
    of_writes = scalars.get("structure") == Structure.WRITE_LOCATIONS and scalars.get("defect") == Defect.SWAPPED
    rows = {bad.row for bad in manifest.offences}
    return of_writes and manifest.forward_mode in ("EXTEND", "MIXED") and len(rows) == 1


def may_be_the_reserved_count(dump: Dump) -> bool | None:
    """Return None where a request has no slots by its count alone: nobody was asked whose pages its row has there."""
    scalars = dump.manifest.scalars
    asked = scalars.get("owners") == CHECKED or scalars.get("row_has") == 0
    return None if scalars.get("why") == RESERVED and not asked else False
