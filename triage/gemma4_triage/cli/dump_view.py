"""`dumps show` on a terminal: verdict first, evidence below it, then what to do."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console

from gemma4_dumps.included import sensitive, words
from gemma4_dumps.reader import Dump
from gemma4_dumps.schema import Manifest
from gemma4_dumps.wording import number_of
from gemma4_triage.diagnose.next_steps import next_steps
from gemma4_triage.inspection.guard_lines import guard_lines
from gemma4_triage.inspection.offending_rows import Cell, OffendingRow, offending_rows
from gemma4_triage.inspection.provenance_sentence import SPACE_NAMES, index_unit, provenance_sentence
from gemma4_triage.report.diagnosis_document import damage_line
from gemma4_triage.terminal import add_row, plain_table, print_line, print_title, printable, stdout_console, warn


def print_damage(dump: Dump, as_json: bool = False, name: str = "") -> None:
    """Say what is damaged, if anything: above the result, or on stderr beside a JSON document. name: as damage_line."""
    if not dump.damage:
        return
    if as_json:
        warn(damage_line(dump, name))
    else:
        print_line(stdout_console(), damage_line(dump, name), style="bold yellow")


def print_dump(dump: Dump, rows: int) -> None:
    """Show a dump with at most `rows` offending rows."""
    console, manifest = stdout_console(), dump.manifest
    print_damage(dump)
    if dump.not_hashed:
        said = (
            f"not hashed, for their size: {', '.join(dump.not_hashed)}; nothing that rests on this dump is certain here"
        )
        print_line(console, said, style="yellow")
    _headline(console, manifest)
    if held := sensitive(manifest):
        print_line(console, f"holds {words(held)} of requests: confidential", style="bold yellow")
    _offences(console, manifest, offending_rows(dump, rows))
    _pairs(console, "geometry", _geometry(manifest))
    _pairs(console, "scalars", manifest.scalars)
    _pairs(console, "where", _where(manifest))
    _pairs(console, "versions", manifest.versions | {f"gpu {k}": v for k, v in (manifest.gpu or {}).items()})
    _section(console, "guards", guard_lines(manifest.guards))
    _section(console, "notes", manifest.notes)
    _section(console, "not in this dump", _missing(manifest))
    _pairs(console, "tensors", {n: f"{t.dtype}{list(t.shape)}" for n, t in manifest.tensors.items()})
    _section(console, "repeat with", [manifest.repeat_command] if manifest.repeat_command else [])
    _section(console, "what to do next", next_steps(dump))


def _headline(console: Console, manifest: Manifest) -> None:
    verdict = manifest.verdict.replace("_", " ").upper()
    print_line(console, f"{verdict}  {manifest.rule}, {manifest.action}", style="bold red")
    print_line(console, manifest.summary)
    if sentence := provenance_sentence(manifest):
        print_line(console, sentence, style="bold")
    origin = manifest.provenance
    for what, space, text in (
        ("table", origin.table_space, origin.table_origin),
        ("buffer", origin.buffer_space, origin.buffer_origin),
    ):
        if space != "unknown" or text:
            print_line(console, f"  {what:<7}{SPACE_NAMES.get(space, space)} space  {text}".rstrip())
    if origin.explanation:
        print_line(console, f"  {origin.explanation}")


def _offences(console: Console, manifest: Manifest, rows: list[OffendingRow]) -> None:
    if not rows:
        return
    shown = sum(len(row.offences) for row in rows)
    print_title(console, f"offending entries ({shown} of {manifest.offence_count} in the rows below)")
    table = plain_table("table", "row", "request", "column", "value", "allowed")
    for row in rows:
        for offence in row.offences[:8]:
            slot = "" if offence.request_slot is None else str(offence.request_slot)
            bound = f"{offence.lower} <= {index_unit(manifest)} < {offence.upper}"
            cells = (offence.table, offence.row, slot, offence.column, offence.value, bound)
            add_row(table, *(str(cell) for cell in cells))
        if len(row.offences) > 8:
            add_row(table, "", "", "", "…", f"{len(row.offences) - 8} more", "")
    console.print(table)
    if index_unit(manifest) == "page" and any(row.lower == 1 for row in rows):
        print_line(console, "  page 0 is the pool's dummy page: no live column may hold it", style="dim")
    if manifest.action == "contained":
        said = "  saved after containment: bad entries are 0; the first of each row is shown as it was"
        print_line(console, said, style="dim")
    for row in rows:
        _neighbourhood(console, row)


def _neighbourhood(console: Console, row: OffendingRow) -> None:
    name = printable(f"{row.table}[{row.row}]")
    if row.missing is not None:
        print_line(console, f"  {name} is not shown: {row.missing}", style="yellow")
        return
    numbers = [number for cell in row.cells for number in (cell.column, cell.value, cell.translated or 0)]
    width = max(len(str(number)) for number in numbers) + 3
    cells = _around(row, (console.width - len(name) - 10) // width)
    columns = [(f"{cell.column} ".rjust(width), "dim") for cell in cells]
    values = [
        (f">{cell.value}<".rjust(width), "bold red") if cell.offends else f"{cell.value} ".rjust(width)
        for cell in cells
    ]
    print_line(console, f"  {name}  column", *columns)
    print_line(console, f"  {' ' * len(name)}  value ", *values)
    if any(cell.translated is not None for cell in cells):
        translated = (f"{'' if cell.translated is None else cell.translated} ".rjust(width) for cell in cells)
        print_line(console, f"  {'translated'.rjust(len(name))}  value ", *translated, style="green")


def _around(row: OffendingRow, most: int) -> Sequence[Cell]:
    """Return at most so many cells, and the first that offends among them."""
    if len(row.cells) <= most:
        return row.cells
    bad = next((at for at, cell in enumerate(row.cells) if cell.offends), 0)
    first = max(0, min(bad - most // 2, len(row.cells) - most))
    return row.cells[first : first + max(most, 1)]


def _geometry(manifest: Manifest) -> dict[str, Any]:
    known: dict[str, Any] = {} if manifest.page_size is None else {"page_size": manifest.page_size}
    return known | manifest.extents


def _where(manifest: Manifest) -> dict[str, Any]:
    graph = manifest.graph
    bucket = "" if graph.bucket is None else f", bucket {graph.bucket}"
    known = {
        "site": manifest.site,
        "backend": manifest.backend,
        "pool": SPACE_NAMES.get(manifest.pool_kind or "", manifest.pool_kind),
        "forward mode": manifest.forward_mode,
        "cuda graph": f"captured{bucket}" if graph.captured else "eager",
        "step": manifest.step,
        "mode": manifest.mode,
        "process": f"{manifest.host.hostname}, pid {manifest.host.pid}, rank {manifest.host.rank}",
        "time": manifest.created_utc.isoformat(),
        "launched with": " ".join(manifest.launch_args) or None,
    }
    return {name: value for name, value in known.items() if value is not None}


def _missing(manifest: Manifest) -> Iterable[str]:
    if manifest.offence_count > len(manifest.offences):
        left = manifest.offence_count - len(manifest.offences)
        yield f"{left} of {number_of(manifest.offence_count, 'offence')} {'is' if left == 1 else 'are'} not listed"
    for name, cut in manifest.truncated.items():
        end = "left out" if cut.to_shape is None else f"cut to {list(cut.to_shape)}"
        yield f"{name} {list(cut.from_shape)} {end}: {cut.reason}"
    if manifest.dropped.events:
        yield number_of(manifest.dropped.events, "older event")
    if manifest.dropped.dumps:
        yield (
            number_of(manifest.dropped.dumps, "earlier violation is", "earlier violations are")
            + " not in this store: its caps, or repetitions"
        )


def _pairs(console: Console, title: str, pairs: Mapping[str, Any]) -> None:
    width = max(map(len, pairs), default=0)
    _section(console, title, (f"{name:<{width}}  {value}" for name, value in pairs.items() if name))


def _section(console: Console, title: str, lines: Iterable[str]) -> None:
    texts = list(lines)
    if texts:
        print_title(console, title)
        for text in texts:
            print_line(console, f"  {text}")
