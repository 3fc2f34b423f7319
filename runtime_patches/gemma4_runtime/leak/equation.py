"""The pool equation, both sides written out: what SGLang's own checker holds against the pool's size."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from gemma4_runtime.leak.whereabouts import REQUEST_SLOTS, Reading
from gemma4_runtime.release.allocators import pair_available


@dataclass(frozen=True)
class Equation:
    """available + evictable + protected + session_held + uncached = total, in tokens (request slots: in slots).

    The left side but for uncached and session_held is what SGLang itself counts; those two are the audit's.
    """

    pool: str
    available: int
    evictable: int
    protected: int
    session_held: int
    uncached: int
    total: int

    @property
    def accounted(self) -> int:
        return self.available + self.evictable + self.protected + self.session_held + self.uncached

    @property
    def holds(self) -> bool:
        return self.accounted == self.total

    def text(self) -> str:
        unit = "slots" if self.pool == REQUEST_SLOTS else "tokens"
        missing = self.total - self.accounted
        how = "" if self.holds else f", {missing} missing" if missing > 0 else f", {-missing} too many"
        return (
            f"{self.pool}: {self.available} available + {self.evictable} evictable + {self.protected} protected"
            f" + {self.session_held} session-held + {self.uncached} uncached"
            f" = {self.accounted} of {self.total} {unit}{how}"
        )

    def scalars(self) -> dict[str, int]:
        return {f"{self.pool}_{name}": value for name, value in asdict(self).items() if name != "pool"}


def short_of_the_pair(allocator: Any, sums: tuple[Equation, ...]) -> Equation | None:
    """Return the pool with fewer free tokens where the pair counts another number as free; None where it does not."""
    counted = pair_available(allocator)
    least = min((one for one in sums if one.pool != REQUEST_SLOTS), key=lambda one: one.available)
    return None if counted in (None, least.available) else least


def equations(allocator: Any, req_to_token_pool: Any, tree_cache: Any, reading: Reading) -> tuple[Equation, ...]:
    """Return one equation per pool, the request slots last."""
    page, sides = allocator.page_size, {where.pool: where for where in reading.pools}
    hybrid = "swa" in sides
    found = []
    for pool in ("full", "swa") if hybrid else ("full",):
        inner = getattr(allocator, f"{pool}_attn_allocator", allocator)
        prefix = f"{pool}_" if hybrid else ""
        found.append(
            Equation(
                pool,
                inner.available_size(),
                getattr(tree_cache, f"{prefix}evictable_size")(),
                getattr(tree_cache, f"{prefix}protected_size")(),
                reading.session_pages[pool] * page,
                reading.private_pages[pool] * page,
                sides[pool].pages * page,
            )
        )
    slots = sides[REQUEST_SLOTS]
    held = len(slots.held)
    found.append(Equation(REQUEST_SLOTS, len(req_to_token_pool.free_slots), 0, 0, 0, held, slots.pages))
    return tuple(found)
