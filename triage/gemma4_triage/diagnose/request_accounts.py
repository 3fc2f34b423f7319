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
    told_of_a_batch,
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
RELEASED, PREFIX, UNLOCKED, SAME_ROW, SHARED = "released", "prefix", "unlocked", "same row", "shared"
RESERVED, EMPTY, ANOTHERS = "reserved", "empty", "another's lock"
CHECKED = "checked"
"""What a dump says of owners where the leak ledger was asked."""
"""The row and the nodes that its request holds differ: which of the two changed, what the row had before says."""

_ELSEWHERE = (
    " Of {} of them the lock is on another node than its last, as where an insert ends on a new node and the lock is "
    "taken again on the one before (cache_unfinished_req)."
)


def sentence_of(dump: Dump) -> str | None:
    """Return what a dump says whose entry is wrong for one of the reasons that say all; None for another."""
    scalars = dump.manifest.scalars
    why, slot, value, expected = (scalars.get(name) for name in ("why", "request_slot", "value", "expected"))
    if scalars.get("account") == TOKENS:
        return of_tokens(dump)
    if (told := told_of_a_batch(dump)) is not None:
        return told
    if why == "host":
        return (
            f"The host's copy of a batch's lengths (seq_lens_cpu) has {value} for the request in slot {slot}, and the "
            f"device's, its own count and its tokens {expected}: what goes by the host's, as new slots do, is given a "
            "wrong length."
        )
    if why == "chunked":
        return (
            f"A decode has the request in slot {slot}, whose prompt is still read in chunks: {scalars.get('read')} of "
            f"{scalars.get('prompt')} tokens so far. Who takes requests into the running batch (filter_batch, "
            "chunked_req_to_exclude, merge_batch) did not leave it out."
        )
    if why == "in it twice":
        return (
            f"A batch has the request in slot {slot} twice, so that its counts move twice at each step: as where one "
            "whose prompt is read in chunks was not left out before it was taken in again (filter_batch, "
            "chunked_req_to_exclude, merge_batch), or where a batch that was mixed into a prefill is still the running "
            "one as that is merged into it (mix_with_running, _get_new_batch_prefill_raw)."
        )
    if why == "begin":
        return (
            f"A prefill's list of prefixes (prefix_lens) has {value} for the request in slot {slot}, of which "
            f"{scalars.get('length')} tokens are to be there behind it and {scalars.get('new_tokens')} are new: they "
            f"begin at {expected}. Positions are counted from there."
        )
    if why == "again":
        return _read_again(dump)
    if why == "size":
        return (
            f"A prefill's list of how many tokens are new (extend_lens) has {value} for the request in slot {slot}, of "
            f"which {expected} are: by itself it begins at {scalars.get('begin')} and ends at {scalars.get('length')}. "
            "Where the requests' tokens, positions and last tokens stand in the forward is counted by that list."
        )
    if why in BOUNDS:
        return (
            f"By what a kernel is given ({why}), the {BOUNDS[str(why)]} of the request in slot {slot} end at {value}, "
            f"and by the forward's lengths at {expected}: others are read as its own, or its own as another's."
        )
    if why == RELEASED and scalars.get("row_is_free") is False:
        return (
            f"A batch still has a request that has no row any more, beside the row of another, {slot}: requests and "
            "rows of the batch do not belong together, as where a filter kept the wrong ones of either."
        )
    if why == RELEASED:
        return f"A batch still has a request whose row, {slot}, was given back: another request may get it."
    if why == SAME_ROW:
        return f"Two running requests have one row, {slot}: it was handed out again while the first of them had it."
    if why == NAMESPACE:
        return (
            f"The namespace (extra_key) of the request in slot {slot} has changed since it began to run. The key of "
            f"its text in the prefix cache begins with it, and {scalars.get('cached_tokens')} of its tokens are there "
            "under the one that it had: its next insert makes a second node of the same slots, in another namespace, "
            "and an eviction of the one frees what the other has. Look at what writes extra_key once a request is made."
        )
    if why == IN_PAGE:
        turned = ": those of tokens of one page have changed places" if scalars.get("defect") == Defect.SWAPPED else ""
        return (
            f"The full-to-SWA mapping of a token's slot of the request in slot {slot} leads to {value}, and {expected} "
            f"is as far into that SWA page as the slot is into its own{turned}. Sliding layers are about to store the "
            "token's keys at another one's place. Look at what writes the mapping (set_full_to_swa_mapping)."
        )
    if why == "receipt" and (part := scalars.get("lock_part")) is not None:
        return _of_left_out(slot, part, scalars.get("part_left_out") is True)
    if why == "receipt":
        return (
            f"The receipt of the lock that the request in slot {slot} carries has another stamp than as the nodes were "
            "locked: its release goes up to the node with that stamp, so it ends elsewhere and gives back locks of "
            "others, or stops too early."
        )
    if why == ANOTHERS:
        if scalars.get("whose_is_known") is not True:
            return f"The requests in slots {slot} and {value} carry one lock on nodes of the prefix cache between them."
        return (
            f"The request in slot {slot} carries the lock of the request in slot {value} on nodes of the prefix cache: "
            "that one will be given back twice."
        )
    if why == EMPTY:
        return _without_tokens(dump)
    if why == PART_OF_PAGE:
        return (
            f"The request in slot {slot} counts {value} tokens as gone from its sliding window (swa_evicted_seqlen), "
            f"which ends within a page: SGLang gives back whole pages, the last of which ended at {expected} or ends "
            "behind. The next eviction, or the release, begins in the middle of a page, and gives back one that is in "
            "use, or leaves a part of one mapped. Look at what sets that count (set_evicted_seqlen, "
            "free_swa_out_of_window_slots)."
        )
    if why == UNLOCKED and slot is None:
        where = _ELSEWHERE.format(moved) if (moved := scalars.get("locked_elsewhere")) else ""
        return f"Running requests hold {expected} tokens of the prefix cache, of which {value} are locked.{where}"
    if why == UNLOCKED:
        return f"The request in slot {slot} runs without a lock on the nodes of the prefix cache that it reads."
    if why == RESERVED and scalars.get("structure") == Structure.REQUEST_ROW:
        return (
            f"A step writes tokens up to {expected} of the request in slot {slot}, which was given slots for {value}: "
            "too few were taken ahead, and its row has none of its own for the others."
        )
    if (made := scalars.get("made_in_step")) is not None:
        return (
            f"A draft goes by tables and lengths that were made for an earlier one, in step {made}: its own were not "
            f"made. Of the request in slot {slot}, which has {expected} tokens, it is shown {value}."
        )
    return _of_other_order(dump) if scalars.get("lengths_of") == "rows" else None


def may_have_been_evicted(dump: Dump) -> bool | None:
    """Return None where a request counts more as gone from its window than it did, and may have given that back.

    What it counts more has no slots of the window then; where all of it has, the count alone has changed.
    """
    scalars = dump.manifest.scalars
    value, expected, kept, left = (scalars.get(name) for name in ("value", "expected", "own_kept", "own_left"))
    grown = isinstance(value, int) and isinstance(expected, int) and value > expected
    of_window = scalars.get("why") == "changed" and scalars.get("counter") == "swa_evicted_seqlen"
    return None if of_window and grown and (not kept or kept != left) else False


def _read_again(dump: Dump) -> str:
    """Return what is said of a prefill that begins before the end of what its request has been read up to."""
    scalars, page = dump.manifest.scalars, dump.manifest.page_size
    slot, value, expected = (scalars.get(name) for name in ("request_slot", "value", "expected"))
    said = (
        f"A prefill begins at token {value} of the request in slot {slot}, whose last forward had gone up to token "
        f"{expected}: those between are read again and get slots again, and unless the prefix cache has the slots that "
        "they had nobody has them."
    )
    of_request = scalars.get("structure") == Structure.REQUEST_COUNTERS
    whose = "The request's own prefix (prefix_len)" if of_request else "The batch's list of prefixes"
    floored = isinstance(page, int) and isinstance(value, int) and page > 1 and value % page == 0
    how = " to whole pages, which is what the prefix cache has" if floored else ""
    chunks = ", as where its prefix is asked of the prefix cache again between two chunks (init_next_round_input)"
    return f"{said} {whose} fell back{how}{chunks if of_request and scalars.get('answered') == 0 else ''}."


def _of_left_out(slot: object, part: object, is_left_out: bool) -> str:
    """Return what is said of a lock's receipt that has another list of parts which the lock left out than it had."""
    said = f"The receipt of the lock that the request in slot {slot} carries "
    if is_left_out:
        return (
            f"{said}has {part} among the parts that were not locked (skipped_lock_components), and had not as the "
            "nodes were locked: its release leaves that lock on them, where they are never evicted again, unless "
            "somebody gave it back before and noted that there."
        )
    return (
        f"{said}has {part} no more among the parts that were not locked (skipped_lock_components), and had as the "
        "nodes were locked: its release gives back locks of others."
    )


def _without_tokens(dump: Dump) -> str:
    """Return what is said of a prefill that has no new token of a request."""
    scalars = dump.manifest.scalars
    slot, tokens, launched = (scalars.get(name) for name in ("request_slot", "tokens", "launched"))
    said = f"A prefill has no new token of the request in slot {slot}, which has {tokens} tokens: what is sampled for "
    said += "it comes of another request's."
    if launched is None and tokens:
        return (
            f"{said} Most likely a prefix was taken for it that has all of its tokens, or more than it shares, where "
            "the last one at least has to be computed (_compute_max_prefix_len, match_prefix)."
        )
    if launched is not None and launched == tokens:
        return (
            f"{said} It had been read whole before: most likely the last chunk of a prompt counts as one that is not "
            "the last (add_chunked_req, chunked_req)."
        )
    return f"{said} Why is not known."


def _of_other_order(dump: Dump) -> str | None:
    """Return what is wrong where rows and lengths of a batch go together, and its requests are in another order."""
    scalars, listed = dump.manifest.scalars, dump.manifest.offences
    if scalars.get("structure") != Structure.ROW_INDICES or scalars.get("defect") != Defect.SWAPPED:
        return None
    rows, requests = [bad.value for bad in listed], [bad.lower for bad in listed]
    merged = len(rows) > 3 and any(rows == requests[at:] + requests[:at] for at in range(1, len(rows)))
    how = ", as where the two parts of a merge are put together in one order there, and in the other here"
    how = how if merged else ""
    return (
        f"The list of a batch's requests is in another order than its rows and lengths, which go together{how}. First "
        f"is the request in slot {scalars.get('expected')}, beside row {scalars.get('value')}."
    )


def of_tokens(dump: Dump) -> str:
    """Return what is said of a request whose batch and count agree, and its tokens do not; of another one nothing.

    The list by which a prompt is read is as long as it was read last, until the next token is put there.
    """
    scalars = dump.manifest.scalars
    if scalars.get("account") != TOKENS:
        return ""
    value, expected, listed = (scalars.get(name) for name in ("value", "expected", "listed"))
    said = f"The request in slot {scalars.get('request_slot')} has {value} tokens with keys and values, and {expected} "
    said += "by its batch and its own count: "
    short = value - listed if isinstance(value, int) and isinstance(listed, int) else 0
    if short > 0 and listed == expected and scalars.get("again"):
        return (
            f"{said}it was retracted, and the list of tokens that it was read again by (fill ids) has {listed}, and "
            f"lacks {short} of its own, as if refresh_fill_ids left some out."
        )
    if scalars.get("marked") is True:
        return (
            f"{said}it runs, and is marked as retracted all the same (is_retracted), and whoever reads a forward's "
            "results leaves such a request out: its answer lacks what was sampled. The prefill that reads it again "
            "takes the mark back (prepare_for_extend)."
        )
    if scalars.get("answered") == 0:
        return (
            f"{said}it decodes, and its answer has no token yet. What was sampled behind its prefill was not put "
            "there, as where the end of a prompt is taken for a chunk in its middle (inflight_middle_chunks)."
        )
    prompt = scalars.get("prompt")
    if isinstance(prompt, int) and isinstance(expected, int) and 0 < expected < prompt:
        return (
            f"{said}it answers after {expected} of the {prompt} tokens of its prompt. A prefill that was cut to a "
            "chunk was taken for a whole one, so that the rest is never read (chunked_req; in 0.5.23 is_chunked, as "
            "_select_prefill_admission sets it)."
        )
    return f"{said}some were lost, or came from no forward."


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
