"""Pool sizes: the published rows, SGLang's own code, and what must hold for any model and memory."""

import json
import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma4_runtime.pools.arithmetic import TokenBytes, pool_sizes
from gemma4_runtime.pools.demand import Workload, demand, fit
from gemma4_runtime.pools.serving import Serving
from gemma4_triage.errors import UsageMistake
from gemma4_triage.pools.arithmetic import KV_DTYPE_BYTES, token_bytes
from gemma4_triage.pools.model_shape import ModelShape, read_shape
from gemma4_triage.pools.plan import make_plan

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")

CONFIGS = Path(__file__).parents[1] / "data" / "configs"
TOY = Path(__file__).parents[2] / "repro" / "toys" / "toy-e4b"
NAMES = ("26b-a4b", "31b", "e4b", "e2b")
PUBLISHED_BYTES = 109_478_060_000  # "about 109.478 GB": the published tokens leave 51,200 bytes of room for it


def shape_of(name: str) -> ModelShape:
    return read_shape(CONFIGS / f"{name}.json")


def cell_of(name: str, **more) -> TokenBytes:
    return token_bytes(shape_of(name), 2, **more)


@pytest.mark.parametrize("name", NAMES)
def test_the_configs_are_of_models_that_can_be(name):
    """Grouped-query attention: every KV head serves as many query heads, sliding or full."""
    text = json.loads((CONFIGS / f"{name}.json").read_text())["text_config"]
    heads = (text["num_key_value_heads"], text["num_global_key_value_heads"] or text["num_key_value_heads"])
    assert [text["num_attention_heads"] % count for count in heads] == [0, 0]
    assert len(text["layer_types"]) == text["num_hidden_layers"]


class TestPublished:
    @pytest.mark.parametrize(
        ("ratio", "page", "full", "swa"),
        [
            *((0.8, 1, 593_956, 475_164), (0.15, 1, 2_138_243, 320_736)),
            *((0.8, 64, 593_920, 475_136), (0.15, 64, 2_138_240, 320_704)),
        ],
    )
    def test_26b(self, ratio, page, full, swa):
        sizes = pool_sizes(PUBLISHED_BYTES, cell_of("26b-a4b"), ratio, page)
        assert (sizes.full_tokens, sizes.swa_tokens) == (full, swa)

    @pytest.mark.parametrize(
        ("name", "full", "swa"),
        [("26b-a4b", 20_480, 204_800), ("31b", 81_920, 819_200), ("e4b", 28_672, 71_680), ("e2b", 14_336, 28_672)],
    )
    def test_bytes_of_a_token(self, name, full, swa):
        assert cell_of(name) == TokenBytes(full, swa)

    def test_31b_holds_a_quarter_of_26b(self):
        """The same share of sliding bytes, four times as many."""
        sizes = pool_sizes(4 * PUBLISHED_BYTES, cell_of("31b"), 0.8, 1)
        assert (sizes.full_tokens, sizes.swa_tokens) == (593_956, 475_164)

    @pytest.mark.parametrize(("name", "factor"), [("e2b", 35 / 15), ("e4b", 42 / 24), ("26b-a4b", 1.0)])
    def test_owners_only(self, name, factor):
        """2.33 and 1.75 times the tokens."""
        every, owners = (
            pool_sizes(10**11, cell_of(name, owners_only=only), 0.8, 1).full_tokens for only in (False, True)
        )
        assert owners / every == pytest.approx(factor, rel=1e-4)


SPLIT = Serving(1024, split_leaf=True)


class TestRecommendation:
    def plan(self, length: int, requests: int = 400, serving: Serving = SPLIT):
        loads = [Workload(requests, length - 1000, 1000)]
        return make_plan(shape_of("26b-a4b"), cell_of("26b-a4b"), PUBLISHED_BYTES, serving, loads, None)

    def test_long_requests(self):
        found = self.plan(9000).recommended
        assert found.sizes.ratio == pytest.approx(0.34, abs=0.01)
        assert found.requests == 133

    def test_a_prompt_of_one_chunk_is_locked_whole(self):
        """So its sliding KV is as long as its full KV, and the SWA pool is the one that ends first."""
        plan = self.plan(9000, serving=Serving(1024))
        assert (plan.recommended.sizes.ratio, plan.recommended.requests) == (1.0, 53)
        assert (plan.default.binding, plan.default.requests) == ("swa", 51)
        assert plan.split == self.plan(9000).recommended
        assert self.plan(9000).split is None

    def test_short_requests_want_both_pools_alike(self):
        assert self.plan(2000).recommended.sizes.ratio > 0.95

    def test_the_default_holds_fewer(self):
        plan = self.plan(9000)
        assert plan.default.requests < plan.recommended.requests
        assert (plan.default.binding, plan.enough) == ("full", False)

    def test_what_is_left_over_is_left_over_in_both(self):
        found = self.plan(9000, requests=80).recommended
        assert found.full_requests == pytest.approx(found.swa_requests, rel=0.1)
        assert found.requests >= 80

    @pytest.mark.parametrize("length", [3000, 9000, 30_000])
    def test_the_full_pool_ends_first(self, length):
        """Its future SGLang's admission counts, and of the other only what is in use."""
        found = self.plan(length).recommended
        assert found.swa_requests >= found.full_requests

    def test_a_ratio_that_is_asked_about_is_judged(self):
        cell, shape = cell_of("26b-a4b"), shape_of("26b-a4b")
        for ratio, enough in ((0.05, False), (0.35, True), (0.8, False)):
            plan = make_plan(shape, cell, PUBLISHED_BYTES, SPLIT, [Workload(80, 8000, 1000)], ratio)
            assert (plan.sizes.ratio, plan.enough) == (ratio, enough)

    def test_longer_than_the_context(self):
        with pytest.raises(UsageMistake, match="context is 262144"):
            self.plan(262_145)

    def test_not_one_fits(self):
        with pytest.raises(UsageMistake, match="not one request fits"):
            make_plan(shape_of("31b"), cell_of("31b"), 10**9, Serving(1024), [Workload(1, 8000, 1000)], None)


@pytest.fixture(scope="module")
def sglang_sizes(tmp_path_factory):
    """Return SGLang's own ModelConfig and configurator as a function of (config, bytes, ratio, page, tp, dtype)."""
    torch = pytest.importorskip("torch")
    configurator = pytest.importorskip("sglang.srt.model_executor.pool_configurator")
    from sglang.srt.configs.model_config import ModelConfig

    logging.getLogger(configurator.__name__).setLevel(logging.WARNING)
    loaded = {}

    def load(config: Path):
        if config not in loaded:
            folder = config
            if config.is_file():
                folder = tmp_path_factory.mktemp("model")
                (folder / "config.json").write_text(config.read_text())
            loaded[config] = ModelConfig(model_path=str(folder))
        return loaded[config]

    def sizes(config, available, ratio, page, tp, dtype):
        runner = SimpleNamespace(
            model_config=load(config),
            kv_cache_dtype=getattr(torch, dtype),
            server_args=SimpleNamespace(swa_full_tokens_ratio=ratio),
        )
        # Which ranks there are, it asks of torch.distributed.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(configurator, "get_attention_tp_size", lambda: tp)
            made = configurator.HybridSWAPoolConfigurator(runner).calculate_pool_sizes(available, page)
        return made.full_max_total_num_tokens, made.swa_max_total_num_tokens

    return sizes


# swa-ratio-policy and owner-only-kv are not ported: 0.5.23 sizes its pools in another module.
@pytest.mark.releases("0.5.13.post1")
class TestAgainstSglang:
    @pytest.mark.parametrize("name", [*NAMES, "toy"])
    def test_the_same_tokens(self, sglang_sizes, name):
        config = TOY if name == "toy" else CONFIGS / f"{name}.json"
        shape = read_shape(config)
        for available in (PUBLISHED_BYTES, 12_345_678_901, 55 << 30):
            for tp, dtype, kv in ((1, "bfloat16", "bf16"), (2, "bfloat16", "auto"), (8, "float8_e4m3fn", "fp8_e4m3")):
                cell = token_bytes(shape, KV_DTYPE_BYTES[kv], tp)
                for page in (1, 16, 64):
                    for ratio in (0.8, 0.15, 0.1, 1 / 3, 0.999, 1.0):
                        ours = pool_sizes(available, cell, ratio, page)
                        assert (ours.full_tokens, ours.swa_tokens) == sglang_sizes(
                            config, available, ratio, page, tp, dtype
                        )

    def test_a_published_row_by_sglang_itself(self, sglang_sizes):
        config = CONFIGS / "26b-a4b.json"
        assert sglang_sizes(config, PUBLISHED_BYTES, 0.15, 1, 1, "bfloat16") == (2_138_243, 320_736)

    def test_the_window_after_which_sliding_kv_goes(self, sglang_sizes):
        """SGLang takes W - 1 for its window, and so does `Serving`."""
        from sglang.srt.models.gemma4_causal import get_attention_sliding_window_size

        window = shape_of("e4b").window
        assert get_attention_sliding_window_size(SimpleNamespace(sliding_window=window)) == window - 1


CELLS = st.builds(TokenBytes, st.integers(1, 10**6), st.integers(1, 10**6))
RATIOS = st.floats(0.001, 1.0)
PAGES = st.sampled_from([1, 16, 32, 64, 128])
LOADS = st.lists(
    st.builds(Workload, st.integers(1, 500), st.integers(1, 20_000), st.integers(0, 5000)), min_size=1, max_size=3
)
SERVINGS = st.builds(
    Serving,
    window=st.sampled_from([32, 512, 1024]),
    page_size=PAGES,
    chunk=st.integers(1, 16_384),
    chunks_in_flight=st.integers(1, 2),
    draft_tokens=st.integers(0, 16),
    evict_multiplier=st.floats(0, 4),
    prefix_cache=st.booleans(),
    split_leaf=st.booleans(),
)


class TestProperties:
    @given(st.integers(0, 10**12), CELLS, RATIOS, PAGES)
    def test_whole_pages_within_the_memory(self, available, cell, ratio, page):
        sizes = pool_sizes(available, cell, ratio, page)
        assert sizes.full_tokens % page == sizes.swa_tokens % page == 0
        assert 0 <= sizes.swa_tokens <= sizes.full_tokens
        used = sizes.full_tokens * cell.full + sizes.swa_tokens * cell.swa
        assert used <= available * (1 + 1e-12)

    @given(st.integers(0, 10**12), st.integers(0, 10**11), CELLS, RATIOS, PAGES)
    def test_more_memory_is_never_fewer_tokens(self, available, more, cell, ratio, page):
        small, large = (pool_sizes(size, cell, ratio, page) for size in (available, available + more))
        assert large.full_tokens >= small.full_tokens
        assert large.swa_tokens >= small.swa_tokens

    @given(st.integers(0, 10**12), CELLS, RATIOS, RATIOS)
    def test_a_larger_ratio_is_a_smaller_full_pool(self, available, cell, one, other):
        low, high = (pool_sizes(available, cell, ratio, 1) for ratio in sorted((one, other)))
        assert high.full_tokens <= low.full_tokens

    @given(LOADS, SERVINGS, st.integers(1, 10**7), st.integers(1, 10**7))
    def test_what_is_said_to_fit_does(self, loads, serving, full, swa):
        need = demand(loads, serving)
        found = fit(pool_sizes(full, TokenBytes(1, 1), 1.0, 1), need)
        assert found.full_requests * need.full <= full * need.requests
        sizes = SimpleNamespace(full_tokens=full, swa_tokens=swa)
        found = fit(sizes, need)
        if found.swa_requests:
            assert found.swa_requests * need.swa + need.swa_fixed * need.requests <= swa * need.requests
            assert swa >= need.swa_least

    @given(LOADS, SERVINGS)
    def test_a_sliding_pool_never_needs_more_than_the_requests_have(self, loads, serving):
        need = demand(loads, serving)
        assert 0 < need.ratio <= 1
        assert need.swa <= need.full
        assert need.full % serving.page_size == need.swa % serving.page_size == 0

    @given(SERVINGS, st.integers(1, 40_000), st.data())
    def test_no_split_of_a_length_keeps_more_than_the_worst(self, serving, length, data):
        output = data.draw(st.integers(0, length - 1))
        worst = serving.swa_tokens(*serving.worst_split(length))
        assert serving.swa_tokens(length - output, output) <= worst <= serving.full_tokens(length)

    @given(SERVINGS, st.integers(1, 40_000), st.integers(0, 40_000))
    def test_a_longer_request_keeps_no_less(self, serving, length, more):
        short, long = (serving.swa_tokens(*serving.worst_split(one)) for one in (length, length + more))
        assert short <= long

    @pytest.mark.slow
    @given(LOADS, SERVINGS, st.sampled_from(NAMES), st.integers(10**9, 2 * 10**11))
    def test_no_ratio_beats_the_recommended_one(self, loads, serving, name, available):
        try:
            plan = make_plan(shape_of(name), cell_of(name), available, serving, loads, None)
        except UsageMistake as error:
            assert "not one request fits" in str(error)
            return
        wanted, best = plan.need.requests, plan.recommended
        assert 0 < best.sizes.ratio <= 1
        assert all(min(best.requests, wanted) >= min(one.requests, wanted) for one in (*plan.curve, plan.default))

    @pytest.mark.slow
    @given(LOADS, SERVINGS, st.sampled_from(NAMES), st.integers(10**9, 10**11), st.integers(0, 10**11))
    def test_more_memory_is_never_fewer_requests(self, loads, serving, name, available, more):
        def held(size):
            try:
                plan = make_plan(shape_of(name), cell_of(name), size, serving, loads, None)
            except UsageMistake:
                return 0
            return min(plan.recommended.requests, plan.need.requests)

        assert held(available) <= held(available + more)
