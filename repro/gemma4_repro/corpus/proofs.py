"""Things to look for in a dump that are not the value of one field. Each returns None if it is there."""

from __future__ import annotations

from gemma4_dumps.schema import Manifest
from gemma4_dumps.wording import number_of

_PARTS = ("available", "evictable", "protected", "session_held", "uncached")


def all_in_one_row(manifest: Manifest) -> str | None:
    """Prove that every offence stands in the same row of a table."""
    rows = sorted({offence.row for offence in manifest.offences})
    return None if len(rows) == 1 else f"offences in rows {rows}, not in one"


def first_page_past_the_end(manifest: Manifest) -> str | None:
    """Prove that the offending index is exactly the first that the buffer does not have."""
    wrong = sorted({offence.value for offence in manifest.offences if offence.value != offence.upper})
    return None if manifest.offences and not wrong else f"offences {wrong}, not the first index past the end"


def slot_of_page_zero(manifest: Manifest) -> str | None:
    """Prove that the offending slot lies in the dummy page 0."""
    page_size = manifest.page_size or 1
    wrong = sorted({offence.value for offence in manifest.offences if not 0 <= offence.value < page_size})
    return None if manifest.offences and not wrong else f"offences {wrong}, not slots of page 0"


def owner_is_known(manifest: Manifest) -> str | None:
    """Prove that every page names the request slot that held it last."""
    unknown = sum(offence.request_slot is None or offence.request_slot < 1 for offence in manifest.offences)
    if manifest.offences and not unknown:
        return None
    return f"{unknown} of {number_of(len(manifest.offences), 'page')} without an owner"


def one_swa_page_missing(manifest: Manifest) -> str | None:
    """Return the SWA pool's equation: one page is in no part."""
    return _imbalance(manifest, -1)


def one_swa_page_too_many(manifest: Manifest) -> str | None:
    """Return the SWA pool's equation: the parts exceed the pool by one page."""
    return _imbalance(manifest, 1)


def _imbalance(manifest: Manifest, pages: int) -> str | None:
    parts = [manifest.scalars.get(f"swa_{name}") for name in _PARTS]
    total = manifest.scalars.get("swa_total")
    numbers = [part for part in parts if isinstance(part, int)]
    if not isinstance(total, int) or len(numbers) < len(parts):
        return "the SWA pool's equation is not in the dump"
    found = sum(numbers) - total
    return (
        None
        if found == pages * (manifest.page_size or 1)
        else f"the SWA pool's parts differ from it by {number_of(found, 'token')}"
    )
