"""When MTP drafts: against made-up batches and acceptance, whose best course is known."""

import json
import math
import random
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma4_runtime.errors import SettingsError
from gemma4_runtime.mtp_v2.draft_policy import MEASURED, DraftPolicy, NeededTable, Verified, policy_of
from gemma4_runtime.optimisations.draft_policy import KEY, after_internal_state, after_process_decode
from gemma4_runtime.selection import select
from gemma4_runtime.settings import read_settings

TABLE = NeededTable(((1, 1.65), (16, 1.75), (64, 3.0), (128, 3.9)), "made up")
NODES = 4
E2B = (1536, 35)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)


def chance_of(accepted):
    """Returns how likely a draft is taken after those before it, if a verification brings so many tokens."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(middle**n for n in range(NODES)) < accepted else (low, middle)
    return low


class Server:
    """Runs steps by a policy. It hears of a step one step later, as where steps overlap."""

    def __init__(self, policy, seed=0):
        self.policy, self.rng, self.late = policy, random.Random(seed), None
        self.time = self.tokens = self.steps = 0

    def run(self, steps, requests, accepted):
        chance = chance_of(accepted)
        for _ in range(steps):
            drafts = self.policy.decide(requests)
            if self.late is not None:
                self.policy.observe(self.late)
            self.late = Verified(requests, self._verify(requests, chance)) if drafts else None
            self.time += TABLE.at(requests) if drafts else 1
            self.tokens += self.late.tokens if self.late else requests
            self.steps += 1
        return self

    def _verify(self, requests, chance):
        taken = 0
        for _ in range(requests):
            drafts = 0
            while drafts < NODES - 1 and self.rng.random() < chance:
                drafts += 1
            taken += drafts
        return requests + taken


def made(table=TABLE):
    return DraftPolicy(table, NODES, "made up")


@pytest.mark.parametrize("accepted", [1.0, 1.65, 2.0, 2.5, 3.0, 3.5, 3.9])
@pytest.mark.parametrize("requests", BATCHES)
def test_it_is_as_fast_as_the_better_of_the_two(requests, accepted):
    server = Server(made()).run(4000 if requests < 32 else 600, requests, accepted)
    best = requests * max(accepted / TABLE.at(requests), 1)
    assert server.tokens / server.time > 0.98 * best


@pytest.mark.parametrize("requests", BATCHES)
def test_acceptance_at_the_edge_does_not_make_it_flap(requests):
    server = Server(made()).run(2000, requests, TABLE.at(requests))
    assert server.policy.document()["switches"] < server.steps / 100


def test_a_batch_that_gains_and_loses_a_request_does_not_make_it_flap():
    policy = made()
    server = Server(policy)
    for step in range(400):
        server.run(2, 44 + step % 2, TABLE.at(44.5))
    assert policy.document()["switches"] < server.steps / 50


def test_many_requests_stop_drafts_at_once_and_few_take_them_up_at_once():
    policy = made()
    Server(policy).run(200, 4, 2.5)
    assert policy.drafting
    assert not policy.decide(64)
    assert policy.decide(4)
    assert policy.document()["switches"] == 2


@pytest.mark.parametrize(("requests", "within"), [(1, 3000), (16, 1000), (64, 1000)])
def test_answers_that_become_easy_are_found_out(requests, within):
    server = Server(made()).run(2000, requests, 1.1)
    assert not server.policy.drafting
    server.run(within, requests, 3.8)
    assert server.policy.drafting


@pytest.mark.parametrize(("requests", "within"), [(1, 1000), (16, 150), (32, 150)])
def test_answers_that_become_hard_are_noticed_however_long_they_were_easy(requests, within):
    server = Server(made()).run(2000, requests, 3.8)
    assert server.policy.drafting
    server.run(within, requests, 1.1)
    assert not server.policy.drafting


def test_until_something_is_heard_of_them_drafts_are_tried():
    policy = DraftPolicy(NeededTable(((1, 1.0), (2, 9.0)), "made up"), NODES, "made up")
    assert not policy.decide(2)
    assert policy.decide(1)
    assert policy.document()["drafting"]
    policy = made()
    assert policy.decide(64), "half of the drafts would not do there, but who knows"
    policy.observe(Verified(64, 64))
    assert not policy.decide(64)


def test_drafts_that_cannot_pay_are_not_even_tried():
    policy = DraftPolicy(NeededTable(((1, 4.0),), "made up"), NODES, "made up")
    server = Server(policy).run(5000, 8, 3.9)
    assert policy.document()["steps_with_drafts"] == 0
    assert server.tokens == 5000 * 8


def test_a_step_that_verified_nothing_says_nothing():
    policy = made()
    before = policy.document()
    policy.observe(Verified(0, 0))
    assert policy.document() == before


@given(st.integers(1, 300))
def test_between_rows_it_is_linear_and_outside_the_nearest(requests):
    found = TABLE.at(requests)
    rows = dict(TABLE.rows)
    if requests in rows:
        assert found == rows[requests]
    below = max((one for one in TABLE.rows if one[0] <= requests), default=TABLE.rows[0])
    above = min((one for one in TABLE.rows if one[0] >= requests), default=TABLE.rows[-1])
    assert min(below[1], above[1]) <= found <= max(below[1], above[1])
    assert TABLE.at(requests) <= TABLE.at(requests + 1)


def test_one_draft_needs_a_third_of_what_three_need():
    assert TABLE.for_drafts(1).at(64) == pytest.approx(1 + 2 / 3)
    assert TABLE.for_drafts(3) is TABLE


@pytest.mark.parametrize("table", MEASURED.values(), ids=lambda table: table.source[:12])
def test_measured_tables_rise_with_the_batch(table):
    sizes, needed = zip(*table.rows, strict=True)
    assert list(sizes) == sorted(set(sizes))
    assert all(1 < one < 2 * NODES for one in needed)


class TestAsked:
    def test_a_measured_model_has_its_table(self):
        policy = policy_of("auto", E2B, NODES)
        assert policy.may_drop
        assert policy.document()["source"].startswith("E2B on an H200")

    @pytest.mark.parametrize(("asked", "model"), [("auto", (64, 8)), ("always", E2B)])
    def test_without_a_table_every_step_drafts(self, asked, model):
        policy = policy_of(asked, model, NODES)
        assert not policy.may_drop
        Server(policy).run(100, 128, 1.0)
        assert policy.document()["steps_without"] == 0

    def test_never(self):
        policy = policy_of("never", E2B, NODES)
        Server(policy).run(1000, 1, 3.9)
        assert policy.document()["steps_with_drafts"] == 0
        assert json.loads(json.dumps(policy.document(), allow_nan=False))["table"] == {"1": None}

    def test_rows(self):
        policy = policy_of(((1, 1.5), (8, 9.0)), E2B, NODES)
        assert (policy.decide(1), policy.decide(8)) == (True, False)
        assert policy.document()["asked"] == "1:1.5,8:9"


class TestSetting:
    @pytest.fixture
    def ask(self, monkeypatch):
        def make(value, v2="1"):
            monkeypatch.setenv("GEMMA4_TRIAGE_DRAFTS", value)
            monkeypatch.setenv("SGLANG_FROZEN_KV_MTP_V2", v2)
            return read_settings()

        return make

    @pytest.mark.parametrize(
        ("value", "found"),
        [
            ("", "auto"),
            ("Always", "always"),
            ("never", "never"),
            ("1:1.6, 16:1.8,64:3", ((1, 1.6), (16, 1.8), (64, 3.0))),
        ],
    )
    def test_what_is_read(self, ask, value, found):
        assert ask(value).drafts == found

    @pytest.mark.parametrize("value", ["sometimes", "1", "0:2", "1:-2", "1:nan", "1:1e9", "4:2,1:2", "1:2,1:3", "1:2,"])
    def test_what_is_refused(self, ask, value):
        with pytest.raises(SettingsError, match="GEMMA4_TRIAGE_DRAFTS"):
            ask(value)

    def test_mtp_v2_brings_it(self, ask):
        assert "draft-policy" in {patch.id for patch in select(ask("never"))}

    def test_it_is_refused_where_it_says_nothing(self, ask):
        settings = ask("never", v2="0")
        assert not settings.wants_nothing
        with pytest.raises(SettingsError, match="GEMMA4_TRIAGE_DRAFTS is for draft-policy, which is not on"):
            select(settings)

    def test_a_release_that_cannot_have_it_is_named(self, ask):
        with pytest.raises(
            SettingsError, match=r"which does not attach to SGLang 0\.5\.23: the worker is SGLang's own"
        ):
            select(ask("never", v2="0"), release="0.5.23")

    @pytest.mark.parametrize(
        ("patches", "v2", "said"),
        [
            ("draft-policy", "0", "which acts in mtp-v2 alone, and that is not on; set SGLANG_FROZEN_KV_MTP_V2=1"),
            ("default,-draft-policy", "1", "which is not on; leave -draft-policy out of GEMMA4_TRIAGE_PATCHES"),
        ],
    )
    def test_it_is_refused_with_what_would_switch_it_on(self, ask, monkeypatch, patches, v2, said):
        monkeypatch.setenv("GEMMA4_TRIAGE_PATCHES", patches)
        with pytest.raises(SettingsError, match=said):
            select(ask("never", v2=v2))


class TestHooks:
    def test_a_step_without_drafts_says_nothing_of_acceptance(self):
        heard = []
        processor = SimpleNamespace(model_worker=SimpleNamespace(hear_of=heard.append))
        after_process_decode(None, processor, SimpleNamespace(is_spec_v2=True), "outcome")
        after_process_decode(None, processor, SimpleNamespace(is_spec_v2=False), "of another")
        assert heard == ["outcome"]

    def test_a_server_without_drafts_tells_nothing(self):
        result = SimpleNamespace(internal_state={})
        after_internal_state(result, SimpleNamespace(model_worker=SimpleNamespace()))
        assert result.internal_state == {}
        policy = made()
        after_internal_state(result, SimpleNamespace(model_worker=SimpleNamespace(draft_state=policy.document)))
        assert math.isclose(result.internal_state[KEY]["accepted"], 2.5)
