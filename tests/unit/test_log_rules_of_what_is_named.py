"""What a log names itself: kernels, clients, folders, arguments in words, second tries and stacks without threads."""

import pytest

from gemma4_triage.logs.known_arguments import is_an_argument
from gemma4_triage.logs.read import read_log
from gemma4_triage.logs.suspects import suspects
from made_logs import TRACEBACK, found_in, only, stamp, started, told

READY = f"{stamp(1)} The server is fired up and ready to roll!\n"
PREFILL = f"{stamp(2)} Prefill batch, #new-seq: 1, #new-token: 16384, #cached-token: 0, token usage: 0.00, "
PREFILL += "#running-req: 0, #queue-req: 0\n"


def ended(message: str, *frames: str) -> str:
    """Return a scheduler's traceback through these frames, as "srt/models/qwen2.py forward"."""
    lines = []
    for frame in frames:
        file, function = frame.split(" ")
        lines.append(f'  File "/opt/sglang/python/sglang/{file}", line 7, in {function}\n    step()\n')
    return f"{stamp(9)} Scheduler hit an exception: {TRACEBACK}{''.join(lines)}{message}\n"


def first_of_kind(kind: str, *lines: str):
    shown = suspects(read_log("server.log", ["".join(lines).encode()]))
    return next(one for one in shown if one.of == kind)


ILLEGAL = (
    "RuntimeError: Runtime check failed at /a/topk_v1.cuh:348: CUDA error: an illegal memory access was encountered"
)
TOP_K = ("srt/models/deepseek_v4.py forward", "srt/layers/indexer.py forward", "jit_kernel/topk.py topk_transform_512")


def test_a_kernel_that_the_words_name_is_named():
    found = only([started(speculative_algorithm="EAGLE", enable_dp_attention=True), PREFILL, ended(ILLEGAL, *TOP_K)])
    assert "topk_v1.cuh" in found.cause
    assert "that kernel, or one before it" in found.cause
    assert found.advice[0].startswith("send the last request alone")
    assert not any(one.startswith("once without --speculative-algorithm: if it then") for one in found.advice)
    typed = "$ CUDA_LAUNCH_BLOCKING=1 python3 -m sglang.launch_server --model-path m\n"
    surely = only([typed, READY, PREFILL, ended(ILLEGAL, *TOP_K)])
    assert "it is that kernel" in surely.cause
    assert "CUDA_LAUNCH_BLOCKING=1" not in told(surely)


HARMONY = "openai_harmony.HarmonyError: Unexpected token 10848 while expecting start token 200006\n"
OF_A_CLIENT = (
    'client: Traceback (most recent call last):\nclient:   File "/app/p.py", line 4, in main\nclient:     p()\n'
)
SCHEMA = '# req.json: {"require_reasoning": true, "json_schema": "{}"}\n'


def test_a_clients_parser_fails_no_request_of_the_server():
    start = [started(reasoning_parser="gpt-oss"), READY]
    found = only([*start, SCHEMA, PREFILL, OF_A_CLIENT, f"client: {HARMONY}"])
    assert "no request failed in the server" in found.cause
    assert found.advice[0].startswith("no json_schema together with thoughts")
    plain = only([*start, PREFILL, OF_A_CLIENT, f"client: {HARMONY}"])
    assert "schema" not in plain.cause


FAKE = "torch._dynamo.exc.TorchRuntimeError: Dynamo failed to run FX node with fake tensors: call_method view: got "
FAKE += "RuntimeError(\"shape '[s18, -1, 128]' is invalid for input of size s5*s83\")"


def test_shapes_within_compiled_code_are_the_batchs():
    frames = ("srt/models/qwen2.py forward", "srt/layers/rotary_embedding.py forward")
    found = only([started(enable_mixed_chunk=True), PREFILL, ended(FAKE, *frames)])
    assert found.rule == "sizes-differ"
    assert found.advice[0] == "once without --enable-mixed-chunk"


SPLIT = (
    "RuntimeError: split_with_sizes expects split_sizes to sum exactly to the size of dimension -1 (18432), but got "
)


def test_a_class_that_splits_what_is_not_there_asks_for_another_release():
    frames = ("srt/worker.py profile_run", "srt/models/gemma4.py forward")
    found = only([started(), ended(f"{SPLIT}split_sizes=[16384, 2048, 2048] summing to 20480", *frames)])
    assert "one part of 2048 too many" in found.cause
    assert found.advice[0].startswith("a later release")
    other = only([started(), ended(f"{SPLIT}split_sizes=[16384, 1024, 2048] summing to 19456", *frames)])
    assert "too many" in other.cause
    assert "attention_k_eq_v" in only([started(), ended(f"{SPLIT}split_sizes=[16384, 2048, 2048]", *frames)]).cause


@pytest.mark.parametrize("folder", ["/root/.cache/deep_gemm/tmp", "/home/a/.cache/kernels"])
def test_a_folder_that_several_make_at_once_is_no_check(folder):
    said = f"RuntimeError: filesystem error: cannot create directory: File exists [{folder}]"
    found = only([started(), ended(said, "srt/layers/compile_utils.py execute")])
    assert found.rule == "host-limits"
    assert "a cache of its own for each server" in found.advice[0]


TOPK = "ValueError: trtllm_mha backend only supports topk = 1 for speculative decoding."


def test_no_argument_is_made_of_a_word():
    found = only([ended(TOPK, "srt/server_args.py _handle_speculative_decoding")])
    assert "--trtllm-mha" not in told(found)
    assert found.advice[0].startswith("--speculative-eagle-topk 1")
    assert "--attention-backend" in told(found)
    assert is_an_argument("attention_backend")
    assert not is_an_argument("trtllm_mha")


WATCHDOG = f"{stamp(9)} Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)\n"
IN_IMAGES = "Process 7: sglang::scheduler_DP0_TP0\n    synchronize (torch/cuda/streams.py:241)\n"
IN_IMAGES += "    embed_mm_inputs (sglang/srt/managers/mm_utils.py:1188)\n"
IN_A_GATHER = "Process 9: sglang::scheduler_DP1_TP2\n    all_gather_into_tensor (sglang/srt/parallel_state.py:871)\n"


def test_stacks_without_a_thread_are_read():
    start = started(enable_dp_attention=True, tp_size=4, dp_size=2)
    found = only([start, PREFILL, WATCHDOG, IN_IMAGES, IN_A_GATHER])
    assert "embed_mm_inputs" in found.cause
    assert found.advice[0].startswith("once without --enable-dp-attention, or with --dp-size")
    without = only([started(tp_size=4), PREFILL, WATCHDOG, IN_IMAGES, IN_A_GATHER])
    assert "DP attention" not in without.cause


UNREAD = f"{stamp(5)} Prefetch operation 0f failed to retrieve page 5b.\n"


@pytest.mark.parametrize("ranks", [1, 8])
def test_one_folder_for_all_ranks_is_told(ranks):
    extra = '{"ssd_offload_path":"/nvme/mc"}'
    typed = f"$ sglang serve --model-path m --tp {ranks} --hicache-storage-backend mooncake "
    typed += f"--hicache-storage-backend-extra-config '{extra}'\n"
    found = found_in([typed, READY, UNREAD])[0]
    assert ("/nvme/mc" in found.cause) is (ranks > 1)


NO_ROOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.12 GiB. GPU 0 has a total capacity of 95.58 GiB "
)
NO_ROOM += "of which 688.00 MiB is free."


@pytest.mark.parametrize(("free", "grown"), [("19.81", True), ("2.10", False)])
def test_what_went_since_the_start_is_counted(free, grown):
    pools = f"{stamp(0)} max_total_num_tokens=1571243, context_len=128000, available_gpu_mem={free} GB\n"
    found = only([pools, READY, PREFILL, ended(NO_ROOM, "srt/models/qwen2_5_vl.py get_image_feature")])
    assert ("as the server began to serve" in found.cause) is grown


NO_SLOT = "RuntimeError: Out of memory. Try to lower your batch size.\nTry to allocate 1472 tokens.\n"
NO_SLOT += "Available tokens: 1096 (available_size=1096 + evictable_size=0)"


def test_a_pool_of_a_given_size_is_made_larger_by_that_number():
    typed = "$ python3 -m sglang.launch_server --model-path m --max-total-tokens 4096\n"
    found = only([typed, READY, PREFILL, ended(NO_SLOT, "srt/mem_cache/common.py alloc_token_slots")])
    assert "a larger --max-total-tokens than the 4096" in found.advice[0]


def test_kernels_of_deterministic_inference_are_left_out():
    said = "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 147456, "
    said += "Hardware limit: 101376."
    found = only([started(), ended(said, "srt/batch_invariant_ops.py matmul_persistent", "compiler.py _init_handles")])
    assert found.advice[0].startswith("without --enable-deterministic-inference")


SERVE = "$ vllm serve zai-org/GLM-4.7-FP8 --tool-call-parser glm47 --reasoning-parser glm45 --kv-cache-dtype fp8\n"
UP = "(APIServer pid=1) INFO:     Application startup complete.\n"
UP += 'INFO:  127.0.0.1:5 - "POST /v1/completions HTTP/1.1" 200 OK\n'
BEGIN = 'data: {"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n'
CALL = 'data: {"choices":[{"delta":{"tool_calls":[{"id":"c","index":0,"function":{"name":"f","arguments":""}}]}}]}\n'
GIVEN = 'data: {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]}}]}\n'
END = 'data: {"choices":[{"delta":{},"finish_reason":"tool_calls"}]}\n'


@pytest.mark.parametrize(
    ("lines", "led"),
    [
        ((BEGIN, END), "calls-lost-in-a-stream"),
        ((BEGIN, CALL, END), "call-without-arguments"),
        ((BEGIN, CALL, GIVEN, END), "vllm-thoughts"),
        ((BEGIN, "...\n", "...\n", END), "vllm-thoughts"),
    ],
)
def test_a_stream_shows_what_it_lost(lines, led):
    assert first_of_kind("form", SERVE, UP, *lines).id == led


def test_a_mark_within_arguments_is_seen():
    answer = '{"choices":[{"message":{"tool_calls":[{"id":"c","function":{"name":"f",'
    answer += '"arguments":"{\\"q\\": \\"a<|x|>\\"}"}}]}}]}\n'
    assert first_of_kind("form", SERVE, UP, answer).id == "marks-in-arguments"


@pytest.mark.parametrize(
    ("note", "change"),
    [
        ("# --kv-cache-dtype auto\n", "with --kv-cache-dtype auto"),
        ("# restarted with --enforce-eager, 600 tokens: coherent\n", "with --enforce-eager"),
    ],
)
def test_a_second_run_that_is_noted_leads(note, change):
    assert first_of_kind("answers", SERVE, UP, note).change.startswith(change)
    # Ahead of the server's own lines it is a comment of its command.
    assert first_of_kind("answers", SERVE, note, UP).id != "second-try"


def test_a_second_run_without_a_stream_leads():
    assert first_of_kind("form", SERVE, UP, "# stream=false, same request\n").id == "second-try"


def test_an_option_that_is_cut_short_is_the_starts_own():
    note = "# same command, without --speculative-*\n"
    start = "$ python3 -m sglang.launch_server --model-path m --speculative-algorithm EAGLE3\n"
    assert first_of_kind("answers", start, READY, note).change.startswith("without --speculative-algorithm,")


ABORTED = "(APIServer pid=1) INFO 06-01 09:20:55 [async_llm.py:431] Request chatcmpl-52f1 aborted.\n"
LMCACHE = (
    f"(EngineCore pid=2) ERROR [core.py:951] {TRACEBACK}"
    '(EngineCore pid=2) ERROR [core.py:951]   File "/usr/lib/python3.12/dist-packages/lmcache/vllm_v1_adapter.py", '
    "line 1849, in request_finished\n(EngineCore pid=2) ERROR [core.py:951]     assert self.engine is not None\n"
    "(EngineCore pid=2) ERROR [core.py:951] AssertionError\n"
)


def test_an_abort_just_before_is_told_where_requests_end():
    found = only([SERVE, UP, ABORTED, LMCACHE])
    assert "outside of the engine" in found.cause
    assert "a request that was aborted just before" in told(found)
    assert "before its first batch" not in told(found)


def test_two_engines_of_mooncake_in_one_process():
    typed = "$ MOONCAKE_PROTOCOL=tcp python3 -m sglang.launch_server --model-path m --disaggregation-mode prefill "
    typed += "--disaggregation-transfer-backend mooncake --hicache-storage-backend mooncake\n"
    crash = "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f3a1c0b9740 (most recent call first):\n"
    crash += '  File "/opt/sglang/srt/mem_cache/mooncake_store.py", line 338 in __init__\n'
    assert "MOONCAKE_PROTOCOL=rdma" in told(found_in([typed, crash])[0])


@pytest.mark.parametrize(
    ("last", "words"),
    [
        ("RuntimeError: FlashAttention only support fp16 and bf16 data type", "TRITON_ATTN"),
        ("ValueError: mm_fp4 accepts 2d tensors, got torch.Size([1, 252, 576]) and torch.Size([576, 3456])", "ignore"),
    ],
)
def test_what_a_kernel_was_given_is_told_with_where_it_comes_from(last, words):
    finding = only([started(), ended(last)])
    assert (finding.rule, words in told(finding)) == ("told-by-words", True)


def test_what_pydantic_says_below_its_count_is_read():
    last = "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
    said = "  Value error, The checkpoint has model type `a` but Transformers does not recognize this architecture.\n"
    assert found_in([ended(last), said])[0].rule == "wheels-do-not-fit"
