"""A comparison of two dumps on a terminal: section by section, tensor by tensor, and what differs first."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from gemma4_dumps.plain_json import plain
from gemma4_dumps.wording import number_of
from gemma4_triage.cli.output import printable
from gemma4_triage.compare.difference import Comparison, EventsDifference, FieldDifference, TensorDifference
from gemma4_triage.compare.first_difference import sentence
from gemma4_triage.compare.sections import SECTIONS
from gemma4_triage.compare.side import Side
from gemma4_triage.compare.value_text import value_texts

_AFTER_TENSORS = SECTIONS[SECTIONS.index("scalars") :]


def print_diff(console: Console, a: Side, b: Side, comparison: Comparison, rows: int, volatile: bool) -> None:
    """At most `rows` differences of each section and tensor. volatile: show those fields, which do not count."""
    title = Text("EQUAL" if comparison.equal else "DIFFERENT", style="bold green" if comparison.equal else "bold red")
    _line(console, title)
    for side in (a, b):
        _line(console, Text(printable(f"  {side.letter}  {side.dump.path.name}")))
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
    _line(console, Text(printable(sentence(comparison)), style="bold"))
    if comparison.volatile and not volatile:
        _line(console, Text(f"{len(comparison.volatile)} volatile fields differ too; --volatile shows them"))


def _section(console: Console, title: str, fields: Sequence[FieldDifference], rows: int) -> None:
    if fields:
        _title(console, f"{title} ({len(fields)})")
        _fields(console, fields, rows)


def _fields(console: Console, fields: Sequence[FieldDifference], rows: int) -> None:
    for field in fields[:rows]:
        a, b = value_texts(field.a, field.b)
        _line(console, Text(printable(f"  {field.path}")))
        _line(console, Text(printable(f"    A  {a}"), style="red"))
        _line(console, Text(printable(f"    B  {b}"), style="green"))
    _hidden(console, len(fields) - rows)


def _tensors(console: Console, comparison: Comparison) -> None:
    if comparison.tensors:
        _title(console, f"tensors ({len(comparison.tensors)} of {comparison.tensor_count})")
    for tensor in comparison.tensors:
        _line(console, Text(printable(f"  {tensor.name}: {_summary(tensor)}")))
        for field in tensor.layout:
            _line(console, Text(printable(f"    {field.path}  {' | '.join(value_texts(field.a, field.b))}")))
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
        line = Text(f"    {place:<{widths[0]}}  ")
        line.append(f"{a:>{widths[1]}}", style="red").append(" | ").append(f"{b:>{widths[2]}}", style="green")
        _line(console, line)
    _hidden(console, tensor.hidden)


def _events(console: Console, events: EventsDifference, rows: int) -> None:
    _title(console, f"events ({events.count_a} in A, {events.count_b} in B), the first that differs")
    _fields(console, events.first, rows)


def _hidden(console: Console, count: int) -> None:
    if count > 0:
        _line(console, Text(f"    {count} more; --rows shows more", style="dim"))


def _title(console: Console, title: str) -> None:
    console.print()
    console.print(Text(title, style="bold cyan"))


def _line(console: Console, text: Text) -> None:
    # Soft wrap: what is copied from a terminal or cut with grep stays one line.
    console.print(text, soft_wrap=True)
