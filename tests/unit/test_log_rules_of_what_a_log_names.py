"""Classes of public incidents: what a log, its notes or its start name by hand is what to look at first."""

import pytest

from gemma4_triage.logs.catalog import findings
from gemma4_triage.logs.read import read_log
from gemma4_triage.logs.rules.start_stopped import unfinished
from made_logs import ILLEGAL, decode, died, died_in, found_in, only, prefill, stamp, started, told

HEAD = f"{stamp(3, 'TP0')} Scheduler hit an exception: Traceback (most recent call last):\n"
LOOP = (
    '  File "/srv/sglang/srt/managers/scheduler.py", line 7, in run_scheduler_process\n    scheduler.run_event_loop()\n'
)
NAN = "Assertion `probability tensor contains either `inf`, `nan` or element < 0` failed.\n"
LEFT_OUT = f"{stamp(1)} Parameter model.layers.0.{{}}.weight not found in params_dict\n"


def first(lines) -> str:
    """Return the first advice of the finding that leads."""
    return found_in(lines)[0].advice[0]


@pytest.mark.parametrize(
    ("note", "words"),
    [
        (
            "# ends in a pydantic ValidationError: xgrammar's JSONSchemaFormat gets None for json_schema\n",
            "in place of null",
        ),
        ("# dies of ValueError: Tokens not accepted: 7\n", "the grammar's backend"),
    ],
)
def test_a_note_says_what_a_traceback_that_was_cut_off_ended_in(note, words):
    finding = only([HEAD, LOOP, note])
    assert finding.rule == "grammar-request"
    assert words in told(finding)


def test_a_note_of_something_else_below_a_traceback_is_no_end_of_it():
    assert "cut off" in only([HEAD, LOOP, "# one request of ten does this\n"]).cause


@pytest.mark.parametrize(
    "frame", ["  [...] in init_lora_modules\n", "  # the last frame is init_lora_modules, on a list\n"]
)
def test_a_function_that_a_shortened_traceback_names_is_a_frame(frame):
    last = "TypeError: list indices must be integers or slices, not NoneType\n"
    assert "--lora-target-modules" in first([HEAD, LOOP, frame, last])
    assert "--lora-target-modules" not in first([HEAD, LOOP, last])


WORDS = [
    ("RuntimeError: MXFP4 quantization is not supported on gfx942", (), "VLLM_ROCM_USE_AITER_FP4BMM=0"),
    ("AttributeError: Qwen2Tokenizer has no attribute all_special_tokens_extended", (), "'transformers<5'"),
    ("AttributeError: 'Process' object has no attribute '_cache'", (), "psutil"),
    (
        "AttributeError: 'NoneType' object has no attribute 'evict'",
        (("managers/schedule_batch.py", "alloc_token_slots", "self.tree_cache.evict(n)"),),
        "--batch-size",
    ),
    (
        "AssertionError",
        (
            (
                "entrypoints/openai/serving_responses.py",
                "_process_harmony_streaming_events",
                "assert isinstance(ctx, C)",
            ),
        ),
        "/v1/chat/completions",
    ),
    (
        "RuntimeError: CUDA driver error: 719 (CUDA_ERROR_LAUNCH_FAILED, unspecified launch failure)",
        (("layers/deep_gemm_wrapper/entrypoint.py", "grouped_gemm_nt_f8f8bf16_contig", "_raw("),),
        "--moe-a2a-backend",
    ),
    (
        "AssertionError",
        (("layers/x.py", "create_weights", "assert check_moe_marlin_supports_config(self.moe, self.group_size)"),),
        "--enable-expert-parallel",
    ),
    (
        "RuntimeError: Failed to register buffer to Mooncake Store, error code: -1",
        (
            ("managers/cache_controller.py", "_maybe_register_draft_with_storage", "f(x)"),
            ("mem_cache/storage/mooncake_store/mooncake_store.py", "register_buffer", "raise RuntimeError("),
        ),
        "the pool of the draft's own KV",
    ),
    (
        "TypeError: 'NoneType' object cannot be interpreted as an integer",
        (("mem_cache/mamba_utils.py", "set_mamba_track_indices_from_reqs", "x = call(y)"),),
        "SGLang 27998",
    ),
]


@pytest.mark.parametrize(("last", "frames", "words"), WORDS)
def test_words_and_their_place_lead_to_the_step(last, frames, words):
    assert words in told(found_in([died(last, *frames)])[0])


@pytest.mark.parametrize(("last", "frames", "words"), [one for one in WORDS if one[1]])
def test_the_same_words_elsewhere_do_not(last, frames, words):
    elsewhere = (("managers/own.py", "another_function", "x = call(y)"),)
    assert words not in told(found_in([died(last, *elsewhere)])[0])


def test_a_tilelang_of_another_tvm_is_told():
    lines = died_in(
        "/opt/lib/python3.12/site-packages/{}/language/utils.py is_var",
        last="AttributeError: 'Var' object has no attribute 'scope'",
    )
    assert "pin apache-tvm-ffi" in told(found_in([lines.format("tilelang")])[0])
    assert "pin apache-tvm-ffi" not in told(found_in([lines.format("another")])[0])


def test_weights_that_were_left_out_come_before_kernels_where_logits_are_nan():
    said = first([LEFT_OUT.format("linear_attn.in_proj_qkv"), prefill(2), f"{stamp(3)} {NAN}"])
    assert "begin with line 1" in said
    assert "linear attention" in said
    assert "line 1" not in first([prefill(2), f"{stamp(3)} {NAN}"])


def test_health_checks_that_went_unanswered_are_the_rows_of_a_prefill():
    asked = f"{stamp(1)} Health check failed. Server couldn't get a response from detokenizer for last 20 seconds.\n"
    frames = (("layers/attention/flashinfer_backend.py", "forward_extend", "x = call(y)"),)
    misfit = died("ValueError: q.shape[0] (1) does not match qo_indptr[-1] (5)", *frames)
    assert "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION=false" in first([asked, misfit])
    assert "HEALTH_ENDPOINT" not in told(found_in([misfit])[0])


@pytest.mark.parametrize(("full", "leads"), [(1.0, True), (0.4, False)])
def test_the_kernel_that_hands_out_pages_of_a_full_pool(full, leads):
    lines = [decode(1, full=full, swa=0.1, rank="TP0"), HEAD, "  in alloc_decode\n    x = call(y)\n", f"{ILLEGAL}\n"]
    assert ("keep the pool from running full" in first(lines)) is leads


@pytest.mark.parametrize(
    ("rank", "attention", "leads"), [("DP1 TP1", False, True), ("DP0 TP1", False, False), ("DP1 TP1", True, False)]
)
def test_a_second_group_of_ranks_that_shares_no_attention(rank, attention, leads):
    start = started(tp_size=2, dp_size=2, enable_dp_attention=attention)
    hung = f"{stamp(310, rank)} Watchdog timeout (self.watchdog_timeout=300)\n"
    assert ("one server of --dp 1" in told(found_in([start, decode(9, rank="DP0 TP0"), hung])[0])) is leads


def test_a_generic_class_of_vllm_is_named():
    resolved = "INFO 06-06 19:21:15 [model.py:560] Resolved architecture: {}\n"
    frames = (
        '  File "/opt/lib/python3.12/site-packages/vllm/model_executor/kernels/marlin.py", line 131, in apply_weights\n'
        '  File "/opt/lib/python3.12/site-packages/vllm/_custom_ops.py", line 1240, in marlin_gemm\n'
    )
    lines = (
        "INFO 06-06 19:21:07 vLLM API server version 0.22.0\n",
        HEAD + frames + "RuntimeError: Shape mismatch: a.size(1) = 3840, size_k = 7680\n",
    )
    assert "a class of its own" in first([resolved.format("TransformersMultiModalForCausalLM"), *lines])
    assert "a class of its own" not in first([resolved.format("Gemma4ForConditionalGeneration"), *lines])


@pytest.mark.parametrize(("pages", "leads"), [(16384, True), (0, False)])
def test_reserved_huge_pages_come_first_where_the_log_shows_some(pages, leads):
    last = "ValueError: Not enough host memory available. Requesting 7.05 GB but only have 2.04 GB free."
    frames = (("mem_cache/pool_host/base.py", "__init__", "raise ValueError("),)
    lines = [died(last, *frames), f"HugePages_Total:   {pages}\n"]
    assert ("huge pages reserved" in first(lines)) is leads


@pytest.mark.parametrize(("page", "said"), [(64, True), (1, False)])
def test_a_prefill_that_finds_no_slots_may_have_been_let_in_without_whole_pages(page, said):
    full = [started(page_size=page), prefill(2, full=0.95, swa=0.0)]
    lines = [*full, died("RuntimeError: Prefill out of memory. Try to lower your batch size.")]
    assert ("without rounding up to whole pages" in told(found_in(lines)[0])) is said


def test_features_in_which_ranks_meet_come_first_where_a_queue_stands():
    lines = [prefill(1, queued=1, rank="TP0"), f'{stamp(200)} INFO:     10.0.4.9:1 - "GET /health HTTP/1.1" 200 OK\n']
    assert "without --enable-symm-mem" in first([started(enable_symm_mem=True), *lines])
    assert "without --enable-streaming-session" in first([started(enable_streaming_session=True), *lines])
    assert "collect" in first([started(), *lines])


def test_drafts_are_named_where_requests_are_held_back():
    lines = [decode(second, running=32, queued=40, full=0.01, swa=0.0) for second in range(12)]
    assert "without --speculative-algorithm at this load" in first([started(speculative_algorithm="NEXTN"), *lines])
    assert "speculative" not in first([started(), *lines])


def test_the_draft_s_own_backend_comes_first_where_an_index_is_outside():
    asserted = (
        "Indexing.cu:1515: indexSelectSmallIndex: block: [12,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\n"
    )
    lines = [prefill(1), asserted, HEAD, "torch.AcceleratorError: CUDA error: device-side assert triggered\n"]
    own = {"speculative_algorithm": "DSPARK", "speculative_draft_model_path": "/models/draft"}
    given = started(**own, speculative_draft_attention_backend="triton")
    assert "another --speculative-draft-attention-backend than triton" in first([given, *lines])
    assert "--context-length" in first([started(**own), *lines])


def test_drafts_that_are_never_accepted_lead_nowhere_where_answers_are_wrong():
    lines = [prefill(1, new=400, cached=30000), *(decode(second, accept=1.0) for second in range(2, 10))]
    note = "# output_ids [248319, 248319, 248319, 248319, ...] from the first token\n"
    assert [one.rule for one in found_in(lines)] == ["drafts-never-accepted"]
    assert [one.rule for one in found_in([*lines, note])] == ["noted-trouble"]
    assert "/flush_cache" in first([*lines, note])


SOUND = "ValueError: Audio features and audio tokens do not match, tokens: 31, features: {}"
MIXED = (
    "RuntimeError: shape mismatch: value tensor of shape [{}, 5120] cannot be broadcast to indexing result of shape "
)
MIXED += "[16, 5120]"


@pytest.mark.parametrize(
    ("last", "frames", "words"),
    [
        (SOUND.format(468480), (), "audio_url"),
        (MIXED.format(4), (), "spatial_merge_size"),
        (
            "IndexError: list index out of range",
            (("managers/mm_utils.py", "embed_mm_inputs", "a[i][mask] = b[i]"),),
            "13909",
        ),
    ],
)
def test_numbers_and_places_of_media_name_the_step(last, frames, words):
    assert words in first([died(last, *frames)])


@pytest.mark.parametrize(("last", "words"), [(SOUND.format(30), "audio_url"), (MIXED.format(15), "spatial_merge_size")])
def test_other_numbers_do_not(last, words):
    assert words not in told(found_in([died(last)])[0])


def test_triton_kernels_are_told_from_an_old_assembler():
    command = "Command '['/opt/triton/backends/nvidia/bin/ptxas', '-v', '--gpu-name=sm_120a', '/tmp/a.ptx']' returned "
    command += "non-zero exit status 255."
    asm = died(f"subprocess.CalledProcessError: {command}", ("layers/own.py", "make_cubin", "subprocess.run("))
    ours = asm.replace("in make_cubin", "in matmul_ogs")
    assert "another --moe-runner-backend than triton_kernel" in first([ours])
    assert "TRITON_PTXAS_PATH" in first([asm])


def test_a_source_of_sglang_s_own_is_refused_by_an_older_nvcc():
    said = "RuntimeError: ninja exited with status 1 /srv/sglang/jit_kernel/csrc/activation.cuh: error: {}\n"
    assert "image for CUDA 13" in first([HEAD, LOOP, said.format("template argument list: expected a type")])
    assert "image for CUDA 13" not in first([HEAD, LOOP, said.format("use of undeclared identifier 'foo'")])


def test_memory_of_a_saver_is_told_where_the_own_all_reduce_fails():
    file = "Runtime check failed at /srv/sgl_kernel/distributed/{}.cuh:37: CUDA error: invalid argument"
    assert "without --enable-memory-saver" in first([died(f"RuntimeError: {file.format('custom_all_reduce')}")])
    assert "memory-saver" not in told(found_in([died(f"RuntimeError: {file.format('another')}")])[0])


def test_clients_that_left_are_named_where_their_wait_was_cancelled():
    answer = f"{stamp(4)} ERROR:    Exception in ASGI application\n"
    trace = 'Traceback (most recent call last):\n  File "/srv/x/starlette/requests.py", line 300, in is_disconnected\n'
    trace += "    message = await self._receive()\n"
    ends = f"asyncio.exceptions.CancelledError: Cancelled via cancel scope 7f01\n{stamp(5)} SIGTERM received.\n"
    assert "longer timeouts of clients" in first([prefill(1), answer, trace, ends])
    assert "longer timeouts" not in told(
        found_in([prefill(1), answer, trace, "ZeroDivisionError: division by zero\n"])[0]
    )


def test_adapters_that_are_asked_for_at_a_path_that_is_not_there():
    asked = f'{stamp(2)} INFO:     127.0.0.1:1 - "POST {{}} HTTP/1.1" 404 Not Found\n'
    ready = f"{stamp(1)} The server is fired up and ready to roll!\n"
    assert "POST /load_lora_adapter, without /v1" in first([ready, asked.format("/v1/load_lora_adapter")])
    assert found_in([ready, asked.format("/favicon.ico")]) == ()


def test_a_forced_tool_of_vllm_and_its_thoughts():
    failed = "ERROR backend_xgrammar.py:162] Failed to advance FSM for request chatcmpl-9e1c for tokens 13.\n"
    assert "tool_choice auto" in first([failed])


def test_kernels_that_trtllm_gen_has_not_are_the_attention_backend_s():
    assert only([died("RuntimeError: loadKernel ... Trtllm-gen kernels not found:")]).rule == "attention-kernel"


def test_a_responses_request_in_another_form():
    said = "Error in request: 14 validation errors for ResponsesRequest: {} Input should be a valid string\n"
    ready = f"{stamp(1)} The server is fired up and ready to roll!\n"
    assert "/v1/chat/completions" in first([ready, f"{stamp(2)} {said.format('input.str')}"])
    assert "/v1/chat/completions" not in first([ready, f"{stamp(2)} {said.format('tools.0.type')}"])


@pytest.mark.parametrize(("left", "tight"), [("3.66", True), ("30.10", False)])
def test_little_memory_as_graphs_begin_is_said_where_the_log_ends_there(left, tight):
    begun = f"{stamp(1, 'TP0')} Capture cuda graph begin. This can take up to several minutes. avail mem={left} GB\n"
    stands = unfinished(read_log("log", [begun.encode()]))
    assert stands is not None
    assert ("--cuda-graph-max-bs first" in stands[2]) is tight


def test_a_file_of_a_model_that_was_left_out_is_where_a_log_may_end():
    line = f"{stamp(1, 'TP0')} Ignore import error when loading sglang.srt.models.own: No module named "
    line += "'transformers.models.own'\n"
    stands = unfinished(read_log("log", [line.encode()]))
    assert stands is not None
    assert "a later transformers" in stands[2]


def test_a_server_that_answers_has_read_its_weights():
    begun = f"{stamp(1, 'TP0')} Load weight begin. avail mem=93.41 GB\n"
    answer = 'INFO:     127.0.0.1:51934 - "POST /generate HTTP/1.1" 200 OK\n'
    assert unfinished(read_log("log", [begun.encode()])) is not None
    assert unfinished(read_log("log", [(begun + answer).encode()])) is None
    assert findings(read_log("log", [(begun + answer).encode()])) == ()


@pytest.mark.parametrize(("package", "said"), [("flag_gems", True), ("own_kernels", False)])
def test_an_operator_of_torch_that_another_package_replaced(package, said):
    frame = f'  File "/opt/own/src/{package}/ops/index.py", line 7, in _run_index\n'
    assert ("a later FlagGems" in told(found_in([prefill(1), HEAD, LOOP, frame, f"{ILLEGAL}\n"])[0])) is said


def test_what_vllm_does_not_know_is_not_asked_of_it_where_logits_are_nan():
    begins = "INFO 06-06 19:21:07 [core.py:1] Initializing a V1 LLM engine (v0.10.0) with config: model='m'\n"
    (finding,) = found_in([begins, "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0\n"])
    said = told(finding)
    assert "VLLM_USE_FLASHINFER_SAMPLER=0" in said
    assert not any(word in said for word in ("padding", "nan-detection", "sglang", "with and", "SGLANG"))
