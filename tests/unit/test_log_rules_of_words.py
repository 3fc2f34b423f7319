"""Failures that rules know by their words, which are data, and by the place where they were said."""

import pytest

from made_logs import SRT, TRACEBACK, decode, died, ended, found_in, only, stamp, started, told


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
            ("RuntimeError: FlashInfer requires GPUs with sm75 or higher", "core.py", "CUDA 12.9 or later"),
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
            (
                "FileNotFoundError: [Errno 2] No such file or directory: '/psm_12ab'",
                "shared_memory.py",
                "resource tracker",
            ),
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
