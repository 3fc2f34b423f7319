"""What free lists say of a hand-out that took pages off one and named others."""

from collections import Counter
from collections.abc import Sequence

from gemma4_dumps.reader import Dump
from gemma4_triage.diagnose.evidence import tensor_or_none
from gemma4_triage.diagnose.hand_out import POOLS, goes_past_its_page, pages_further_on

_FURTHER_ON = (
    "A hand-out returned pages that its free list still has, {count} places behind those that it took off: the former "
    "are handed out again, the latter are lost. {why}"
)
_BEGINS = "where each request's new pages begin in the list is counted wrongly"
_NOT_COUNTED = (
    "A request whose page was full was given the slot behind it, in a page that was not handed out to it: the call did "
    "not count the new page that the request needs."
)
_COUNTED = (
    "A request whose page was full was given a slot of a page that the free list still has. The call counted the new "
    "page that the request needs: it took page {page} off the list, of which nobody was given a slot. "
)
_CUT = "the list was cut before its pages were named (free_pages[num_new_pages:])"
_NEXT = "The page behind those that were taken was named"
_BEHIND = "the slot was named behind the request's last one, and not in the page that was taken"


def of_lists(dump: Dump) -> str | None:
    """Return how what a hand-out named of the full pool and what it took off that list differ; None where not told."""
    if (count := pages_further_on(dump)) is not None:
        why = f"{_CUT}, or {_BEGINS}" if count == len(_taken(dump, 0)) else _BEGINS
        return _FURTHER_ON.format(count=count, why=f"{_capital(why)}.")
    if not goes_past_its_page(dump):
        return None
    named, taken = _opened(dump, 0), _taken(dump, 0)
    left = next((page for page in taken if page not in named), None)
    if left is None:
        return _NOT_COUNTED
    told = _COUNTED.format(page=left)
    if not _is_behind_the_taken(dump, 0):
        return f"{told}{_capital(_BEHIND)}."
    # The page behind its last and the one behind those taken are one there; in the other pool they may be two.
    if _opened(dump, 1) and _is_behind_the_taken(dump, 1):
        return f"{told}{_NEXT} in both pools: {_CUT}, or {_BEGINS}."
    return f"{told}{_NEXT}: {_CUT}, or {_BEGINS}. Or {_BEHIND}: it is the same page here."


def _capital(words: str) -> str:
    return words[0].upper() + words[1:]


def _is_behind_the_taken(dump: Dump, column: int) -> bool:
    """Return whether the pages that a call opened come first in a pool's list behind as many that it took off."""
    opened, before = _opened(dump, column), _list(dump, "before", column)
    count = len(_taken(dump, column))
    return count > 0 and opened == before[count : 2 * count]


def _opened(dump: Dump, column: int) -> list[int]:
    """Return the pages whose first slots a call returned; of the sliding-window pool, those that it gave itself."""
    given, slots = tensor_or_none(dump, "swa_given"), tensor_or_none(dump, "slots")
    if slots is None or slots.ndim != 2 or slots.shape[1] != len(POOLS):
        return []
    size, listed = dump.manifest.page_size or 1, given if column and given is not None else slots[:, column]
    return [slot // size for slot in listed.tolist() if slot % size == 0]


def _taken(dump: Dump, column: int) -> Sequence[int]:
    before, after = _list(dump, "before", column), _list(dump, "pages", column)
    gone = Counter(before) - Counter(after)
    return [page for page in before if gone[page]]


def _list(dump: Dump, name: str, column: int) -> list[int]:
    values = tensor_or_none(dump, f"free_{name}_{POOLS[column]}")
    return [] if values is None or values.ndim != 1 else values.tolist()
