"""A dump of the leak audit as a picture: each pool's equation, pages by owner and site, what led there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, get_args

from gemma4_dumps import audit_findings
from gemma4_dumps.errors import DumpError
from gemma4_dumps.reader import Dump
from gemma4_dumps.wording import number_of
from gemma4_triage.report.model.limits import MAX_BARS, MAX_EVENTS, MAX_MARKS, MAX_SUSPECTS, first
from gemma4_triage.report.model.pictures import Lane, Ledger, Mark, Part, PoolBar, Suspect, Timeline, Tone

_TONES: dict[str, Tone] = {"owned": "ok", "given": "ok", "freed": "neutral", "free_asked": "neutral"}
_KINDS = get_args(audit_findings.EventKind)
MAX_LANES = 16
MAX_PAGES = 16
"""Pages whose lives are shown."""


def ledger_part(dump: Dump) -> Ledger:
    """Raises DumpError if the table cannot be read."""
    found = audit_findings.suspects(dump)
    suspects, left = first([_suspect(one) for one in found], MAX_SUSPECTS, "page")
    owners, sites = _count(map(_owner, found)), _count(one.alloc_site for one in found)
    by_owner, more_owners = first(owners, MAX_BARS, "owner")
    by_site, more_sites = first(sites, MAX_BARS, "site")
    return Ledger(
        pools=tuple(_pool(equation) for equation in audit_findings.equations(dump)),
        by_owner=by_owner,
        by_site=by_site,
        suspects=suspects,
        history=_history(dump),
        lives=tuple(_lives(dump)),
        left_out=(*left, *more_owners, *more_sites),
    )


def _lives(dump: Dump) -> list[str]:
    """Return a line per life of pages that the table says less of."""
    found = [(key, of_page) for key, of_page in audit_findings.lives(dump).items() if audit_findings.says_more(of_page)]
    return [f"{pool} page {page}: {life.text()}" for (pool, page), of_page in found[:MAX_PAGES] for life in of_page]


def _count(names: Iterable[str]) -> list[Part]:
    return [Part(name=name, count=count) for name, count in Counter(names).most_common()]


def _owner(one: audit_findings.Suspect) -> str:
    return "owner unknown" if one.owner is None else f"request slot {one.owner[0]}, generation {one.owner[1]}"


def _suspect(one: audit_findings.Suspect) -> Suspect:
    return Suspect(
        page=one.page,
        pool=one.pool,
        fault=one.fault.replace("_", " "),
        owner=_owner(one),
        handed_out=_site(one.alloc_site, one.alloc_step),
        freed=_site(one.free_site, one.free_step),
        last_event=one.last_event.replace("_", " "),
    )


def _site(site: str, step: int | None) -> str:
    return "-" if step is None else f"{site}, step {step}"


def _pool(equation: audit_findings.PoolEquation) -> PoolBar:
    return PoolBar(
        pool=equation.pool,
        parts=tuple(Part(name=name.replace("_", " "), count=count) for name, count in equation.sides.items()),
        total=equation.total,
        missing=equation.total - equation.accounted,
        text=equation.text(),
    )


def _history(dump: Dump) -> Timeline | None:
    """Say what the ledger remembers, by pool and kind of event."""
    try:
        events = [event for event in islice(dump.events(), MAX_EVENTS) if _is_event(event)]
    except DumpError:
        return None
    if not events:
        return None
    lanes: dict[tuple[str, str], list[Mark]] = {}
    for event in events:
        kind = str(event.get("kind"))
        mark = Mark(at=event["step"], label=_label(event), tone=_TONES.get(kind, "neutral"))
        lanes.setdefault((str(event.get("pool")), kind), []).append(mark)
    names = sorted(lanes, key=lambda name: (name[0], _KINDS.index(name[1]) if name[1] in _KINDS else len(_KINDS)))
    steps = [event["step"] for event in events]
    hidden = sum(max(len(marks) - MAX_MARKS, 0) for marks in lanes.values())
    return Timeline(
        title="What the ledger saw before the audit",
        unit="step",
        origin="the scheduler's steps",
        begin=min(steps),
        end=max(max(steps), min(steps) + 1),
        lanes=tuple(
            Lane(name=f"{pool} {kind}".replace("_", " "), marks=tuple(lanes[pool, kind][-MAX_MARKS:]))
            for pool, kind in names[:MAX_LANES]
        ),
        left_out=(number_of(hidden, "earlier event"),) if hidden else (),
    )


def _is_event(event: Any) -> bool:
    step = event.get("step") if isinstance(event, Mapping) else None
    return isinstance(step, int) and not isinstance(step, bool) and 0 <= step < 2**53


def _label(event: Mapping[str, Any]) -> str:
    pages = ", ".join(map(str, event.get("first_pages") or ())) if isinstance(event.get("first_pages"), list) else ""
    count: Any = event.get("pages")
    what = str(event.get("kind")).replace("_", " ")
    moved = number_of(count, f"{event.get('pool')} page")
    return f"step {event['step']}: {what} {moved} at {event.get('site')} (first: {pages:.80})"
