"""HTML from values. What `tag` has not made is text, and is escaped: nobody who builds a page has to think of it."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

_WITHOUT_END = frozenset({"br", "meta"})
_LINES = frozenset(
    {"article", "body", "caption", "dd", "details", "div", "dl", "figcaption", "figure", "h1", "h2", "h3", "h4", "head"}
    | {"header", "html", "li", "main", "meta", "nav", "p", "pre", "section", "style", "summary", "svg", "table"}
    | {"tbody", "thead", "title", "tr", "ul"}
)
"""What begins a new line behind it, so that a page can be read and compared as text."""


class Html(str):
    """HTML that is whole already."""

    __slots__ = ()


Child = str | int | float | None | Iterable["Child"]


def joined(*children: Child) -> Html:
    """Return children one behind the other, text escaped; None is nothing."""
    return Html("".join(map(_text, children)))


def tag(name: str, /, *children: Child, **attributes: str | int | bool | None) -> Html:
    """Return an element.

    Args:
        name: Of the element.
        children: What is in it, see `joined`.
        attributes: By name, with `_` for a dash and at the end of a word of Python's; None and False leave it out.
    """
    given = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escape(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    line = "\n" if name in _LINES else ""
    if name in _WITHOUT_END:
        return Html(f"<{name}{given}>{line}")
    return Html(f"<{name}{given}>{joined(*children)}</{name}>{line}")


def _text(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Html):
        return child
    if isinstance(child, str | int | float):
        return escape(str(child))
    return joined(*child)
