"""Parts of sections: tables, lists, findings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gemma4_dumps.wording import number_of
from gemma4_triage.report.html.markup import Child, Html, joined, tag
from gemma4_triage.report.model.records import Command, Evidence, Finding, Group, Pair
from gemma4_triage.report.model.text import code_spans
from gemma4_triage.threads import thread_url


def words(text: str) -> Html:
    """Return a sentence with what stands in backticks as code."""
    return joined(tag("code", piece) if is_code else piece for is_code, piece in code_spans(text))


def badge(kind: str, text: str) -> Html:
    """Return a coloured word."""
    return tag("span", text, class_=f"badge {kind.replace(' ', '-')}")


def cell(child: Child, class_: str = "") -> Html:
    """Return a cell of a table."""
    return tag("td", child, class_=class_ or None)


def row_head(*children: Child) -> Html:
    """Return the cell that names its row."""
    return tag("th", *children, scope="row")


def head(names: Iterable[Child]) -> Html:
    """Return the head of a table."""
    return tag("thead", tag("tr", (tag("th", name, scope="col") for name in names)))


def scrolled(label: str, table: Html) -> Html:
    """Return a table in a box that scrolls where the window is too narrow, with a keyboard too."""
    return tag("div", table, class_="scroll", role="region", aria_label=label, tabindex=0)


def pairs(found: Iterable[Pair]) -> Html:
    """Return names with their values."""
    return tag("dl", (tag("div", tag("dt", pair.name), tag("dd", pair.value)) for pair in found))


def groups(found: Sequence[Group]) -> Html:
    """Return groups of pairs, of which the first is open."""
    return joined(
        tag("details", tag("summary", group.title), pairs(group.pairs), open=at == 0) for at, group in enumerate(found)
    )


def commands(found: Iterable[Command]) -> Html:
    """Return commands with what each is for."""
    rows = (tag("tr", row_head(command.what), cell(tag("code", command.line))) for command in found)
    return scrolled("Commands", tag("table", head(("what", "command")), tag("tbody", rows), class_="commands"))


def left_out(lines: Iterable[str]) -> Html:
    """Return what is not shown, a line each."""
    return joined(tag("p", line, class_="left-out") for line in lines)


def listed(title: str, lines: Sequence[str]) -> Html | None:
    """Return sentences below a title; None for none."""
    if not lines:
        return None
    return joined(tag("p", title, class_="listed"), tag("ul", (tag("li", words(line)) for line in lines)))


def finding(found: Finding) -> Html:
    """Return a finding: cause and what to do, and its evidence behind a click."""
    return tag(
        "article",
        tag("h4", badge(found.label, found.label), " ", found.rule),
        tag("p", words(found.cause)),
        listed("What to do", found.advice),
        listed("Ruled out if", found.ruled_out_if),
        _upstream(found.upstream),
        tag(
            "details",
            tag("summary", f"Evidence: {number_of(len(found.evidence), 'value')}"),
            scrolled(
                f"Evidence of {found.rule}",
                tag(
                    "table",
                    head(("in", "field", "value", "what it says")),
                    tag("tbody", map(_evidence, found.evidence)),
                ),
            ),
            left_out(found.left_out),
        ),
        class_=f"finding {found.label}",
    )


def _upstream(threads: Sequence[str]) -> Html | None:
    if not threads:
        return None
    links = [tag("a", thread, href=thread_url(thread)) for thread in threads]
    return tag("p", "Upstream: ", ([", ", link] if at else link for at, link in enumerate(links)), class_="upstream")


def _evidence(piece: Evidence) -> Html:
    return tag(
        "tr",
        cell(f"dump {piece.number}" if piece.number else piece.source, "where"),
        cell(tag("code", piece.field)),
        cell(piece.value, "value"),
        cell(piece.meaning),
    )
