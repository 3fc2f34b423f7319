"""Pieces of evidence: the value is looked up here and nowhere written by a rule, so it is what stands in the file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gemma4_dumps.audit_findings import suspects
from gemma4_dumps.errors import DumpError
from gemma4_dumps.reader import Dump
from gemma4_triage.diagnose.guards import Guards
from gemma4_triage.diagnose.incident import Incident, Ledger
from gemma4_triage.finding import Evidence, Finding

Value = str | int | float | bool | None
_OF_REQUEST_ROWS = {
    "table_as_before": "whether the whole table is what the forward before followed",
    "page_owner": "the request whose page stands there, by the ledger",
    "page_is_cached": "whether the prefix cache has that page since",
    "made_in_step": "in which step that was made which the draft follows",
    "listed": "tokens of the list by which it was read last",
    "again": "how often it was retracted before",
    "lengths_of": "with what the batch's lengths go",
    "pool": "whose slots they are: what sliding layers write goes by the map",
    "row_had": "what the row had there at the check before",
    "page_event": "what became of that page last, by the ledger",
    "had_page_owner": "the request that still has that page, by the ledger",
    "had_page_event": "what became last of the page that the row had there",
    "node_page_event": "what became last of the page that the node has: given is to the prefix cache",
    "locked_elsewhere": "requests whose lock is on another node than their last",
    "own_kept": "of its own tokens that it counts more as gone from its window, how many have slots there still",
    "own_left": "of so many",
    "one_record": "whether two requests have one record of what they hold (Req.kv)",
    "lists": "the lists of the batch that have so many entries",
    "lists_right": "those that have as many as it has requests",
    "window_is_locked": "whether the sliding window of its node is locked still",
    "held_by_others": "other requests that hold that window",
    "page_was_own": "whether that page was the request's, which has no other for the place",
}


def said(dump: Dump, field: str, meaning: str) -> Evidence:
    """Return a field of the manifest, dotted, as evidence; None if it is not there.

    A number counts in a list: "offences.0.value".
    """
    return Evidence(source=dump.manifest.dump_id, field=field, value=plain_value(dump.manifest, field), meaning=meaning)


def cell(dump: Dump, tensor: str, index: tuple[int, ...], meaning: str) -> Evidence:
    """Return one entry of a tensor; its value is None where the dump has no such place, or it cannot be read."""
    found = tensor_or_none(dump, tensor)
    shape = () if found is None or found.ndim != len(index) else found.shape
    there = bool(shape) and all(0 <= at < size for at, size in zip(index, shape, strict=True))
    value = found[index].item() if found is not None and there else None
    return Evidence(
        source=dump.manifest.dump_id, field=f"{tensor}[{', '.join(map(str, index))}]", value=value, meaning=meaning
    )


def event(dump: Dump, number: int, field: str, meaning: str) -> Evidence:
    """Return a field of an event, the first one has number 0. Raises DumpError."""
    events = list(dump.events())
    return Evidence(
        source=dump.manifest.dump_id,
        field=f"events.{number}.{field}",
        value=plain_value(events[number], field),
        meaning=meaning,
    )


def guarded(guards: Guards, field: str, meaning: str) -> Evidence:
    """Return a field of a guard manifest."""
    return Evidence(
        source=guards.source, field=guards.prefix + field, value=plain_value(guards.fields, field), meaning=meaning
    )


def counted(ledger: Ledger, field: str, meaning: str) -> Evidence:
    """Return a field of a leak ledger."""
    return Evidence(source=ledger.source, field=field, value=plain_value(ledger.fields, field), meaning=meaning)


def is_guard(piece: Evidence) -> bool:
    """Say whether it stands in a dump's guard manifest, which says nothing about that dump."""
    return piece.field.startswith("guards.")


def in_a_file(piece: Evidence) -> bool:
    """Return whether it stands in a dump's tensors or events, and not in its manifest."""
    return piece.field.endswith("]") or piece.field.startswith("events.")


def resting_on(found: Iterable[Finding], incident: Incident) -> frozenset[str]:
    """Ids of the dumps that findings rest on."""
    named = {piece.source for finding in found for piece in finding.evidence if not is_guard(piece)}
    return frozenset(name for name in named if incident.dump(name) is not None)


def lies_inside(dump: Dump) -> bool | None:
    """Return whether all that a dump lists is within its bounds; None where it lists nothing."""
    listed = dump.manifest.offences
    return all(bad.lower <= bad.value < bad.upper for bad in listed) if listed else None


_LISTS = (
    *("cache_seqlens", "believed_lengths", "request_slots", "free_before_full", "free_before_swa", "swa_before"),
    *("free_pages_full", "free_pages_swa", "full_at_given", "inserted", "path", "req_pool_indices", "seq_lens"),
    *("seq_lens_cpu", "swa_given", "out_cache_loc_indptr", "swa_out_cache_loc_indptr"),
)
_TABLES = (
    *("page_table", "swa_page_table", "translated_page_table", "request_rows", "edges", "holders", "last_loc"),
    *("lengths", "lives", "page_states", "pages_lost", "req_to_token", "requests", "rows", "shares", "slots"),
    *(f"start_{name}" for name in ("free_full", "free_swa", "released_full", "released_swa", "mapping")),
    *("suspects", "table", "row_slots"),
)
_DIMENSIONS: dict[str, int] = {**dict.fromkeys(_LISTS, 1), **dict.fromkeys(_TABLES, 2)}
"""Of tensors that a probe writes in one form alone: in another one they are not what a rule takes them for."""


def tensor_or_none(dump: Dump, name: str) -> Any:
    """Return a tensor's array; None if the dump has none so named, its file cannot be read, or it has another form."""
    if name not in dump.manifest.tensors:
        return None
    try:
        found = dump.tensor(name)
    except DumpError:
        return None
    return found if found.ndim == _DIMENSIONS.get(name, found.ndim) else None


def readable_events(dump: Dump) -> list[Mapping[str, Any]]:
    """Return the events that are records; none if they cannot be read."""
    try:
        events = list(dump.events())
    except DumpError:
        return []
    return events if all(isinstance(event, Mapping) for event in events) else []


def plain_value(record: Any, dotted: str) -> Value:
    """Say what stands at a dotted path; None if nothing does, or no single value."""
    for name in dotted.split("."):
        if isinstance(record, Mapping):
            record = record.get(name)
        elif isinstance(record, Sequence) and not isinstance(record, str):
            record = record[int(name)] if name.isdecimal() and int(name) < len(record) else None
        else:
            record = getattr(record, name, None)
    return record if record is None or isinstance(record, str | int | float | bool) else None


def counted_as_gone(dump: Dump) -> int | None:
    """Return how many tokens the request counts as evicted; None if it is gone, or there are several."""
    try:
        owners = {one.owner for one in suspects(dump)}
    except DumpError:
        return None
    (owner,) = owners if len(owners) == 1 else (None,)
    return None if owner is None or is_another_now(dump, owner) else count_of(dump, "evicted", owner[0])


def were_evicted(dump: Dump) -> bool:
    """Return whether an eviction is among the calls that the audit kept, or is counted; an older one is not known."""
    events = readable_events(dump)
    seen = any(one.get("site") == "evict_swa" for one in events)
    counted = any(
        part.partition(":")[2] not in ("", "0") for part in str(dump.manifest.scalars.get("evicted")).split(",")
    )
    return seen or counted or not events


def by_eviction(dump: Dump) -> bool:
    """Return whether the eviction of a request's window made the call that an allocator's dump is about."""
    return dump.manifest.scalars.get("call_site") == "evict_swa"


def count_of(dump: Dump, name: str, slot: int | None) -> int | None:
    """Return what an audit's counts of this name have for a request slot; None where they have nothing."""
    told = (entry.partition(":") for entry in str(dump.manifest.scalars.get(name) or "").split(","))
    count = {one: number for one, _, number in told}.get(str(slot))
    return int(count) if count is not None and count.isdecimal() else None


def counted_by_the_pair(dump: Dump) -> tuple[int, int] | None:
    """Return how many tokens a pair of pools counts as free, and what its pool with fewer has; None if it is not said.

    Args:
        dump: Of an audit or of `swa-allocator`.
    """
    counts = [dump.manifest.scalars.get(f"{name}_available") for name in ("pair", "full", "swa")]
    known = [one for one in counts if isinstance(one, int)]
    return None if len(known) < len(counts) else (known[0], min(known[1:]))


def is_another_now(dump: Dump, owner: tuple[int, int]) -> bool:
    """Return whether another request than this owner, a slot and its generation, has its slot when an audit looked."""
    now = count_of(dump, "generations", owner[0])
    return now is not None and now != owner[1]


def has_ended(dump: Dump, owner: tuple[int, int]) -> bool | None:
    """Return whether this request, of a slot and its generation, had ended at the audit; None if it does not say."""
    running = dump.manifest.scalars.get("running")
    if not isinstance(running, str):
        return None
    return str(owner[0]) not in running.split(",") or is_another_now(dump, owner)


def request_row_evidence(dump: Dump) -> Iterator[Evidence]:
    """Yield what a dump of `request-rows` says of a wrong entry."""
    yield said(dump, "scalars.value", "what stands there")
    yield said(dump, "scalars.expected", "what should, by the request; empty where only its shape or owner is wrong")
    yield said(dump, "scalars.why", "how it is known to be wrong")
    if dump.manifest.scalars.get("by_request_slot") is not None:
        yield said(dump, "scalars.by_request_slot", "the request slot that gave that page back")
    yield said(dump, "scalars.request_slot", "whose it is")
    known = (name for name in _OF_REQUEST_ROWS if dump.manifest.scalars.get(name) is not None)
    yield from (said(dump, f"scalars.{name}", _OF_REQUEST_ROWS[name]) for name in known)
    yield said(dump, "scalars.token", "which token of the request, or which column of the table")
    yield said(dump, "site", "where it was looked at, before SGLang indexed with it")
    yield said(dump, "scalars.owners", "whether the leak ledger was asked whose pages they are")
