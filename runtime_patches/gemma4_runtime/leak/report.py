"""From an audit's findings to dumps: one per verdict, the most telling first; what is known already stays silent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from gemma4_dumps.draft import DumpDraft, TensorPayload
from gemma4_runtime.checks.page_census import Fault, Finding
from gemma4_runtime.checks.page_ledger import LastEvent, Site
from gemma4_runtime.checks.swa_mapping_census import led_apart, out_of_place
from gemma4_runtime.checks.violation import MAX_LISTED, BadIndex, Violation
from gemma4_runtime.evidence import offences
from gemma4_runtime.guard import Guard
from gemma4_runtime.leak.audit import Audit
from gemma4_runtime.leak.holders import edges, holders
from gemma4_runtime.leak.suspects import COLUMNS, LIVES_COLUMNS, POOLS, SHARES_COLUMNS, lives, shares, suspects
from gemma4_runtime.leak.told_by_calls import told_by_calls
from gemma4_runtime.leak.whereabouts import REQUEST_SLOTS
from gemma4_runtime.release.tree_links import said_of_tree
from gemma4_runtime.settings import Leak, Mode

RULE = "leak-audit"
_PLACES = COLUMNS.index("places")
_OWNER = COLUMNS.index("owner_slot")

_WORDS = {
    Fault.NOWHERE: "belong to nobody and are not free",
    Fault.FREE_TWICE: "are on the free list more than once",
    Fault.FREE_AND_HELD: "are on the free list while somebody still holds them",
    Fault.HELD_TWICE: "have two holders",
    Fault.OUT_OF_RANGE: "are on the free list and no pages of this pool",
    Fault.LOCKED_AT_IDLE: "are locked in the prefix cache by a request that is gone",
    Fault.UNMAPPED: "have live tokens without an SWA slot",
    Fault.STALE_MAPPING: "map to SWA slots that are not theirs any more",
    Fault.MAPPED_ELSEWHERE: "map to other SWA pages, or places in them, than those that they were handed out with",
    Fault.MAPPED_BELOW_ZERO: "have a negative number in the mapping where a slot without an SWA slot has 0",
    Fault.MOVED_IN_TREE: "stand in a node of the prefix cache in another one's place",
    Fault.FREED_AGAIN: "were freed while they were free",
    Fault.HANDED_OUT_IN_USE: "were handed out while in use",
    Fault.FREED_BY_OTHER: "were given back by a request that they were not of",
    Fault.HELD_OUTSIDE: "are held by somebody and are no pages of this pool",
}
# Request slots are rows of req_to_token: what lists the free ones is ReqToTokenPool.free_slots.
_WORDS_OF_SLOTS = {
    Fault.NOWHERE: "belong to no request and are not on the list of free ones",
    Fault.FREE_TWICE: "are on the list of free request slots more than once",
    Fault.FREE_AND_HELD: "are on the list of free request slots while a request or a session has them",
    Fault.HELD_TWICE: "are of two requests or sessions",
    Fault.OUT_OF_RANGE: "are on the list of free request slots and no rows of req_to_token for requests",
    Fault.HELD_OUTSIDE: "are of a request or a session and no rows of req_to_token for requests",
}


def report(
    audit: Audit, findings: Iterable[Finding], site: str, leak: Leak, guard: Guard, before: Audit | None = None
) -> None:
    """Write a dump per verdict of `findings`, which are new among the audit's; `before` it ran another, if any did.

    Raises:
        TrappedViolation: with `raise`, once every dump is written, for the first verdict.
    """
    by_verdict: dict[str, list[Finding]] = {}
    for finding in findings:
        by_verdict.setdefault(finding.verdict, []).append(finding)
    groups = list(by_verdict.values())
    for group in reversed(groups):
        trap = leak is Leak.RAISE and group is groups[0]
        _report_group(audit, group, site, Mode.TRAP if trap else Mode.LOG, guard, before)


def _report_group(audit: Audit, group: list[Finding], site: str, act: Mode, guard: Guard, before: Audit | None) -> None:
    table = suspects(group, audit.ledger)
    listed = tuple(
        BadIndex(row=row, column=_PLACES, value=int(places), lower=1, upper=2)
        for row, places in enumerate(table[:MAX_LISTED, _PLACES])
    )
    violation = Violation(group[0].verdict, listed, sum(finding.pages.size for finding in group))
    guard.report(violation, RULE, site, lambda: _draft(audit, group, violation, table, site, before), act=act)


def _draft(
    audit: Audit, group: list[Finding], violation: Violation, table: np.ndarray, site: str, before: Audit | None
) -> DumpDraft:
    what = "; ".join(_sentence(finding, audit) for finding in group)
    broken = [equation.text() for equation in audit.equations if not equation.holds]
    balance = "; ".join(broken) or "the pool equations hold, so SGLang's own checker sees nothing"
    ledger = audit.ledger
    recent = ledger.recent
    pool = group[0].pool
    return DumpDraft(
        rule=RULE,
        site=site,
        summary=f"{what}. {balance}",
        verdict=violation.verdict,
        pool_kind=None if pool == REQUEST_SLOTS else pool,
        offences=offences(violation.listed, "suspects", tuple(int(slot) for slot in table[:MAX_LISTED, _OWNER])),
        step=ledger.step,
        page_size=ledger.page_size,
        extents={f"pages_{name}_pool": history.pages for name, history in ledger.pools.items()}
        | {"rows_of_requests": audit.reading.rows},
        scalars=_scalars(audit)
        | told_by_calls(audit)
        | (_counted(audit) if group[0].fault is Fault.UNBALANCED else {})
        | ({"stray_entries": _stray(audit)} if audit.reading.stray_entries else {})
        | {
            "running": ",".join(map(str, sorted(audit.reading.running))),
            "counted": ",".join(
                f"{slot}:{kept}:{given}" for slot, (kept, given) in sorted(audit.reading.counted.items())
            ),
            "generations": ",".join(f"{slot}:{count}" for slot, count in sorted(audit.generations.items())),
            "slots_left_listed": ",".join(map(str, sorted(audit.left_listed))),
            "caches_prefixes": audit.reading.caches_prefixes,
            "evicted": ",".join(f"{slot}:{count}" for slot, count in sorted(audit.reading.evicted.items())),
            "left_window": ",".join(f"{slot}:{count}" for slot, count in sorted(audit.reading.left_window.items())),
            **_went_back(audit, before),
            "tree_broken": said_of_tree(audit.reading.broken),
            **_padding(audit),
            **_out_of_place(audit),
        },
        tensors={
            "suspects": TensorPayload.from_array(table),
            "holders": TensorPayload.from_array(holders(audit.reading, audit.findings, ledger)),
            "edges": TensorPayload.from_array(edges(audit.reading, ledger)),
            "lives": TensorPayload.from_array(lives(table, ledger)),
            "shares": TensorPayload.from_array(shares(table, ledger)),
        },
        events=tuple(recent),
        dropped_events=max(ledger.log.count - len(recent), 0),
    )


def _sentence(finding: Finding, audit: Audit) -> str:
    of_slots = finding.pool == REQUEST_SLOTS
    if finding.fault is Fault.UNBALANCED:
        every = "request slot" if of_slots else f"page of the {finding.pool} pool"
        return f"every {every} is in one place, and what SGLang counts of them does not add up"
    if finding.fault is Fault.TREE_BROKEN:
        told = ", ".join(f"{what} ({count})" for what, count in audit.reading.broken.items())
        return f"every page is in one place, and nodes of the prefix cache do not hang together: {told}"
    if finding.fault is Fault.HELD_NULL:
        places = int(finding.places[0])
        if of_slots:
            return f"request slot 0, which is for padding, is of {places} request{'s' if places > 1 else ''}"
        return f"page 0, which is for padding, is held in {places} places of the {finding.pool} pool"
    if finding.fault is Fault.MAPPED_ELSEWHERE and not finding.pages[0]:
        slots = "slot" if finding.places[0] == 1 else "slots"
        return f"the mapping has an SWA slot for {finding.places[0]} {slots} of page 0, which is for padding"
    (row,) = suspects([Finding(finding.fault, finding.pool, finding.pages[:1], finding.places[:1])], audit.ledger)
    first = dict(zip(COLUMNS, row.tolist(), strict=True))
    count, noun = finding.pages.size, "request slot" if of_slots else f"{finding.pool} page"
    words = _WORDS_OF_SLOTS[finding.fault] if of_slots else _WORDS[finding.fault]
    if finding.fault is Fault.NOWHERE and not of_slots and first["last_event"] == LastEvent.FREED:
        words = "were given back, and no free list has them"
    said = f"{count} {noun}{'s' if count > 1 else ''}, first {first['page']}: {words}"
    if of_slots or finding.fault in (Fault.OUT_OF_RANGE, Fault.HELD_OUTSIDE):
        return said
    owner = "owner unknown"
    if first["owner_slot"] > 0:
        owner = f"last owner request slot {first['owner_slot']}, generation {first['owner_generation']}"
    said += f"; {owner}, handed out by {_site(first['alloc_site'])} at step {first['alloc_step']}"
    if first["free_step"] >= 0:
        said += f", freed by {_site(first['free_site'])} at step {first['free_step']}"
    return f"{said}, last event: {_words(LastEvent(first['last_event']).name)}"


def _scalars(audit: Audit) -> dict[str, Any]:
    """Return the equations, and what the table's codes mean: comma-separated words, the code is the position."""
    scalars: dict[str, Any] = {
        "columns": ",".join(COLUMNS),
        "lives_columns": ",".join(LIVES_COLUMNS),
        "shares_columns": ",".join(SHARES_COLUMNS),
        "events_seen": audit.ledger.log.count,
    }
    for equation in audit.equations:
        scalars |= equation.scalars()
    scalars["pools"] = ",".join(POOLS)
    for name, words in (("sites", Site), ("faults", Fault), ("last_events", LastEvent)):
        by_code = {word.value: word.name.lower() for word in words}
        scalars[name] = ",".join(by_code.get(code, "none") for code in range(max(by_code) + 1))
    return scalars


def _counted(audit: Audit) -> dict[str, int]:
    """Return what the counters of a pool have to come to, in tokens: what its lists have, and what nodes hold."""
    reading, page = audit.reading, audit.ledger.page_size
    listed = {f"{one.pool}_listed": one.free.size * page for one in reading.pools if one.pool != REQUEST_SLOTS}
    cached = {f"{pool}_cached": pages * page for pool, pages in reading.cached_pages.items()}
    pair = {} if audit.pair_available is None else {"pair_available": audit.pair_available}
    return listed | cached | pair | {"full_locked": reading.locked.size * page}


def _went_back(audit: Audit, before: Audit | None) -> dict[str, str]:
    """Return of each stay that counts fewer tokens as gone from its window than at the audit before what it had then.

    That count only grows.
    """
    now, then = audit.reading.evicted, {} if before is None else before.reading.evicted
    fell = {
        slot: count
        for slot, count in sorted(then.items())
        if before is not None
        and now.get(slot, count) < count
        and audit.generations.get(slot) == before.generations.get(slot) is not None
    }
    return {"evicted_before": ",".join(f"{slot}:{count}" for slot, count in fell.items())} if fell else {}


def _padding(audit: Audit) -> dict[str, int]:
    """Return the first SWA slot that the mapping has for page 0, if it has any."""
    mapping = audit.reading.mapping
    led = np.empty(0) if mapping is None else mapping[: audit.ledger.page_size]
    return {"padding_leads_to": int(led[led > 0][0])} if (led > 0).any() else {}


def _out_of_place(audit: Audit) -> dict[str, str | int]:
    """Return which slots the mapping leads to another place of a page than their own, where it leads, and their own.

    Likewise those that it leads to another page than the rest of theirs.
    """
    pairs, size = audit.reading.pairs, audit.ledger.page_size
    if pairs is None:
        return {}
    found = {"out_of_place": out_of_place(pairs, size), "led_apart": led_apart(pairs, size, _peers(audit))}
    told: dict[str, str | int] = {}
    for name, slots in found.items():
        if len(slots):
            told[name] = ",".join(":".join(map(str, one)) for one in slots[:MAX_LISTED].tolist())
            told[f"{name}_count"] = len(slots)
    return told


def _peers(audit: Audit) -> np.ndarray:
    """Return by full page the SWA page that it was handed out with, 0 where that is not known."""
    full = audit.ledger.pools.get("full")
    return np.zeros(1, np.int64) if full is None or full.peer is None else full.peer


def _stray(audit: Audit) -> str:
    told = sorted(audit.reading.stray_entries.items())
    return ",".join(f"{slot}:{first}:{count}:{behind}" for slot, (first, count, behind) in told)


def _site(code: int) -> str:
    return Site(code).name.lower()


def _words(name: str) -> str:
    return name.lower().replace("_", " ")
