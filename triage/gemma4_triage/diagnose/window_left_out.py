"""SWA pages that an insert left out: its nodes have their full pages, and begin their window behind them."""

from gemma4_dumps.audit_findings import suspects
from gemma4_dumps.reader import Dump
from gemma4_triage.diagnose.census import GIVEN
from gemma4_triage.diagnose.evidence import count_of, has_ended, readable_events
from gemma4_triage.diagnose.freed_pages import cache_has_the_full_page
from gemma4_triage.diagnose.unmapped_pages import places_in_row

_LEFT_OUT = (
    "the prefix cache has their full pages, which still lead to them, and counts them as gone from its window. Their "
    "request runs on, and was put into the cache in step {step}; it counts its window as given back up to token "
    "{evicted}, and they lie behind that. So the insert begins the window of its nodes too late: most likely it "
    "splits a node at another place than that token (_split_node counts from the begin of the node, and not of the "
    "text), or goes by another count. An eviction that took them while their request had them locked is the other way"
)


def left_out_by_an_insert(dump: Dump) -> str:
    """Return what is said of lost SWA pages that no free named and that lie in their running request's window, or "".

    Their full pages are the latest that the prefix cache was given, and no eviction was seen since.
    """
    if not cache_has_the_full_page(dump):
        return ""
    lost = [one for one in suspects(dump) if one.fault == "nowhere"]
    owner, rows = lost[0].owner, places_in_row(dump)
    evicted = None if owner is None else count_of(dump, "evicted", owner[0])
    if rows is None or owner is None or evicted is None or has_ended(dump, owner) is not False:
        return ""
    columns = [rows[0].get(-1 if one.peer is None else one.peer, (-1, 0))[0] for one in lost]
    ahead = min(columns) * (dump.manifest.page_size or 1) < evicted
    if ahead or any(one.owner != owner or one.last_event not in ("owned", "handed_out") for one in lost):
        return ""
    events = readable_events(dump)
    latest = next((n for n in range(len(events) - 1, -1, -1) if events[n].get("kind") == GIVEN), None)
    given = {} if latest is None else events[latest]
    peers = {one.peer for one in lost}
    if given.get("site") != "cache_unfinished_req" or not peers & set(given.get("first_pages") or ()):
        return ""
    if any(one.get("site") == "evict_tree" for one in events[latest:]):
        return ""
    return _LEFT_OUT.format(step=given.get("step"), evicted=evicted)
