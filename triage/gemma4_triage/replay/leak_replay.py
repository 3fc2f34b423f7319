"""The history of every page that a leak audit lists, and the first event after which its books do not close.

A leak dump holds a row of history per page and the latest events of the ledger, of which each names its first pages
only. What follows from neither is not said.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, StrictInt, ValidationError

from gemma4_dumps.audit_findings import RULE, EventKind, PoolEquation, Suspect, equations, suspects
from gemma4_dumps.errors import DumpUnreadable
from gemma4_dumps.reader import Dump
from gemma4_dumps.schema import Record
from gemma4_dumps.wording import number_of
from gemma4_triage.errors import NothingChecked

__all__ = ["RULE", "LeakReplay", "PageHistory", "replay_leak"]

MAX_EVENTS = 4096
MAX_PAGES = 4096
_EVENTS_SHOWN = 6
_Number = Annotated[StrictInt, Field(ge=-(2**62), le=2**62)]


class PageEvent(Record):
    """A line of events.jsonl. pages: how many it concerns; first_pages: the first of them; more are not named."""

    kind: EventKind
    pool: str
    site: str
    step: _Number
    pages: Annotated[StrictInt, Field(ge=0, le=2**62)]
    first_pages: list[_Number]
    request_slots: tuple[_Number, ...] = ()


class SeenEvent(Record):
    """An event that names a page. line: of events.jsonl."""

    line: int
    kind: str
    site: str
    step: int


class PageHistory(Record):
    """One page of the audit.

    Attributes:
        events: those that name it, the latest.
        unnamed: later ones that may concern it as well.
        break_line: of the event after which its books do not close; None if that event is not in the dump.
        break_step: of that event, from the audit's table where the event itself is gone.
        text: what does not close, in a sentence.
    """

    pool: str
    page: int
    fault: str
    owner: tuple[int, int] | None
    peer: int | None
    events: tuple[SeenEvent, ...]
    unnamed: int
    break_line: int | None
    break_step: int | None
    text: str


class LeakReplay(Record):
    """The document of `replay` of a leak dump. pages: the one whose books stop closing first comes first."""

    dump: str
    rule: str
    verdict: str
    site: str
    step: int | None
    summary: str
    pages: tuple[PageHistory, ...]
    events: int
    events_before: int
    first_step: int | None
    equations: tuple[str, ...]
    because: str
    notes: tuple[str, ...]

    @property
    def fine(self) -> bool:
        """Never: an audit lists pages only where something is wrong."""
        return False


@dataclass(frozen=True)
class _Line:
    number: int
    event: PageEvent

    def names(self, pool: str, page: int) -> bool:
        return self.event.pool == pool and page in self.event.first_pages

    def may_name(self, pool: str) -> bool:
        return self.event.pool == pool and self.event.pages > len(self.event.first_pages)


def replay_leak(dump: Dump) -> LeakReplay:
    """Follow each listed page through the dump's events.

    Raises:
        NothingChecked: the audit lists no page.
        DumpError: it cannot be read, or contradicts itself.
    """
    manifest = dump.manifest
    listed = suspects(dump)
    found = [one for one in listed if one.pool != "requests"]
    if not found:
        what = "request slots only" if listed else "no page"
        raise NothingChecked(f"this audit lists {what}: there is no page to follow", "gemma4-triage audit shows it")
    lines = _lines(dump)
    pages = [_history(one, lines) for one in found[:MAX_PAGES]]
    notes = []
    if manifest.dropped.events:
        notes.append(f"{number_of(manifest.dropped.events, 'earlier event')} of the ledger are not in the dump")
    if len(found) > MAX_PAGES:
        notes.append(f"{number_of(len(found) - MAX_PAGES, 'more page')} of the audit were not followed")
    written = equations(dump)
    return LeakReplay(
        dump=manifest.dump_id,
        rule=manifest.rule,
        verdict=manifest.verdict,
        site=manifest.site,
        step=manifest.step,
        summary=manifest.summary,
        pages=tuple(sorted(pages, key=_when)),
        events=len(lines),
        events_before=manifest.dropped.events,
        first_step=lines[0].event.step if lines else None,
        equations=tuple(f"{equation.pool}: {equation.text()}" for equation in written),
        because=_balance(found, written, manifest.page_size),
        notes=tuple(notes),
    )


def _lines(dump: Dump) -> list[_Line]:
    lines = []
    for number, event in enumerate(dump.events(), 1):
        if number > MAX_EVENTS:
            raise DumpUnreadable(f"events.jsonl has more than {MAX_EVENTS} ledger events")
        try:
            lines.append(_Line(number, PageEvent.model_validate(event)))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"])) or "the line"
            raise DumpUnreadable(f"events.jsonl line {number} is no ledger event: {where}: {first['msg']}") from error
        if lines[-1].event.pages < len(lines[-1].event.first_pages):
            raise DumpUnreadable(f"events.jsonl line {number} contradicts itself: it names more pages than it counts")
    return lines


def _history(one: Suspect, lines: Sequence[_Line]) -> PageHistory:
    named = [line for line in lines if line.names(one.pool, one.page)]
    at, step, text = _break(one, named, lines)
    after = 0 if at is None else at
    return PageHistory(
        pool=one.pool,
        page=one.page,
        fault=one.fault,
        owner=one.owner,
        peer=one.peer,
        events=tuple(_seen(line) for line in named[-_EVENTS_SHOWN:]),
        unnamed=sum(line.number > after and line.may_name(one.pool) for line in lines),
        break_line=at,
        break_step=step,
        text=text,
    )


def _break(one: Suspect, named: Sequence[_Line], lines: Sequence[_Line]) -> tuple[int | None, int | None, str]:
    """Line and step of the event after which the page's books do not close, and why."""
    given_back = one.free_step is not None and one.last_event in ("freed", "free_asked")
    match one.fault:
        case "nowhere" if given_back:
            line = _latest(named, "freed", "free_asked")
            text = f"{_by(one.free_site)} gave it back at step {one.free_step}, and it is on no free list"
            return _at(line), one.free_step, text
        case "nowhere" if (line := _without_it(one, named, lines)) is not None:
            other = "full" if one.pool == "swa" else "swa"
            gave_back = f"{_by(line.event.site)} gave back {other} page {one.peer}, which goes with it"
            return line.number, line.event.step, f"{gave_back}, at step {line.event.step} without it"
        case "nowhere" | "held_twice" | "handed_out_in_use":
            what = {
                "nowhere": "no release follows: it has no holder and is on no free list",
                "held_twice": "it has two holders now",
                "handed_out_in_use": "it was in use then",
            }[one.fault]
            if one.alloc_step is None:
                return None, None, f"who handed it out is not known; {what}"
            line = next((line for line in named if line.event.step == one.alloc_step), None)
            opened = line if line is not None and line.event.kind == "handed_out" else None
            return _at(opened), one.alloc_step, f"{_by(one.alloc_site)} handed it out at step {one.alloc_step}; {what}"
        case "free_twice" | "freed_again" | "free_and_held":
            line = _second_release(named) or _latest(named, "freed")
            what = "while somebody still holds it" if one.fault == "free_and_held" else "and it was free already"
            step = one.free_step if line is None else line.event.step
            site = one.free_site if line is None else line.event.site
            text = "who gave it back is not known, " if step is None else f"{_by(site)} gave it back at step {step}, "
            return _at(line), step, text + what
        case "stale_mapping" if one.pool == "full" and one.peer is not None:
            line = _latest([line for line in lines if line.names("swa", one.peer)], "freed")
            text = f"its slots still map to SWA page {one.peer}"
            if line is None:
                return None, None, f"{text}, and no event in the dump gives that page back"
            gave_back = f"which {_by(line.event.site)} gave back at step {line.event.step}"
            return line.number, line.event.step, f"{text}, {gave_back}"
        case "unmapped":
            return None, None, "it maps to no SWA page, and no event in the dump says since when"
        case _:
            return None, None, f"the audit found it {one.fault.replace('_', ' ')}, and no event in the dump says why"


def _without_it(one: Suspect, named: Sequence[_Line], lines: Sequence[_Line]) -> _Line | None:
    """Return the first release of a page's counterpart in the other pool since this page was handed out last."""
    if one.peer is None:
        return None
    since = max((line.number for line in named if line.event.kind == "handed_out"), default=None)
    other = "full" if one.pool == "swa" else "swa"
    later = (line for line in lines if since is not None and line.number > since and line.names(other, one.peer))
    return next((line for line in later if line.event.kind == "freed"), None)


def _second_release(named: Iterable[_Line]) -> _Line | None:
    """Return the first release of a page that an earlier one had given back, with no hand-out between them."""
    free = False
    for line in named:
        if line.event.kind == "freed":
            if free:
                return line
            free = True
        elif line.event.kind in ("handed_out", "owned"):
            free = False
    return None


def _latest(lines: Sequence[_Line], *kinds: str) -> _Line | None:
    return next((line for line in reversed(lines) if line.event.kind in kinds), None)


def _at(line: _Line | None) -> int | None:
    return None if line is None else line.number


def _by(site: str) -> str:
    return "an unknown caller" if site == "unknown" else site


def _seen(line: _Line) -> SeenEvent:
    return SeenEvent(line=line.number, kind=line.event.kind, site=line.event.site, step=line.event.step)


def _when(history: PageHistory) -> tuple[bool, int, str, int]:
    return history.break_step is None, history.break_step or 0, history.pool, history.page


def _balance(found: Sequence[Suspect], written: Sequence[PoolEquation], page_size: int | None) -> str:
    """Say whether the pages that are nowhere are all that the pools lack, or that a pool counts more than it has."""
    said = []
    for equation in written:
        lost = sum(one.fault == "nowhere" and one.pool == equation.pool for one in found) * (page_size or 1)
        missing = equation.total - equation.accounted
        if equation.pool == "requests" or not (lost or missing):
            continue
        if missing < 0:
            said.append(f"the {equation.pool} pool's parts count {-missing} tokens more than the pool has")
        if lost:
            lacks = "which is what its equation lacks"
            fits = lacks if lost == missing else f"and its equation lacks {max(missing, 0)}"
            said.append(f"the listed {equation.pool} pages that are nowhere hold {lost} tokens, {fits}")
        elif missing > 0:
            said.append(f"the {equation.pool} pool lacks {missing} tokens, and no listed page is nowhere")
    return "; ".join(said) or "the pools' equations hold: what is wrong does not change how many pages are free"
