"""HTML from values: what `tag` has not made is text, wherever it stands."""

import ast
from pathlib import Path

import pytest

from gemma4_triage.report.html.markup import Html, joined, tag

FOLDER = Path(__file__).parents[2] / "triage" / "gemma4_triage" / "report" / "html"
HOSTILE = "<script>\"'&"


@pytest.mark.parametrize("child", [HOSTILE, [HOSTILE], [[HOSTILE], None], (text for text in (HOSTILE,))])
def test_text_is_escaped_wherever_it_stands(child):
    assert tag("b", child) == "<b>&lt;script&gt;&quot;&#x27;&amp;</b>"


def test_an_attribute_is_escaped_and_left_out_for_none():
    made = tag("td", class_=HOSTILE, aria_label="a", tabindex=0, open=True, title=None, hidden=False)
    assert made == '<td class="&lt;script&gt;&quot;&#x27;&amp;" aria-label="a" tabindex="0" open></td>'


def test_elements_hold_elements_and_values():
    assert tag("i", tag("b", 1), 0, None, 2.5, False) == "<i><b>1</b>02.5False</i>"
    assert joined(["a", [tag("br")]], None) == "a<br>"


def test_no_string_of_html_is_escaped_into_plain_text_by_a_method():
    # str's methods return str, which is text again: nothing is trusted for having been HTML once.
    assert type(tag("b").upper()) is str
    assert joined(Html("<b>") + "<i>") == "&lt;b&gt;&lt;i&gt;"


def test_only_the_style_is_trusted_outside_of_it():
    made = {
        path.name: sum(
            isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Html"
            for node in ast.walk(ast.parse(path.read_text()))
        )
        for path in FOLDER.glob("*.py")
    }
    assert {name: count for name, count in made.items() if count} == {"markup.py": 3, "render.py": 1}
