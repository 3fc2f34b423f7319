"""How much a dump store may hold."""

from dataclasses import dataclass

MIB = 1024**2


@dataclass(frozen=True, kw_only=True)
class StoreCaps:
    """Caps of a store; age_days alone spares the first and latest of a signature.

    Attributes:
        bytes_per_dump: never exceeded, as are total_bytes and count.
        logged_per_minute: how many dumps one process may write while it serves on; more violations than that are
            counted.
    """

    bytes_per_dump: int = 10 * MIB
    total_bytes: int = 1024 * MIB
    count: int = 64
    age_days: float = 14.0
    logged_per_minute: int = 120


DEFAULT_CAPS = StoreCaps()
