"""Where SGLang's functions are, by release: the only package that names SGLang's dotted paths of what we attach to.

`base.py` has them for the release that the patches were written for, `deltas.py` what differs in later ones. A table
here says where a function of a release is, and not that anything runs there: that is `gemma4_runtime.releases`. What
we read of SGLang beside our targets (imports, attributes) changes too, and is not in these tables.
"""

from __future__ import annotations

from gemma4_runtime.errors import UnsupportedRelease
from gemma4_runtime.releases import BASE
from gemma4_runtime.targets.base import PATHS
from gemma4_runtime.targets.deltas import DELTAS

TARGETS: dict[str, dict[str, str]] = {
    BASE: PATHS,
    **{
        release: {key: path for key, path in {**PATHS, **delta}.items() if path is not None}
        for release, delta in DELTAS.items()
    },
}
"""By release, key to dotted path; a key that a release has no place for is not in its table."""


def dotted_path(release: str, key: str) -> str:
    """Return the dotted path behind `key` in SGLang `release`.

    Args:
        release: As PyPI names it.
        key: A key of the base table, or of a later release's.

    Raises:
        UnsupportedRelease: There is no table for this release, or nothing is at this key in it.
    """
    table = TARGETS.get(release)
    if table is None:
        raise UnsupportedRelease(
            f"no target table for SGLang {release}; this version knows {', '.join(TARGETS)}. "
            f"Install one of those, or unset the GEMMA4_TRIAGE_* and SGLANG_TRTLLM_MHA_DEBUG variables."
        )
    if key not in table:
        known = any(key in other for other in TARGETS.values())
        absent = "SGLang has nothing for it there" if known else "there is no such key"
        raise UnsupportedRelease(
            f"target {key!r} is not in the table for SGLang {release} (gemma4_runtime/targets): {absent}"
        )
    return table[key]
