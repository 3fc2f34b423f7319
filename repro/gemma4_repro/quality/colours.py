"""Thirty images of one plain colour each, and what counts as the right name of it.

The colours are the ten basic colour terms of English (Berlin and Kay, 1969) besides grey, three shades of each, all
well inside what the word covers. The images are drawn when they are needed and are the same every time.
"""

from __future__ import annotations

import base64
import io
import re

QUESTION = "Which colour is this? Answer with one word."
GUESS = 1 / 10
"""The share of right answers of a model that sees nothing and names one of the ten colours."""
MAX_TOKENS = 16

SHADES: dict[str, tuple[tuple[int, int, int], ...]] = {
    "red": ((255, 0, 0), (220, 20, 20), (178, 0, 0)),
    "orange": ((255, 140, 0), (255, 127, 14), (245, 120, 0)),
    "yellow": ((255, 255, 0), (255, 235, 30), (245, 225, 0)),
    "green": ((0, 128, 0), (0, 200, 0), (34, 139, 34)),
    "blue": ((0, 0, 255), (0, 0, 160), (30, 90, 220)),
    "purple": ((128, 0, 128), (110, 30, 160), (90, 0, 130)),
    "pink": ((255, 182, 193), (255, 105, 180), (255, 150, 190)),
    "brown": ((101, 67, 33), (139, 69, 19), (92, 51, 23)),
    "black": ((0, 0, 0), (8, 8, 8), (15, 15, 15)),
    "white": ((255, 255, 255), (250, 250, 250), (245, 245, 245)),
}
SIZES = ((224, 224), (480, 480), (640, 360))
"""Width and height of the three shades' images: square and not, so that more than one number of tokens is asked for."""

SYNONYMS: dict[str, tuple[str, ...]] = {
    "red": ("scarlet", "crimson", "maroon", "burgundy", "vermilion"),
    "orange": ("amber", "tangerine"),
    "yellow": ("gold", "golden"),
    "green": ("lime", "emerald", "forest"),
    "blue": ("navy", "azure", "cobalt", "royal"),
    "purple": ("violet", "indigo", "plum", "magenta"),
    "pink": ("rose", "salmon", "fuchsia"),
    "brown": ("chocolate", "sienna", "umber"),
    "black": (),
    "white": (),
    # No image is grey, and a reply that says so is wrong rather than unreadable.
    "grey": ("gray", "silver"),
}
"""Other words that are taken for the colour."""

_COLOUR_OF = {word: colour for colour, others in SYNONYMS.items() for word in (colour, *others)}
_WORD = re.compile(r"[a-z]+")


def prompts() -> list[tuple[str, str, str]]:
    """Return the id, the image as a data URL, and the right colour of each of the thirty prompts."""
    return [
        (f"{colour}-{number}", _data_url(size, shade), colour)
        for colour, shades in SHADES.items()
        for number, (size, shade) in enumerate(zip(SIZES, shades, strict=True), 1)
    ]


def read_colour(reply: str) -> str | None:
    """Return the one colour that a reply names, or None if it names none, or several."""
    named = {_COLOUR_OF[word] for word in _WORD.findall(reply.lower()) if word in _COLOUR_OF}
    return named.pop() if len(named) == 1 else None


def _data_url(size: tuple[int, int], shade: tuple[int, int, int]) -> str:
    # Comes with SGLang; the base install does without.
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", size, shade).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
