"""The ratio that a start's arguments ask for: published numbers, and what holds for any start."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma4_runtime.pools.arithmetic import SGLANG_DEFAULT, TokenBytes, pool_sizes
from gemma4_runtime.pools.demand import Workload, demand, fit
from gemma4_runtime.pools.ratio_policy import SGLANG_MOST_REQUESTS, Start, choose, least_swa_tokens
from gemma4_runtime.pools.serving import Serving
from gemma4_triage.pools.arithmetic import token_bytes
from gemma4_triage.pools.model_shape import read_shape
from gemma4_triage.pools.plan import make_plan

CONFIGS = Path(__file__).parents[1] / "data" / "configs"
PUBLISHED_BYTES = 109_478_060_000
CELL_26B = TokenBytes(20_480, 204_800)


def start(**changes) -> Start:
    """26B on the published memory: chunks of 8192, two in flight, and a stated context."""
    given_by_default = {
        "available_bytes": PUBLISHED_BYTES,
        "cell": CELL_26B,
        "serving": Serving(1024),
        "context": 9000,
        "context_given": True,
        "requests": None,
        "most_tokens": None,
        "ratio": SGLANG_DEFAULT,
        "ratio_given": False,
    }
    return Start(**(given_by_default | changes))


def formula(one: Start, window: int | None = None) -> tuple[float, float]:
    """Return (R, r*) of the specification, in its own words: no whole requests, no steps of a ratio.

    A request has `window` SWA tokens, or as many as the serving arguments say.
    """
    serving, length = one.serving, one.context
    window = window or serving.swa_tokens(*serving.worst_split(length))
    chunk = serving.swa_in_prefill(serving.worst_split(length)[0])
    fits = (one.available_bytes - one.cell.swa * chunk) / (one.cell.full * length + one.cell.swa * window)
    requests = min(one.requests or SGLANG_MOST_REQUESTS, fits)
    return requests, min(1.0, (requests * window + chunk) / (requests * length)) if requests > 0 else 1.0


class TestRemarks:
    """Settings that the counts leave out, or that make them what nobody would expect."""

    EARLY = (
        ("release_leaf_lock", "SGLANG_OPT_SWA_RELEASE_LEAF_LOCK_AFTER_WINDOW"),
        ("drop_page_margin", "SGLANG_OPT_SWA_EVICT_DROP_PAGE_MARGIN"),
    )

    @pytest.mark.parametrize(("field", "variable"), EARLY)
    @pytest.mark.parametrize("changes", [{}, {"context": 1000, "requests": 1}], ids=["chosen", "kept"])
    def test_what_gives_back_earlier_is_said_and_not_counted(self, field, variable, changes):
        plain = choose(start(**changes))
        choice = choose(start(serving=Serving(1024, **{field: True}), **changes))
        assert variable not in plain.why
        assert choice.why.startswith(f"{plain.why}; {variable}: ")
        assert choice.sizes == plain.sizes

    def test_no_leaf_is_locked_without_a_prefix_cache(self):
        assert Serving(1024, prefix_cache=False, release_leaf_lock=True).remarks == ()

    @pytest.mark.parametrize(
        ("page", "multiplier", "said"), [(1, 0.0, True), (1, 0.001, True), (1, 0.002, False), (16, 0.0, False)]
    )
    def test_an_interval_of_one_step_is_the_reason_for_counting_all_output(self, page, multiplier, said):
        serving = Serving(1024, page_size=page, evict_multiplier=multiplier)
        assert any("an eviction interval of one step" in remark for remark in serving.remarks) is said
        assert (serving.swa_tokens(100, 7900) == serving.full_tokens(8000)) is said

    def test_what_was_given_is_kept_without_a_word_on_counts(self):
        one = start(ratio_given=True, serving=Serving(1024, drop_page_margin=True))
        assert choose(one).why == "0.8 kept: given by the user"

    # swa-ratio-policy is not ported: 0.5.23 has no such variables.
    @pytest.mark.releases("0.5.13.post1")
    @pytest.mark.parametrize(("field", "variable"), EARLY)
    def test_a_server_reads_them_where_sglang_does(self, monkeypatch, field, variable):
        from gemma4_runtime.optimisations.swa_ratio_policy import _serving

        arguments = SimpleNamespace(
            chunked_prefill_size=8192,
            page_size=1,
            disable_overlap_schedule=False,
            speculative_num_draft_tokens=None,
            disable_radix_cache=False,
        )
        config = SimpleNamespace(hf_text_config=SimpleNamespace(sliding_window=1024))
        assert _serving(arguments, config) == Serving(1024)
        monkeypatch.setenv(variable, "true")
        assert _serving(arguments, config) == Serving(1024, **{field: True})


class TestPublished:
    def test_long_requests(self):
        """Nearly every token of a prompt of 9000 is locked: its last chunks are 8192 long."""
        requests, ratio = formula(start())
        assert (int(requests), ratio) == (53, 1.0)
        choice = choose(start())
        assert choice.ratio == 1.0
        assert choice.why.startswith("1 instead of 0.8: 53 of 2048 requests of 9000 tokens fit at once, 52 before")

    def test_long_requests_whose_last_node_is_cut_to_a_window(self):
        one = start(serving=Serving(1024, split_leaf=True))
        requests, ratio = formula(one)
        assert (int(requests), round(ratio, 2)) == (105, 0.46)
        choice = choose(one)
        assert choice.ratio == pytest.approx(ratio, abs=0.002)
        assert choice.why.startswith("0.462 instead of 0.8: 105 of 2048 requests of 9000 tokens fit at once, 65 before")

    def test_two_windows_each_would_be_the_specifications_numbers(self):
        """175 requests at 0.24, with two chunks in flight. With what is locked, it holds fewer than 0.8 does."""
        one = start(serving=Serving(1024, chunk=16_384))
        requests, ratio = formula(one, window=2 * 1024 + 1)
        assert requests == pytest.approx(175, abs=7)
        assert ratio == pytest.approx(0.24, abs=0.01)
        assert held(start(), 0.238) < held(start(), SGLANG_DEFAULT)

    def test_short_requests(self):
        assert formula(start(context=2000))[1] == 1.0
        assert choose(start(context=2000)).ratio > 0.95

    def test_dense_or_not_is_not_the_question(self):
        """31B has four times the bytes in either pool: in four times the memory, the same ratio."""
        one = start(serving=Serving(1024, split_leaf=True))
        dense = replace(one, cell=TokenBytes(81_920, 819_200), available_bytes=4 * PUBLISHED_BYTES)
        assert choose(dense).ratio == choose(one).ratio

    def test_more_requests_that_may_run_than_fit_change_nothing(self):
        assert choose(start(requests=500)).ratio == choose(start()).ratio


class TestKept:
    @pytest.mark.parametrize(
        ("changes", "why"),
        [
            ({"ratio_given": True}, "0.8 kept: given by the user"),
            ({"ratio_given": True, "ratio": 0.15}, "0.15 kept: given by the user"),
            ({"ratio_given": None}, "0.8 kept: the arguments were made before this plugin was loaded"),
            ({"context_given": False}, "0.8 kept: neither --context-length nor --max-running-requests"),
            ({"available_bytes": 0}, "0.8 kept: at no ratio does the SWA pool hold the 9217 tokens that a prompt"),
            ({"available_bytes": 5 * 10**8, "serving": Serving(1024, chunk=64)}, "0.8 kept: not one request of 9000"),
            ({"available_bytes": 4 * 10**11, "requests": 1}, "0.8 kept: no ratio holds more: 1 of 1 requests of 9000"),
            (
                {"context_given": False, "requests": 4096},
                "0.8 kept: at no ratio does the SWA pool hold the 36870954 tokens",
            ),
        ],
    )
    def test_sglangs_ratio_stays(self, changes, why):
        choice = choose(start(**changes))
        assert choice.ratio == changes.get("ratio", SGLANG_DEFAULT)
        assert choice.why.startswith(why)


class TestModelsOwnContext:
    """Nobody sends 262144 tokens because a model could take them."""

    SIXTEEN = start(context=262_144, context_given=False, requests=16)

    def test_the_requests_that_may_run_bound_the_sliding_pool(self):
        """Each may have a chunk and a window in the prefix cache, and two windows of its own."""
        choice = choose(self.SIXTEEN)
        assert 0.04 < choice.ratio < 0.07
        assert choice.sizes.swa_tokens >= 16 * (8192 + 1023 + 2 * 1023) + 8192
        assert choice.sizes.full_tokens > 4 * pool_sizes(PUBLISHED_BYTES, CELL_26B, SGLANG_DEFAULT, 1).full_tokens
        assert "the SWA pool is sized for 16 of any length" in choice.why

    def test_too_many_for_the_memory_keep_sglangs_ratio(self):
        choice = choose(start(context=262_144, context_given=False, requests=64))
        assert choice.why.startswith("0.8 kept: at no ratio does the SWA pool hold the 728962 tokens that 64 requests")

    def test_mtp_keeps_more_because_the_interval_counts_steps(self):
        plain, mtp = (
            least_swa_tokens(one, needed(one))
            for one in (replace(self.SIXTEEN, serving=Serving(1024, draft_tokens=drafts)) for drafts in (0, 4))
        )
        assert mtp - plain == pytest.approx(16 * 3 * 1023, rel=0.01)

    def test_stated_the_same_context_is_taken_at_its_word(self):
        assert choose(start(context=262_144, requests=64)).ratio < 0.06


class TestTokenCap:
    def test_a_cap_is_what_the_full_pool_can_have(self):
        choice = choose(start(most_tokens=200_000, requests=64, context=2000))
        assert choice.sizes.full_tokens == 200_000
        assert choice.sizes.swa_tokens >= 64 * 2000

    def test_as_sglang_applies_it(self):
        assert pool_sizes(PUBLISHED_BYTES, CELL_26B, 0.8, 64, 100_001).full_tokens == 99_968
        assert pool_sizes(PUBLISHED_BYTES, CELL_26B, 0.8, 64, 100_001).swa_tokens == 79_936
        assert pool_sizes(PUBLISHED_BYTES, CELL_26B, 0.8, 1, 10**7).full_tokens == 593_956


STARTS = st.builds(
    Start,
    available_bytes=st.integers(0, 3 * 10**11),
    cell=st.sampled_from(
        [token_bytes(read_shape(CONFIGS / f"{name}.json"), 2) for name in ("26b-a4b", "31b", "e4b", "e2b")]
        + [token_bytes(read_shape(CONFIGS / f"{name}.json"), 2, owners_only=True) for name in ("e4b", "e2b")]
    ),
    serving=st.builds(
        Serving,
        window=st.sampled_from([32, 512, 1024]),
        page_size=st.sampled_from([1, 16, 64]),
        chunk=st.integers(1, 16_384),
        chunks_in_flight=st.integers(1, 2),
        draft_tokens=st.integers(0, 16),
        evict_multiplier=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
        prefix_cache=st.booleans(),
        split_leaf=st.booleans(),
    ),
    context=st.integers(1, 262_144),
    context_given=st.booleans(),
    requests=st.none() | st.integers(1, 4096),
    most_tokens=st.none() | st.integers(1, 10**7),
    ratio=st.sampled_from([0.8, 0.15, 1.0]),
    ratio_given=st.just(False),
)


def workload(one: Start) -> Workload:
    return Workload(one.requests or SGLANG_MOST_REQUESTS, *one.serving.worst_split(one.context))


def needed(one: Start):
    return demand([workload(one)], one.serving)


def held(one: Start, ratio: float) -> int:
    need = needed(one)
    sizes = pool_sizes(one.available_bytes, one.cell, ratio, one.serving.page_size, one.most_tokens)
    return min(fit(sizes, need).requests, need.requests)


class TestAnyStart:
    @pytest.mark.slow
    @given(STARTS)
    def test_a_ratio_that_sglang_takes_and_the_pools_that_it_makes(self, one):
        choice = choose(one)
        assert 0 < choice.ratio <= 1
        expected = pool_sizes(one.available_bytes, one.cell, choice.ratio, one.serving.page_size, one.most_tokens)
        assert choice.sizes == expected

    @given(STARTS)
    def test_a_chunk_a_window_and_a_page_fit_wherever_it_changes_anything(self, one):
        choice = choose(one)
        if choice.ratio == one.ratio:
            return
        serving = one.serving
        assert choice.sizes.swa_tokens >= min(serving.chunk, one.context) + serving.window + serving.page_size
        assert choice.sizes.swa_tokens >= least_swa_tokens(one, needed(one))

    @pytest.mark.slow
    @given(STARTS)
    def test_it_never_holds_less_than_before(self, one):
        choice = choose(one)
        assert held(one, choice.ratio) >= held(one, one.ratio)

    @given(STARTS, st.integers(1, 262_144))
    def test_without_a_stated_length_no_shorter_request_waits_for_sliding_kv(self, one, length):
        one = replace(one, context_given=False)
        choice = choose(one)
        if choice.ratio == one.ratio or one.requests is None:
            assert choice.ratio == one.ratio
            return
        prompt = min(length, one.context)
        for output in {0, prompt // 2, prompt - 1}:
            assert choice.sizes.swa_tokens >= one.requests * one.serving.swa_tokens(prompt - output, output)

    @pytest.mark.slow
    @given(STARTS, st.integers(0, 10**11))
    def test_more_memory_never_holds_less(self, one, more):
        richer = replace(one, available_bytes=one.available_bytes + more)
        assert held(richer, choose(richer).ratio) >= held(one, choose(one).ratio)

    @given(STARTS, st.floats(0.01, 1.0))
    def test_a_ratio_that_was_given_is_never_touched(self, one, ratio):
        assert choose(replace(one, ratio=ratio, ratio_given=True)).ratio == ratio

    @pytest.mark.slow
    @given(STARTS.filter(lambda one: one.context_given and one.most_tokens is None))
    def test_where_memory_binds_it_is_the_formula(self, one):
        """Whole pages, whole requests and three digits are what may lie between."""
        one = replace(one, requests=None, serving=replace(one.serving, page_size=1, evict_multiplier=1.0))
        requests, ratio = formula(one)
        choice = choose(one)
        least = least_swa_tokens(one, needed(one))
        if choice.ratio == one.ratio or requests < 50 or ratio > 0.99 or requests == SGLANG_MOST_REQUESTS:
            return
        if least > ratio * pool_sizes(one.available_bytes, one.cell, ratio, 1).full_tokens:
            return
        assert math.isclose(choice.ratio, ratio, rel_tol=0.06, abs_tol=0.002)

    @given(STARTS.filter(lambda one: one.context_given and one.most_tokens is None))
    def test_the_planner_recommends_the_same(self, one):
        """`gemma4-triage pools` for that load."""
        shape = replace(read_shape(CONFIGS / "26b-a4b.json"), context=one.context)
        loads = [workload(one)]
        choice = choose(one)
        if choice.ratio == one.ratio:
            return
        plan = make_plan(shape, one.cell, one.available_bytes, one.serving, loads, None)
        assert held(one, choice.ratio) == min(plan.recommended.requests, plan.need.requests)
