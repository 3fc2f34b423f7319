"""The memory that the variants read, and nothing else of the pool: a huge pool is never materialised.

    before | inside | after | far

inside: the buffer, with only those of its pages that a table reaches, and a page for each placeholder; page ids are
mapped to places in it. before and after: what lies around the buffer, as far as an entry reaches and at most
GUARD_PAGES, so that a small step outside reads known values, and the same distance outside as in the server. far: what
entries farther out would meet; only the reference has it, for a real kernel nothing is there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from gemma4_triage.errors import EnvironmentCannot
from gemma4_triage.replay.call import AttentionCall
from gemma4_triage.replay.options import MIB
from gemma4_triage.replay.tables import is_placeholder

GUARD_PAGES = 64

PageValues = Callable[[int], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Image:
    """keys, values: [pages, page_size, kv_heads, head_dim] float32. inside, far: page ids, sorted.

    before, after: pages around the buffer that are there. bound: of page ids, as in the server.
    """

    keys: np.ndarray
    values: np.ndarray
    inside: np.ndarray
    far: np.ndarray
    before: int
    after: int
    bound: int

    @property
    def arena_pages(self) -> int:
        """Pages that a real backend gets: all but the far ones."""
        return self.before + self.inside.shape[0] + self.after

    def places(self, pages: np.ndarray) -> np.ndarray:
        """Return where a kernel looks for `pages`, in pages from the buffer's start, which may be outside of it."""
        outside = np.where(pages < 0, pages, self.inside.shape[0] + pages - self.bound)
        return np.where(self._is_inside(pages), np.searchsorted(self.inside, pages), outside)

    def stored(self, pages: np.ndarray) -> np.ndarray:
        """Say where `keys` and `values` hold `pages`."""
        place = self.places(pages) + self.before
        far = (place < 0) | (place >= self.arena_pages)
        return np.where(far, self.arena_pages + np.searchsorted(self.far, pages), place)

    def _is_inside(self, pages: np.ndarray) -> np.ndarray:
        return ((pages >= 0) & (pages < self.bound)) | is_placeholder(pages)


def pages_of(call: AttentionCall, entries: np.ndarray) -> np.ndarray:
    """Return the pages that entries lie in. A slot's placeholder is a page's."""
    if call.paged:
        return entries
    return np.where(is_placeholder(entries), entries, entries // call.geometry.page_size)


def build_image(
    call: AttentionCall, variants: Mapping[str, np.ndarray], page_values: PageValues, cap_bytes: int
) -> Image:
    """Raises EnvironmentCannot if keys and values of the pages would exceed cap_bytes."""
    bound = call.bound if call.paged else -(-call.bound // call.geometry.page_size)
    # The null page is what padding and containment read.
    pages = np.unique(np.concatenate([[0], *(pages_of(call, table[call.read]) for table in variants.values())]))
    is_inside = ((pages >= 0) & (pages < bound)) | is_placeholder(pages)
    inside, outside = pages[is_inside], pages[~is_inside]
    beyond = outside[(outside >= bound) & (outside < bound + GUARD_PAGES)]
    below = outside[(outside < 0) & (outside >= -GUARD_PAGES)]
    after, before = int(beyond.max(initial=bound - 1)) - bound + 1, -int(below.min(initial=0))
    far = np.setdiff1d(outside, np.concatenate([beyond, below]))
    held = np.concatenate([np.arange(-before, 0), inside, np.arange(bound, bound + after), far])
    geometry = call.geometry
    shape = (held.shape[0], geometry.page_size, geometry.kv_heads, geometry.head_dim)
    size_bytes = 2 * 4 * math.prod(shape)
    if size_bytes > cap_bytes:
        raise EnvironmentCannot(
            f"{shape[0]} pages of keys and values are {size_bytes / MIB:.0f} MiB, and the cap is {cap_bytes // MIB}",
            "raise --cap-mib, or cut the dump down first with --shrink",
        )
    keys, values = np.empty(shape, np.float32), np.empty(shape, np.float32)
    for place, page in enumerate(held.tolist()):
        keys[place], values[place] = page_values(page)
    return Image(keys, values, inside, far, before, after, bound)
