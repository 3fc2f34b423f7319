"""owner-only-kv: which layers go, what follows from it in SGLang's own code, and what is refused."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gemma4_runtime.optimisations import owner_only_kv, swa_ratio_policy
from gemma4_runtime.pools.arithmetic import own_kv
from swa_pools import make_swa_allocator

# owner-only-kv is not ported: 0.5.23 makes the lists of layers elsewhere.
pytestmark = pytest.mark.releases("0.5.13.post1")

CONFIGS = Path(__file__).parents[1] / "data" / "configs"
ARGUMENTS = {
    "enable_hierarchical_cache": False,
    "disaggregation_mode": "null",
    "disaggregation_decode_enable_offload_kvcache": False,
    "enable_lmcache": False,
    "enable_hisparse": False,
    "kv_canary": "none",
    "device": "cuda",
    "swa_full_tokens_ratio": 0.8,
}


@pytest.fixture
def said(monkeypatch):
    """Say what was decided."""
    texts = []
    monkeypatch.setattr(owner_only_kv, "decide", lambda patch, text: texts.append((patch, text)))
    return texts


class Model(torch.nn.Module):
    """Attention layers of SGLang's own class, bound as its constructor binds them."""

    def __init__(self, text):
        from sglang.srt.models.gemma4_causal import Gemma4Attention

        super().__init__()
        owners = text.num_hidden_layers - text.num_kv_shared_layers
        self.layers = torch.nn.ModuleList()
        for number, kind in enumerate(text.layer_types):
            layer = Gemma4Attention.__new__(Gemma4Attention)
            torch.nn.Module.__init__(layer)
            of_kind = [owner for owner in range(owners) if text.layer_types[owner] == kind]
            layer.layer_id = number
            layer.attn = SimpleNamespace(layer_id=number if number < owners else of_kind[-1])
            self.layers.append(layer)


@pytest.fixture
def runner_of(tmp_path):
    """Return what makes a runner of a model with SGLang's own ModelConfig, as it is before pools are sized."""
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    def make(name, pp_size=1, hybrid=True, draft=None, **arguments):
        (tmp_path / "config.json").write_text((CONFIGS / f"{name}.json").read_text())
        config = ModelConfig(model_path=str(tmp_path))
        return SimpleNamespace(
            model_config=config,
            is_hybrid_swa=hybrid,
            pp_size=pp_size,
            spec_algorithm=SpeculativeAlgorithm.from_string(draft),
            server_args=SimpleNamespace(**(ARGUMENTS | arguments)),
            model=Model(config.hf_text_config),
            kv_cache_dtype=torch.bfloat16,
        )

    return make


def per_token(runner, monkeypatch):
    """Return SGLang's own count of bytes, and the layers that it counts."""
    from sglang.srt.model_executor import pool_configurator

    monkeypatch.setattr(pool_configurator, "get_attention_tp_size", lambda: 1)
    counted = pool_configurator.HybridSWAPoolConfigurator(runner)
    return counted._cell_size, counted._full_layers_num, counted._swa_layers_num


@pytest.mark.parametrize(
    ("name", "every", "owners", "factor"),
    [("e2b", (7, 28), (3, 12), 35 / 15), ("e4b", (7, 35), (4, 20), 42 / 24)],
)
def test_of_the_real_models_so_many_layers_are_left(runner_of, monkeypatch, said, name, every, owners, factor):
    runner = runner_of(name)
    before, *layers = per_token(runner, monkeypatch)
    assert tuple(layers) == every
    owner_only_kv.after_adjust_layers(None, runner)
    after, *layers = per_token(runner, monkeypatch)
    assert tuple(layers) == owners
    assert before / after == pytest.approx(factor, rel=1e-12)
    shared = sum(every) - sum(owners)
    words = f"in force: {sum(owners)} of {sum(every)} layers have KV buffers, {shared} read an owner's"
    assert said == [("owner-only-kv", words)]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"pp_size": 2}, "pipeline parallelism"),
        ({"hybrid": False}, "--disable-hybrid-swa-memory"),
        ({"enable_hierarchical_cache": True}, "hierarchical cache"),
        ({"disaggregation_mode": "prefill"}, "PD disaggregation"),
        ({"disaggregation_decode_enable_offload_kvcache": True}, "KV offload"),
        ({"enable_lmcache": True}, "LMCache"),
        ({"enable_hisparse": True}, "HiSparse"),
        ({"kv_canary": "raise"}, "KV canary"),
        ({"device": "npu"}, "pools of npu"),
        ({"draft": "STANDALONE"}, "a draft with KV of its own"),
        ({"draft": "EAGLE3"}, "a draft with KV of its own"),
    ],
)
def test_what_is_refused_leaves_all_layers_and_says_why(runner_of, said, changes, why):
    runner = runner_of("e4b", **changes)
    swa, full = runner.model_config.swa_attention_layer_ids, runner.model_config.full_attention_layer_ids
    owner_only_kv.after_adjust_layers(None, runner)
    assert (runner.model_config.swa_attention_layer_ids, runner.model_config.full_attention_layer_ids) == (swa, full)
    ((_, text),) = said
    assert text.startswith("not in force: ")
    assert why in text


@pytest.mark.parametrize("draft", ["FROZEN_KV_MTP", "NGRAM"])
def test_a_draft_without_kv_of_its_own_is_none_to_refuse(runner_of, said, draft):
    owner_only_kv.after_adjust_layers(None, runner_of("e4b", draft=draft))
    assert said[0][1].startswith("in force")


def test_a_model_without_shared_layers_is_left_alone(runner_of, said):
    runner = runner_of("26b-a4b")
    owner_only_kv.after_adjust_layers(None, runner)
    assert len(runner.model_config.swa_attention_layer_ids) == 25
    assert said == [("owner-only-kv", "not in force: no layer shares its KV")]


@pytest.mark.parametrize("bound", [41, 23, 99])
def test_a_layer_that_reads_no_owner_of_its_kind_keeps_all_pools(runner_of, said, bound):
    """Layer 24 of E4B is a sliding one; 41 shares KV itself, 23 is full, 99 does not exist."""
    runner = runner_of("e4b")
    runner.model.layers[24].attn.layer_id = bound
    owner_only_kv.after_adjust_layers(None, runner)
    assert len(runner.model_config.swa_attention_layer_ids) == 35
    assert said == [("owner-only-kv", f"not in force: layer 24 reads layer {bound}, which is no owner of its kind")]


def test_another_model_is_none_of_its_business(said):
    config = SimpleNamespace(hf_config=SimpleNamespace(architectures=["LlamaForCausalLM"]), hf_text_config=object())
    owner_only_kv.after_adjust_layers(None, SimpleNamespace(model_config=config))
    assert said == []


@given(st.lists(st.integers(0, 100), unique=True), st.integers(1, 100), st.integers(0, 99))
def test_owners_are_the_first_layers(ids, layers, shared):
    found = own_kv(ids, layers, shared)
    assert found == [one for one in ids if one in set(range(layers - shared))]


def test_of_the_real_models_the_owners_hold_both_kinds():
    for name, shared in (("e2b", 20), ("e4b", 18)):
        text = json.loads((CONFIGS / f"{name}.json").read_text())["text_config"]
        assert text["num_kv_shared_layers"] == shared
        owners = own_kv(range(text["num_hidden_layers"]), text["num_hidden_layers"], shared)
        assert {text["layer_types"][one] for one in owners} == {"sliding_attention", "full_attention"}


def test_what_is_copied_to_the_host_comes_back_elsewhere(runner_of, said):
    """SGLang's own pool pair, with the layers that the patch leaves of E4B."""
    runner = runner_of("e4b")
    owner_only_kv.after_adjust_layers(None, runner)
    config = runner.model_config
    layers = sorted([*config.swa_attention_layer_ids, *config.full_attention_layer_ids])
    assert layers == list(range(24))
    allocator = make_swa_allocator(
        64, 32, 1, swa_layers=config.swa_attention_layer_ids, full_layers=config.full_attention_layer_ids
    )
    pool = allocator.get_kvcache()
    slots = allocator.alloc(8)
    for layer in layers:
        for buffer in pool.get_kv_buffer(layer):
            buffer.copy_(torch.randn_like(buffer))

    def values(slots):
        swa = pool.translate_loc_from_full_to_swa(slots)
        where = dict.fromkeys(config.swa_attention_layer_ids, swa)
        return [buffer[where.get(layer, slots)].clone() for layer in layers for buffer in pool.get_kv_buffer(layer)]

    wanted, copy = values(slots), pool.get_cpu_copy(slots)
    assert (len(copy["full"]), len(copy["swa"])) == (4, 20)
    others = allocator.alloc(8)
    assert not set(others.tolist()) & set(slots.tolist())
    pool.load_cpu_copy(copy, others)
    assert all(torch.equal(found, was) for found, was in zip(values(others), wanted, strict=True))


class TestRatioPolicyRefuses:
    """The same runner; what SGLang's arguments lack here, the policy asks for only if it is a case."""

    @pytest.mark.parametrize(
        ("changes", "why"),
        [
            ({"hybrid": False}, "--disable-hybrid-swa-memory"),
            ({"pp_size": 2}, "pipeline parallelism"),
            ({"enable_hierarchical_cache": True}, "hierarchical cache"),
            ({"disaggregation_mode": "decode"}, "PD disaggregation"),
            ({"draft": "STANDALONE"}, "a draft with KV of its own"),
        ],
    )
    def test_and_says_why(self, runner_of, monkeypatch, changes, why):
        said = []
        monkeypatch.setattr(swa_ratio_policy, "decide", lambda patch, text: said.append((patch, text)))
        runner = runner_of("26b-a4b", **changes)
        swa_ratio_policy.after_profile(10**11, runner)
        ((patch, text),) = said
        assert (patch, runner.server_args.swa_full_tokens_ratio) == ("swa-ratio-policy", 0.8)
        assert text.startswith("0.8 kept: ")
        assert why in text

    def test_layers_of_one_kind(self, runner_of, monkeypatch):
        said = []
        monkeypatch.setattr(swa_ratio_policy, "decide", lambda patch, text: said.append(text))
        runner = runner_of("26b-a4b")
        runner.model_config.full_attention_layer_ids = []
        swa_ratio_policy.after_profile(10**11, runner)
        assert said == ["0.8 kept: layers of one kind only"]
