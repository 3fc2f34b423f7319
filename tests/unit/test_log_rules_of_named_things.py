"""Packages, compilers, memory, weights, routers and notes whose words name what to change."""

import pytest

from gemma4_triage.finding import Confidence
from gemma4_triage.logs.catalog import with_those_alike
from gemma4_triage.logs.read import read_log
from gemma4_triage.logs.suspects import suspects
from made_logs import decode, died, ended, found_in, only, stamp, started, told

AWQ = "ValueError: awq quantization requires some operators from vllm. Pleaes install vllm by `pip install vllm==0.7.2`"
NAMED = {
    "ImportError: /opt/common_ops.so: undefined symbol: numa_get_membind": "libnuma",
    "RuntimeError: Failed to find C compiler. Please specify via CC environment variable.": "build-essential",
    AWQ: "pip install vllm==0.7.2",
    "NameError: name 'check_marlin_supported' is not defined": "pip install the vllm",
    "ModuleNotFoundError: No module named 'cuda.bindings'": "pip install cuda-python",
}


@pytest.mark.parametrize("last", NAMED)
def test_what_the_words_name_is_what_to_install(last):
    found = found_in([ended(last)])[0]
    assert found.confidence is Confidence.LIKELY
    assert NAMED[last] in found.advice[0]


def test_their_neighbours_are_told_as_before():
    assert "libnuma" not in told(only([ended("ImportError: /opt/x.so: undefined symbol: _ZN3c105ErrorC2E")]))
    assert "nvcc" in only([ended("RuntimeError: Ninja is required to load C++ extensions")]).advice[0]
    assert "vllm" not in told(only([died("NameError: name 'whole_size' is not defined", ("a.py", "f", "whole_size"))]))
    assert "cuda-python" not in told(only([ended("ModuleNotFoundError: No module named 'gguf'")]))


SAVER = "enable_memory_saver is enabled, but torch-memory-saver is not installed. Please install it via `pip3 x`.\n"


def test_a_package_that_a_line_misses_is_named_before_the_start_fails():
    found = only([SAVER, started(enable_memory_saver=True)])
    assert found.advice[0].startswith("pip install torch-memory-saver")
    assert found_in([SAVER, f"{stamp(2)} The server is fired up and ready to roll!\n", decode(4)]) == ()


def test_a_release_that_was_taken_back_is_named():
    because = "  Because transformers==4.57.0 was yanked (reason: Error) and sglang==0.5.3 depends on it\n"
    head = "  x No solution found when resolving dependencies:\n"
    found = only([head, because])
    assert "4.57.0" in found.cause
    assert "uv pip install 'transformers==4.57.0'" in found.advice[1]
    assert "beside it say why" in only([head]).advice[0]


def test_a_message_that_nobody_hands_on_is_told():
    line = f"{stamp(2)} Invalid object: UpdateWeightReqInput(model_path='/m', load_format='auto')\n"
    found = only([f"{stamp(1)} The server is fired up and ready to roll!\n", line])
    assert "UpdateWeightReqInput" in found.cause
    assert "--dp 1" in found.advice[0]
    assert "--dp 1" not in told(only([line.replace("object: UpdateWeightReqInput(", "state: (")]))
    raised = only([died("ValueError: Invalid object: FlushCacheReqInput()", ("utils.py", "__call__", "raise"))])
    assert "FlushCacheReqInput" in raised.cause
    assert raised.advice[0].startswith("one release of all")


def test_a_loop_that_cannot_be_changed_is_not_to_be_changed():
    found = only(["ValueError: Can't patch loop of type <class 'uvloop.Loop'>\n"])
    assert found.advice[0].startswith("run it as a plain script")
    running = only(["RuntimeError: This event loop is already running\n"])
    assert "nest_asyncio.apply() first" in running.advice[0]


UNROOMY = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."
LOADED = f"{stamp(1, 'DP0 PP0')} Load weight end. type=M, dtype=torch.bfloat16, avail mem={{}} GB, mem usage=7.21 GB.\n"
BOTH = "python -m sglang.launch_server --model-path m --dp 2 --pp 2\n"


def test_a_rank_without_room_beside_small_weights_shares_its_gpu():
    found = only([BOTH, LOADED.format("14.53"), died(UNROOMY, rank="DP1 PP0")])
    assert "another rank" in found.cause
    assert "without --dp beside --pp" in found.advice[0]
    for other in (LOADED.format("1.53"), ""):
        assert "Weights alone" in only([BOTH, other, died(UNROOMY)]).cause
    small = UNROOMY + " Current value: self.server_args.mem_fraction_static=0.3"
    assert "Weights alone" in only([BOTH, LOADED.format("14.53"), died(small)]).cause
    assert "Weights alone" in only([LOADED.format("14.53"), died(UNROOMY)]).cause


OUT = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.\n"
ENGINE = '# engine = sgl.Engine(model_path="m"{})\n# engine.release_memory_occupation(), then training\n'


def test_memory_that_an_engine_without_the_saver_does_not_release_is_told():
    found = only([ENGINE.format(""), OUT])
    assert "was not: the engine was started without enable_memory_saver" in found.cause
    assert found.advice[0].startswith("start it with enable_memory_saver=True")
    for other in (ENGINE.format(", enable_memory_saver=True"), '# engine = sgl.Engine(model_path="m")\n'):
        assert "enable_memory_saver" not in only([other, OUT]).cause


def test_a_saver_that_finds_no_room_leads():
    line = "(WorkerDict pid=2) [torch_memory_saver.cpp] CUresult error  result=2 file=a.cpp func=cu_mem_create line=1\n"
    found = next(one for one in with_those_alike(read_log("x", [line.encode()])) if one.rule != "like-incidents")
    assert (found.rule, found.confidence) == ("kernel-failed", Confidence.LIKELY)
    assert "free the GPU before" in found.advice[0]
    assert only([line.replace("result=2", "result=1")]).confidence is Confidence.POSSIBLE


SIZES = "assert param.size() == loaded_weight.size()"
UPDATE = f"{stamp(1, 'TP1 EP1')} POST /update_weights_from_tensor\n"


def test_a_fused_expert_of_another_size_is_no_form_of_kernels():
    lines = [UPDATE, died("AssertionError", ("layers/linear.py", "weight_loader", SIZES), rank="TP1 EP1")]
    found = only(lines)
    assert "another size than its place" in found.cause
    assert "--ep 1" in found.advice[0]
    quantised = only([started(model_path="m-FP8", ep_size=4), *lines])
    assert "form of their kernels" in quantised.cause
    plain = died("AssertionError", ("layers/linear.py", "weight_loader", SIZES), rank="TP1")
    assert "form of their kernels" in only([UPDATE.replace(" EP1", ""), plain]).cause


def test_names_of_the_publishers_other_format_are_told():
    found = only(["KeyError: 'layers.0.attention.wk.weight'\n"])
    assert "consolidated" in found.cause
    assert "consolidated" in found.advice[0]
    assert "consolidated" not in told(only(["KeyError: 'layers.0.mlp.gate_up_proj.weight'\n"]))


def test_a_config_that_was_left_beside_a_gguf_file_is_to_be_mended():
    words = "ValueError: Quantization method specified in the model config ({}) does not match the quantization method "
    words += "specified in the `quantization` argument ({}).\n"
    assert "quantization_config (fp8)" in only([words.format("fp8", "gguf")]).advice[0]
    assert "GGUF" not in told(only([words.format("fp8", "awq")]))


def test_a_router_that_hashes_may_name_a_worker_that_is_gone():
    start = "python -m sglang_router.launch_router --pd-disaggregation --policy {} --prefill http://a:1\n"
    lines = [
        "INFO  Removed worker: http://10.0.0.12:30000\n",
        "ERROR Failed to select PD pair error=failed to select\n",
    ]
    found = only([start.format("consistent_hashing"), *lines])
    assert found.advice[0].startswith("another --policy")
    assert found.confidence is Confidence.LIKELY
    assert only([start.format("consistent_hashing"), lines[1]]).confidence is Confidence.POSSIBLE
    assert "another --policy" not in told(only([start.format("random"), *lines]))


def test_a_worker_that_its_router_takes_for_unhealthy_is_told():
    found = only(['{"workers": [{"url": "https://api.openai.com", "is_healthy": false}]}\n'])
    assert "--health-check-endpoint" in found.advice[0]
    assert found_in(['{"workers": [{"url": "http://a:1", "is_healthy": true}]}\n', decode(3)]) == ()


def test_a_snapshot_of_memory_that_fails_is_no_lack_of_memory():
    last = "  in torch.cuda.memory._snapshot\nRuntimeError: stoi\n"
    log = f"[TP2] Scheduler hit an exception: Traceback (most recent call last):\n  in P._stop_profile\n{last}"
    assert found_in([log])[0].advice[0].startswith("profile without the activity MEM")
    assert "MEM" not in told(found_in([log.replace("memory._snapshot", "memory.empty")])[0])


def test_a_stop_of_a_profile_is_known_behind_its_class():
    log = (
        "[TP2] Scheduler hit an exception: Traceback (most recent call last):\n  in P._stop_profile\nRuntimeError: x\n"
    )
    assert "/start_profile" in told(only([log]))


def suspected(text: str) -> list[str]:
    return [one.change for one in suspects(read_log("x", [text.encode()]))]


def test_a_schema_with_patterns_leads_to_another_library():
    vllm = "vllm serve m\n(APIServer pid=1) INFO: Application startup complete.\n"
    asked = '# schema with "patternProperties": {"^score$": {"type": "integer"}}\n'
    assert "another library for grammars" in suspected(vllm + asked)[0]
    assert not any("another library for grammars (of vLLM" in one for one in suspected(vllm))


def test_metrics_that_are_empty_lead():
    served = f"{stamp(1)} The server is fired up and ready to roll!\n{decode(2)}"
    assert "/metrics" in suspected(f"{served}# the body of /metrics is empty\n")[0]
    two = f"# only the metrics it wants\n{served}# empty body; the plain one has all samples\n"
    assert "/metrics" in suspected(two)[0]
    assert not any("/metrics" in one for one in suspected(f"{served}# the queue is empty\n"))


def test_a_kernel_of_aiter_is_told_by_its_wrapper():
    frame = '  File "/sgl-workspace/aiter/aiter/{}", line 9, in {}\n    call()\n'
    log = [died("", ("layers/quantization/fp8_utils.py", "linear", "gemm()")).rstrip() + "\n"]
    log += [frame.format("jit/core.py", "wrapper_custom"), frame.format("_ops.py", "__call__")]
    assert "SGLANG_USE_AITER=0" in found_in(log)[0].advice[0]
    other = [log[0], log[1].replace("wrapper_custom", "mine"), log[2]]
    assert not any("PREBUILD_KERNELS" in told(one) for one in found_in(other))


SCATTER = (
    '/pytorch/ScatterGatherKernel.cu:163: operator(): block: [0,0,0], thread: [62,0,0] Assertion `idx_dim >= 0 && "'
    'scatter gather kernel index out of bounds"` failed.\n'
)
ASSERTED = "RuntimeError: CUDA error: device-side assert triggered"


def test_a_draft_of_fewer_positions_is_to_be_looked_at():
    draft = "python -m sglang.launch_server --model-path m --speculative-algorithm EAGLE{} --context-length 2048\n"
    log = [draft.format(" --speculative-draft-model-path d"), SCATTER, died(ASSERTED)]
    assert "d may have fewer positions" in only(log).advice[0]
    assert "fewer positions" not in told(only([draft.format(""), SCATTER, died(ASSERTED)]))


def test_ranks_that_share_a_host_cache_wait_for_each_other():
    hang = f"{stamp(400)} Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)\n"
    start = "# tp {} --enable-hierarchical-cache ; many clients\n"
    assert "ranks ask each other there" in told(only([start.format(4), decode(1), hang]))
    assert "ranks ask each other there" not in told(only([start.format(1), decode(1), hang]))
