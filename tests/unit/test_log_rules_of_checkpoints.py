"""What a checkpoint whose tensors do not fit the model's class is told by: their names, sizes and frames."""

import pytest

from made_logs import decode, died, found_in, only, stamp, started, told


class TestCheckpoints:
    LACKS = "Some weights are not initialized from checkpoints: ['model.layers.0.{}']\n"

    def test_experts_that_got_no_weights_are_told_though_it_serves(self):
        lines = [started(), f"{stamp(1)} {self.LACKS.format('moe.experts.w13_weight_packed')}", decode(2)]
        assert "Experts got no weights" in only(lines).cause

    @pytest.mark.parametrize("name", ["self_attn.qk_norm.weight", "moe.experts.w13_input_scale", "mlp.experts.w2_bias"])
    def test_what_may_be_shared_or_have_a_default_is_not(self, name):
        assert found_in([started(), f"{stamp(1)} {self.LACKS.format(name)}", decode(2)]) == ()

    @pytest.mark.parametrize(
        ("file", "words"), [("gemma3_causal.py", "class of text alone"), ("gemma3_mm.py", "does not know.")]
    )
    def test_a_fine_tune_that_names_another_class_than_its_tensors(self, file, words):
        last = "KeyError: 'language_model.model.embed_tokens.weight'"
        assert words in only([died(last, (f"models/{file}", "load_weights", "param = params_dict[name]"))]).cause

    def test_a_scale_without_a_prefix_is_of_its_quantisation(self):
        last = "KeyError: 'layers.0.moe.experts.0.down_proj.input_global_scale'"
        finding = only([died(last, ("models/gemma4_causal.py", "load_weights", "param = params_dict[name]"))])
        assert "of a quantised copy" in finding.cause
        assert "--is-embedding" not in told(finding)

    def test_bytes_in_one_column_are_of_bitsandbytes(self):
        last = "AssertionError: Attempted to load weight (torch.Size([3096576, 1])) into parameter (torch.Size([5, 7]))"
        finding = only([died(last, ("model_loader/weight_utils.py", "default_weight_loader", "assert a == b"))])
        assert finding.advice[0].startswith("--load-format bitsandbytes")

    @pytest.mark.parametrize(
        ("file", "words"),
        [
            ("llama_eagle.py", "The draft's checkpoint has a vocabulary of 32000"),
            ("llama.py", "embedding has 32000 rows"),
        ],
    )
    def test_a_vocabulary_of_another_size(self, file, words):
        last = "AssertionError: self.org_vocab_size=128256 x loaded_weight.shape[output_dim]=32000"
        frames = [
            (f"models/{file}", "load_weights", "f()"),
            ("layers/vocab_parallel_embedding.py", "weight_loader", "f()"),
        ]
        assert words in only([died(last, *frames)]).cause

    def test_transformers_init_weights_is_no_trainers_doing(self):
        frames = [("models/x.py", "init_weights", "self.tie_weights()"), ("models/x.py", "tie_weights", "f()")]
        finding = only([died("AttributeError: 'XForCausalLM' object has no attribute 'y'", *frames)])
        assert "put new weights" not in finding.cause

    @pytest.mark.parametrize("name", ["0.down_proj_packed", "7.w13_weight_scale_2", "gate_up_proj_blocks"])
    def test_a_packed_name_of_vllm_is_its_loaders(self, name):
        lines = [
            '  File "/x/dist-packages/vllm/model_executor/models/utils.py", line 355, in load_weights',
            f"KeyError: 'layers.0.moe.experts.{name}'",
        ]
        before = "(EngineCore pid=272) ERROR 04-18 14:25:37 [core.py:1108] "
        finding = only([f"{before}{line}\n" for line in lines])
        assert finding.rule == "weight-names"
        assert "of SGLang" not in told(finding)

    def test_weights_that_are_put_into_a_running_server_are_not_at_fault(self):
        frame = ("model_loader/weight_utils.py", "default_weight_loader", "assert a.size() == b.size()")
        lines = [f"{stamp(1)} Start update_weights. Load format=auto\n", died("AssertionError", frame)]
        assert "restart the server" in only(lines).advice[0]
