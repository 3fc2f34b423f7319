"""Clocks on hooks: whose time is counted, under which kind of step."""

from time import perf_counter, sleep

import pytest

from gemma4_runtime.cost import OUTSIDE, Ledger, timed
from gemma4_runtime.patch import How

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")

LONG_S = 0.02


def own_s(ledger, kind="decode"):
    return sum(ns for key, ns in ledger.own_ns.items() if key[:2] == (kind, "probe")) / 1e9


@pytest.fixture
def ledger():
    made = Ledger()
    made.begin_step("decode")
    return made


def test_before_and_after_count_whole(ledger):
    hook = timed("probe", How.BEFORE, lambda seconds: sleep(seconds), ledger)
    hook(LONG_S)
    hook(LONG_S)
    assert own_s(ledger) >= 2 * LONG_S
    assert ledger.calls.total() == 2


def test_around_counts_what_is_not_the_originals(ledger):
    def hook(original, value):
        sleep(LONG_S)
        return 2 * original(value)

    began = perf_counter()
    timed_hook = timed("probe", How.AROUND, hook, ledger)

    def original(value):
        sleep(2 * LONG_S)
        return value + 1

    assert timed_hook(original, 3) == 8
    whole = perf_counter() - began
    assert LONG_S <= own_s(ledger) <= whole - 2 * LONG_S


def test_a_hook_inside_anothers_original_is_counted_once(ledger):
    inner = timed("probe", How.AROUND, lambda original: (sleep(LONG_S), original())[1], ledger)
    outer = timed("probe", How.AROUND, lambda original: original(), ledger)
    began = perf_counter()
    outer(lambda: inner(lambda: 1))
    assert LONG_S <= own_s(ledger) <= perf_counter() - began


@pytest.mark.parametrize("how", [How.BEFORE, How.AROUND])
def test_what_raises_is_counted_and_raises(ledger, how):
    def hook(*args):
        raise RuntimeError("trapped")

    with pytest.raises(RuntimeError, match="trapped"):
        timed("probe", how, hook, ledger)(lambda: None)
    assert ledger.calls == {("decode", "probe", "hook"): 1}


def test_an_original_that_raises_raises_through(ledger):
    def original():
        sleep(LONG_S)
        raise ValueError("SGLang's own")

    began = perf_counter()
    with pytest.raises(ValueError, match="SGLang's own"):
        timed("probe", How.AROUND, lambda call: call(), ledger)(original)
    assert own_s(ledger) <= perf_counter() - began - LONG_S


def test_the_document_goes_by_kind_of_step():
    ledger = Ledger()

    def before_step():
        pass

    hook = timed("probe", How.BEFORE, before_step, ledger)
    hook()
    for kind in ("extend", "decode", "decode"):
        ledger.begin_step(kind)
        hook()
    found = ledger.document()
    assert {
        kind: (entry["steps"], entry["probes"]["probe"]["before_step"]["calls"]) for kind, entry in found.items()
    } == {
        OUTSIDE: (0, 1),
        "extend": (1, 1),
        "decode": (2, 2),
    }
