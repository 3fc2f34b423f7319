"""What the SVG pictures of this package draw alike. They hold no outside references and no scripts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import Any

_REFUSED = re.compile("[^\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
INK, MUTED, GRID = "#1c1f23", "#555b63", "#d9dce0"


def svg_document(width: int, height: int, font_size: int, parts: Sequence[str], said: Sequence[str] = ()) -> str:
    """`parts` on white, as a text that ends in a newline. said: title and desc elements, for who cannot see it."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    role = ' role="img"' if said else ""
    style = f'{role} font-family="sans-serif" font-size="{font_size}" fill="{INK}">'
    ground = f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
    return "\n".join([head + style, *said, ground, *parts, "</svg>", ""])


def svg_escape(text: str) -> str:
    """Characters that XML refuses are shown by their numbers."""
    return escape(_REFUSED.sub(lambda match: f"\\x{ord(match[0]):02x}", text))


def svg_text(x: float, y: float, text: str, attributes: str = "") -> str:
    """`text` goes through svg_escape; x and y are its baseline's start, unless text-anchor says otherwise."""
    return f'<text x="{x}" y="{y}" {attributes}>{svg_escape(text)}</text>'


def measured_on(documents: Sequence[Any]) -> str:
    """Device, versions and days of benches of one device and the same versions."""
    first = documents[0]
    versions = ", ".join(f"{name} {first['versions'].get(name, '?')}" for name in ("sglang", "torch", "triton"))
    dates = sorted({document["date"][:10] for document in documents})
    partial = "; partial" if any(document["partial"] for document in documents) else ""
    return f"{first['device']}; {versions}; {' to '.join(dates)}{partial}"
