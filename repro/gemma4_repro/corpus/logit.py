"""Faults that no probe can see, because they change answers alone: the logit gate catches them."""

from __future__ import annotations

from gemma4_repro.corpus.case import LogitFault, Origin

LOGIT_FAULTS: tuple[LogitFault, ...] = (
    LogitFault(
        id="yoco-stale-cache-loc",
        title="a prefill cut to last rows keeps the write locations of all its tokens",
        origin=Origin("SGLang 27183", "none yet: the pull request is open, and its tests replace attention by a mock"),
        injected="in layers that share keys, query i reads the key of the batch's token i in the place of its own",
        inject=("yoco-stale-cache-loc",),
        unlike=("yoco",),
        backend="triton",
    ),
)
