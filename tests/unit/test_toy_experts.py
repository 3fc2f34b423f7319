"""The committed `toy-26b`: shaped like Gemma-4 26B-A4B, well trained, and hurt by a mixture that is wrong."""

import json
from pathlib import Path

import pytest

from gemma4_repro.toys import language, toy_path

NAME = "toy-26b"
UNSEEN_SEED = 77  # not the seed that the card was measured with
FULL_LAYERS = {5}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    torch = pytest.importorskip("torch", reason="the toys run with torch")
    pytest.importorskip("transformers.models.gemma4", reason="needs a transformers that has Gemma-4")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # matrices this small only wait for each other on more
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def target():
    from gemma4_repro.toys.measure_target import load_target

    return load_target(toy_path(NAME))


@pytest.fixture(scope="module")
def corpus():
    import torch

    drawn = language.sample(8, 128, language.held_out_rng(UNSEEN_SEED))
    return torch.from_numpy(drawn.tokens), torch.from_numpy(drawn.known)


def text_config(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))["text_config"]


class TestShape:
    def test_it_has_what_makes_26b_special(self, request) -> None:
        real = text_config(request.config.rootpath / "tests/data/configs/26b-a4b.json")
        toy = text_config(toy_path(NAME) / "config.json")
        assert toy["layer_types"] == real["layer_types"][: len(toy["layer_types"])]
        assert toy["layer_types"][-1] == real["layer_types"][-1] == "full_attention"
        assert toy["num_kv_shared_layers"] == real["num_kv_shared_layers"] == 0
        for config in (real, toy):
            assert config["global_head_dim"] == 2 * config["head_dim"]
            assert config["num_global_key_value_heads"] < config["num_key_value_heads"]
        assert toy["hidden_size_per_layer_input"] == 0
        assert toy["enable_moe_block"]
        assert toy["num_experts"] >= 8
        assert 2 <= toy["top_k_experts"] <= 4
        assert toy["attention_k_eq_v"]

    # Another transformers writes other keys; the committed file is of the one that made it.
    @pytest.mark.releases("0.5.13.post1")
    def test_the_committed_configuration_is_what_the_code_makes(self) -> None:
        from gemma4_repro.toys import geometry

        made = json.loads(geometry.experts_config().to_json_string())["text_config"]
        kept = text_config(toy_path(NAME) / "config.json")
        assert kept.pop("dtype") == "bfloat16"
        assert kept == made

    # Another transformers writes other keys; the committed file is of the one that made it.
    @pytest.mark.releases("0.5.13.post1")
    def test_its_assistant_fits_its_keys_and_has_no_experts(self) -> None:
        from gemma4_repro.toys import geometry

        target = text_config(toy_path(NAME) / "config.json")
        kept = text_config(toy_path(f"{NAME}-assistant") / "config.json")
        shared = (
            "head_dim",
            "global_head_dim",
            "num_key_value_heads",
            "num_global_key_value_heads",
            "attention_k_eq_v",
        )
        assert {key: kept[key] for key in shared} == {key: target[key] for key in shared}
        assert not kept["enable_moe_block"]
        made = json.loads(geometry.experts_assistant_config().to_json_string())["text_config"]
        assert kept.pop("dtype") == "bfloat16"
        made.pop("dtype", None)
        assert kept == made

    def test_full_layers_have_no_value_projection_and_all_weights_are_bf16(self) -> None:
        import torch
        from safetensors.torch import load_file

        weights = load_file(toy_path(NAME) / "model.safetensors")
        assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
        for layer, kind in enumerate(text_config(toy_path(NAME) / "config.json")["layer_types"]):
            attention = f"model.language_model.layers.{layer}.self_attn"
            assert (f"{attention}.v_proj.weight" in weights) is (kind == "sliding_attention")
            heads, dim = (2, 16) if kind == "sliding_attention" else (1, 32)
            assert weights[f"{attention}.k_proj.weight"].shape == (heads * dim, 64)


@pytest.mark.slow
def test_training_is_a_function_of_the_seed() -> None:
    import torch

    from gemma4_repro.toys import train_experts
    from gemma4_repro.toys.stage import Stage

    stage = Stage("any", steps=2, batch=2, length=40, learning_rate=1e-2)
    weights = [train_experts.train(seed, (stage, stage))[0].state_dict() for seed in (5, 5, 6)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert not all(torch.equal(weights[0][name], weights[2][name]) for name in weights[0])


class TestCommittedToy:
    def test_every_expert_of_every_layer_gets_tokens(self, target, corpus) -> None:
        import torch

        from gemma4_repro.toys import recurrence, routing

        with torch.no_grad(), routing.watched(target) as seen:
            recurrence.run_target(target, corpus[0])
        assert len(seen) == 6
        for routed in seen:
            assert routed.experts.shape == (corpus[0].numel(), 2)
            assert routed.shares.min() > 0.02

    def test_exchanged_experts_break_it(self, target, corpus) -> None:
        import torch

        from gemma4_repro.toys import recurrence, routing
        from gemma4_repro.toys.train_target import next_token_loss

        tokens, known = corpus
        with torch.no_grad():
            right = next_token_loss(recurrence.run_target(target, tokens), known)
            with routing.experts_exchanged(target):
                wrong = next_token_loss(recurrence.run_target(target, tokens), known)
        assert right < 1.0
        assert wrong - right > 3.0

    @pytest.mark.parametrize("name", ["per_expert_scale", "router_scale", "layer_scalar"])
    def test_a_scale_that_is_left_out_shows(self, target, corpus, name: str) -> None:
        import torch

        from gemma4_repro.toys import recurrence
        from gemma4_repro.toys.measure_experts import LEFT_OUT, left_out

        scales = [LEFT_OUT[name](layer) for layer in target.model.language_model.layers]
        assert all((scale - 1).abs().max() > 0.02 for scale in scales)
        with torch.no_grad():
            right = recurrence.run_target(target, corpus[0]).logits
            with left_out(target, name):
                wrong = recurrence.run_target(target, corpus[0]).logits
            assert (wrong - right).abs().mean() > 0.05
            assert torch.equal(recurrence.run_target(target, corpus[0]).logits, right)


def test_measured_numbers_meet_what_tests_on_an_engine_need() -> None:
    measured = json.loads((toy_path(NAME) / "measured.json").read_text(encoding="utf-8"))
    assert measured["next_token_accuracy"]["known"] >= 0.85
    assert measured["expert_share"]["min"] > 0.02
    assert measured["loss"]["exchanged"] - measured["loss"]["right"] > 3.0
    # Rounding differs between implementations; a decision that hangs on less than that would differ as well.
    assert measured["top1_gap"]["p01"] > 0.1
    assert measured["expert_gap"]["p01"] > 1e-3
    assert measured["greedy_repeats_exactly"]
    assert measured["cached_equals_uncached"]
