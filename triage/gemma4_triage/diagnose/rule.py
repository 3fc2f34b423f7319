"""The record of a rule. A rule is one cause; it may show under several verdicts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.finding import Finding

# Rules over logs, by what a cause does to the server.
LEAVES_BUFFERS = ("illegal-access", "index-outside-tensor")
LOSES_PAGES = ("pool-leak", "no-slot")
SPOILS_DRAFTS = ("accept-length-drop",)

# Rules over dumps whose findings follow once one entry of a list, the mapping, a row or the cache is another's.
FOLLOWS_FROM_AN_ENTRY = (
    "allocator-past-pool-end",
    "evicted-page-counted",
    "freed-while-held",
    "mapping-outlives-page",
    "null-page-in-live-column",
    "page-freed-twice",
    "page-given-twice",
    "pages-leaked",
    "swa-page-replaced-before-free",
    "swa-page-shared",
    "unset-slot-freed",
)


@dataclass(frozen=True)
class Rule:
    """A rule, whose `find` is pure and gives None where the incident does not show this cause.

    Attributes:
        find: pure; None where the incident does not show this cause.
        in_logs: rules over logs (logs/catalog.py) that find this very cause there.
        leads_to: such as find what this cause leads to.
        injected_by: faults of the catalog that put this cause into a server.
        explains: rules whose findings are consequences of this one, or say less about the same dumps.
        fallback: is asked last, and sees only dumps that no other finding has explained.
    """

    id: str
    find: Callable[[Incident], Finding | None]
    injected_by: tuple[str, ...] = ()
    in_logs: tuple[str, ...] = ()
    leads_to: tuple[str, ...] = ()
    explains: tuple[str, ...] = ()
    fallback: bool = False
