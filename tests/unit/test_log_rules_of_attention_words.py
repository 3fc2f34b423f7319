"""What attention says by its words: features, types, pages and heads that a kernel lacks, and conditions on the GPU."""

import pytest

from gemma4_triage.logs.read import read_log
from gemma4_triage.logs.suspects import suspects
from made_logs import ASSERTION, decode, died, found_in, only, prefill, started, told

OF_VLLM = "(EngineCore pid=88) INFO [cuda.py] Using FlashInfer backend on V1 engine.\n"
FAILED = "(EngineCore pid=88) ERROR [core.py] EngineCore failed to start.\n"


def of_vllm(last: str, *before: str) -> list[str]:
    return [OF_VLLM, *before, FAILED, f"(EngineCore pid=88) ERROR [core.py] {last}\n"]


class TestKernels:
    def test_a_feature_of_another_release_of_it(self):
        finding = only(of_vllm("AssertionError: Sinks are only supported in FlashAttention 3"))
        assert finding.rule == "attention-kernel"
        assert "has no sinks here" in finding.cause
        assert "TRITON_ATTN" in finding.advice[0]

    def test_a_type_of_stored_keys(self):
        lines = ["vllm serve m --kv-cache-dtype fp8\n"]
        finding = only([*lines, *of_vllm("ValueError: MLA kv_data_type torch.uint8 is not supported")])
        assert finding.rule == "attention-kernel"
        assert finding.advice[0].startswith("--kv-cache-dtype auto")

    def test_a_type_that_is_none_of_keys_is_not_told_so(self):
        assert all(
            one.rule != "attention-kernel" for one in found_in(of_vllm("ValueError: torch.uint8 is not supported"))
        )

    PAGES = "RuntimeError: Expect (32 <= headDim <= 2048) && (numTokensPerPage <= 128), got numTokensPerPage=%d256544"

    def test_pages_that_are_too_large(self):
        block = "(EngineCore pid=88) INFO [config.py] Setting attention block size to 544 tokens to ensure it fits.\n"
        finding = only(of_vllm(self.PAGES, block))
        assert "none for pages of 544 tokens: it takes 128 at most" in finding.cause
        assert "head dimension" not in finding.cause

    def test_pages_or_heads_where_no_line_tells(self):
        assert "this head dimension or this size of pages" in only(of_vllm(self.PAGES)).cause

    def test_a_dispatch_that_names_the_type_alone(self):
        last = "RuntimeError: BatchPrefillWithPagedKVCache failed to dispatch with dtype Half"
        finding = only([died(last, ("layers/attention/a.py", "forward", "x = f(y)"))])
        assert "the head dimension" in finding.cause
        assert "pip show flashinfer-python" in finding.advice[0]

    HEADS = "RuntimeError: unsupported head_dim: 80"

    def test_a_head_dimension_beside_triton_is_of_another_part(self):
        finding = only([started(attention_backend="triton"), died(self.HEADS, ("a.py", "run_once", "x = f(y)"))])
        assert (finding.confidence, "--attention-backend triton" in told(finding)) == ("possible", False)
        assert "rotary embedding" in finding.cause

    @pytest.mark.parametrize(
        ("backend", "file"), [("flashinfer", "a.py"), ("triton", "layers/attention/triton_backend.py")]
    )
    def test_of_the_backend_itself_it_is_told_as_before(self, backend, file):
        finding = only([started(attention_backend=backend), died(self.HEADS, (file, "forward", "x = f(y)"))])
        assert "has no kernel for this head dimension" in finding.cause


class TestConditionsOnTheGpu:
    LINE = "torch._assert_async((prefix_lens % ratio == 0).all())"
    PLACE = ("layers/attention/a_backend.py", "_build_plan", LINE)

    def test_a_condition_is_no_index(self):
        finding = only([started(enable_mixed_chunk=True), decode(1), died(ASSERTION, self.PLACE)])
        assert (finding.rule, finding.confidence) == ("refused-by-check", "possible")
        assert self.LINE in finding.cause
        assert "index" not in finding.cause
        assert finding.advice[1].startswith("once without --enable-mixed-chunk")

    def test_an_index_is_still_one(self):
        place = ("layers/attention/a_backend.py", "_build_plan", "x = table[rows]")
        assert only([decode(1), died(ASSERTION, place)]).rule == "index-outside-tensor"


class TestCallsOfAModel:
    LAST = "RuntimeError: topk_indices_offset must be a CUDA tensor"
    GIVEN = started(nsa_prefill_backend="flashmla_sparse", kv_cache_dtype="fp8_e4m3")

    def test_the_part_that_its_words_speak_of(self):
        finding = only([self.GIVEN, died(self.LAST, ("models/deepseek_v2.py", "forward", "s = self.prepare("))])
        assert "below deepseek_v2.py" in finding.cause
        assert "concerns the attention backend" in finding.cause
        assert finding.advice[0].startswith("once without --nsa-prefill-backend flashmla_sparse")
        assert "(flashmla_kv, tilelang, fa3)" in finding.advice[0]
        assert "--kv-cache-dtype auto in place of fp8_e4m3" in finding.advice[0]

    def test_what_the_class_raises_itself_is_its_own(self):
        own = ("models/deepseek_v2.py", "forward", "raise RuntimeError(f(x))")
        assert "this release's code of the model" in only([self.GIVEN, died(self.LAST, own)]).cause

    def test_a_pool_of_windows_that_was_sized_by_hand(self):
        last = "TypeError: zeros() received an invalid combination of arguments - got (tuple, device=str), expected:"
        place = ("mem_cache/memory_pool.py", "_create_buffers", "torch.zeros(")
        finding = only([started(hybrid_kvcache_ratio="0.5"), died(last, place)])
        assert finding.advice[0].startswith("once without --hybrid-kvcache-ratio 0.5")
        assert "--hybrid-kvcache-ratio" not in told(only([started(model_path="m"), died(last, place)]))


class TestNone:
    @pytest.mark.parametrize(
        "last",
        [
            "TypeError: rmsnorm(): argument 'input' (position 1) must be Tensor, not NoneType",
            "RuntimeError: sgl_kernel::build_tree() Expected a value of type 'Tensor' for argument 'seq_lens' but "
            "instead found type 'NoneType'.",
            "TypeError: flash_attn_with_kvcache(): argument 'k' (position 2) must be Tensor, not NoneType",
        ],
    )
    def test_a_value_that_was_never_set_is_no_packages_release(self, last):
        finding = only([decode(1), died(last, ("layers/a.py", "forward", "x = f(y)"))])
        assert "another release than" not in told(finding)
        assert "pip list" not in told(finding)

    def test_other_arguments_still_are(self):
        last = "TypeError: rmsnorm() takes 2 positional arguments but 3 were given"
        assert "of another release" in only([decode(1), died(last, ("layers/a.py", "forward", "x = f(y)"))]).cause


class TestPages:
    @pytest.mark.parametrize(
        ("given", "change"),
        [
            ({"attention_backend": "ascend", "page_size": 16, "device": "npu"}, "with --page-size 128 (16 now)"),
            ({"attention_backend": "aiter", "page_size": 64}, "with --page-size 1 (64 now)"),
            ({"attention_backend": "trtllm_mla", "page_size": 32}, "with --page-size 64 (32 now)"),
            ({"attention_backend": "intel_amx", "device": "cpu"}, "with --attention-backend torch_native"),
        ],
    )
    def test_what_the_backend_takes_by_itself(self, given, change):
        facts = read_log("log", ["".join((started(model_path="m", **given), prefill(1), decode(2))).encode()])
        assert change in [one.change for one in suspects(facts)]

    @pytest.mark.parametrize(
        "given",
        [
            {"attention_backend": "ascend", "page_size": 128},
            {"attention_backend": "aiter", "page_size": 1},
            {"attention_backend": "trtllm_mla", "page_size": 64},
            {"attention_backend": "triton", "page_size": 64},
        ],
    )
    def test_its_own_pages_are_no_suspect(self, given):
        facts = read_log("log", ["".join((started(model_path="m", **given), prefill(1), decode(2))).encode()])
        assert not any("--page-size" in one.change for one in suspects(facts))
