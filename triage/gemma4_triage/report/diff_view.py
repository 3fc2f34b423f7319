"""A comparison of two dumps on a terminal: section by section, tensor by tensor, and what differs first."""

from collections.abc import Sequence

from rich.console import Console

from gemma4_dumps.plain_json import plain
from gemma4_dumps.wording import number_of
from gemma4_triage.compare.difference import Comparison, EventsDifference, FieldDifference, TensorDifference
from gemma4_triage.compare.first_difference import sentence
from gemma4_triage.compare.sections import SECTIONS
from gemma4_triage.compare.side import Side
from gemma4_triage.compare.value_text import value_texts
from gemma4_triage.terminal import print_line, print_title

_AFTER_TENSORS = SECTIONS[SECTIONS.index("scalars") :]


def print_diff(console: Console, a: Side, b: Side, comparison: Comparison, rows: int, volatile: bool) -> None:
    """Print at most `rows` differences of each section and tensor. volatile: show those fields, which do not count."""
    verdict, style = ("EQUAL", "bold green") if comparison.equal else ("DIFFERENT", "bold red")
    print_line(console, verdict, style=style)
    for side in (a, b):
        print_line(console, f"  {side.letter}  {side.dump.path.name}")
    for name in SECTIONS[: SECTIONS.index("scalars")]:
        _section(console, name, comparison.sections.get(name, ()), rows)
    _tensors(console, comparison)
    for name in _AFTER_TENSORS:
        _section(console, name, comparison.sections.get(name, ()), rows)
    if comparison.events:
        _events(console, comparison.events, rows)
    if volatile:
        _section(console, "volatile, does not count", comparison.volatile, rows)
    console.print()
    print_line(console, sentence(comparison), style="bold")
    if comparison.volatile and not volatile:
        print_line(console, f"{len(comparison.volatile)} volatile fields differ too; --volatile shows them")


def _section(console: Console, title: str, fields: Sequence[FieldDifference], rows: int) -> None:
    if fields:
        print_title(console, f"{title} ({len(fields)})")
        _fields(console, fields, rows)


def _fields(console: Console, fields: Sequence[FieldDifference], rows: int) -> None:
    for field in fields[:rows]:
        a, b = value_texts(field.a, field.b)
        print_line(console, f"  {field.path}")
        print_line(console, f"    A  {a}", style="red")
        print_line(console, f"    B  {b}", style="green")
    _hidden(console, len(fields) - rows)


def _tensors(console: Console, comparison: Comparison) -> None:
    if comparison.tensors:
        print_title(console, f"tensors ({len(comparison.tensors)} of {comparison.tensor_count})")
    for tensor in comparison.tensors:
        print_line(console, f"  {tensor.name}: {_summary(tensor)}")
        for field in tensor.layout:
            print_line(console, f"    {field.path}  {' | '.join(value_texts(field.a, field.b))}")
        _entries(console, tensor)


def _summary(tensor: TensorDifference) -> str:
    if tensor.only_in:
        return f"only in {tensor.only_in}"
    if tensor.not_compared:
        return f"values not compared, {tensor.not_compared}"
    return f"{tensor.differing} of {number_of(tensor.size, 'entry', 'entries')} differ{'s' * (tensor.differing == 1)}"


def _entries(console: Console, tensor: TensorDifference) -> None:
    cells = [(str(list(one.index)), *value_texts(plain(one.a), plain(one.b))) for one in tensor.entries]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for place, a, b in cells:
        sides = (f"{a:>{widths[1]}}", "red"), " | ", (f"{b:>{widths[2]}}", "green")
        print_line(console, f"    {place:<{widths[0]}}  ", *sides)
    _hidden(console, tensor.hidden)


def _events(console: Console, events: EventsDifference, rows: int) -> None:
    print_title(console, f"events ({events.count_a} in A, {events.count_b} in B), the first that differs")
    _fields(console, events.first, rows)


def _hidden(console: Console, count: int) -> None:
    if count > 0:
        print_line(console, f"    {count} more; --rows shows more", style="dim")
