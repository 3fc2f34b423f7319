"""Which of two releases is the later one: as PyPI orders them."""

import random

import pytest
from packaging.version import Version

from gemma4_runtime.releases import at_least, is_release, order

IN_ORDER = (
    *("0.4.9.post1", "0.5.9", "0.5.13.dev2", "0.5.13a1", "0.5.13b2.dev1", "0.5.13b2", "0.5.13rc1.dev3", "0.5.13rc1"),
    *("0.5.13rc2", "0.5.13", "0.5.13.post1.dev1", "0.5.13.post1", "0.5.13.post2", "0.5.14", "0.5.23", "1.0"),
)


def test_releases_are_ordered_as_packaging_orders_them():
    mixed = list(IN_ORDER)
    random.Random(3).shuffle(mixed)
    assert sorted(mixed, key=order) == sorted(mixed, key=Version) == list(IN_ORDER)


def test_a_candidate_of_a_release_is_not_that_release():
    assert not at_least("0.5.13rc1", "0.5.13")
    assert at_least("0.5.13.post1", "0.5.13")


@pytest.mark.parametrize(("one", "other"), [("0.5", "0.5.0"), ("v0.5.13", "0.5.13"), ("0.5.13+cu129", "0.5.13")])
def test_other_forms_of_the_same(one, other):
    assert order(one) == order(other)


@pytest.mark.parametrize("text", ["", "main", "0.5.13 or later", "0.5.x", "1!2.0", "0.5.13-abc"])
def test_what_is_no_release(text):
    assert (is_release(text), order(text)) == (False, ())
