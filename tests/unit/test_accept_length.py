"""The check and the probe accept-length: a fall is seen once, drafts never accepted too, and what text does is none."""

import random
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma4_dumps.reader import read_dump
from gemma4_dumps.store import DumpStore
from gemma4_runtime.checks.accept_length import BEFORE, HARDLY, RECENT, AcceptHistory
from gemma4_runtime.checks.accept_length import FIRST as FIRST_OF_ALL
from gemma4_runtime.probes.accept_length import after_process_decode, self_test
from gemma4_triage.diagnose.conclude import conclude
from gemma4_triage.diagnose.grouping import group

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")

FIRST = BEFORE + RECENT


def fed(history, accepted):
    """Return the first fall that these drafts, one verification each, are."""
    for at, drafts in enumerate(accepted):
        if (fall := history.add([(at, 1, drafts)])) is not None:
            return fall
    return None


class TestTheCheck:
    def test_a_fall_is_seen_and_says_what_was_before(self):
        fall = fed(AcceptHistory(), [3, 2] * FIRST + [0, 1] * RECENT)
        assert fall is not None
        assert (fall.before > 2.4, fall.recent <= 0.4 * fall.before, len(fall.samples)) == (True, True, RECENT)

    @pytest.mark.parametrize("few", range(HARDLY + 1))
    def test_drafts_that_are_hardly_ever_accepted_need_no_history(self, few):
        never = fed(AcceptHistory(), [1] * few + [0] * (FIRST_OF_ALL - few))
        assert never is not None
        assert (never.before, never.verified_before) == (None, FIRST_OF_ALL)

    @pytest.mark.parametrize(
        "accepted",
        [[0] * (FIRST_OF_ALL - 1), [0] * (FIRST_OF_ALL - HARDLY - 1) + [1] * (HARDLY + 1) + [0] * FIRST_OF_ALL],
        ids=["too few verifications", "some of the first"],
    )
    def test_what_is_not_hardly_ever(self, accepted):
        assert fed(AcceptHistory(), accepted) is None

    @pytest.mark.parametrize(
        "accepted",
        [
            [3] * FIRST + [2] * FIRST,
            [0, 1, 0, 0] * FIRST,
            [3] * (BEFORE - 1) + [0] * RECENT,
            [3] * FIRST + [0] * (RECENT // 2) + [3] * FIRST,
        ],
        ids=["a little less", "never much", "too little is known", "one hard passage"],
    )
    def test_what_is_no_fall(self, accepted):
        assert fed(AcceptHistory(), accepted) is None

    @given(st.integers(0, 10**6), st.floats(0.2, 1.0))
    def test_drafts_that_are_accepted_with_one_chance_never_fall(self, seed, chance):
        chances = random.Random(seed)

        def drafts():
            """Return how many of three are accepted until one is not."""
            return next((at for at in range(3) if chances.random() > chance), 3)

        assert fed(AcceptHistory(), [drafts() for _ in range(400)]) is None


class TestTheProbe:
    @pytest.fixture
    def serve(self, attach):
        """Return what processes the results of steps: (drafts accepted by each of three requests) for each step."""
        requests = [SimpleRequest(slot) for slot in (1, 2, 3)]
        rows, processor = SimpleRows(), SimpleNamespace()
        batch = SimpleNamespace(reqs=requests, req_to_token_pool=rows, forward_mode=SimpleNamespace(name="DECODE"))

        def run(mode, steps, result=None):
            folder = attach(mode, "accept-length")
            for accepted in steps:
                for request, drafts in zip(requests, accepted, strict=True):
                    request.spec_verify_ct += 1
                    request.spec_num_correct_drafts += drafts
                after_process_decode(None, processor, batch, result)
            return [read_dump(entry.path) for entry in DumpStore(folder).list()]

        return run

    @pytest.mark.parametrize("mode", ["log", "trap", "contain"])
    def test_it_leaves_one_dump_and_stops_nothing(self, serve, mode):
        dumps = serve(mode, [(3, 3, 2)] * FIRST + [(0, 0, 1)] * 2 * RECENT)
        (dump,) = dumps
        assert (dump.manifest.verdict, dump.manifest.action) == ("accept_length_fell", "logged")
        assert dump.tensor("recent").shape == (RECENT, 3)
        assert set(dump.tensor("recent")[:, 1].tolist()) == {1, 2, 3}
        (incident,) = group(dumps)
        (cause,) = conclude(incident)
        assert (cause.rule, str(cause.confidence)) == ("accept-length-fell", "possible")

    @pytest.mark.parametrize("mode", ["log", "trap", "contain"])
    def test_drafts_that_were_never_accepted_leave_one_dump(self, serve, mode):
        dumps = serve(mode, [(0, 0, 0)] * FIRST_OF_ALL)
        (dump,) = dumps
        assert (dump.manifest.verdict, dump.manifest.action) == ("no_draft_accepted", "logged")
        assert (dump.manifest.scalars["accepted"], dump.manifest.scalars["verified"] >= FIRST_OF_ALL) == (0, True)
        (incident,) = group(dumps)
        (cause,) = conclude(incident)
        assert (cause.rule, str(cause.confidence)) == ("no-draft-accepted", "possible")

    def test_steps_without_drafts_are_no_drafts_that_were_not_accepted(self, serve):
        assert serve("log", [(0, 0, 0)] * FIRST_OF_ALL, SimpleNamespace(speculative_num_draft_tokens=1)) == []

    def test_a_steady_load_is_silent(self, serve):
        assert serve("log", [(3, 2, 1)] * 2 * FIRST) == []

    def test_a_server_without_drafts_is_nothing_to_look_at(self, attach):
        folder = attach("log", "accept-length")
        batch = SimpleNamespace(reqs=[SimpleRequest(1)], req_to_token_pool=SimpleRows())
        for _ in range(2 * FIRST):
            after_process_decode(None, SimpleNamespace(), batch, None)
        assert DumpStore(folder).list() == []


class SimpleRows:
    """A table of rows, which is only told apart from others."""


class SimpleRequest:
    """What of a request the probe reads."""

    def __init__(self, slot):
        self.req_pool_idx = slot
        self.spec_verify_ct = self.spec_num_correct_drafts = 0


def test_the_self_test_passes():
    self_test()
