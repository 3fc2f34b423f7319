"""A replay of an allocator's calls, of a leak, or of shapes on a terminal: verdict, table, why, and what next."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from gemma4_dumps.wording import number_of
from gemma4_triage.diagnose.next_steps import PROGRAM
from gemma4_triage.replay.allocator_replay import AllocatorReplay, BrokenInvariant, PageChange, ReplayedCall
from gemma4_triage.replay.leak_replay import LeakReplay, PageHistory
from gemma4_triage.replay.shapes_replay import ShapesReplay
from gemma4_triage.terminal import add_row, plain_table, print_line, print_title


def print_allocator(console: Console, result: AllocatorReplay, path: Path, rows: int) -> None:
    """Print the dump's first failing call among the `rows` calls around it, and the pages that it names."""
    _headline(console, result.fine, "every invariant holds", _first_invariant(result), result.dump)
    full, swa = result.pages
    known = "from a known state" if result.start_known else "from a state that is not known"
    if result.in_use_at_start is not None:
        known += f", {result.in_use_at_start[0]} full and {result.in_use_at_start[1]} SWA pages in use"
    calls = number_of(len(result.calls), "call")
    print_line(
        console, f"{calls} on {full} full and {swa} SWA pages of {number_of(result.page_size, 'token')}, {known}"
    )
    if result.compared:
        print_line(console, f"{result.exact} of {result.compared} hand-outs are, slot for slot, those of the reference")
    for note in result.notes:
        print_line(console, note)
    shown = _around(result.calls, result.first, rows)
    print_title(console, f"calls ({len(shown)} of {len(result.calls)})")
    table = plain_table("call", "what", "step", "asked by", "asked", "gave", "free full, swa")
    for call in shown:
        style = "bold red" if call.number == result.first else ""
        cells = (
            f"{'> ' if style else '  '}{call.number}",
            call.call,
            "" if call.step is None else call.step,
            call.site or "",
            call.asked,
            call.gave,
            "" if call.free is None else f"{call.free[0]}, {call.free[1]}",
        )
        add_row(table, *(str(cell) for cell in cells), style=style)
    console.print(table)
    if not result.fine:
        _failure(console, result, rows)
    print_line(console, f"the dump's own verdict: {result.agreement}: {result.because}", style="bold")
    _next(console, path)


def _first_invariant(result: AllocatorReplay) -> str:
    return result.first_broken[0].invariant if result.first_broken else ""


def _failure(console: Console, result: AllocatorReplay, rows: int) -> None:
    where = "before the first call" if result.first == -1 else f"after call {result.first}"
    print_title(console, f"what fails first, {where}")
    for broken in result.first_broken:
        print_line(console, f"  {broken.invariant}: {broken.text}{_of_pages(broken)}", style="bold red")
    if result.request_slot is not None:
        print_line(console, f"  request slot {result.request_slot} had these pages last")
    if result.changes:
        table = plain_table("page", "pool", "before", "after", "handed out by", "given back by")
        for change in result.changes[:rows]:
            add_row(table, *_page(change))
        console.print(table)
        if len(result.changes) > rows:
            print_line(console, f"{number_of(len(result.changes) - rows, 'more page')}; --rows shows them", style="dim")
    if result.later:
        print_line(console, f"{number_of(result.later, 'later call fails', 'later calls fail')} as well, see --json")


def _of_pages(broken: BrokenInvariant) -> str:
    return f" ({broken.page_count} pages in all)" if broken.page_count > 1 else ""


def _page(change: PageChange) -> tuple[str, ...]:
    latest = ["" if call is None else f"call {call}" for call in (change.handed_out, change.given_back)]
    return str(change.page), change.pool, change.before, change.after, *latest


def _around(calls: Sequence[ReplayedCall], first: int | None, rows: int) -> Sequence[ReplayedCall]:
    """Return the `rows` calls that end shortly after the first failing one, or the last ones."""
    numbers = [call.number for call in calls]
    at = numbers.index(first) if first in numbers else (0 if first == -1 else len(calls) - 1)
    stop = min(len(calls), max(at + 1 + rows // 4, rows))
    return calls[max(stop - rows, 0) : stop]


def print_leak(console: Console, result: LeakReplay, path: Path, rows: int) -> None:
    """Print the listed pages of the dump at `path`, the one whose books stop closing first on top."""
    _headline(console, False, "", result.verdict, result.dump)
    since = "" if result.first_step is None else f" from step {result.first_step} on"
    print_line(console, f"{number_of(len(result.pages), 'page')}, {number_of(result.events, 'event')}{since}")
    for text in (*result.equations, result.because, *result.notes):
        print_line(console, f"  {text}")
    print_title(console, f"where the books stop closing ({min(rows, len(result.pages))} of {len(result.pages)} pages)")
    table = plain_table("page", "pool", "owner", "event", "step", "what does not close")
    for page in result.pages[:rows]:
        owner = "unknown" if page.owner is None else f"slot {page.owner[0]}, generation {page.owner[1]}"
        line = "not in the dump" if page.break_line is None else f"line {page.break_line}"
        step = "" if page.break_step is None else str(page.break_step)
        add_row(table, *(str(page.page), page.pool, owner, line, step, page.text))
    console.print(table)
    if result.pages and result.pages[0].events:
        _events(console, result.pages[0])
    _next(console, path, "audit", "every page with its owner")


def _events(console: Console, page: PageHistory) -> None:
    print_title(console, f"the latest events of {page.pool} page {page.page}")
    table = plain_table("line", "step", "what", "by")
    for event in page.events:
        style = "bold red" if event.line == page.break_line else ""
        cells = (str(event.line), str(event.step), event.kind.replace("_", " "), event.site)
        add_row(table, *cells, style=style)
    console.print(table)
    if page.unnamed:
        print_line(
            console,
            f"{number_of(page.unnamed, 'later event names', 'later events name')} its first pages only and may "
            "concern this one too",
        )


def print_shapes(console: Console, result: ShapesReplay, path: Path) -> None:
    """Print what was found in the dump at `path` beside what it should have been."""
    _headline(console, result.fine, "every shape is as it should be", result.verdict, result.dump)
    parts = [result.site, result.role and f"the {result.role}", result.step is not None and f"step {result.step}"]
    print_line(console, ", ".join(part for part in parts if part))
    table = plain_table("what", "found", "should be")
    for shape in result.shapes:
        style = "bold red" if shape.right is False else ""
        add_row(table, *(shape.what, shape.found, shape.expected), style=style)
    console.print(table)
    for text in result.because:
        print_line(console, f"  {text}")
    print_line(console, f"the dump's own verdict: {result.agreement}", style="bold")
    _next(console, path)


def _headline(console: Console, fine: bool, good: str, bad: str, dump: str) -> None:
    word = good if fine else bad.replace("_", " ")
    print_line(console, f"{word.upper()}  {dump}", style="bold green" if fine else "bold red")


def _next(console: Console, path: Path, verb: str = "diagnose", what: str = "the likely cause and its fix") -> None:
    print_line(console, f"{PROGRAM} {verb} {shlex.quote(str(path))}  # {what}", style="dim")
