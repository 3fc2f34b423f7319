"""Statistics of the bench: windows to rows, rows to verdicts on the targets."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma4_repro.bench.arms import ARMS, choose
from gemma4_repro.bench.burst import Burst
from gemma4_repro.bench.quantiles import quantile, ratio_by_round, spread
from gemma4_repro.bench.rows import HOST_DEVICE, build_rows
from gemma4_repro.bench.targets import judge_targets
from gemma4_repro.errors import UnknownName

GPU = "NVIDIA H200"
POSITIVE = st.floats(0.01, 1e4)
CLEAN = {"compared": 38, "changed": [], "plugin_loaded": True}


def burst(arm, round_number, *step_ms, mtp=False, batch=1, copy=1, **hooks_us):
    return Burst(arm, copy, mtp, batch, round_number, 144, step_ms, 500.0, 1.0, 0.3, hooks_us)


@given(st.lists(POSITIVE, min_size=1), st.floats(0, 1))
def test_a_quantile_lies_within_and_the_middle_one_is_the_median(values, share):
    assert min(values) <= quantile(values, share) <= max(values)
    assert quantile(values, 0.5) == pytest.approx(statistics.median(values))
    assert quantile(values, 0.1) <= quantile(values, 0.9)


def test_no_values_have_no_quantile():
    with pytest.raises(ValueError, match="no values"):
        quantile([], 0.5)


def test_a_spread():
    assert spread([3.0, 1.0, 2.0]) == {"median": 2.0, "q10": 1.2, "q90": 2.8, "n": 3}


@given(st.lists(POSITIVE, min_size=3, max_size=12), st.floats(0.5, 30))
def test_a_constant_factor_is_found_whatever_the_rounds_are(reference_ms, factor):
    reference = dict(enumerate(reference_ms))
    found = ratio_by_round({number: factor * value for number, value in reference.items()}, reference)
    assert found is not None
    assert found.median == pytest.approx(factor)
    assert found.low == pytest.approx(factor)
    assert found.high == pytest.approx(factor)
    assert found.rounds == len(reference_ms)


@given(st.lists(POSITIVE, min_size=3, max_size=12))
def test_the_interval_holds_the_median(ratios):
    found = ratio_by_round(dict(enumerate(ratios)), dict.fromkeys(range(len(ratios)), 1.0))
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert min(ratios) <= found.low <= found.median <= found.high <= max(ratios)


def test_only_rounds_that_both_have_are_compared():
    found = ratio_by_round({1: 2.0, 3: 9.0}, {1: 1.0, 2: 1.0})
    assert found is not None
    assert (found.median, found.rounds, found.low) == (2.0, 1, None)
    assert ratio_by_round({1: 2.0}, {2: 1.0}) is None


def test_a_round_is_compared_with_the_same_round():
    # GIVEN a machine that gets slower from round to round, and an arm that costs 1%
    bursts = []
    for number, ms in enumerate((2.0, 3.0, 8.0), 1):
        bursts += [burst("contain", number, 1.01 * ms, 1.01 * ms), burst("none", number, ms, ms)]
    # WHEN rows are made of it
    none, contain = build_rows(bursts, GPU, {"contain": 2})
    # THEN the drift is in the spread and not in the ratio
    assert none["arm"] == "none"
    assert contain["step_ratio_to_none"]["median"] == pytest.approx(1.01)
    assert contain["step_ms"] == {"median": 3.03, "q10": 2.02, "q90": 8.08, "n": 6}
    assert (contain["dumps"], contain["device"], contain["rounds"]) == (2, GPU, 3)
    assert none["decode_tokens_per_s"] == pytest.approx(1000 / 3, abs=0.1)


def test_rows_are_sorted_and_a_burst_without_a_whole_window_is_none():
    bursts = [burst("trap", 1, 1.0, mtp=True), burst("off", 1), burst("none", 1, 1.0, mtp=True), burst("none", 1, 2.0)]
    rows = build_rows(bursts, GPU, {})
    assert [(row["mtp"], row["arm"]) for row in rows] == [(False, "none"), (True, "none"), (True, "trap")]


def rows_with(guard_us, device=GPU):
    bursts = []
    for number in range(1, 6):
        bursts += [burst("none", number, 1.0), burst("contain", number, 9.0, guard=guard_us, other=2.0)]
        bursts += [burst("none", number, 1.0, batch=64), burst("contain", number, 1.0, batch=64, guard=1.0, other=1.0)]
    return build_rows(bursts, device, {})


@pytest.mark.parametrize(("us", "status"), [(7.9, "met"), (8.1, "missed")])
def test_all_probes_together_have_to_hold_in_every_cell(us, status):
    (target,) = judge_targets(choose(("contain",), smoke=False), rows_with(us), CLEAN)
    assert (target["arm"], target["limit"], target["status"]) == ("contain", 0.01, status)
    assert target["worst"]["batch"] == 1
    assert rows_with(us)[1]["hooks_us"] == {"guard": us, "other": 2.0}
    assert target["worst"]["share"] == pytest.approx((us + 2) / 1000)


def test_an_arm_without_clocks_has_no_share():
    none, contain = build_rows([burst("none", 1, 1.0), burst("contain", 1, 1.0)], GPU, {})
    assert (none["probes_us"], none["hooks_us"], none["probes_share"]) == (None, {}, None)
    (target,) = judge_targets(choose(("contain",), smoke=False), [none, contain], CLEAN)
    assert target["status"] == "not measured"


def test_a_smoke_run_is_not_judged():
    (target,) = judge_targets(choose(("contain",), smoke=False), rows_with(9.0, HOST_DEVICE), CLEAN)
    assert target["status"] == "not judged"


def test_an_arm_that_was_asked_for_and_lost_is_not_measured():
    (target,) = judge_targets(choose(("ledger",), smoke=False), rows_with(1.0), CLEAN)
    assert (target["arm"], target["status"]) == ("ledger", "not measured")


@pytest.mark.parametrize(
    ("identity", "status"),
    [(CLEAN, "met"), (CLEAN | {"changed": ["a.b"]}, "missed"), (None, "not measured")],
)
def test_off_is_proven_by_identity_and_not_by_time(identity, status):
    (target,) = judge_targets(choose(("off",), smoke=False), [], identity)
    assert (target["target"], target["status"]) == ("identity", status)


def test_arms_are_chosen_in_the_catalogs_order_with_the_reference():
    assert [arm.id for arm in choose(("trap", "off"), smoke=False)] == ["none", "off", "trap"]
    assert choose((), smoke=False) == ARMS
    assert [arm.id for arm in choose((), smoke=True)] == ["none", "off", "log", "trap", "ledger"]


def test_an_arm_that_is_not_there():
    with pytest.raises(UnknownName, match="there is no arm 'flashinfer-3' on the host engine"):
        choose(("flashinfer-3",), smoke=True)


def test_what_equal_servers_differ_by_is_averaged_and_told():
    # GIVEN two servers of each arm, the second of each slower by itself, and an arm that costs 1%
    bursts = []
    for number in (1, 2, 3):
        for copy, own_ms in ((1, 2.0), (2, 2.4)):
            bursts += [burst("none", number, own_ms, copy=copy), burst("contain", number, 1.01 * own_ms, copy=copy)]
    # AND a round that one server did not finish
    bursts += [burst("none", 4, 2.0), burst("none", 4, 2.4, copy=2), burst("contain", 4, 2.424, copy=2)]
    # WHEN rows are made of it
    none, contain = build_rows(bursts, GPU, {})
    # THEN the 1% is found, the servers are told apart, and the round does not count
    assert contain["step_ratio_to_none"]["median"] == pytest.approx(1.01)
    assert contain["step_ratio_to_none"]["rounds"] == 3
    assert none["servers_ms"] == [2.0, 2.4]


@pytest.mark.parametrize(
    ("off_ms", "ledger_ms", "rounds", "held_by", "status"),
    [
        (1.001, 1.01, 3, "step", "met"),
        (1.015, 1.01, 3, None, "missed"),  # off itself is 1.5% away: 1% cannot be told from 2.5%
        (0.985, 1.01, 3, None, "missed"),
        (1.001, 1.03, 3, None, "missed"),
        (1.001, 1.01, 2, None, "missed"),  # no interval
    ],
)
def test_a_share_above_the_limit_may_be_hidden_in_the_step(off_ms, ledger_ms, rounds, held_by, status):
    # GIVEN probes that take 5% of a step on the scheduler's thread
    bursts = []
    for number in range(1, rounds + 1):
        bursts += [
            burst("none", number, 1.0),
            burst("off", number, off_ms),
            burst("ledger", number, ledger_ms, fold=50.0),
        ]
    # WHEN the ledger's 2% are judged
    (target,) = judge_targets(choose(("ledger",), smoke=False), build_rows(bursts, GPU, {}), CLEAN)
    # THEN they hold only where the step itself shows it, noise added
    assert (target["cells"][0]["held_by"], target["status"]) == (held_by, status)


def test_without_off_a_step_shows_nothing():
    bursts = [burst("none", n, 1.0) for n in (1, 2, 3)]
    bursts += [burst("ledger", n, 1.0, fold=50.0) for n in (1, 2, 3)]
    (target,) = judge_targets(choose(("ledger",), smoke=False), build_rows(bursts, GPU, {}), CLEAN)
    assert target["status"] == "missed"
