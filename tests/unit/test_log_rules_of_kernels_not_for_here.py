"""Kernels that are not for this GPU, this type of weights or this length, and layers that lie elsewhere."""

import pytest

from made_logs import died, found_in, prefill, told

NINJA = "RuntimeError: ninja exited with status 1"
TOPK = ("layers/attention/dsa_backend.py", "_build_topk_v2_plan", "return plan(x)")
HYBRID = ("layers/attention/hybrid_linear_attn_backend.py", "forward_decode", "x = f(y)")
POOL = ("mem_cache/memory_pool.py", "_transfer_full_attention_id", "raise ValueError(x)")
NO_LAYER = "ValueError: layer_id=0 not in full attention layers: dict_keys([7, 15])"
PREFILL = ("layers/attention/dsa/dsa_indexer.py", "paged_mqa_logits_split", "x = f(y)")
HEADS = "RuntimeError: Assertion error (/deepgemm/csrc/apis/attention.hpp:317): arch == 9 and (num_heads in {32,64})"
FORWARD = "TypeError: AttentionBackend.forward() missing 3 required positional arguments: 'q', 'k', and 'v'"
TILE = "RuntimeError: [TensorRT-LLM][ERROR] Assertion failed: Unsupported tile shape config 256256128 for MoE gemm"
SCALE = "ValueError: NVFP4 weight_scale for 'parallel_lm_head' was never loaded (still NaN)"
SHARED = "tvm.error.InternalError: Failed to set the allowed dynamic shared memory size to 169984"
REFUSED = "RuntimeError: Assertion error (phase1.cuh:614): Assertion res == CUresult::CUDA_SUCCESS failed."


def only_told(last, *frames):
    return found_in([prefill(1), died(last, *frames)])


@pytest.mark.parametrize(
    ("last", "frame", "words"),
    [
        (NINJA, TOPK, "SGLANG_OPT_USE_TOPK_V2=0"),
        (
            "NameError: name 'deep_gemm' is not defined",
            ("layers/deep_gemm_wrapper/entrypoint.py", "tf32_hc_prenorm_gemm", "deep_gemm.f(x)"),
            "SGLANG_OPT_DEEPGEMM_HC_PRENORM=0",
        ),
        (
            "NotImplementedError: Mxfp4MoEMethod must implement get_triton_quant_info()",
            ("layers/quantization/base_config.py", "get_triton_quant_info", "raise NotImplementedError"),
            "--moe-runner-backend left out (auto)",
        ),
        (TILE, ("layers/moe/a.py", "x", "f(y)"), "another backend of the experts"),
        (HEADS, PREFILL, "index_n_heads"),
        (FORWARD, ("layers/radix_linear_attention.py", "forward", "b.forward("), "without --enable-two-batch-overlap"),
        (SHARED, ("layers/attention/dsa/a.py", "f", "g(x)"), "169984 bytes"),
        (SCALE, ("models/a.py", "f", "g(x)"), "parallel_lm_head a quantised layer"),
        (
            "AssertionError",
            ("layers/attention/dsa/transform_index.py", "transform", "assert topk_indices.shape[1] == 2048"),
            "without --speculative-algorithm",
        ),
    ],
)
def test_what_is_not_for_here_leads_to_what_takes_another(last, frame, words):
    found = only_told(last, frame)
    assert found[0].rule == "told-by-words"
    assert words in told(found[0])


def test_a_key_that_is_shorter_than_a_page_leads_to_pairs_of_tokens():
    last = "IndexError: list index out of range"
    found, other = (
        only_told(last, ("mem_cache/unified_radix_cache.py", function, "key.child_key(self.page_size)"))[0]
        for function in ("match_prefix", "evict")
    )
    assert (found.rule, found.confidence) == ("told-by-words", "possible")
    assert found.advice[0].startswith("once without --speculative-algorithm")
    assert other.rule == "other-crash"


@pytest.mark.parametrize(("last", "first"), [("NCCL error: remote", False), ("odd", True)])
def test_what_a_gpu_refuses_is_no_matter_of_stages(last, first):
    text = died(f"RuntimeError: {last}", ("layers/a.py", "f", "g(x)"), rank="PP0 TP1")
    assert ("once with --pp-size 1" in told(found_in([prefill(1), text])[0])) == first


def test_a_launch_that_the_driver_refuses_is_no_certain_misfit_of_a_library():
    (found,) = only_told(REFUSED, ("layers/attention/a.py", "f", "sparse_prefill_fwd("))
    assert found.confidence == "possible"
    assert "half as long" in found.advice[0]


@pytest.mark.parametrize(
    ("last", "frame"),
    [
        (NINJA, ("layers/attention/dsa_backend.py", "_build_other_plan", "return plan(x)")),
        (FORWARD, ("layers/radix_attention.py", "forward", "b.forward(")),
        ("AssertionError", ("layers/a.py", "f", "assert x.shape[1] == 2048")),
    ],
)
def test_the_same_words_of_another_place_are_not_told_so(last, frame):
    assert "told-by-words" not in [one.rule for one in only_told(last, frame)]


def test_a_layer_that_the_release_sorted_wrong_is_not_laid_on_the_backend():
    (found,) = only_told(NO_LAYER, HYBRID, POOL)
    assert found.confidence == "possible"
    assert found.advice[0].startswith("the last release with which this model ran")


def test_a_backend_that_reads_of_the_first_layer_still_is():
    frames = (("layers/attention/aiter_backend.py", "__init__", "x = f(y)"), POOL)
    assert "another --attention-backend" in only_told(NO_LAYER, *frames)[0].advice[0]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ('a.cuh(718): error: namespace "cooperative_groups" has no member "this_cluster"', "compute capability 9.0"),
        ("a.cuh:27:10: fatal error: 'cooperative_groups.h' file not found", "no form for AMD's GPUs"),
        ("/usr/bin/ld: cannot find -lcudart: No such file or directory", "ln -s lib $CUDA_HOME/lib64"),
    ],
)
def test_what_a_compiler_says_of_a_kernel_names_what_lacks(said, words):
    (found,) = found_in([f"{said}\n", died(NINJA, ("layers/own.py", "plan", "build()"))])
    assert found.rule == "wheels-do-not-fit"
    assert words in told(found)


KEY = "KeyError: 'language_model.model.layers.20.linear_attn'"
WORKER = "(RayWorkerWrapper pid=612, ip=10.0.0.3) "
OF_VLLM = (
    "Traceback (most recent call last):\n",
    '  File "/usr/lib/python3.12/dist-packages/vllm/v1/worker/gpu_model_runner.py", in get_attn_backends_for_group\n',
    "    attn_backend = layers[layer_name].get_attn_backend()\n",
    f"{KEY}\n",
)


@pytest.mark.parametrize("stages", [3, 1])
def test_a_layer_of_another_stage_is_no_unknown_weight(stages):
    start = f"vllm serve some/model --pipeline-parallel-size {stages}\n"
    found = found_in([start, *(WORKER + line for line in OF_VLLM)])
    assert [one.rule for one in found] == ["other-crash"]
    assert (stages > 1) == ("--pipeline-parallel-size 1" in found[0].advice[0])


def test_the_last_line_alone_may_still_be_of_a_weight():
    assert [one.rule for one in found_in([f"{WORKER}ERROR {KEY}\n"])][:1] == ["weight-names"]
