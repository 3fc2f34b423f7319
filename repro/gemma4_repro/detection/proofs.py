"""Things to look for in a dump that are not the value of one field. Each returns None if it is there."""

from __future__ import annotations

from gemma4_dumps.schema import Manifest


def all_in_one_row(manifest: Manifest) -> str | None:
    """Every offence stands in the same row of a table."""
    rows = sorted({offence.row for offence in manifest.offences})
    return None if len(rows) == 1 else f"offences in rows {rows}, not in one"


def first_page_past_the_end(manifest: Manifest) -> str | None:
    """The offending index is exactly the first that the buffer does not have."""
    wrong = sorted({offence.value for offence in manifest.offences if offence.value != offence.upper})
    return None if manifest.offences and not wrong else f"offences {wrong}, not the first index past the end"


def slot_of_page_zero(manifest: Manifest) -> str | None:
    """The offending slot lies in the dummy page 0."""
    page_size = manifest.page_size or 1
    wrong = sorted({offence.value for offence in manifest.offences if not 0 <= offence.value < page_size})
    return None if manifest.offences and not wrong else f"offences {wrong}, not slots of page 0"
