"""Failures that rules know by their words, which are data, and by the place where they were said."""

import re
import tomllib
from pathlib import Path

import pytest

from gemma4_triage.known_issues.catalog import records_folder
from gemma4_triage.logs import rules
from made_logs import SITE, SRT, TRACEBACK, decode, died, ended, found_in, only, stamp, started, told


class TestWordsInPlaces:
    @pytest.mark.parametrize(
        ("last", "frame", "rule", "words"),
        [
            (
                "RuntimeError: CUDA error: peer access is not supported between these two devices",
                ("distributed/device_communicators/custom_all_reduce.py", "__init__"),
                "expert-transport",
                "--disable-custom-all-reduce: NCCL then does the sums",
            ),
            (
                "torch.AcceleratorError: CUDA error: out of memory",
                ("model_executor/model_runner.py", "init_torch_distributed"),
                "out-of-memory",
                "another process holds it",
            ),
            (
                "RuntimeError: Some weights are not initialized from checkpoints: {'model.layers.5.v_norm.weight'}",
                ("models/gemma3n_causal.py", "load_weights"),
                "weight-names",
                "asks for weights that the checkpoint has not: {'model.layers.5.v_norm.weight'}",
            ),
            (
                "RuntimeError: operator torchvision::nms does not exist",
                ("utils/common.py", "<module>"),
                "wheels-do-not-fit",
                "install torch, torchvision and torchaudio of one release",
            ),
            (
                "FileNotFoundError: [Errno 2] No such file or directory: '/tmp/tmpab/gauge_mostrecent_12.db'",
                ("prometheus_client/mmap_dict.py", "__init__"),
                "host-limits",
                "PROMETHEUS_MULTIPROC_DIR",
            ),
        ],
    )
    def test_the_place_tells_what_words_alone_do_not(self, last, frame, rule, words):
        finding = only([died(last, (*frame, "x = f(y)"))])
        assert finding.rule == rule
        assert words in told(finding)

    def test_a_file_that_was_not_fetched_is_not_one_that_is_damaged(self):
        failed = f"{stamp(2)} Error in request: 403\n{TRACEBACK}" + SRT.format("utils/common.py", "load_image", "get()")
        finding = only([decode(1), failed + "requests.exceptions.HTTPError: 403 Client Error: Forbidden\n", decode(3)])
        assert finding.rule == "media-unreadable"
        assert "could not be fetched" in finding.cause


FLASHMLA = "AssertionError: FlashMLA only supports page_size 64"
ROPE = "ValueError: Unknown RoPE scaling type proportional"
IPC_PATH = 'pkg.ZMQError: ipc path "/a" is longer than 107 characters (sizeof(sockaddr_un.sun_path)).'


class TestToldByWords:
    @pytest.mark.parametrize(
        ("last", "at", "word"),
        [
            ("RuntimeError: Tried to instantiate class '_core_C.ScalarType', but it does not exist!", "a.py", "vllm"),
            ("AttributeError: '_OpNamespace' 'sgl_kernel' object has no attribute 'gate'", "_ops.py", "no kernel gate"),
            ("RuntimeError: operator sgl_kernel::fp8_scaled_mm does not exist", "fp8.py", "no kernel fp8_scaled_mm"),
            ("ValueError: Unknown CUDA arch (12.1a) or GPU not supported", "a.py", "TORCH_CUDA_ARCH_LIST"),
            ("RuntimeError: No supported CUDA architectures found for major versions [10, 11].", "a.py", "10, 11"),
            ("RuntimeError: FlashInfer requires GPUs with sm75 or higher", "core.py", "--sampling-backend pytorch"),
            (
                "ValueError: Pointer argument (at 0) cannot be accessed from Triton (cpu tensor?)",
                "jit.py",
                "set_device",
            ),
            (
                "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0",
                "a.py",
                "float16",
            ),
            ("RuntimeError: cuDNN version incompatibility: PyTorch was compiled against 9", "a.py", "LD_LIBRARY_PATH"),
            ("ImportError: decord is not installed", "common.py", "pip install decord"),
            ("ImportError: following packages that were not found in your environment: einops. Run", "a.py", "einops"),
            ("ValueError: 'hf_transfer' is enabled but 'hf_transfer' is not available", "a.py", "HF_HUB_ENABLE"),
            ("pkg.ZMQError: No such file or directory (addr='ipc:///tmp/a/b')", "socket.py", "TMPDIR"),
            (IPC_PATH, "socket.py", "short path"),
            ("socket.gaierror: [Errno -2] Name or service not known", "socket.py", "headless Service"),
            ("FileNotFoundError: [Errno 2] No such file or directory: '/psm_12ab'", "shared_memory.py", "--shm-size"),
            ("pkg.StrictError: Validation error for field 'num_experts':", "a.py", "num_experts"),
            (ROPE, "rotary_embedding.py", "--json-model-override-args"),
            ("KeyError: 'type'", "hf_transformers_utils.py", "rope_scaling"),
            ("AttributeError: 'list' object has no attribute 'keys'", "tokenization_utils_base.py", "transformers 5"),
            ("AttributeError: Model A does not support BitsAndBytes quantization yet.", "loader.py", "AWQ"),
            (
                "AssertionError: loaded_weight.shape=torch.Size([57802752, 1])",
                "linear.py",
                "--load-format bitsandbytes",
            ),
            ("NotImplementedError: FA3 does not support fp8_e5m2 KV cache", "a.py", "fp8_e4m3"),
            (FLASHMLA, "flashmla_backend.py", "--page-size 64"),
            ("AssertionError: Only SiLU activation is supported.", "wNa16_moe.py", "Gemma's is GELU"),
            ("AssertionError: max_running_request is zero", "model_runner.py", "--max-mamba-cache-size"),
            ("ValueError: DeepEP only supports hidden size 7168", "deepep.py", "--moe-a2a-backend none"),
            ("ValueError: Unsupported tokenizer type: <class 'a.B'>", "tokenizer_info.py", "--grammar-backend"),
            ("AssertionError: compatibility of lora and radix attention is in progress", "a.py", "radix attention"),
            ("FileNotFoundError: No such file or directory: '/a/adapter_config.json'", "a.py", "--lora-paths"),
            ("AssertionError: DoRA is not yet supported.", "lora.py", "merge_and_unload"),
            ("ValueError: Unsupported model type: gemma9", "reasoning_parser.py", "name gemma9"),
            ("TypeError: ServerArgs.__init__() got an unexpected keyword argument 'a_b'", "engine.py", "argument a_b"),
            ("AttributeError: module 'sglang' has no attribute 'Engine'", "run.py", "sglang.__file__"),
            ("TypeError: expected string or bytes-like object, got 'dict'", "template_manager.py", "--chat-template"),
            ("OSError: Can't load image processor for '/m'. If you were", "a.py", "preprocessor_config.json"),
            ("AttributeError: 'ATokenizerFast' object has no attribute 'image_processor'", "a.py", "ATokenizerFast"),
            ("ModuleNotFoundError: No module named 'cutlass'", "a.py", "nvidia-cutlass-dsl"),
            ("ModuleNotFoundError: No module named 'zmq.asyncio'", "a.py", "pyzmq"),
            ("ModuleNotFoundError: No module named 'deep_ep'", "a.py", "--moe-a2a-backend none"),
            ("ValueError: invalid literal for int() with base 10: 'MIG-0123'", "a.py", "ids (MIG-"),
            ("Exception: expected value at line 1 column 1", "a.py", "git lfs pull"),
            (
                "UnicodeDecodeError: 'utf-8' codec can't decode byte 0x80",
                "configuration_utils.py",
                "--load-format gguf",
            ),
            ("OSError: [Errno 5] Input/output error", "weight_utils.py", "dmesg -T"),
            ("pkg.JSONDecodeError: Expecting property name enclosed in double quotes", "a.py", "single quotes"),
            ("ImportError: libascend_hal.so: cannot open shared object file", "a.py", "set_env.sh"),
            ("AssertionError: Torch not compiled with XPU enabled", "a.py", "no build for XPU"),
            ("RuntimeError: No HIP GPUs are available", "a.py", "--device /dev/kfd"),
            ("AssertionError: k_scale and v_scale must be provided", "a.py", "--kv-cache-dtype auto"),
            ("ValueError: NSA prefill backend a requires SM90", "a.py", "--nsa-prefill-backend"),
            ("AssertionError: Hybrid SWA memory must be used with FA3", "a.py", "--attention-backend fa3"),
            ("AssertionError: Chunked prefill is not supported for this model", "a.py", "--chunked-prefill-size -1"),
            ("RuntimeError: p.attn_bias_ptr is not correctly aligned", "vision.py", "--mm-attention-backend"),
            ("ValueError: LoRA adapter contains embedding layers", "lora.py", "modules_to_save"),
            ("pkg.OutOfResources: out of resource: shared memory", "qkv_lora_b.py", "--max-lora-rank"),
            ("AssertionError: vocab_size of draft (9) and target (8)", "standalone_worker.py", "own family"),
            ("FileNotFoundError: No such file or directory: 'a/freq_32768.pt'", "a.py", "--speculative-token-map"),
            ("ValueError: EAGLE is not supported in attention backend a_b", "a.py", "attention backend a_b"),
            ("ValueError: Unknown load format: fast", "load_config.py", "--load-format fast"),
            ("OSError: Can't load tokenizer for '/m'.", "a.py", "--tokenizer-path"),
            ("ImportError: ATokenizer requires mistral-common, but it is not installed", "a.py", "mistral-common"),
            ("ValueError: Loading the model leaves no memory for the mamba cache", "a.py", "--max-mamba-cache-size"),
            ("RuntimeError: Ascend Transfer Engine initialization failed.", "a.py", "(without it: sdma)"),
            ("RuntimeError: a kernels require triton>=3.6.0, found 3.4.0", "a.py", "installed triton (3.4.0)"),
            ("NotImplementedError: NVFP4 MoE is only supported on SM100", "a.py", "flashinfer_cutlass"),
            ("RuntimeError: Error 802: system not yet initialized", "a.py", "fabricmanager"),
            ("ValueError: speculative_eagle_topk > 1 with page_size > 1 is unstable", "a.py", "--page-size 1"),
            ("AssertionError: embedding is not supported yet", "a.py", "whose class does"),
            ("NotImplementedError: No compressed-tensors compatible scheme was found.", "a.py", "W4A16 symmetric"),
            ("AssertionError: Marlin MoE doesn't support act_order", "gptq.py", "desc_act false"),
            ("pkg.InternalServerError: Error code: 500", "a.py", "server's own log"),
            ("RuntimeError: grammar_parser.cc:128: EBNF parse error at line 1", "a.py", "--grammar-backend"),
            ("ModuleNotFoundError: No module named 'sgl_kernel.infllm_ops'", "a.py", "infllm_ops.cpython-310"),
            ("AssertionError: Only SM 10.x and 11.x are supported", "flash_fwd_sm100.py", "flashinfer or triton"),
            (
                "AssertionError: FP8 is only supported on SM100 (compute capability 10.x) for FA4 CuTe",
                "a.py",
                "none for 12.x",
            ),
            (
                "TypeError: Mismatched number of arguments when calling: `a_moe(0: int)`",
                "runner.py",
                "flashinfer-cubin",
            ),
            ("RuntimeError: Inconsistent number of arguments when calling `a_plan`", "a.py", "a_plan takes another"),
            ("RuntimeError: PD does NOT support PD different TP sizes for non-MLA SWA models", "conn.py", "same --tp"),
            ("AttributeError: 'PPMissingLayer' object has no attribute 'embedding_dim'", "a.py", "--pp-size 1"),
            ("TypeError: extend_cpu(): incompatible function arguments", "intel_amx_backend.py", "torch_native"),
            (
                "RuntimeError: Expected all tensors to be on the same device, but got mat2 is on cpu",
                "text_encoding.py",
                "--dit-cpu-of",
            ),
            (
                "ValueError: Cannot find any of ['quant_method'] in the model's quantization config.",
                "a.py",
                "without --quantization",
            ),
            ("TypeError: unsupported operand type(s) for *: 'int' and 'NoneType'", "llama.py", "head_dim"),
            ("AttributeError: 'str' object has no attribute 'get'", "mooncake_store.py", "MOONCAKE_MASTER"),
            ("AssertionError: mooncake store only support page first layout", "mooncake_store.py", "page_first"),
            (
                "AssertionError: fa3, triton or intel_xpu is required for A4 model but got ascend",
                "a.py",
                "fa3, triton or intel_xpu",
            ),
        ],
    )
    def test_an_end(self, last, at, word):
        place = "__init__" if at == "llama.py" else "step"
        frame = f'  File "/opt/sglang/srt/{at}", line 3, in {place}\n    x = call(y)\n'
        finding = found_in([ended(last, frame)])[0]
        assert (finding.rule, word in told(finding)) == ("told-by-words", True)

    @pytest.mark.parametrize(
        ("last", "at", "word"),
        [
            ("PIL.DecompressionBombError: Image size (9) exceeds limit of 8 pixels", "Image.py", "smaller before"),
            ("ValueError: absolute aspect ratio must be smaller than 200, got 600.0", "qwen_vl.py", "200 times"),
            ("ValueError: height:10 and width:9 must be larger than factor:28", "qwen_vl.py", "fewer than 28"),
            ("AttributeError: 'NoneType' object has no attribute 'process_mm_data_async'", "a.py", "takes text alone"),
            ("KeyError: 'image_grid_thw'", "base_processor.py", "gave no image_grid_thw"),
            ("ValueError: Error while loading data: Max retries exceeded", "base_processor.py", "REQUEST_TIMEOUT"),
            ("ValueError: Invalid grammar request: Unsupported type: date", "scheduler.py", "llguidance"),
            ("ValueError: Model a does not support matryoshka representation", "a.py", "is_matryoshka"),
            ("ValueError: nframes should in interval [2, 1], but got 0.", "qwen_vl.py", "longer video"),
            ("ValueError: Invalid image: file:///a.jpg", "common.py", "plain path"),
            ("ValueError: This model does not support video input", "a.py", "has video"),
            ("ValueError: Failed to convert structural tag: a", "a.py", "xgrammar"),
            ("ValueError: The input_ids 9 contains values greater than the vocab size", "a.py", "another tokenizer"),
            ("ValueError: This model does not support generation.", "tokenizer_manager.py", "--is-embedding"),
        ],
    )
    def test_a_request(self, last, at, word):
        frame = f'  File "/opt/sglang/srt/{at}", line 3, in step\n    x = call(y)\n'
        answer = f'{stamp(3)} INFO:     127.0.0.1:1 - "POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error\n'
        lines = [decode(1), f"{stamp(2)} Error in request: a\n{TRACEBACK}{frame}{last}\n", answer, decode(4)]
        finding = found_in(lines)[0]
        assert (finding.rule, word in told(finding)) == ("told-by-words", True)


@pytest.mark.parametrize(
    ("line", "rule", "word"),
    [
        (
            "a.py: error: unrecognized arguments: --reasoning_parser kimi_k2",
            "start-refused",
            "--reasoning-parser, with",
        ),
        ("a.py: error: unrecognized arguments: --max-model-len 4096", "start-refused", "--context-length"),
        (
            "  Warning  FailedScheduling  0/4 nodes are available: 4 Insufficient nvidia.com/gpu.",
            "told-by-words",
            "node",
        ),
        ('  Warning  Failed  kubelet  Failed to pull image "a:v1": not found', "start-refused", "list of tags"),
        ("  Normal   Killing  Container a failed liveness probe, will be restarted", "told-by-words", "startupProbe"),
    ],
)
def test_lines_of_a_start_that_never_was(line, rule, word):
    finding = found_in([f"{line}\n"])[0]
    assert (finding.rule, word in told(finding)) == (rule, True)


def test_a_server_that_does_not_reach_itself_is_not_well():
    lines = ["Server warmup failed; aborting startup: HTTP server did not become ready at http://[::1]:1/health\n"]
    finding = found_in([*lines, f"{stamp(2)} INFO:     Finished server process [1]\n"])[0]
    assert (finding.rule, "no IPv6" in told(finding)) == ("told-by-words", True)


def test_a_gpu_that_is_listed_twice():
    context = "Context: self.device='cuda' os.environ.get('CUDA_VISIBLE_DEVICES')='0,1,0,1' self.tp_rank=0\n"
    finding = only([f"{stamp(1)} {context}", ended("RuntimeError: No CUDA GPUs are available")])
    assert (finding.rule, "twice" in finding.cause) == ("no-gpu", True)


def test_the_name_of_a_copy_says_its_method():
    lines = [started(model_path="a/R1-INT8"), "KeyError: 'model.layers.1.mlp.experts.w2_weight_scale'\n"]
    assert "--quantization w8a8_int8" in told(only(lines))


@pytest.mark.parametrize(
    ("said", "flags"),
    [
        ("Currently speculative decoding does not support dp attention.", "--enable-dp-attention, --speculative-alg"),
        ("ep_size has to divide tp_size, which it does not", "--ep-size, --tp-size"),
    ],
)
def test_a_check_of_arguments_speaks_of_them_in_prose(said, flags):
    frame = '  File "/opt/sglang/srt/server_args.py", line 3, in check\n    x = call(y)\n'
    finding = found_in([ended(f"ValueError: {said}", frame)])[0]
    assert (finding.rule, flags in told(finding)) == ("refused-by-check", True)


def test_no_name_of_a_check_is_called_an_argument_that_is_none():
    frame = '  File "/opt/sglang/srt/server_args.py", line 3, in check\n    x = call(y)\n'
    assert "--some-size" not in told(found_in([ended("ValueError: ep_size has to divide some_size", frame)])[0])


def test_nccls_own_warning_says_what_it_could_not_do():
    warning = "node:1:1 [0] transport/nvls.cc:256 NCCL WARN Cuda failure 401 'not in the present state'\n"
    finding = found_in([warning, ended("RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO)")])[0]
    assert (finding.rule, "NCCL_NVLS_ENABLE=0" in told(finding)) == ("collective-timeout", True)


def test_a_last_line_alone_names_a_weight():
    finding = only(["sglang serve --model-path a\n", "KeyError: 'layers.22.mlp.gate_up_proj.weight'\n"])
    assert (finding.rule, "--is-embedding" in told(finding)) == ("weight-names", True)


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
        ('HealthError: "GET /health HTTP/1.1" 503', "managers/a.py", "step", "py-spy"),
        ("RuntimeError: dictionary changed size during iteration", "managers/a.py", "step", "at once, a race"),
        ("ValueError: list.remove(x): x not in list", "managers/a.py", "step", "no longer fit each other"),
        (
            "RuntimeError: setStorage: sizes [4], storage of size 0",
            "model_executor/a.py",
            "send",
            "--enable-memory-saver",
        ),
        ("OSError: [Errno 12] Cannot allocate memory", "managers/a.py", "step", "--hicache-ratio"),
        ("RuntimeError: Expected all tensors to be on the same device", "lora/a.py", "x", "--cpu-offload-gb"),
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
