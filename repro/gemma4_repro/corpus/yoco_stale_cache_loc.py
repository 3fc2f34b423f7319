"""Write locations of all tokens beside the last rows of a prefill."""

from gemma4_repro.detection.case import LogitFault, Origin

CASE = LogitFault(
    id="yoco-stale-cache-loc",
    title="a prefill cut to last rows keeps the write locations of all its tokens",
    origin=Origin("SGLang 27183", "none yet: the pull request is open, and its tests replace attention by a mock"),
    injected="in layers that share keys, query i reads the key of the batch's token i in the place of its own",
    inject=("yoco-stale-cache-loc",),
    unlike=("yoco",),
    backend="triton",
)
