"""Numbers in sentences."""

import pytest

from gemma4_dumps.wording import number_of
from gemma4_triage.report.model.limits import first


@pytest.mark.parametrize(
    ("number", "words", "said"),
    [
        (0, ("dump",), "0 dumps"),
        (1, ("dump",), "1 dump"),
        (2, ("dump",), "2 dumps"),
        (1, ("entry", "entries"), "1 entry"),
        (2, ("entry", "entries"), "2 entries"),
        (1, ("older one is", "older ones are"), "1 older one is"),
    ],
)
def test_one_and_many(number, words, said):
    assert number_of(number, *words) == said


@pytest.mark.parametrize(
    ("limit", "said"), [(3, ()), (2, ("1 more log; see there",)), (1, ("2 more logs; see there",))]
)
def test_what_is_left_out_of_a_report(limit, said):
    assert first("abc", limit, "log", "; see there") == (tuple("abc"[:limit]), said)
