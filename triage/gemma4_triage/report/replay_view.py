"""A replay on a terminal: the verdict, what was rebuilt, the damaged rows, what each table gives, each backend."""

from collections.abc import Sequence

from rich.console import Console

from gemma4_dumps.wording import number_of
from gemma4_triage.inspection.provenance_sentence import SPACE_NAMES
from gemma4_triage.replay.compare import Difference
from gemma4_triage.replay.damage import Kind, RowDamage
from gemma4_triage.replay.outcome import BackendOutcome, Replay, Status, VariantOutcome
from gemma4_triage.replay.shrink import Shrunk
from gemma4_triage.replay.tables import AS_DUMPED
from gemma4_triage.terminal import add_row, plain_table, print_line, print_title, size_text

_VERDICTS = {
    Kind.RIGHT: "reads what it should",
    Kind.OTHER_PAGE: "reads other pages than it should",
    Kind.NULL: "reads the null page where keys should be",
    Kind.MISSING: "reads beyond the end of its table",
    Kind.NEGATIVE: "reads before the buffer",
    Kind.OUT_OF_RANGE: "reads beyond the buffer",
}


def print_replay(console: Console, result: Replay, rows: int, asked: Sequence[str]) -> None:
    """Print the result with at most `rows` damaged rows; first of all, if so, that nothing that was asked for ran."""
    if result.none_ran(asked):
        print_line(console, f"NOT RUN on {', '.join(asked)}: what follows was found without", style="bold yellow")
    verdict = "reads the right pages by chance" if result.by_chance else _VERDICTS[result.worst]
    right = result.reads_right and not result.by_chance
    print_line(console, f"{verdict.upper()}  {result.call.dump_id}", style="bold green" if right else "bold red")
    for text in _call_lines(result):
        print_line(console, text)
    _damages(console, result.damages, rows)
    print_title(console, "in fp64, against the table as it should have been")
    table = plain_table("table", "rows off", "max abs", "relative", "least cosine", "first row, head")
    for name, difference in result.reference.items():
        add_row(table, *_cells(name, difference))
    console.print(table)
    for outcome in result.backends:
        _backend(console, outcome)


def shrunk_text(shrunk: Shrunk) -> str:
    """Return for example "32 rows x 64 columns -> 1 x 1, 9000 keys -> 1, 8.1 KiB of tensors -> 312 B"."""
    before, after = shrunk.before, shrunk.after
    return (
        f"shrunk: {number_of(before[0], 'row')} x {number_of(before[1], 'column')} -> {after[0]} x {after[1]}, "
        f"{number_of(before[2], 'key')} -> {after[2]}, "
        f"{size_text(shrunk.bytes_before)} of tensors -> {size_text(shrunk.bytes_after)}; still {shrunk.kind.word}, "
        f"was row {_numbers(shrunk.rows)}, column {_numbers(shrunk.columns)}"
    )


def _call_lines(result: Replay) -> list[str]:
    call, geometry = result.call, result.call.geometry
    unit = "pages" if call.paged else "slots"
    spaces = [SPACE_NAMES.get(space, space) for space in (call.table_space, call.buffer_space)]
    window = "no window" if call.window_left < 0 else f"window_left {call.window_left}"
    rows, columns = number_of(call.rows, "row"), number_of(call.ids.shape[1], "column")
    lines = [
        f"{call.table}: {rows} x {columns} of {spaces[0]} {unit} on the {spaces[1]} buffer "
        f"of {call.bound} {unit}; {number_of(len(call.queries[0]), 'query', 'queries')}",
        f"heads {geometry.q_heads}:{geometry.kv_heads}, head dim {geometry.head_dim}, page size {geometry.page_size}, "
        f"{window}, scale {result.scale:.4g}; "
        f"{number_of(result.pages, 'page')} of keys and values {result.values_from}",
    ]
    if geometry.assumed:
        lines.append(f"assumed, because the dump does not say: {', '.join(geometry.assumed)}")
    if result.unknown_intentions:
        unknown = number_of(result.unknown_intentions, "entry that is", "entries that are")
        lines.append(
            f"of {unknown} read the dump does not say what should have been there: a page of its own stands for each"
        )
    if result.by_chance:
        lines.append(
            "the ids are of another pool than the buffer, and here happen to be the right ones, as in a young pool: "
            "once the pools differ, the same fault reads other pages"
        )
    return lines + list(call.notes)


def _damages(console: Console, damages: tuple[RowDamage, ...], rows: int) -> None:
    if not damages:
        return
    print_title(console, f"damaged rows ({min(rows, len(damages))} of {len(damages)})")
    table = plain_table("row", "request", "keys", "columns read", "reads outside", "bad reads", "worst", "hidden")
    for damage in damages[:rows]:
        column, entry, kind = damage.first
        cells = (
            damage.row,
            damage.request_slot if damage.request_slot >= 0 else "",
            damage.keys,
            f"{damage.columns[0]} to {damage.columns[1]}",
            damage.outside,
            ", ".join(f"{count} {kind.word}" for kind, count in damage.counts.items()) or "none",
            f"[{column}] = {'not in the dump' if entry is None else entry}, {kind.word}",
            damage.hidden or "",
        )
        add_row(table, *(str(cell).replace("_", " ") for cell in cells))
    console.print(table)
    if any(damage.hidden for damage in damages):
        print_line(console, "  hidden: bad entries of pages that the window hides from every query", style="dim")


def _backend(console: Console, outcome: BackendOutcome) -> None:
    about = ", ".join(part for part in (outcome.device, outcome.dtype, f"{outcome.seconds:.1f} s") if part)
    print_title(console, f"{outcome.backend} ({about})")
    if outcome.note:
        print_line(console, f"  {outcome.note}", style="yellow")
    if outcome.refusal is not None:
        said = "cannot run here" if outcome.missing else "does not take this call"
        print_line(console, f"  {said}: {outcome.refusal}", style="yellow")
        return
    for variant in outcome.variants:
        style = "bold red" if variant.wrong else ""
        print_line(console, f"  {variant.variant:<10}{_variant(variant)}", style=style)
    for line in outcome.last_lines:
        print_line(console, f"    | {line}", style="dim")


def _variant(variant: VariantOutcome) -> str:
    if variant.status is not Status.RAN or variant.from_table is None or variant.from_intended is None:
        return f"{variant.status.value}: {variant.detail}"
    agrees = f"as fp64 on this table (max abs {_number(variant.from_table.max_abs)})"
    if not variant.from_table.fine:
        where = "what lies outside is not as modelled" if variant.variant == AS_DUMPED else "the kernel disagrees"
        agrees = f"not as fp64 on this table (max abs {_number(variant.from_table.max_abs)}): {where}"
    off = variant.from_intended
    said = (
        "outputs as they should be"
        if off.fine
        else f"{number_of(len(off.bad_rows), 'row')} off by up to {_number(off.max_abs)}"
    )
    return f"{agrees}; {said}"


def _cells(name: str, difference: Difference) -> tuple[str, ...]:
    first = "" if difference.first_bad is None else f"{difference.first_bad[0]}, {difference.first_bad[1]}"
    numbers = (difference.max_abs, difference.relative, difference.cosine)
    return (name, str(len(difference.bad_rows)), *map(_number, numbers), first)


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.3g}"


def _numbers(numbers: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return f"{shown}, …" if len(numbers) > 8 else shown
