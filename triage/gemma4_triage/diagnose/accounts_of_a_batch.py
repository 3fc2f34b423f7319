"""What is said of a batch's lists of another size, of a prefill's span, and of counts and marks of its requests."""

from __future__ import annotations

from collections.abc import Callable

from gemma4_dumps.reader import Dump
from gemma4_dumps.wording import number_of

ENTRIES, PASSED_OVER, BEHIND, GONE_AHEAD = "entries", "passed over", "behind its text", "gone ahead"
UNLOCKED_WINDOW, NOT_LOCKED = "window unlocked", "window not locked"
_AT_SPANS = (
    "Look at what sets where a prompt's part begins and ends: add_chunked_req and add_one_req, init_next_round_input "
    "(prefix_len, extend_end), stash_chunked_request, and what the prefix cache leaves at the request."
)
_AT_WINDOW = (
    "Look at what clears and sets that count: mark_kv_released, reset_for_retract, set_evicted_seqlen, "
    "free_swa_out_of_window_slots."
)
_AT_MARKS = (
    "Look at what sets and reads swa_released beside the lock itself: release_swa (dec_swa_lock_only), unlock "
    "(dec_lock_ref, skip_swa), lock (inc_lock_ref)."
)
LOOK = {
    UNLOCKED_WINDOW: _AT_MARKS,
    NOT_LOCKED: _AT_MARKS,
    ENTRIES: "Look at what changes the size of that list and of the others: filter_batch, merge_batch, "
    "prepare_for_extend, SamplingBatchInfo.filter_batch and its merge_batch.",
    PASSED_OVER: _AT_SPANS,
    BEHIND: _AT_SPANS,
    GONE_AHEAD: _AT_WINDOW,
}
"""Where to look, by why an entry is wrong."""


def told_of_a_batch(dump: Dump) -> str | None:
    """Return what is said of an entry that is wrong for one of these reasons; None of another."""
    words: dict[str, Callable[[Dump], str]] = {
        ENTRIES: _of_sizes,
        PASSED_OVER: _of_begin,
        BEHIND: _of_end,
        GONE_AHEAD: _of_window,
        UNLOCKED_WINDOW: _of_mark,
        NOT_LOCKED: _of_no_lock,
    }
    of = words.get(str(dump.manifest.scalars.get("why")))
    return None if of is None else of(dump)


def lock_is_there(dump: Dump) -> bool:
    """Return whether a lock that is marked as given back is on its node still, and no request holds it."""
    scalars = dump.manifest.scalars
    return scalars.get("window_is_locked") is True and scalars.get("held_by_others") == 0


def _of_sizes(dump: Dump) -> str:
    scalars = dump.manifest.scalars
    wrong, right = (str(scalars.get(name) or "").split(",") for name in ("lists", "lists_right"))
    value, expected = scalars.get("value"), scalars.get("expected")
    has = "has" if len(wrong) == 1 else "have"
    requests = number_of(expected, "request") if isinstance(expected, int) else "other requests"
    beside = f", as many as {', '.join(right)} have" if any(right) else ""
    more = isinstance(value, int) and isinstance(expected, int) and value > expected
    how = (
        "it was not filtered with the requests that have left, or had some put in that no request came with"
        if more
        else "some were taken out whose requests are there, or none put in for those that came"
    )
    return (
        f"Lists of a batch have another size than it: {', '.join(wrong)} {has} {value} entries, and the batch has "
        f"{requests}{beside}. What goes by both takes one request's entry for another's, or ends the "
        f"scheduler: {how}."
    )


def _of_begin(dump: Dump) -> str:
    scalars = dump.manifest.scalars
    slot, value, expected = (scalars.get(name) for name in ("request_slot", "value", "expected"))
    whose = "a request without a slot yet" if slot is None else f"the request in slot {slot}"
    has = (
        "its nodes of the prefix cache end" if scalars.get("from_cache") is True else "its slots end (kv_allocated_len)"
    )
    part = "The next chunk" if scalars.get("chunked") is True else "A prefill"
    by = isinstance(value, int) and isinstance(expected, int) and value - expected
    return (
        f"{part} of the prompt of {whose} is to begin at token {value} (prefix_len), and {has} at {expected}: the {by} "
        "tokens between have no slots and are never computed, and the row has what stood there before."
    )


def _of_end(dump: Dump) -> str:
    scalars = dump.manifest.scalars
    slot, value, expected = (scalars.get(name) for name in ("request_slot", "value", "expected"))
    whose = "a request without a slot yet" if slot is None else f"the request in slot {slot}"
    return (
        f"A prefill is to read {whose} up to token {value} (extend_end, extend_len), and its prompt and answer have "
        f"{expected}: slots are asked for tokens that there are not."
    )


def _of_window(dump: Dump) -> str:
    scalars = dump.manifest.scalars
    slot, value, expected = (scalars.get(name) for name in ("request_slot", "value", "expected"))
    again = (
        " It was retracted: the count is what its stay before had left, which was not cleared."
        if scalars.get("again")
        else ""
    )
    return (
        f"The request in slot {slot} counts {value} tokens as gone from its sliding window (swa_evicted_seqlen), and "
        f"its prefill begins at token {expected}, so that it had no slots for the others yet. They get some now, and "
        f"by that count nobody gives them back: the prefix cache takes their full pages alone.{again}"
    )


def _of_mark(dump: Dump) -> str:
    scalars = dump.manifest.scalars
    slot, value, expected = (scalars.get(name) for name in ("request_slot", "value", "expected"))
    again = (
        " It was retracted before: what it counted then may count still (decode_batch_idx)."
        if scalars.get("again")
        else ""
    )
    if lock_is_there(dump):
        return (
            f"The lock of the request in slot {slot} says that its part of the sliding window was given back "
            "(swa_released), and the window of its node is locked still, which no other request holds: the mark was "
            "set without a release. The request's own release will leave that part out, so that the window of these "
            f"nodes stays locked and is never evicted.{again}"
        )
    return (
        f"The request in slot {slot} has given back the lock on its nodes' sliding window, and has {value} tokens "
        f"behind them where the window has {expected}: it still reads there, and an eviction may take that window."
        f"{again}"
    )


def _of_no_lock(dump: Dump) -> str:
    slot = dump.manifest.scalars.get("request_slot")
    return (
        f"The lock of the request in slot {slot} says that it holds the sliding window of its node (swa_released is "
        "not set), and nobody has locked that window: it was given back without the mark, so that an eviction may take "
        "what the request still reads, and its release gives the lock back once more."
    )
