"""Pictures of a page, as SVG and tables without a script: time lines, page tables, ledgers and charts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gemma4_dumps.wording import number_of
from gemma4_triage.report.html.markup import Child, Html, joined, tag
from gemma4_triage.report.html.parts import cell, head, left_out, row_head, scrolled
from gemma4_triage.report.model.pictures import (
    Cell,
    Chart,
    Grid,
    GridRow,
    Lane,
    Ledger,
    Part,
    PoolBar,
    Series,
    Timeline,
)

_WIDTH, _HEIGHT = 1000, 100
"""Of a chart's viewBox, which is stretched to the space that there is."""
_DOT = 4


def timeline(found: Timeline) -> Html:
    """Return lanes of spans and marks above an axis of time or steps."""
    unit = f"s after {found.origin}" if found.unit == "s" else "step"
    ends = (tag("span", f"{round(found.begin, 3):g}"), tag("span", f"{round(found.end, 3):g} {unit}"))
    return tag(
        "figure",
        tag("figcaption", found.title),
        (_lane(lane, found) for lane in found.lanes),
        _row("", tag("span", ends, class_="ends"), "", class_="lane axis"),
        left_out(found.left_out),
        class_="timeline",
    )


def _row(name: str, picture: Html, said: Child, class_: str = "lane", wrong: bool = False) -> Html:
    return tag(
        "div",
        tag("span", name, class_="name"),
        picture,
        tag("span", said, class_="said wrong" if wrong else "said"),
        class_=class_,
    )


def _lane(lane: Lane, found: Timeline) -> Html:
    told = [f"{one.label}. " for one in lane.spans] + ([f"{len(lane.marks)} marks"] if lane.marks else [])
    shapes = [
        *(
            _rect(
                one.tone,
                _percent(one.begin, found.begin, found.end),
                _share(one.end - one.begin, found.end - found.begin),
                3,
                14,
                one.label,
                rx=2,
            )
            for one in lane.spans
        ),
        *(
            tag(
                "circle",
                tag("title", one.label),
                class_=one.tone,
                cx=_percent(one.at, found.begin, found.end),
                cy=10,
                r=5,
            )
            for one in lane.marks
        ),
    ]
    track = _track(lane.name, lane.name, told, _rect("ground", "0", "100%", 9, 2), shapes)
    return _row(lane.name, track, [one.label for one in lane.spans] if lane.spans else len(lane.marks))


def _track(label: str, title: str, told: Child, *shapes: Child, height: int = 20) -> Html:
    return tag(
        "svg",
        tag("title", title),
        tag("desc", told),
        *shapes,
        class_="track",
        role="img",
        aria_label=label,
        height=height,
    )


def _rect(
    class_: str, x: str, width: str, y: int, height: int, title: str | None = None, rx: int | None = None
) -> Html:
    named = None if title is None else tag("title", title)
    return tag("rect", named, class_=class_, x=x, y=y, width=width, height=height, rx=rx)


def grid(found: Grid, number: int) -> Html:
    """Return a window of the page table of a dump of this number, cells coloured by what they are."""
    cuts, row_cuts = _gaps(found.columns), _gaps([row.row for row in found.rows])
    columns = (
        tag("th", column, scope="col", class_="cut" if cut else None)
        for column, cut in zip(found.columns, cuts, strict=True)
    )
    names = (tag("th", name, scope="col") for name in ("row", "request", "keys"))
    rows = (_grid_row(row, found, cuts, cut) for row, cut in zip(found.rows, row_cuts, strict=True))
    return tag(
        "figure",
        tag(
            "figcaption",
            tag("code", found.table),
            f" of {number_of(found.table_rows, 'row')} and {number_of(found.table_columns, 'column')}. Inside "
            f"the {found.buffer}: {found.lower} ≤ {found.unit} < {found.upper}. Window: {found.window}. Outlined: "
            "listed by the probe.",
        ),
        scrolled(
            f"Page table of dump {number}",
            tag("table", tag("thead", tag("tr", names, columns)), tag("tbody", rows), class_="grid"),
        ),
        _legend((one.state, one.text) for one in found.legend),
        (tag("p", note) for note in found.notes),
        left_out(found.left_out),
        class_="page-table",
    )


def _grid_row(row: GridRow, found: Grid, cuts: Sequence[bool], is_cut: bool) -> Html:
    cells = zip(row.cells, found.columns, cuts, strict=True)
    return tag(
        "tr",
        row_head(row.row),
        cell(row.request_slot, "fact"),
        cell(row.keys, "fact"),
        (_grid_cell(one, row, column, cut) for one, column, cut in cells),
        class_="cut" if is_cut else None,
    )


def _grid_cell(one: Cell, row: GridRow, column: int, is_cut: bool) -> Html:
    title = None
    if one.offends or one.right is not None:
        value = "not in the table" if one.value is None else one.value
        title = f"[{row.row}, {column}] {value}: {one.state}" + (
            "" if one.right is None else f", should be {one.right}"
        )
    class_ = f"{one.state}{' bad' if one.offends else ''}{' cut' if is_cut else ''}"
    return tag("td", "\u2013" if one.value is None else one.value, class_=class_, title=title)


def _legend(entries: Iterable[tuple[str, str]]) -> Html:
    found = (tag("li", tag("span", class_=f"swatch {state}"), f" {text}") for state, text in entries)
    return tag("ul", found, class_="legend")


def _bars(title: str, parts: Sequence[Part], noun: str) -> Html | None:
    if not parts:
        return None
    most = max(part.count for part in parts)

    def bar(part: Part) -> Html:
        said = f"{part.name}: {part.count} {noun}"
        picture = _track(said, said, title, _rect("bad", "0", _share(part.count, most), 2, 12, rx=2), height=16)
        return _row(part.name, picture, part.count)

    return tag("figure", tag("figcaption", title), map(bar, parts), class_="bars")


def ledger(found: Ledger) -> Html:
    """Return where an audit found each pool's tokens, whose the suspect pages are, and their lives."""
    names = ("page", "pool", "fault", "owner", "handed out by", "freed by", "last event")
    suspects = (
        tag(
            "tr",
            row_head(one.page),
            map(cell, (one.pool, one.fault, one.owner, one.handed_out, one.freed, one.last_event)),
        )
        for one in found.suspects
    )
    parts = found.pools[0].parts if found.pools else ()
    entries = [(f"part{at}", part.name) for at, part in enumerate(parts, start=1)]
    return joined(
        tag(
            "figure",
            tag("figcaption", "Where each pool's tokens are, as the audit added them up"),
            map(_pool, found.pools),
            _legend([*entries, ("missing-tokens", "missing")]) if found.pools else None,
            class_="pools",
        ),
        _bars("Suspect pages by owner", found.by_owner, "pages"),
        _bars("Suspect pages by the site that handed them out", found.by_site, "pages"),
        scrolled(
            "Suspect pages",
            tag("table", tag("caption", "Suspect pages, one by one"), head(names), tag("tbody", suspects)),
        ),
        (tag("p", "Lives of these pages, oldest first:"), tag("ul", (tag("li", line) for line in found.lives)))
        if found.lives
        else None,
        left_out(found.left_out),
        timeline(found.history) if found.history else None,
    )


def _pool(pool: PoolBar) -> Html:
    every = max(pool.total, pool.total - pool.missing)
    shapes, at = [], 0
    for number, part in enumerate(pool.parts, start=1):
        width = _percent(part.count, 0, every)
        shapes.append(_rect(f"part{number}", _percent(at, 0, every), width, 2, 16, f"{part.name}: {part.count}"))
        at += part.count
    if pool.missing > 0:
        shapes.append(
            _rect("bad", _percent(at, 0, every), _share(pool.missing, every), 2, 16, f"missing: {pool.missing}")
        )
    track = _track(f"{pool.pool}: {pool.text}", pool.pool, pool.text, shapes)
    return _row(pool.pool, track, pool.text, wrong=bool(pool.missing))


def chart(found: Chart) -> Html:
    """Return series over time, as lines above an axis."""
    middle = _HEIGHT // 2
    rules = (tag("line", class_="rule", x1=0, y1=y, x2=_WIDTH, y2=y) for y in (0, middle, _HEIGHT))
    drawn = (
        tag("polyline", class_=f"line{number}", points=points)
        for number, one in enumerate(found.series, start=1)
        for points in _lines(one, found.top)
    )
    said = [(f"line{number}", f"{one.name}: {one.summary}") for number, one in enumerate(found.series, start=1)]
    scale = (tag("span", text) for text in (f"{found.top:.3g}", f"{found.top / 2:.3g}", "0"))
    return tag(
        "figure",
        tag("figcaption", found.title),
        tag(
            "div",
            tag("div", scale, class_="scale", aria_hidden="true"),
            tag(
                "svg",
                tag("title", found.title),
                tag("desc", (f"{text}. " for _, text in said)),
                rules,
                drawn,
                viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
                preserveAspectRatio="none",
                role="img",
                aria_label=found.title,
            ),
            class_="plot",
        ),
        tag("div", (tag("span", tick) for tick in found.ticks), class_="ticks", aria_hidden="true"),
        _legend(said),
        class_="chart",
    )


def _percent(value: float, begin: float, end: float) -> str:
    """Say where `value` lies from begin to end: 0 to 100%."""
    share = (value - begin) / (end - begin) if end > begin else 0.0
    return f"{round(100 * min(max(share, 0.0), 1.0), 2):g}%"


def _share(part: float, whole: float) -> str:
    """Return a visible width."""
    return _percent(max(part, whole / 200) if part > 0 else 0.0, 0.0, whole)


def _lines(series: Series, top: float) -> list[str]:
    """Return a polyline for each stretch without a gap; of a lone point a short line."""
    found, stretch = [], []
    for at, value in enumerate([*series.values, None]):
        if value is not None:
            stretch.append((_x(at, len(series.values)), _y(value, top)))
            continue
        if len(stretch) == 1:
            x, y = stretch[0]
            stretch = [(max(x - _DOT, 0.0), y), (min(x + _DOT, float(_WIDTH)), y)]
        if stretch:
            found.append(" ".join(f"{x:g},{y:g}" for x, y in stretch))
        stretch = []
    return found


def _gaps(columns: Sequence[int]) -> list[bool]:
    """Say of ascending numbers which have a gap before them."""
    return [at > 0 and number != columns[at - 1] + 1 for at, number in enumerate(columns)]


def _x(at: int, count: int) -> float:
    return round(_WIDTH * at / max(count - 1, 1), 1)


def _y(value: float, top: float) -> float:
    return round(_HEIGHT * (1 - min(max(value / top, 0.0), 1.0)), 1)
