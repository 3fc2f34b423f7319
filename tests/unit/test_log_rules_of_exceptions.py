"""What frequent exceptions of Python, NCCL and compilers say by their words, their line of source and their place."""

import pytest

from made_logs import SITE, SRT, TRACEBACK, decode, died, ended, found_in, only, prefill, stamp, started, told

NCCL = (
    "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, {} (run with NCCL_DEBUG=WARN for details)\n"
)


class TestStatements:
    def test_an_assertion_without_words_is_told_by_its_line_of_source(self):
        line = "assert not get_global_server_args().disable_chunked_prefix_cache"
        finding = only([decode(1), died("AssertionError", ("layers/attention/fa.py", "forward_extend", line))])
        assert finding.rule == "refused-by-check"
        assert f"says: {line}, which does not hold" in finding.cause
        assert finding.advice[0] == "change or leave out --disable-chunked-prefix-cache"
        assert finding.confidence == "possible"

    def test_the_argument_that_an_accessor_gives_is_named_too(self):
        line = "assert not get_schedule().disable_chunked_prefix_cache"
        finding = only([decode(1), died("AssertionError", ("layers/attention/fa.py", "forward_extend", line))])
        assert finding.advice[0] == "change or leave out --disable-chunked-prefix-cache"

    def test_markers_below_it_are_no_part_of_it(self):
        line = "assert self.store_dtype == torch.uint8\n           ^^^^^^^^^^^^^^^^^^"
        finding = only([died("AssertionError", ("mem_cache/deepseek_v4_memory_pool.py", "create_buffer", line))])
        assert "says: assert self.store_dtype == torch.uint8, which" in finding.cause
        assert "--kv-cache-dtype" in finding.advice[0]

    def test_one_of_several_lines_is_told_whole(self):
        line = "assert is_right(\n        first_of_all, second_of_all\n    )"
        finding = only([decode(1), died("AssertionError", ("managers/scheduler.py", "step", line))])
        assert "assert is_right( first_of_all, second_of_all )" in finding.cause

    @pytest.mark.parametrize(
        ("last", "words"),
        [
            (
                "AttributeError: 'NoneType' object has no attribute 'x'",
                "never set, or is gone already (None), at `y = f(z)`",
            ),
            ("TypeError: 'NoneType' object is not subscriptable", "never set, or is gone already (None)"),
            ("KeyError: 'hidden_states'", "a table has no entry hidden_states, at `y = f(z)`"),
            ("IndexError: list index out of range", "fewer are there than it counts on"),
            ("ZeroDivisionError: division by zero", "divides by a number that is 0 here, at `y = f(z)`"),
        ],
    )
    def test_what_a_value_was(self, last, words):
        finding = only([decode(1), died(last, ("managers/step.py", "step", "y = f(z)"))])
        assert words in finding.cause
        assert finding.confidence == "possible"


class TestIdleRanks:
    EMPTY = "IndexError: index -1 is out of bounds for dimension 0 with size 0"

    def test_only_attention_data_parallelism_has_them(self):
        step = ("layers/pooler.py", "forward", "y = x[-1]")
        finding = only([decode(1), died(self.EMPTY, step, rank="DP1 TP1")])
        assert (finding.rule, "--enable-dp-attention" in finding.advice[0]) == ("idle-rank", True)
        assert only([decode(1), died(self.EMPTY, step)]).rule == "other-crash"

    def test_a_frame_that_says_so_is_enough(self):
        frames = ("model_executor/model_runner.py", "forward_idle", "f()"), ("models/m.py", "forward", "f()")
        assert only([decode(1), died("AssertionError: it serves extend alone, not 4", *frames)]).rule == "idle-rank"

    def test_an_illegal_access_stays_one(self):
        last = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
        frame = ("model_executor/model_runner.py", "forward_idle", "f()")
        assert only([decode(1), died(last, frame, rank="DP1 TP1")]).rule == "illegal-access"


class TestStates:
    def test_slots_that_run_out(self):
        frame = ("mem_cache/unified_cache/components/mamba.py", "_alloc_mamba_slot", "assert slot is not None")
        start = started(enable_hierarchical_cache=True, max_running_requests=32)
        finding = only([start, decode(1), died("AssertionError: Can not alloc mamba cache", frame)])
        assert finding.rule == "no-slot"
        assert "--max-mamba-cache-size" in told(finding)
        assert "once without --enable-hierarchical-cache" in finding.advice

    def test_their_prefix_cache_takes_certain_pages(self):
        line = "assert isinstance(params.token_to_kv_pool_allocator, TokenToKVPoolAllocator)"
        finding = only([died("AssertionError", ("mem_cache/mamba_radix_cache.py", "__init__", line))])
        assert "--page-size 1" in told(finding)

    def test_a_hierarchical_cache_of_states_is_one_of_the_host(self):
        frame = ("mem_cache/hi_mamba_radix_cache.py", "_evict_regular", "assert len(node.children) == 0")
        assert "the hierarchical cache" in only([decode(1), died("AssertionError: non-leaf, node.id=8", frame)]).cause


class TestNccl:
    INIT = ("model_executor/model_runner.py", "init_torch_distributed", "barrier()")

    @pytest.mark.parametrize(
        ("said", "below", "words"),
        [
            (
                "invalid usage",
                "ncclInvalidUsage: x\nLast error:\nDuplicate GPU detected : rank 1 and rank 0",
                "the same GPU",
            ),
            (
                "unhandled cuda error",
                "ncclUnhandledCudaError: x\nLast error:\nCuda failure 'out of memory'",
                "no memory",
            ),
            (
                "unhandled cuda error",
                "ncclUnhandledCudaError: x\nLast error:\nCuda failure 999 'invalid argument'",
                "(P2P)",
            ),
            ("unhandled system error", "ncclSystemError: x\nLast error:\nCall to ibv_create_qp failed", "InfiniBand"),
        ],
    )
    def test_the_lines_below_say_why(self, said, below, words):
        finding = only([died(NCCL.format(said) + below, self.INIT)])
        assert finding.rule == "collective-timeout"
        assert words in finding.cause

    def test_without_them_it_is_told_as_before(self):
        assert "could not be formed" in only([died(NCCL.format("unhandled system error").strip(), self.INIT)]).cause


def test_a_compiler_that_does_not_know_the_gpu():
    last = 'RuntimeError: Assertion error (jit/compiler.hpp:176): false and "NVCC compilation failed"'
    finding = only([died(last, ("layers/quantization/fp8_kernel.py", "deep_gemm_fp8", "f()"))])
    assert (finding.rule, "12.9" in told(finding)) == ("wheels-do-not-fit", True)


@pytest.mark.parametrize(
    "last",
    [
        "RuntimeError: split_with_sizes expects split_sizes to sum exactly to 1, but got [1, 1, 1]",
        "RuntimeError: The size of tensor a (512) must match the size of tensor b (16384) at dimension 1",
    ],
)
def test_a_quantised_weight_that_does_not_fit_is_no_kernel(last):
    frames = ("models/m.py", "load_weights", "f()"), ("layers/quantization/fp8_utils.py", "requantise", "f()")
    assert only([died(last, *frames)]).rule == "weight-names"


def test_a_library_whose_tables_are_of_another_release():
    site = '  File "/opt/lib/python3.12/site-packages/aiter/ops/moe_kernels.py", line 7, in get_kernel\n    raise x\n'
    finding = only([f"{stamp(3)} Scheduler hit an exception: {TRACEBACK}{site}ValueError: Invalid kernel name: moe1\n"])
    assert "the aiter of SGLang's image for this GPU: its kernels and its tuned tables" in told(finding)


class TestTransfers:
    def test_what_a_worker_thread_survived_is_told(self):
        said = "RuntimeError: PD does NOT support different TP sizes for hybrid SWA models yet."
        lines = f"Unexpected transfer worker error for room 17\n{TRACEBACK}"
        lines += SRT.format("disaggregation/nixl/conn.py", "maybe_send_extra", "raise RuntimeError(") + said + "\n"
        finding = only([prefill(1), lines, f'{stamp(4)} INFO:     1.1.1.1:2 - "GET /health HTTP/1.1" 200 OK\n'])
        assert finding.rule == "kv-transfer"
        assert "the code of the transfer refused it: PD does NOT support different TP sizes" in finding.cause
        assert "--tp" in finding.advice[0]


class TestRequests:
    def test_an_exception_of_a_processor_names_what_it_was_called_for(self):
        frames = SRT.format("multimodal/processors/qwen_vl.py", "process_mm_data_async", "f()")
        frames += (
            '  File "/opt/lib/python3.12/site-packages/transformers/processing.py", line 8, in __call__\n    f()\n'
        )
        lines = f"ERROR:    Exception in ASGI application\n{TRACEBACK}{frames}IndexError: index 1 is out of bounds\n"
        finding = only([decode(1), f'{stamp(2)} INFO: "POST /generate HTTP/1.1" 500 X\n', lines, decode(3)])
        assert "A request failed of IndexError in processing.py:8 __call__" in finding.cause
        assert "expanded once more" in finding.advice[0]

    def test_a_health_check_behind_an_adapter_that_never_unloads(self):
        silent = "tic start time: 18:38:20. last_heartbeat time: 18:38:14"
        failed = f"{stamp(30)} Health check failed. Server couldn't get a response for last 20 seconds. {silent}\n"
        answer = f'{stamp(30)} INFO:     1.1.1.1:2 - "GET /health HTTP/1.1" 503 Service Unavailable\n'
        begun, ended = (
            f"{stamp(s)} {said}\n"
            for s, said in ((2, "Start unload Lora adapter. Lora name=a"), (3, "LoRA adapter unloading completes: a"))
        )
        assert "change adapters only while nothing runs" in told(only([decode(1), begun, failed, answer]))
        assert "change adapters" not in told(only([decode(1), begun, ended, failed, answer]))
        note = "# the unload never returns, and other requests hang\n"
        stands = only([decode(1), begun, note])
        assert (stands.rule, stands.confidence, stands.upstream[:1]) == ("noted-silence", "likely", ("SGLang 36894",))
        assert "adapter" not in only([decode(1), begun, ended, note]).cause
        watchdog = f"{stamp(9)} Watchdog timeout (self.watchdog_timeout=300)\n"
        assert "unload a LoRA adapter" in only([decode(1), begun, watchdog]).cause


def test_a_native_crash_before_any_batch_asks_whether_the_gpu_is_served():
    crash = "Fatal Python error: Segmentation fault\n"
    assert "does not fit this GPU" in told(only([crash]))
    assert "does not fit this GPU" not in told(only([decode(1), crash]))


def test_the_library_whose_kernel_is_missing_is_named():
    line = (
        "CUDA error (_deps/repo-flashmla-src/csrc/x.cu:93): no kernel image is available for execution on the device\n"
    )
    finding = only([f"{stamp(1)} Capture cuda graph begin. avail mem=6.99 GB\n", line])
    assert "It is flashmla's kernel" in finding.cause
    assert "--attention-backend" in finding.advice[0]


def test_a_look_at_its_own_tree_that_fails():
    last = "AttributeError: '_Backup' object has no attribute 'node_id'"
    finding = only([decode(1), died(last, ("mem_cache/unified_radix_cache.py", "sanity_check", "x.node_id"))])
    assert "SGLANG_ENABLE_TREE_CACHE_SANITY_CHECK" in finding.advice[0]


class TestPrograms:
    @pytest.mark.parametrize(
        "last",
        [
            "pkg.HFValidationError: Repo id must be in the form 'a/b': '/m'. Use `repo_type` argument if needed.",
            "ValueError: context_length (9) is too long. To allow overriding this maximum, set the variable",
            "KeyError: 'skipped, falling back to the default'",
        ],
    )
    def test_no_word_of_an_exception_makes_its_end_a_survived_one(self, last):
        frame = '  File "/srv/other.py", line 3, in step\n    call()\n'
        assert found_in([f"{TRACEBACK}{frame}{last}\n"])

    @pytest.mark.parametrize(
        ("last", "rule", "word"),
        [
            ("AssertionError: daemonic processes are not allowed to have children", "start-refused", "no daemon"),
            ("RuntimeError: this event loop is already running.", "start-refused", "async_generate"),
            ("AttributeError: module 'torch' has no attribute 'float8_e8m0fnu'", "wheels-do-not-fit", "2.7"),
            ("OSError: while attempting to bind on address ('::', 80): permission denied", "start-refused", "1024"),
            ("ValueError: signal only works in main thread of the main interpreter", "start-refused", "main thread"),
            ("PermissionError: [Errno 13] Permission denied: '/root/.cache/hub'", "start-refused", "/root/.cache/hub"),
            (
                "Exception: data did not match any variant of untagged enum ModelWrapper",
                "wheels-do-not-fit",
                "tokenizers",
            ),
            ("AttributeError: 'AbConfig' object has no attribute 'hidden_size'", "wheels-do-not-fit", "no hidden_size"),
            (
                "RuntimeError: Failed to find C compiler. Please specify via CC",
                "wheels-do-not-fit",
                "no C compiler here",
            ),
        ],
    )
    def test_what_keeps_an_engine_from_starting(self, last, rule, word):
        finding = only([ended(last)])
        assert (finding.rule, word in told(finding)) == (rule, True)

    def test_a_uvloop_that_makes_no_loop(self):
        last = "RuntimeError: There is no current event loop in thread 'MainThread'."
        assert "uvloop==0.21.0" in told(only([ended(last, SITE.format("uvloop/__init__.py", "get_event_loop"))]))
        assert "uvloop" not in told(only([ended(last, SITE.format("asyncio/events.py", "get_event_loop"))]))

    def test_a_script_without_a_main_guard_says_so_below_its_exception(self):
        last = "RuntimeError: \n        An attempt has been made to start a new process before the\n        current one"
        assert "main guard" in only([ended(last)]).cause

    def test_a_config_that_is_no_json(self):
        frame = SITE.format("transformers/configuration_utils.py", "_dict_from_json_file")
        finding = only([ended("json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)", frame)])
        assert finding.rule == "weights-missing"

    def test_a_client_that_found_no_server(self):
        frame = SITE.format("requests/adapters.py", "send")
        finding = only([f"{TRACEBACK}{frame}requests.exceptions.ConnectionError: Max retries exceeded\n"])
        assert "found no server at that address" in finding.cause
        assert "--host 0.0.0.0" in finding.advice[0]

    def test_a_container_whose_driver_is_too_old(self):
        line = "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8, please update your driver\n"
        assert "driver" in only([line]).cause

    def test_an_illegal_instruction(self):
        assert "AVX" in only([decode(1), "Illegal instruction (core dumped)\n"]).advice[0]


class TestCompilers:
    def test_an_assembler_that_is_older_than_the_gpu(self):
        below = "`ptxas` stderr:\nptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'"
        last = f"triton.runtime.errors.PTXASError: PTXAS error: Internal Triton PTX codegen error\n{below}"
        assert "TRITON_PTXAS_PATH" in only([died(last, ("models/m.py", "forward", "f()"))]).advice[0]

    def test_one_that_lacks_headers(self):
        last = "subprocess.CalledProcessError: Command '['/usr/bin/gcc', 'a.c']' returned non-zero exit status 1."
        assert "python3-dev" in only([died(last, ("models/m.py", "forward", "f()"))]).advice[0]

    def test_a_build_for_quantised_layers_is_a_build(self):
        last = "RuntimeError: Ninja build failed. Ninja output:\nninja: build stopped: subcommand failed."
        frames = ("layers/quantization/modelopt_quant.py", "apply", "f()"), ("layers/quantization/fp4.py", "mm", "f()")
        assert only([started(quantization="modelopt_fp4"), died(last, *frames)]).rule == "wheels-do-not-fit"


class TestAscend:
    def test_the_operator_that_failed_is_named(self):
        last = "RuntimeError: The process exits, and the current working operator name is aclnnFlash."
        assert "aclnnFlash" in only([decode(1), died(last, ("managers/scheduler.py", "step", "f()"))]).cause

    def test_what_an_operator_does_not_take(self):
        last = "RuntimeError: NPU function error: call aclnnInplaceCopy failed, error code is 161002"
        assert "does not serve" in only([died(last, ("models/m.py", "forward", "f()"))]).cause


class TestTypes:
    def test_a_tower_keeps_a_type_of_its_own(self):
        last = "RuntimeError: mat1 and mat2 must have the same dtype, but got Float and BFloat16"
        finding = only(
            [decode(1), died(last, ("models/siglip.py", "forward", "f()"), ("layers/linear.py", "apply", "f()"))]
        )
        assert (finding.rule, "siglip.py" in finding.cause) == ("types-differ", True)

    def test_a_quantised_cache_is_the_first_suspect(self):
        last = "RuntimeError: query and key must have the same dtype"
        start = started(kv_cache_dtype="fp8_e5m2")
        assert (
            only([start, died(last, ("models/m.py", "forward", "f()"))]).advice[0] == "once with --kv-cache-dtype auto"
        )

    def test_the_servers_own_word_on_attention_comes_first(self):
        lines = f"{stamp(1)} Bidirectional attention for image tokens requires TritonAttnBackend.\n"
        last = "RuntimeError: expected scalar type Float but found BFloat16"
        finding = only([lines, died(last, ("layers/attention/amx.py", "forward", "f()"))])
        assert finding.advice[0].startswith("--attention-backend triton")


class TestPlaces:
    def test_a_chunk_inside_an_encoders_tokens(self):
        line = 'assert len(x) == n, f"Expected {len(x)}, got {n}"'
        last = "AssertionError: Expected 8, got -404"
        finding = only([decode(1), died(last, ("managers/schedule_batch.py", "prepare_encoder_info_extend", line))])
        assert finding.advice[0].startswith("once with --chunked-prefill-size -1")

    def test_embeddings_that_cannot_be_dealt_out(self):
        last = "RuntimeError: split_with_sizes expects split_sizes to sum exactly to 60, but got split_sizes=[61]"
        finding = only([decode(1), died(last, ("managers/mm_utils.py", "_get_chunked_prefill_embedding", "f()"))])
        assert (finding.rule, "61 placeholders, 60 embeddings" in finding.cause) == ("image-tokens", True)

    def test_a_check_inside_torch(self):
        last = "RuntimeError: captures_underway.empty() INTERNAL ASSERT FAILED at x.cpp:2967, please report a bug"
        frame = SITE.format("torch/cuda/memory.py", "empty_cache")
        finding = only([f"{stamp(1)} Scheduler hit an exception: {TRACEBACK}{frame}{last}\n"])
        assert "while a CUDA graph is captured" in finding.cause

    def test_a_launch_of_a_library_names_the_part_that_it_computes(self):
        frame = SITE.format("flashinfer/comm/trtllm_mnnvl_ar.py", "trtllm_mnnvl_fused_allreduce_add_rmsnorm")
        last = "RuntimeError: Check failed: failed with error: an illegal memory access was encountered"
        finding = only([decode(1), f"{stamp(2)} Scheduler hit an exception: {TRACEBACK}{frame}{last}\n"])
        assert finding.advice[0].startswith("without --enable-flashinfer-allreduce-fusion")

    def test_an_answer_that_lacks_a_field(self):
        frames = SITE.format("sglang/srt/entrypoints/openai/serving_chat.py", "_build_chat_response")
        lines = f"{stamp(1)} Error in request: 'weight_version'\n{TRACEBACK}{frames}KeyError: 'weight_version'\n"
        finding = only([decode(1), lines, f'{stamp(2)} INFO: "POST /v1/chat/completions HTTP/1.1" 500 X\n', decode(3)])
        assert "how an answer is put together" in finding.cause

    def test_roles_that_a_template_does_not_take(self):
        frame = SITE.format("transformers/utils/chat_template_utils.py", "raise_exception")
        last = "jinja2.exceptions.TemplateError: System role not supported"
        lines = f"{stamp(1)} Error in request: x\n{TRACEBACK}{frame}{last}\n"
        finding = only([decode(1), lines, f'{stamp(2)} INFO: "POST /v1/chat/completions HTTP/1.1" 500 X\n', decode(3)])
        assert "first user message" in finding.advice[0]


class TestAdapters:
    @pytest.mark.parametrize(
        ("last", "function"),
        [
            (
                "RuntimeError: The size of tensor a (2304) must match the size of tensor b (2048) at dimension 1",
                "load_lora",
            ),
            ("AssertionError: LoRA buffer shape [8, 2] does not match weight shape [9, 2].", "load_lora_weight_tensor"),
            ("NotImplementedError: get_hidden_dim not implemented for in_proj_qkv", "get_lora_A_shape"),
        ],
    )
    def test_weights_that_do_not_fit_the_buffers(self, last, function):
        frames = [("model_executor/model_runner.py", "forward", "f()"), ("lora/mem_pool.py", function, "f()")]
        if "hidden_dim" in last:
            frames.append(("lora/utils.py", "get_hidden_dim", "raise x"))
        finding = found_in([decode(1), died(last, *frames)])[0]
        assert (finding.rule, "KV heads" in told(finding)) == ("lora-refused", True)


class TestNativeStacks:
    CRASH = "Fatal Python error: Segmentation fault\n"

    def test_a_library_in_the_c_stack_names_the_part(self):
        line = "  at mooncake::MemcpyWorkerPool::workerThread()+0x1a3\n"
        assert "mooncake-transfer-engine" in only([prefill(1), self.CRASH, line]).advice[0]

    def test_after_a_prefill_it_is_no_start(self):
        assert "does not fit this GPU" not in told(only([prefill(1), self.CRASH]))


class TestMore:
    def test_a_gpu_that_is_too_old(self):
        finding = only([died("RuntimeError: SGLang only supports sm75 and above.", ("models/m.py", "load", "raise x"))])
        assert (finding.rule, "older than compute capability 8.0" in finding.cause) == ("no-kernel-image", True)

    def test_a_runner_without_code_for_this_gpu(self):
        frame = ("layers/quantization/modelopt_quant.py", "create_moe_runner", "raise x")
        last = "NotImplementedError: Unsupported runner backend: flashinfer_trtllm"
        assert "flashinfer_cutlass" in only([died(last, frame)]).advice[0]

    def test_torchs_own_words_are_no_check_of_sglangs(self):
        frame = ("layers/logprob_processor.py", "get_top_logprobs_raw", "x.topk(k)")
        finding = only([decode(1), died("RuntimeError: max(): Expected reduction dim 1 to have non-zero size.", frame)])
        assert (finding.rule, "log probabilities" in finding.cause) == ("other-crash", True)

    def test_a_line_of_source_names_what_is_on(self):
        line = "hidden_states, aux_hidden_states = hidden_states"
        last = "ValueError: too many values to unpack (expected 2)"
        finding = only(
            [started(speculative_algorithm="DFLASH"), decode(1), died(last, ("models/m.py", "forward", line))]
        )
        assert f"another number of values than it takes, at `{line}`" in finding.cause
        assert "once without --speculative-algorithm: the exception names what it is about" in finding.advice

    def test_a_folder_names_what_is_on(self):
        last = "TypeError: cumsum(): argument 'input' must be Tensor, not NoneType"
        finding = only([started(dcp_size=8), decode(1), died(last, ("layers/dcp/planner.py", "plan", "f()"))])
        assert "once with --dcp-size 1: the exception names what it is about" in finding.advice

    def test_a_capture_of_prefills_that_runs_sizes_without_room(self):
        last = "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`"
        frame = ("model_executor/piecewise_cuda_graph_runner.py", "warmup_compile", "f()")
        assert "--disable-piecewise-cuda-graph" in only([died(last, frame)]).advice[0]

    def test_a_request_that_failed_within_a_group_of_exceptions(self):
        head = f"{stamp(1)} ERROR:    Exception in ASGI application\n  + Exception Group {TRACEBACK}"
        frames = SITE.format("sglang/srt/entrypoints/openai/serving_chat.py", "_generate_chat_stream")
        group = "".join(f"    | {line}\n" for line in f"{TRACEBACK}{frames}KeyError: 'prompt_tokens'".splitlines())
        finding = only([prefill(1), head, group, decode(3)])
        assert "A request failed of KeyError in serving_chat.py:7 _generate_chat_stream" in finding.cause

    def test_aborts_are_no_failed_bootstrap_and_a_lost_stream_is_the_routers(self):
        abort = (
            f"{stamp(1, 'TP0')} Prefill bootstrap failed for request rank=0 with exception E: Aborted by AbortReq.\n"
        )
        lost = "2025-08-31 07:32:08 ERROR pd_router: Stream error from decode server http://d:1: error decoding body\n"
        assert found_in([decode(1), abort, decode(2)]) == ()
        assert only([lost, abort]).rule == "router"


class TestWhatEnded:
    def test_a_script_that_ended_is_no_server(self):
        site = SITE.format("sglang/srt/mem_cache/storage/x/test_x_store.py", "<module>")
        finding = only([f"{TRACEBACK}{site}AttributeError: 'XStore' object has no attribute 'y'\n"])
        assert any(advice.startswith("a script ended there") for advice in finding.advice)

    def test_deep_gemm_in_a_native_crash(self):
        stack = '  File "/x/deep_gemm/jit_kernels/gemm.py", line 190 in gemm_fp8_fp8_bf16_nt\n'
        crash = f"Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n{stack}"
        assert "DEEPGEMM=0" in only([prefill(1), crash]).advice[0]

    def test_a_host_whose_memory_grew_with_a_storage(self):
        line = f"{stamp(9)} Subprocess scheduler_3 (pid=2231) crashed with exit code -9. Triggering SIGQUIT\n"
        storage = started(hicache_storage_backend="file", enable_hierarchical_cache=True)
        assert "SGLang 21624" in only([storage, decode(1), line]).advice[0]

    def test_the_leak_warning_of_2024_counts(self):
        text = "Warning: available_size={}, max_total_num_token=41021\n"
        leaked = only([prefill(1), text.format(30120), "KV cache pool leak detected!\n"])
        assert (leaked.rule, "10901 of 41021" in leaked.cause) == ("pool-leak", True)
