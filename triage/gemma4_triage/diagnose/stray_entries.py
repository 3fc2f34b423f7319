"""Entries of a request's row that are no page, as an audit tells them."""

from gemma4_dumps.reader import Dump


def stray_entries(dump: Dump, slot: int) -> tuple[int, int, int] | None:
    """Return the first token of a row with no page, how many there are, and how many with one follow; None if untold.

    Of those that the request in this slot counts as its own.
    """
    for told in str(dump.manifest.scalars.get("stray_entries") or "").split(","):
        numbers = told.split(":")
        if len(numbers) == 4 and all(one.isdecimal() for one in numbers) and int(numbers[0]) == slot:
            return int(numbers[1]), int(numbers[2]), int(numbers[3])
    return None


def leave_no_other(dump: Dump, entries: tuple[int, int, int]) -> bool:
    """Return whether one cause alone leaves such entries.

    At a row's end: more than the rest of a page that the request has, whose slots may have been given and not written.
    Before others: less than that, since a hand-out that went on from page 0 gives the rest of it.
    """
    page, (first, count, behind) = dump.manifest.page_size or 1, entries
    rest = -first % page
    return count < rest if behind else count > rest
