"""Which pages of a full and sliding-window pool pair are in use, and whom an SWA page serves: tensors only.

1 byte per full page, 4 bytes per SWA page. An update is one scatter per pool over the slots of the call and never waits
for the device; a rebuild goes over both pools.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

UNKNOWN = -1
"""Owner of an SWA page that is in use, but was handed out where nobody looked. The first use that is seen tells."""


@dataclass
class SlotLedger:
    """Which pages of the two pools are in use. Entry 0 is the dummy page, which nobody holds.

    Attributes:
        full_live: [full pages + 1] bool.
        swa_owner: [SWA pages + 1] int32, 0 for a free page, else the full page whose slots map there, or UNKNOWN.
    """

    full_live: torch.Tensor
    swa_owner: torch.Tensor
    page_size: int

    @classmethod
    def create(cls, full_pages: int, swa_pages: int, page_size: int, device: torch.device | str) -> SlotLedger:
        return cls(
            torch.zeros(full_pages + 1, dtype=torch.bool, device=device),
            torch.zeros(swa_pages + 1, dtype=torch.int32, device=device),
            page_size,
        )

    def hand_out(self, full: torch.Tensor, swa: torch.Tensor) -> None:
        """Slots [n] of both pools are in use from now on; swa 0: this token has no SWA slot."""
        self.full_live.index_fill_(0, self._pages(full), True)
        self.pair(full, swa)

    def pair(self, full: torch.Tensor, swa: torch.Tensor) -> None:
        """Note that the SWA pages of `swa` [n] serve the full pages of `full` [n]; swa 0 is skipped."""
        # Entries without an SWA slot write 0 to the dummy page, which saves a mask and its synchronisation.
        owners = torch.where(swa > 0, self._pages(full), 0)
        self.swa_owner[self._pages(swa)] = owners.to(self.swa_owner.dtype)

    def owners(self, swa: torch.Tensor) -> torch.Tensor:
        """Return what `swa_owner` has for the pages of SWA slots [n]; for a slot of no page, for the nearest."""
        return self.swa_owner[(swa // self.page_size).clamp(0, self.swa_owner.numel() - 1)]

    def release(self, full: torch.Tensor, swa: torch.Tensor) -> None:
        """Pages of both pools are free from now on, whole; swa 0 is skipped."""
        self.full_live.index_fill_(0, self._pages(full), False)
        self.release_swa(swa)

    def release_swa(self, swa: torch.Tensor) -> None:
        self.swa_owner.index_fill_(0, self._pages(swa), 0)

    def _pages(self, slots: torch.Tensor) -> torch.Tensor:
        # Slots read from a request's row are int32, and index_fill_ takes int64 only.
        return slots.to(torch.int64) // self.page_size

    def rebuild(self, full_free: torch.Tensor, swa_free: torch.Tensor, keep_owners: bool = False) -> None:
        """Start again from the allocators' own lists of free page ids, [any] each; ids outside the pool are skipped."""
        self.full_live = pages_in_use(full_free, self.full_live.numel())
        live = pages_in_use(swa_free, self.swa_owner.numel())
        owners = torch.where(self.swa_owner > 0, self.swa_owner, UNKNOWN) if keep_owners else UNKNOWN
        self.swa_owner = torch.where(live, owners, torch.zeros_like(self.swa_owner))


def pages_in_use(free_pages: torch.Tensor, count: int) -> torch.Tensor:
    """[count] bool: pages that `free_pages` [any] does not list. Page 0 never is."""
    live = torch.ones(count, dtype=torch.bool, device=free_pages.device)
    inside = (free_pages > 0) & (free_pages < count)
    live.index_fill_(0, torch.where(inside, free_pages, 0), False)
    live[:1] = False
    return live
