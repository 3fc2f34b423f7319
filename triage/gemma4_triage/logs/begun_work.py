"""Work beside batches of which a log has the beginning and not the end: a server that stands may stand in it."""

from __future__ import annotations

from typing import NamedTuple

from gemma4_triage.logs.facts import LogFacts, Remark


class BegunWork(NamedTuple):
    """Holds what a server had begun.

    Attributes:
        line: the line that says so.
        compiles: whether it compiles kernels, which ends by itself.
        cause: that it stands there, as a sentence.
        look: what to do about it.
        upstream: public threads.
    """

    line: Remark
    compiles: bool
    cause: str
    look: str
    upstream: tuple[str, ...] = ()


_BALANCES = (
    "EPLB",
    "The server began to move experts between GPUs, and no line says that this ended.",
    "once without --enable-eplb: experts are moved between GPUs, and a rank that does not take part holds up all",
    (),
)
_UNLOADS = (
    "nload Lora adapter",
    "The server began to unload a LoRA adapter, and no line says that this ended: it waits until no request uses the "
    "adapter, and every other load, unload and request for it waits behind it.",
    "restart the server, change adapters only while nothing runs, then a later release: aborted requests and those of "
    "several answers (n above 1) leave the count of an adapter's users other than zero, for which an unload waits for "
    "ever",
    ("SGLang 36894", "SGLang 34205"),
)
_LOADS = (
    "oad Lora adapter",
    "The server began to load a LoRA adapter, and no line says that this ended.",
    "an adapter is loaded between requests: it waits for those that use it, and all others for it; restart the server, "
    "change adapters only while nothing runs, then a later release",
    (),
)
_COMPILES = (
    "",
    "The server began to compile kernels, and no line says that this ended.",
    "compile beforehand, and keep the cache (~/.cache) on a volume: no request then waits for a compiler",
    (),
)


def begun_before(facts: LogFacts, line: int) -> BegunWork | None:
    """Return what had begun before a line and not ended in all of the log; None if nothing had."""
    begun = facts.remarks.get("busy")
    if begun is None or begun.place.line > line:
        return None
    word, cause, look, upstream = next(one for one in (_BALANCES, _UNLOADS, _LOADS, _COMPILES) if one[0] in begun.text)
    ended = facts.remarks.get("experts_moved" if word == _BALANCES[0] else "busy_no_more")
    if ended is not None and ended.place.line > begun.place.line:
        return None
    return BegunWork(begun, word == _COMPILES[0], cause, look, upstream)
