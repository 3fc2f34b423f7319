"""What lengths say of a hand-out: behind which slots its requests go on, and how many pages they need."""

from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose.evidence import event, readable_events
from gemma4_triage.diagnose.recorded_calls import gives_back, slots_of, spans
from gemma4_triage.diagnose.where_wrong import Wrong

_FEWEST = 3
"""Requests that are apart by as many tokens, before it is more than chance."""


def tokens_apart(dump: Dump) -> int:
    """Return by how many tokens the last slots of all requests of a hand-out are too far (>0) or too early; 0 if not.

    A token's place in its page is that in its sequence, in pages of more than one token: how many whole pages they are
    apart is not known. Less than half a page is told, since two that were exchanged may be half a page apart.
    """
    call, page = (readable_events(dump) or [{}])[-1], dump.manifest.page_size or 1
    ends, begins, asked = (call.get(name) for name in ("seq_lens", "prefix_lens", "last_loc"))
    if begins is None and isinstance(ends, list):
        begins = [end - 1 if isinstance(end, int) else None for end in ends]
    if page < 2 or not (isinstance(begins, list) and isinstance(asked, list) and len(begins) == len(asked)):
        return 0
    pairs = list(zip(begins, asked, strict=True))
    places = [(begin, slot) for begin, slot in pairs if isinstance(begin, int) and isinstance(slot, int) and begin > 0]
    if not all(isinstance(one, int) for pair in pairs for one in pair):
        return 0
    if len(places) < _FEWEST or any(slot < page for _, slot in places):
        return 0
    apart = {(slot - begin + 1) % page for begin, slot in places}
    by = apart.pop()
    return 0 if apart or 2 * by == page else by if 2 * by < page else by - page


def asked_beside(dump: Dump) -> tuple[str, Wrong] | None:
    """Return what is said of a hand-out that was asked to go on from other slots than the last; None if it was not."""
    by = tokens_apart(dump)
    if not by:
        return None
    number = "a token" if abs(by) == 1 else f"{abs(by)} tokens"
    cause = (
        f"A hand-out was asked to go on {number} {'before' if by < 0 else 'behind'} the last slot of each of its "
        "requests, by the slots' places in their pages and the lengths that it was given: where the row's last slot is "
        "read (last_loc) is wrong, or all of these lengths are."
    )
    last = len(readable_events(dump)) - 1
    proof = (
        event(dump, last, "last_loc.0", "the slot behind which the first request was to go on"),
        event(dump, last, "seq_lens.0", "its length with what it was to get"),
    )
    return cause, Wrong(Structure.ALLOCATION, Defect.OFF_BY_ONE if abs(by) == 1 else None, proof)


def pages_uncounted(dump: Dump) -> tuple[str, Wrong] | None:
    """Return what is said of a hand-out that took fewer full pages than its requests need by their lengths, or None."""
    call, page = (readable_events(dump) or [{}])[-1], dump.manifest.page_size or 1
    ends, begins = (call.get(name) for name in ("seq_lens", "prefix_lens"))
    before, after = (call.get(name) for name in ("free_before", "free_after"))
    if not isinstance(ends, list) or not isinstance(before, list) or not isinstance(after, list) or page < 2:
        return None
    lengths = [end for end in ends if isinstance(end, int)]
    given = [end - 1 for end in lengths] if begins is None else begins
    if len(lengths) != len(ends) or not isinstance(given, list) or len(given) != len(lengths):
        return None
    numbers = [one for one in (*given, *before[:1], *after[:1]) if isinstance(one, int)]
    if len(numbers) != len(given) + 2 or call.get("returned") is not True:
        return None
    needed = sum(-(-end // page) - -(-begin // page) for end, begin in zip(lengths, numbers, strict=False))
    taken = (numbers[-2] - numbers[-1]) // page
    if not 0 <= taken < needed:
        return None
    cause = (
        f"A hand-out took {taken} of the {needed} new pages that its requests need by their lengths: who went without "
        "was given another's new page, or the one behind its own. What counts the new pages (num_new_pages) is wrong."
    )
    last = len(readable_events(dump)) - 1
    proof = (
        event(dump, last, "free_before.0", "free tokens of the full pool before the call"),
        event(dump, last, "free_after.0", "and after it"),
    )
    return cause, Wrong(Structure.ALLOCATION, None, proof)


def firsts_behind_the_last(dump: Dump) -> tuple[str, Wrong] | None:
    """Return what is said of a prefill's hand-out that counts first tokens to the request before; None of another.

    Such a token has the slot behind the last one of that request, where its own place in a page is another.
    """
    call, page = (readable_events(dump) or [{}])[-1], dump.manifest.page_size or 1
    slots, begins = slots_of(call.get("full")), call.get("prefix_lens")
    parts = list(spans(call))
    if page < 2 or not isinstance(begins, list) or not parts or parts[-1][2] != len(slots) or len(begins) != len(parts):
        return None
    places = [begin + one for begin, (_, first, end) in zip(begins, parts, strict=True) for one in range(end - first)]
    apart = [row for row, (slot, place) in enumerate(zip(slots, places, strict=True)) if slot % page != place % page]
    firsts = {first for _, first, end in parts if first and end > first}
    if not apart or not firsts.issuperset(apart) or any(slots[row] != slots[row - 1] + 1 for row in apart):
        return None
    which, own = "The first token of a request", "its own page"
    if len(apart) > 1:
        which, own = f"The first tokens of {len(apart)} requests", "their own pages"
    cause = (
        f"{which} of a prefill got the slot behind the last one of the request before, and not the first of {own}: "
        "where one request's slots end and the next one's begin is counted one token too far (a search that "
        "takes an equal value for the former's, < for <=). The free list was right."
    )
    last = len(readable_events(dump)) - 1
    proof = (event(dump, last, "seq_lens.0", "how long the first request was to be, where the next one's slots begin"),)
    return cause, Wrong(Structure.ALLOCATION, Defect.OFF_BY_ONE, proof)


def goes_on_for_the_ended(dump: Dump) -> tuple[str, Wrong] | None:
    """Return what is said of a decode whose requests go on behind slots that a release gave back; None of another.

    The latest call that names such a slot gave it back, or handed its page out since without reaching it.
    """
    records, page = readable_events(dump), dump.manifest.page_size or 1
    asked = (records or [{}])[-1].get("last_loc")
    if len(records) < 2 or records[-1].get("call") != "alloc_decode" or not isinstance(asked, list):
        return None
    released: list[int] = []
    for slot in asked:
        named = [number for number, past in enumerate(records[:-1]) if slot in slots_of(past.get("full"))]
        given = (number for number in named if not gives_back(records[number]))
        latest = max(given, default=-1)
        frees = [number for number in named if number > latest and records[number].get("site") == "release_kv_cache"]
        released += frees[-1:] if isinstance(slot, int) and slot >= page else []
    if not released or len(released) == len(asked):
        return None
    of_all = f"of a decode's {len(asked)} requests"
    who = (
        f"One {of_all} goes on behind a slot that was given back as its request ended"
        if len(released) == 1
        else f"{len(released)} {of_all} go on behind slots that were given back as their requests ended"
    )
    cause = (
        f"{who}: ended requests are still in the batch, or their rows and lengths in its tensors (req_pool_indices, "
        "seq_lens), as where a merge adds to a batch that holds no request any more (filter_batch, merge_batch)."
    )
    proof = (
        event(dump, released[0], "site", "who gave back the slot behind which the first of them goes on"),
        event(dump, released[0], "step", "in which step"),
    )
    return cause, Wrong(None, Defect.STALE, proof)
