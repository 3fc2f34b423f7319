"""Expressions of rules that are compiled late find what compiled ones find."""

import gc
import re

import pytest
from hypothesis import given
from hypothesis.strategies import data, from_regex, sampled_from

from gemma4_triage.known_issues.catalog import records_folder, words
from gemma4_triage.logs.catalog import findings
from gemma4_triage.logs.late_pattern import _LatePattern, needed_words, pattern

assert findings, "with it every rule is imported"
OF_RECORDS = [(one["words"], 0) for file in (records_folder() / "words").iterdir() for one in words(file.name)]
OF_RULES = [
    (one.pattern, one.flags_of_text)
    for one in gc.get_objects()
    if type(one) is _LatePattern and isinstance(one.pattern, str)
]
EXPRESSIONS = sorted({(text, int(flags)) for text, flags in OF_RECORDS + OF_RULES if needed_words(text)})


@pytest.mark.parametrize(
    ("expression", "needed"),
    [
        ("no such file", ("no such file",)),
        (r"Out of \w+ memory|(?i)KILLED", ("out of ", "killed")),
        (r"colou?rs? of (?:a|b)?thing", ("thing",)),
        (r"a{2,}rest[\]x|]+", ("rest",)),
        (r"(?:one|two)|three", ()),
        (r"first.*?second a*?(?:b)+?third c+?", ("second ",)),
        (r"\w+", ()),
    ],
)
def test_an_expression_says_which_words_it_needs(expression, needed):
    assert needed_words(expression) == needed


@given(data())
def test_what_an_expression_finds_holds_words_that_it_needs(data):
    expression, flags = data.draw(sampled_from(EXPRESSIONS))
    text = data.draw(from_regex(re.compile(expression, flags)))
    assert (pattern(expression, flags).search(text) is None) == (re.search(expression, text, flags) is None)


def test_what_has_none_of_the_words_is_not_compiled(monkeypatch):
    late = pattern("no such file")
    monkeypatch.setattr(re, "compile", None)
    assert late.search("all is there") is None
