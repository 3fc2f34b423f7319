"""What a caller of a replay may choose."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024**2
DEFAULT_CAP_MIB = 256


@dataclass(frozen=True)
class ReplayOptions:
    """What is told about a call. None: as the dump says, else an assumption.

    Attributes:
        heads: query heads, KV heads.
        window_left: -1 for none. Each None: as the dump says, else an assumption.
        cap_bytes: what the replay's keys and values may take, as float32.
    """

    heads: tuple[int, int] | None = None
    head_dim: int | None = None
    window_left: int | None = None
    seed: int = 0
    cap_bytes: int = DEFAULT_CAP_MIB * MIB
