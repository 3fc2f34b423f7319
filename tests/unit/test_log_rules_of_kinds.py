"""Failures that no rule knows are told by their kind: by words that are data, by the part, or by what was asked."""

import re
import tomllib
from pathlib import Path

import pytest

from gemma4_triage.known_issues.catalog import records_folder
from gemma4_triage.logs import rules
from made_logs import SITE, SRT, TRACEBACK, decode, died, found_in, only, stamp, started, told


class TestKindsOfFaults:
    """What no rule knows is of a kind, by its words or by the package that raised it."""

    IN_PACKAGES = (
        (
            "h._x.OfflineModeIsEnabled: Cannot reach the hub: offline mode is enabled.",
            "huggingface_hub/x.py",
            "x",
            "hf download",
        ),
        ("OSError: no such thing in the bucket", "modelscope/hub.py", "get", "hf download"),
        ("ValueError: odd", "transformers/processing_utils.py", "from_pretrained", "transformers_version"),
        (
            "ValueError: chr() arg not in range(0x110000)",
            "transformers/tokenization_utils_base.py",
            "batch_decode",
            "logit_bias",
        ),
        ("ValueError: odd", "tiktoken/core.py", "encode", "tokenizer files anew"),
        ("ValueError: odd", "transformers/configuration_utils.py", "get_config_dict", "--trust-remote-code"),
        ("ValueError: odd", "gguf/reader.py", "open", "git lfs"),
        ("ValueError: odd", "torch/distributed/rendezvous.py", "x", "nc -vz"),
        ("ValueError: odd", "torch_memory_saver/core.py", "resume", "--enable-memory-saver"),
        ("ValueError: odd", "lmcache/engine.py", "retrieve", "--enable-lmcache"),
        ("ray.exceptions.RayTaskError: odd", "ray/worker.py", "get", "ray logs"),
        ("SystemError: odd", "triton/driver.py", "__call__", "~/.triton/cache"),
        ("ValueError: odd", "interegular/fsm.py", "parse", "--grammar-backend"),
        ("ValueError: odd", "soundfile/io.py", "read", "another format"),
        ("ValueError: odd", "numpy/core.py", "array", "numpy of SGLang"),
    )
    BY_WORDS = (
        ("ValueError: Either a revision or a version must be specified.", "layers/a.py", "x", "kernels>=0.14.1,<0.15"),
        ("RuntimeError: KV cache K offset overflow: exceed int32 max", "layers/a.py", "step", "--page-size 128"),
        ("struct.error: unpack requires a buffer of 4 bytes", "disaggregation/conn.py", "read", "into one socket"),
        ("struct.error: unpack requires a buffer of 4 bytes", "lora/a.py", "read", "the file anew"),
        ("RuntimeError: Tried to instantiate dummy base class Event", "managers/a.py", "step", "has no CUDA"),
        (
            "pynvml.NVMLError_LibraryNotFound: NVML Shared Library Not Found",
            "distributed/a.py",
            "x",
            "custom-all-reduce",
        ),
        ("TypeError: argument #7 of `f`: expected `DLTensor*` but got `None`", "layers/a.py", "x", "was never run"),
        ('HealthError: "GET /health HTTP/1.1" 503', "managers/a.py", "step", "py-spy"),
        ("RuntimeError: dictionary changed size during iteration", "managers/a.py", "step", "at once, a race"),
        ("RuntimeError: Trying to create tensor with negative dimension -4", "mem/memory_pool.py", "x", "below zero"),
        ("ValueError: list.remove(x): x not in list", "managers/a.py", "step", "no longer fit each other"),
        (
            "RuntimeError: setStorage: sizes [4], storage of size 0",
            "model_executor/a.py",
            "send",
            "--enable-memory-saver",
        ),
        ("OSError: [Errno 12] Cannot allocate memory", "managers/a.py", "step", "--hicache-ratio"),
        ("RuntimeError: Expected all tensors to be on the same device", "lora/a.py", "x", "--cpu-offload-gb"),
        ("RuntimeError: tensors on the same device: odd", "mem_cache/memory_pool_host.py", "free", "io-backend direct"),
        ("RuntimeError: tensors on the same device, mps:0 and cpu!", "managers/a.py", "x", "--max-running-requests 1"),
        ("RuntimeError: tensors on the same device: odd", "managers/overlap_utils.py", "stash", "than its buffer"),
        ("RuntimeError: cannot pin 'torch.cuda.LongTensor'", "managers/a.py", "step", "ulimit -l"),
        ("torch.AcceleratorError: CUDA error: the launch timed out and was terminated", "a.py", "step", "Disp.A"),
        (
            "RuntimeError: CUDA error: operation failed due to a previous error during capture",
            "a.py",
            "x",
            "graph cannot hold",
        ),
        ("RuntimeError: GET was unable to find an engine to execute this", "models/a.py", "forward", "cuDNN"),
        ("RuntimeError: Kernel size can't be greater than actual input size", "models/a.py", "forward", "pad it"),
        ("RuntimeError: CUDA error: unknown", "model_executor/a.py", "set_device", "--base-gpu-id"),
        ("RuntimeError: CUDA driver error: odd", "managers/a.py", "step", "CUDA_LAUNCH_BLOCKING"),
        ("ConnectionRefusedError: [Errno 111] Connection refused", "managers/a.py", "step", "nothing listens"),
        ("BrokenPipeError: [Errno 32] Broken pipe", "managers/a.py", "step", "closed the connection"),
        ("OSError: [Errno 113] No route to host", "managers/a.py", "step", "getent hosts"),
        ("TimeoutError: ", "managers/a.py", "step", "none came in time"),
        ("FileNotFoundError: [Errno 2] No such file: '/m/a.json'", "managers/a.py", "step", "asked for: /m/a.json"),
        ("OSError: [Errno 30] Read-only file system: '/m'", "managers/a.py", "step", "a local disk"),
        ("ImportError: x was built otherwise", "layers/a.py", "<module>", "pip list"),
        ("RuntimeError: compilation failed", "layers/a.py", "build", "nvcc --version"),
        ("RuntimeError: PytorchStreamReader failed reading zip archive", "a.py", "load", "git lfs"),
        ("ValueError: TorchMemorySaver is off", "a.py", "x", "LD_PRELOAD"),
        ("p.ValidationError: 1 validation error for ServerArgs", "a.py", "x", "mend that field"),
        ("json.JSONDecodeError: Extra data", "function_call/base_detector.py", "parse", "--tool-call-parser"),
        ("json.JSONDecodeError: Extra data", "managers/a.py", "read", "no_proxy"),
        (
            "RuntimeError: shape '[512, 64, 576]' is invalid for input of size 21495808",
            "worker/a.py",
            "_reshape_attention_kv_cache",
            "once with --kv-cache-dtype auto, then",
        ),
        (
            "RuntimeError: shape '[64, 4, 0, 128, 8]' is invalid for input of size 131072",
            "managers/a.py",
            "step",
            "fill no pack of such a layout",
        ),
        (
            "ValueError: q.shape[0] (4) does not match qo_indptr[-1] (1).",
            "managers/a.py",
            "step",
            "handed 4 rows of queries and an index over 1",
        ),
        (
            "TypeError: Mismatched type on argument #3 when calling: `f(0: Tensor)`. Expected `Tensor` but got `None`",
            "managers/a.py",
            "step",
            "was handed None",
        ),
        (
            "RuntimeError: The size of tensor a (96) must match the size of tensor b (90)",
            "managers/a.py",
            "step",
            "the first that ends it names the part",
        ),
        ("RuntimeError: FP4 is not available on this device: odd", "managers/a.py", "step", "does not have"),
        ("TypeError: Mismatched type on argument #2 when calling: `f(0: int)`", "managers/a.py", "step", "pip list"),
        ("RuntimeError: [01:02:03] /p/cpp/ebnf_parser.cc:7: Check failed: x", "managers/a.py", "step", "xgrammar"),
        ("ValueError: 151655 is not in list", "managers/a.py", "step", "one mark for each image"),
        ("RuntimeError: \"f_cpu\" not implemented for 'Half'", "managers/a.py", "f", "--dtype bfloat16"),
        ("AssertionError: segment at 8 shares a page with the one ending at 8", "mem_cache/a.py", "f", "give up"),
        ("EOFError", "managers/a.py", "read", "gone, or a file is cut"),
        ("TypeError: TextEncodeInput must be Union[str]", "bench_serving.py", "calculate_metrics", "with streaming"),
    )

    @pytest.mark.parametrize(("last", "file", "function", "word"), IN_PACKAGES)
    def test_by_the_package(self, last, file, function, word):
        finding = only(
            [decode(1), f"{stamp(3)} Scheduler hit an exception: {TRACEBACK}{SITE.format(file, function)}{last}\n"]
        )
        assert (finding.rule, word in told(finding)) == ("other-crash", True)

    @pytest.mark.parametrize(("last", "file", "function", "word"), BY_WORDS)
    def test_by_the_words(self, last, file, function, word):
        finding = found_in([decode(1), died(last, (file, function, "x = f(y)"))])[0]
        assert (finding.rule, word in told(finding)) == ("other-crash", True)

    def test_every_one_has_its_line(self):
        words = (records_folder() / "words" / "other_crash.toml").read_text(encoding="utf-8")
        assert words.count("[[failure]]") == len(self.IN_PACKAGES) + len(self.BY_WORDS)

    def test_what_none_fits_is_quoted(self):
        finding = only(
            [decode(1), died("RuntimeError: the third wheel came off", ("managers/a.py", "step", "x = f(y)"))]
        )
        assert "it says: the third wheel came off" in told(finding) or "says: the third wheel" in told(finding)

    @pytest.mark.parametrize(
        ("function", "word"),
        [
            ("load_model", "--load-format"),
            ("init_torch_distributed", "--node-rank"),
            ("init_memory_pool", "--max-total-tokens"),
            ("init_attention_backend", "triton serves most"),
            ("_unwrap_tensor", "parallelism that the trainer sends"),
        ],
    )
    def test_what_runs_a_model_is_told_by_what_it_does(self, function, word):
        last = died("ValueError: this is not as it should be", ("model_executor/model_runner.py", function, "raise x"))
        assert word in told(only([last]))


@pytest.mark.parametrize("file", sorted(file.name for file in (records_folder() / "words").iterdir()))
def test_words_of_failures_have_their_form(file):
    """Every entry's expression compiles, and its sentences name no group that it has not."""
    entries = tomllib.loads((records_folder() / "words" / file).read_text(encoding="utf-8"))["failure"]
    for entry in entries:
        assert entry.keys() <= {"words", "frames", "cause", "advice", "confidence", "package", "first", "apart"}
        groups = dict.fromkeys(re.compile(entry["words"]).groupindex, "")
        if groups:
            assert (entry["cause"] + entry["advice"]).format_map(groups)
        re.compile(entry.get("frames", ""))
        re.compile(entry.get("package", ""))
        assert "package" in entry or entry["words"]
    read = [*Path(rules.__path__[0]).glob("*.py"), Path(rules.__path__[0]).parent / "rule.py"]
    assert any(f'"{file}"' in code.read_text(encoding="utf-8") for code in read)


@pytest.mark.parametrize(
    "path",
    [
        "/opt/sglang/python/sglang/srt/lora/x.py",
        "sglang/srt/lora/x.py",
        "python/sglang/srt/lora/x.py",
        ".../srt/lora/x.py",
        "srt/lora/x.py",
        ".../lora/x.py",
        "…/lora/x.py",
    ],
)
def test_a_path_that_somebody_shortened_is_read(path):
    lines = f'{stamp(3)} Scheduler hit an exception: {TRACEBACK}  File "{path}", line 7, in step\n    x = f(y)\n'
    finding = only([decode(1), lines + "ValueError: this is not as it should be\n"])
    assert "It concerns LoRA adapters" in finding.cause


def test_a_file_without_its_folder_is_read():
    lines = (
        f'{stamp(3)} Scheduler hit an exception: {TRACEBACK}  File "lora_manager.py", line 7, in step\n    x = f(y)\n'
    )
    finding = only([decode(1), lines + "ValueError: this is not as it should be\n"])
    assert "It concerns LoRA adapters" in finding.cause


def test_the_start_s_own_request_that_has_no_answer_names_what_is_switched_on():
    late = "requests.exceptions.ReadTimeout: HTTPConnectionPool(host='0.0.0.0', port=1): Read timed out. (600)"
    assert (
        "once without --enable-dp-attention, which this server has"
        in only(
            [started(enable_dp_attention=True), f"{stamp(9)} Initialization failed. warmup error: {TRACEBACK}{late}\n"]
        ).advice
    )


def test_a_state_that_is_gone_is_of_one_request():
    frame = '  File "/srv/sglang/srt/managers/tokenizer_manager.py", line 7, in _wait_one_response\n    x = f(y)\n'
    finding = only([decode(1), f"ERROR:    Exception in ASGI application\n{TRACEBACK}{frame}KeyError: '5e25b243e7'\n"])
    assert "had already thrown away" in finding.cause


def test_a_start_that_fails_as_it_loads_the_draft_says_so():
    frames = (
        ("managers/scheduler.py", "maybe_init_draft_worker", "x"),
        ("layers/attention/attention_registry.py", "f", "x"),
    )
    last = died("ValueError: this backend can only be used with other models", *frames)
    assert "it is the draft" in told(only([last]))
    assert "it is the draft" not in told(only([decode(1), last]))


def test_an_event_of_responses_is_of_the_openai_package():
    said = "pydantic_core._pydantic_core.ValidationError: 1 validation error for ResponseOutputText\n"
    frame = SRT.format("entrypoints/openai/serving_responses.py", "responses_stream_generator", "x")
    finding = only([decode(1), f"ERROR:    Exception in ASGI application\n{TRACEBACK}{frame}{said}", decode(2)])
    assert "pip show openai" in told(finding)


def test_a_reranker_that_refuses_everything_was_started_otherwise():
    asked = f'{stamp(9)} INFO:     127.0.0.1:1 - "POST /v1/rerank HTTP/1.1" 400 Bad Request\n'
    finding = only([started(model_path="Qwen/Qwen3-Reranker-0.6B", is_embedding=True), asked])
    assert "without --is-embedding" in told(finding)


@pytest.mark.parametrize(
    ("before", "word"),
    [
        ("f_kernel launch failed: because value 70218 for parameter coreDim is invalid. Expected value: less than or "
         "equal to 65535.\n", "70218 blocks"),
        ("  Aicore kernel execute failed, device_id=4, fault kernel_name=get_last_loc_kernel_0, x\n", "triton-ascend"),
    ],
)  # fmt: skip
def test_what_the_npu_said_of_a_kernel_is_told(before, word):
    last = died("RuntimeError: NPU function error: AclrtSynchronizeStream, error code is 507035", ("a.py", "f", "x"))
    assert word in told(only([decode(1), before, last]))


@pytest.mark.parametrize(
    ("last", "what"),
    [
        ("AssertionError: the token bitmask of xgrammar is odd", "structured output"),
        ("RuntimeError: odd draft tokens", "speculative decoding"),
        ("RuntimeError: LRU list of odd nodes, lock_ref is 0", "the KV pools or the prefix cache"),
        ("AssertionError: the adapter is odd indeed", "LoRA adapters"),
    ],
)
def test_words_without_frames_are_of_a_part(last, what):
    assert f"Its words are of {what}" in only([f"{last}\n"]).cause


def test_a_line_that_no_rule_knows_is_of_a_kind_by_its_words():
    failed = "RuntimeError: Rank 0 scheduler died during initialization: [Errno 30] Read-only file system: '/m'\n"
    finding = only([f"{stamp(1)} Load weight begin. avail mem=78.00 GB\n", failed])
    assert ("Unknown cause" in finding.cause, "a local disk" in finding.advice[0]) == (True, True)


def test_what_a_release_does_not_serve_may_be_served_by_a_later_one():
    last = died("ValueError: this model does not support that yet", ("model_loader/a.py", "load", "raise x"))
    assert "else a later release, which may serve it" in told(only([last]))


@pytest.mark.parametrize(
    ("last", "frame", "words"),
    [
        (
            "ValueError: not enough values to unpack (expected 6, got 5)",
            ("layers/moe/moe_runner/x.py", "fused_experts_deepep_to_x_fp4"),
            "--deepep-mode",
        ),
        (
            "AssertionError: This request holds the node from another tree",
            ("mem_cache/radix_cache.py", "dec_lock_ref"),
            "flush only when",
        ),
        (
            "AttributeError: LlamaTokenizerFast has no attribute image_token_id",
            ("managers/tokenizer_manager.py", "__init__"),
            "transformers",
        ),
        ("ValueError: Unsupported weight strategy=block, supported are", ("models/x.py", "__init__"), "8.9"),
    ],
)
def test_words_of_arguments_caches_and_packages_leave_one_cause(last, frame, words):
    assert words in told(only([died(last, (*frame, "f()"))]))


@pytest.mark.parametrize(
    "said",
    [
        "cutlass.base_dsl.common.DSLUserCodeError: \nerror[TYPE_UNSTABLE_JOIN]: `n` has type `None` on one path",
        "tvm.error.InternalError: Check failed: (0) is false: Cannot lower it, at /tilelang/src/tl/op.cc:12",
        "tvm_ffi.error.TVMError: InternalError: no layout for it in LayoutInference",
    ],
)
def test_a_kernel_that_its_compiler_refuses_is_of_another_release_of_the_compiler(said):
    finding = only([f"{stamp(1)} Scheduler hit an exception: {TRACEBACK}[...]\n{said}\n"])
    assert finding.rule == "told-by-words"
    assert "nvidia-cutlass-dsl" in told(finding)


@pytest.mark.parametrize(
    ("start", "words"),
    [
        ("env: VLLM_ROCM_USE_AITER_FUSION_SHARED_EXPERTS=1\ncmd: vllm serve a/b -dp 8\n", "FUSION_SHARED_EXPERTS=0"),
        (started(enforce_shared_experts_fusion="True"), "leave --enforce-shared-experts-fusion out"),
    ],
)
def test_a_name_of_experts_may_be_of_shared_ones_that_are_fused(start, words):
    last = "KeyError: 'layers.0.ffn.experts.w13_weight_scale_inv'"
    frame = ("models/x.py", "load_weights", "f()")
    assert words in told(only([start, died(last, frame)]))
    assert "FUSION_SHARED_EXPERTS" not in told(only([died(last, frame)]))


def test_an_argument_that_a_class_does_not_take_is_the_request_s_or_of_another_release():
    failed = f'{stamp(2)} INFO:     10.8.1.20:5 - "POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error\n'
    failed += f"{stamp(2)} ERROR:    Exception in ASGI application\n{TRACEBACK}[...]\n"
    failed += "TypeError: DeepSeekR1Detector.__init__() got an unexpected keyword argument 'force_nonempty_content'\n"
    finding = only([decode(1), failed, decode(3)])
    assert finding.rule == "refused-by-check"
    assert "the request itself sends force_nonempty_content (chat_template_kwargs" in told(finding)
