"""What is said of a request's state whose entry is wrong for a reason that says all: one sentence for each reason."""

from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose.accounts_of_a_batch import told_of_a_batch
from gemma4_triage.diagnose.request_accounts import (
    ANOTHERS,
    BOUNDS,
    EMPTY,
    IN_PAGE,
    NAMESPACE,
    PART_OF_PAGE,
    RELEASED,
    RESERVED,
    SAME_ROW,
    TOKENS,
    UNLOCKED,
)

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
