"""First divergence, near-ties and the window experiment, on arrays."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma4_repro.engine.outcome import Ending
from gemma4_repro.parity.compare_tracks import LayerDifference, Tolerances, compare_tracks
from gemma4_repro.parity.judge import TRANSFORMERS, against_base, against_transformers, exit_code
from gemma4_repro.parity.window_evidence import keys_seen, tried_windows, window_cause
from parity_examples import (
    HIDDEN,
    LAYERS,
    PROMPT,
    TOKENS,
    VOCABULARY,
    WINDOW,
    arm,
    changed,
    live_run,
    oracle,
    side,
    track,
)

LIMITS = Tolerances()
ROWS = st.integers(0, TOKENS - 2)
OUTPUT_ROWS = st.integers(PROMPT - 1, TOKENS - 2)
BEYOND = st.floats(2 * LIMITS.logprob, 1.0)
WITHIN = st.floats(-0.9 * LIMITS.logprob, 0.9 * LIMITS.logprob)


def other_token(base, row):
    return (base.tokens[row + 1] + 1) % VOCABULARY


@given(st.integers(0, 1000), ROWS, WITHIN)
def test_what_is_within_tolerance_agrees(seed, row, size):
    base = track(seed=seed)
    found = compare_tracks(base, changed(base, row, logprob=size), LIMITS)
    assert found.agrees
    assert (found.first_over, found.token, found.layer) == (None, None, None)
    assert found.worst == pytest.approx(abs(size))
    assert found.rows == TOKENS - 1


@given(st.integers(0, 1000), st.sets(ROWS, min_size=1), BEYOND)
def test_the_first_row_beyond_the_tolerance_is_named(seed, rows, size):
    base = other = track(seed=seed)
    for row in rows:
        other = changed(other, row, logprob=size)
    found = compare_tracks(base, other, LIMITS)
    assert not found.agrees
    assert found.first_over == min(rows)
    assert found.worst == pytest.approx(size)


@given(st.integers(0, 1000), st.sets(st.tuples(ROWS, st.integers(0, LAYERS - 1)), min_size=1))
def test_the_first_layer_of_the_first_row_is_named(seed, places):
    base = track(seed=seed)
    states = base.states.copy()
    for row, layer in places:
        states[row, layer, HIDDEN - 1] += 1
    found = compare_tracks(base, replace(base, states=states), LIMITS).layer
    assert found is not None
    assert (found.position, found.layer) == min(places)
    assert found.mode == base.mode(found.position)


@given(st.integers(0, 1000), OUTPUT_ROWS, ROWS, BEYOND)
def test_nothing_is_compared_behind_a_different_token(seed, row, later, size):
    """The row that gave it still is: both had read the same."""
    base = track(seed=seed)
    other = changed(changed(base, later, logprob=size), row, token=other_token(base, row))
    found = compare_tracks(base, other, LIMITS)
    assert found.token is not None
    assert (found.token.position, found.token.output_index) == (row, row + 1 - PROMPT)
    assert found.rows == row + 1
    assert found.first_over == (later if later <= row else None)


@given(st.integers(0, 1000), OUTPUT_ROWS, st.floats(0, 3 * LIMITS.logprob))
def test_a_different_token_is_let_pass_if_the_reference_was_of_two_minds(seed, row, gap):
    base = track(seed=seed)
    second = other_token(base, row)
    logprobs = base.logprobs.copy()
    logprobs[row, second] = logprobs[row].max() - gap
    base = replace(base, logprobs=logprobs)
    found = compare_tracks(base, changed(base, row, token=second), LIMITS)
    assert found.token is not None
    assert found.token.gap == pytest.approx(gap, abs=1e-12)
    assert (found.token.reference_token, found.token.other_token) == (base.tokens[row + 1], second)
    assert found.agrees == found.token.near_tie == (found.token.gap <= LIMITS.logprob)


def test_a_logprob_or_a_state_that_is_no_number_differs():
    base = track()
    found = compare_tracks(base, changed(base, 4, logprob=np.nan), LIMITS)
    assert (found.agrees, found.first_over, found.worst_position) == (False, 4, 4)


def test_states_that_nobody_recorded_are_not_compared():
    base = track()
    missing = changed(base, 2, states=np.full((LAYERS, HIDDEN), np.nan))
    found = compare_tracks(base, missing, LIMITS).layer
    assert found is not None
    assert (found.position, found.layer, found.difference) == (2, 0, np.inf)
    unrecorded = replace(missing, modes=(*base.modes[:2], "", *base.modes[3:]))
    assert compare_tracks(base, unrecorded, LIMITS).layer is None
    nothing = replace(base, states=np.zeros((TOKENS - 1, 0, 0), np.float32))
    assert compare_tracks(base, nothing, LIMITS).layer is None


class TestWindow:
    """The number of keys is read off what transformers gives with that many."""

    @given(st.sampled_from([WINDOW - 1, WINDOW, WINDOW + 1]), ROWS)
    def test_the_width_that_gives_these_states_is_named(self, keys, row):
        said = oracle()
        base = said.tracks[0]
        states = base.states if keys == WINDOW else said.varied[0][keys]
        seen = keys_seen(said, changed(base, row, states=states[row]), row, LIMITS)
        assert seen is not None
        assert (seen.keys, seen.left) == (keys, 0)

    def test_states_of_no_width_are_explained_by_none(self):
        said = oracle()
        assert keys_seen(said, changed(said.tracks[0], 4, states=np.ones((LAYERS, HIDDEN))), 4, LIMITS) is None

    def test_another_context_is_not_explained(self):
        said = oracle()
        base = said.tracks[0]
        assert keys_seen(said, changed(base, 3, token=other_token(base, 3)), 5, LIMITS) is None

    @pytest.mark.parametrize(
        ("keys", "backend", "mode", "fix"),
        [
            (WINDOW + 1, "trtllm_mha", "DECODE", "swa-window-width"),
            (WINDOW + 1, "triton", "EXTEND", "swa-window-width"),
            (WINDOW - 1, "triton", "DECODE", "triton-decode-window"),
            (WINDOW - 1, "triton", "TARGET_VERIFY", None),
            (WINDOW - 1, "trtllm_mha", "DECODE", None),
        ],
    )
    def test_the_fix_follows_from_width_backend_and_mode(self, keys, backend, mode, fix):
        said = oracle()
        base = said.tracks[0]
        other = changed(base, 5, states=said.varied[0][keys][5])
        cause = window_cause(said, base, other, LayerDifference(5, 0, 0.1, 0.1, mode), backend, LIMITS)
        assert cause is not None
        assert (cause.reference.keys, cause.other.keys, cause.window, cause.fix) == (WINDOW, keys, WINDOW, fix)

    def test_a_difference_that_begins_in_a_full_layer_is_no_windows(self):
        said = oracle()
        base = said.tracks[0]
        other = changed(base, 5, states=said.varied[0][WINDOW + 1][5])
        assert window_cause(said, base, other, LayerDifference(5, 1, 0.1, 0.1, "DECODE"), "triton", LIMITS) is None

    def test_a_window_of_one_key_tries_no_empty_one(self):
        assert tried_windows(1) == (2, 3)
        assert tried_windows(WINDOW) == (2, 3, 5, 6)


class TestJudge:
    def test_agreement_is_0(self, tmp_path):
        verdicts = against_transformers(live_run(tmp_path, arm(tmp_path, track())), LIMITS)
        assert (verdicts[0].status, verdicts[0].reference, exit_code(verdicts)) == ("agrees", TRANSFORMERS, 0)

    def test_one_cause_in_many_prompts_is_told_once_where_it_comes_first(self, tmp_path):
        tracks = [track(prompt) for prompt in range(3)]
        said = oracle(*tracks)
        wide = [
            changed(t, row, logprob=0.1, states=said.varied[t.prompt][WINDOW + 1][row])
            for t, row in zip(tracks, (7, 5, 6), strict=True)
        ]
        (verdict,) = against_transformers(live_run(tmp_path, arm(tmp_path, *wide), said=said), LIMITS)
        (cause,) = verdict.causes
        assert (cause.prompt, cause.place.position, cause.prompts) == (1, 5, (0, 1, 2))
        assert (verdict.status, exit_code([verdict])) == ("differs", 1)

    def test_two_causes_are_told_apart(self, tmp_path):
        tracks = [track(prompt) for prompt in range(2)]
        said = oracle(*tracks)
        parted = [
            changed(t, 5, logprob=0.1, states=said.varied[t.prompt][keys][5])
            for t, keys in zip(tracks, (WINDOW - 1, WINDOW + 1), strict=True)
        ]
        (verdict,) = against_transformers(live_run(tmp_path, arm(tmp_path, *parted), said=said), LIMITS)
        assert [cause.window and cause.window.fix for cause in verdict.causes] == [
            "triton-decode-window",
            "swa-window-width",
        ]

    def test_a_crash_is_1_and_says_nothing_of_agreement(self, tmp_path):
        crashed = arm(tmp_path, ending=Ending.CRASHED, raised=[("IllegalAddress", "page 65 of 65")])
        trapped = arm(tmp_path, ending=Ending.CRASHED, raised=[("TrappedViolation", "page-table-bounds")])
        verdicts = against_transformers(live_run(tmp_path, crashed, trapped), LIMITS)
        assert [verdict.status for verdict in verdicts] == ["crashed", "trapped"]
        assert [verdict.agrees for verdict in verdicts] == [None, None]
        assert exit_code(verdicts) == 1

    def test_a_dump_is_1_though_all_agree(self, tmp_path):
        (verdict,) = against_transformers(live_run(tmp_path, arm(tmp_path, track(), dumps=["a dump"])), LIMITS)
        assert (verdict.agrees, verdict.status, exit_code([verdict])) == (True, "violations", 1)

    def pair(self, tmp_path, base, other):
        run = live_run(tmp_path, replace(base, side=side("base-x")), replace(other, side=side("with-x")))
        verdicts = against_base(run, [("base-x", "with-x")], LIMITS)
        return verdicts[0], exit_code(verdicts, [run.arm("base-x")])

    def test_patch_sets_are_held_against_each_other_not_against_transformers(self, tmp_path):
        wrong = changed(track(), 4, logprob=0.5)
        verdict, code = self.pair(tmp_path, arm(tmp_path, wrong), arm(tmp_path, wrong))
        assert (verdict.status, verdict.reference, code) == ("agrees", "base-x", 0)
        verdict, code = self.pair(tmp_path, arm(tmp_path, track()), arm(tmp_path, wrong))
        assert (verdict.status, code) == ("differs", 1)

    def test_dumps_that_the_base_left_too_are_no_news(self, tmp_path):
        one, two = ["a dump"], ["a dump", "another"]
        verdict, code = self.pair(tmp_path, arm(tmp_path, track(), dumps=one), arm(tmp_path, track(), dumps=one))
        assert (verdict.status, code) == ("agrees", 0)
        verdict, code = self.pair(tmp_path, arm(tmp_path, track(), dumps=one), arm(tmp_path, track(), dumps=two))
        assert (verdict.status, code) == ("violations", 1)

    def test_without_a_base_nothing_was_checked(self, tmp_path):
        crashed = arm(tmp_path, ending=Ending.CRASHED)
        verdict, code = self.pair(tmp_path, crashed, arm(tmp_path, track()))
        assert (verdict.status, code) == ("not compared", 5)
