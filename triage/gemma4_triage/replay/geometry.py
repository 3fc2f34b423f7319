"""Heads, head dim, window and KV type of the call: from options, else from the dump, else assumed, and said so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gemma4_dumps.schema import Manifest
from gemma4_triage.errors import NothingChecked, UsageMistake
from gemma4_triage.replay.options import ReplayOptions

ASSUMED_HEADS, ASSUMED_HEAD_DIM, NO_WINDOW = (8, 2), 64, -1
MAX_HEADS, MAX_HEAD_DIM, MAX_PAGE_SIZE = 1024, 1024, 65536
MAX_WINDOW = 2**31 - 1


@dataclass(frozen=True)
class Geometry:
    """What a layer's attention is like.

    Attributes:
        window_left: keys at a distance of at most this are seen, -1 for all.
        scaling: of the layer, None if unknown.
        dtype: of the KV buffer, in torch's words, None if unknown.
        assumed: what neither the dump nor an option gives, in words with the value taken.
    """

    q_heads: int
    kv_heads: int
    head_dim: int
    window_left: int
    page_size: int
    scaling: float | None
    dtype: str | None
    assumed: tuple[str, ...]


def read_geometry(manifest: Manifest, options: ReplayOptions) -> Geometry:
    """Raises NothingChecked without a page size, UsageMistake for heads that do not go together."""
    scalars, assumed = manifest.scalars, []
    page_size = _count(manifest.page_size, MAX_PAGE_SIZE)
    if page_size is None:
        said = "the dump does not say the page size"
        if manifest.page_size is not None:
            said = f"the dump says a page size of {manifest.page_size}, not one from 1 to {MAX_PAGE_SIZE}"
        raise NothingChecked(said, "only dumps of page tables can be replayed")
    recorded = (_count(scalars.get("q_heads"), MAX_HEADS), _count(scalars.get("kv_heads"), MAX_HEADS))
    heads = options.heads or (recorded if _divide(*recorded) else None)
    if heads is None:
        heads = ASSUMED_HEADS
        assumed.append(f"heads {heads[0]}:{heads[1]} (--heads)")
    q_heads, kv_heads = heads
    if q_heads is None or kv_heads is None or not _divide(q_heads, kv_heads):
        raise UsageMistake(f"{q_heads} query heads do not divide among {kv_heads} KV heads", "--heads 8:2, for example")
    head_dim = options.head_dim or _count(scalars.get("head_dim"), MAX_HEAD_DIM)
    if head_dim is None:
        head_dim = ASSUMED_HEAD_DIM
        assumed.append(f"head dim {head_dim} (--head-dim)")
    window = options.window_left
    if window is None:
        window = _window(scalars.get("window_left"))
    if window is None:
        window = NO_WINDOW
        assumed.append("no window (--window)")
    scaling, dtype = scalars.get("scaling"), scalars.get("kv_dtype")
    return Geometry(
        q_heads=q_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        window_left=window,
        page_size=page_size,
        scaling=float(scaling) if isinstance(scaling, int | float) and 0 < scaling < 1e6 else None,
        dtype=dtype if isinstance(dtype, str) else None,
        assumed=tuple(assumed),
    )


def _count(value: Any, limit: int) -> int | None:
    """Return it if it is a plausible count: a dump may say anything, and what is none is as good as unsaid."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= limit else None


def _window(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and -1 <= value <= MAX_WINDOW else None


def _divide(q_heads: int | None, kv_heads: int | None) -> bool:
    return bool(q_heads and kv_heads and q_heads % kv_heads == 0)
