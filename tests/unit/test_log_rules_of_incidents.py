"""Classes of public incidents: which rule leads for each, and a word of what it says to do."""

import pytest

from gemma4_triage.finding import Confidence
from made_logs import ASSERTION, ILLEGAL, death, decode, died_in, found_in, only, stamp, started

LIST = "AttributeError: 'list' object has no attribute 'tolist'"
CAPTURE = "Exception: Capture cuda graph failed: "
HEAD_DIM = "BatchDecodeWithPagedKVCacheWrapper::Plan failed to dispatch head_dim 96"
GONE = "[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:18312"
BLOCK = "ValueError: Weight output_partition_size = 320 is not divisible by weight quantization block_n = 128."
RUST = "[Router (Rust)] 2026-01-01 00:10:00 - {} - {}\n"
NEVER_HEALTHY = (
    'Timeout 600s waiting for workers ["http://127.0.0.1:31000"] to become healthy. Please set a larger value'
)
SEGFAULT = "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f (most recent call first):\n"
SEGFAULT += '  File "/opt/triton/compiler/code_generator.py", line 1234 in ast_to_ttir\n'
MASK = ("sampling/sampling_batch_info.py apply_logits_bias", "constrained/xgrammar_backend.py apply_vocab_mask")
# faulthandler tells of the newest thread first, and of the one that crashed where it comes.
THREADS = "Fatal Python error: Aborted\n\n" + "".join(
    f'Thread 0x00007f{at:02x} (most recent call first):\n  File "/usr/lib/threading.py", line 320 in wait\n\n'
    for at in range(60)
)
THREADS += "Current thread 0x00007f (most recent call first):\n"
THREADS += '  File "/opt/triton/compiler/code_generator.py", line 1234 in ast_to_ttir\n'
READ_TIMEOUT = "requests.exceptions.ReadTimeout: HTTPConnectionPool(host='127.0.0.1', port=30000): Read timed out.\n"
LAUNCH = ("<frozen runpy> _run_module_as_main", "/opt/sglang/srt/entrypoints/engine.py _launch_subprocesses")
PENDING = "Worker http://127.0.0.1:31000 health check is pending with error: error sending request\n"
ERRORS = '100 errors detected in the compilation of "/root/.cache/flashinfer/batch_prefill.cu".\n'
NINJA = "subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1."
JIT = f"{stamp(2, 'TP0')} Try DeepGEMM JIT Compiling for <GEMM_NT_F8F8BF16> N=1536, K=4096, num_groups=1\n"
WATCHDOG = f"{stamp(400, 'TP0')} Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)\n"
BITMASK = "TypeError: Mismatched type on argument #2 when calling: `fill_next_token_bitmask`. Expected `int`"
ROUTER_PANIC = "thread 'actix-rt|system:0' panicked at src/router.rs:463:40:\n"
WORKSPACE = "Buffer overflow when allocating memory in AlignedAllocator. Increase the workspace buffer size."
PADDING = "The intermediate size required padding, which gated activations do not support"
SIZES = "The size of tensor a (6144) must match the size of tensor b (3072) at non-singleton dimension 1"
NONE = "sequence item 0: expected str instance, NoneType found"
DIED = "Rank 0 scheduler died during initialization (exit code: -11)."
RESET = "('Connection aborted.', ConnectionResetError(104, 'Connection reset by peer'))"
IMA = "Triton Error [CUDA]: an illegal memory access was encountered"
WIDTH = "mat1 and mat2 shapes cannot be multiplied (8x5120 and 15360x5120)"
UNSET = "'>' not supported between instances of 'NoneType' and 'int'"
OLD = "flashinfer_python is installed with version 0.3.1, which is less than the minimum required version 0.4.0."
OOM = "CUDA out of memory. Tried to allocate 448.00 MiB. GPU 0 has a total capacity of 21.96 GiB"
TRUTH = "Boolean value of Tensor with more than one value is ambiguous"
LEADS = {
    "HiCache at a server without a prefix cache": (
        [
            died_in(
                "managers/scheduler.py get_new_batch", last=f"{LIST[:16]}'ChunkCache' object has no attribute 'evict'"
            )
        ],
        ("no-prefix-cache", "--disable-radix-cache"),
    ),
    "a leak in the words of 0.4.6": (
        ["ValueError: pool memory leak detected! available_size=90, protected_size=0, max_total_num_tokens=100\n"],
        ("pool-leak", "10 of 100"),
    ),
    "a leak that only a sum tells": (
        [decode(1), death(2, "AssertionError: Mem Leak Detected! total_tokens=90 vs self.max_total_num_tokens=100")],
        ("pool-leak", "10 of 100"),
    ),
    "blocks that ranks cannot divide": (
        [died_in("layers/quantization/fp8.py create_weights", last=BLOCK)],
        ("uneven-split", "--tp"),
    ),
    "a capture that another rank's end broke": ([death(1, CAPTURE + GONE)], ("collective-timeout", "ended first")),
    "a capture without a kernel for the heads": ([death(1, CAPTURE + HEAD_DIM)], ("attention-kernel", "triton")),
    "DeepEP waits for a rank": (
        [died_in("/opt/deep_ep/buffer.py dispatch", last="RuntimeError: DeepEP error: timeout (dispatch CPU)")],
        ("expert-transport", "compile_deep_gemm"),
    ),
    "an output layer that is tied": (
        [died_in("models/llama.py load_weights", last="KeyError: 'lm_head.weight'")],
        ("weight-names", "tie_word_embeddings"),
    ),
    "a draft that is given as a model": (
        [died_in("models/qwen3.py load_weights", last="KeyError: 'midlayer.self_attn.qkv_proj.weight'")],
        ("weight-names", "--speculative-draft-model-path"),
    ),
    "an encoder that is given as a language model": (
        [died_in("models/qwen3.py load_weights", last="KeyError: 'embed_tokens.weight'")],
        ("weight-names", "--is-embedding"),
    ),
    "a bootstrap service that is not reached": (
        [
            f"{stamp(1)} Decode handshake failed for request: Could not fetch prefill info from bootstrap_addr: "
            "10.0.0.3:8\n"
        ],
        ("kv-transfer", "bootstrap service (10.0.0.3:8)"),
    ),
    "a capture with torch.compile": (
        [started(enable_torch_compile=True), death(1, CAPTURE)],
        ("graph-capture", "without --enable-torch-compile"),
    ),
    "a name that another release has not": (
        [
            died_in(
                "a.py <module>",
                last="ImportError: cannot import name 'launch' from 'sglang.utils' (/opt/sglang/utils.py)",
            )
        ],
        ("told-by-words", "sglang.utils has no launch, which another of SGLang's own files asks for"),
    ),
    "a list of a request that is not there": (
        [
            decode(1),
            died_in("managers/scheduler.py take_ready_grammars", last="IndexError: list index out of range"),
        ],
        ("other-crash", "requests with structured output"),
    ),
    "pip that finds no wheel": (
        ["ERROR: No matching distribution found for sgl-kernel==0.3.18\n"],
        ("unexplained-line", "a fresh environment, or uv pip install"),
    ),
    "a kernel of Triton's that Ascend cannot compile": (
        [started(device="npu"), decode(1), died_in("triton/compiler.py compile", last="MLIRCompilationError: no")],
        ("triton-compile", "triton-ascend"),
    ),
    "slots that no pool gave": (
        [decode(1), died_in("managers/schedule_batch.py f", last="TypeError: 'NoneType' object is not subscriptable")],
        ("other-crash", "was never set"),
    ),
    "frames of native code": (
        ['!!! Segfault encountered !!!\n  File "<unknown>", line 0, in nixlUcxSharedThread::run()\n'],
        ("unexplained-line", "mooncake-transfer-engine nixl"),
    ),
    "a prompt without its image's placeholder": (
        [died_in("layers/rotary_embedding.py get_input_positions", last="ValueError: 151655 is not in list")],
        ("image-tokens", "placeholder"),
    ),
    "a mask whose kernel cannot be launched": (
        [decode(1), died_in(*MASK, last="RuntimeError: Triton Error [HIP]:  Code: 1, Messsage: invalid argument")],
        ("grammar-request", "--grammar-backend outlines"),
    ),
    "a mask that is asked for with another argument": (
        [decode(1), died_in("constrained/xgrammar_backend.py fill_vocab_mask", last=BITMASK)],
        ("grammar-request", "another argument than it takes"),
    ),
    "a router whose workers never answer": (
        [RUST.format("INFO", PENDING.strip()), RUST.format("ERROR", NEVER_HEALTHY)],
        ("router", "no_proxy"),
    ),
    "a router that panics": ([ROUTER_PANIC, "called `Result::unwrap()` on an `Err` value\n"], ("router", "restart")),
    "a router that loses a worker": (
        [RUST.format("WARN", "Removing failed worker: http://localhost:8001")],
        ("router", "that worker's own log"),
    ),
    "a router that opens its circuits": (
        ["2026-01-01 00:00:01  WARN smg::core: Circuit breaker state transition from=closed to=open worker=http://a\n"],
        ("router", "--cb-failure-threshold"),
    ),
    "a cache of kernels that processes share": (
        [death(1, "FileNotFoundError: [Errno 2] No such file or directory: '/root/.triton/cache/0f/k.tmp'")],
        ("host-limits", "TRITON_CACHE_DIR"),
    ),
    "an address of another host": (
        [death(1, "zmq.error.ZMQError: Cannot assign requested address (addr='tcp://10.0.0.5:5007')")],
        ("start-refused", "--dist-init-addr"),
    ),
    "nodes that did not come": (
        [
            death(
                1,
                "torch.distributed.DistStoreError: Timed out after 601 s waiting for clients. 1/2 clients joined.",
            )
        ],
        ("collective-timeout", "1 of 2"),
    ),
    "a first node that is not there": (
        [
            death(
                1,
                "torch.distributed.DistNetworkError: The socket has timed out while trying to connect to (a, 5).",
            )
        ],
        ("collective-timeout", "could not reach the first one"),
    ),
    "more ranks than experts": (
        [
            died_in(
                "models/moe.py __init__",
                last="AssertionError: Tensor parallel size 16 is greater than the number of experts 8.",
            )
        ],
        ("uneven-split", "experts"),
    ),
    "heads that do not divide, without a word": (
        [started(tp_size=3), died_in("models/gemma4.py __init__", last="AssertionError")],
        ("uneven-split", "heads"),
    ),
    "a GPU that is too old for a format": (
        [
            died_in(
                "layers/quantization/fp8.py get",
                last="RuntimeError: not supported. Min capability: 89. Current capability: 80.",
            )
        ],
        ("quantised-kernel", "needs a GPU of compute capability 89"),
    ),
    "buffers that a network card does not take": (
        [f"{stamp(1)} Mooncake batch memory registration failed.\n"],
        ("kv-transfer", "ulimit -l unlimited"),
    ),
    "a kind of model that transformers lack": (
        [died_in("/opt/transformers/models/auto/configuration_auto.py __getitem__", last="KeyError: 'qwen3_5_moe'")],
        ("wheels-do-not-fit", "upgrade SGLang together with the transformers"),
    ),
    "a toolkit that is not there": (
        [died_in("/opt/deep_gemm/__init__.py _find_cuda_home", last="AssertionError")],
        ("wheels-do-not-fit", "CUDA_HOME"),
    ),
    "a kernel that does not compile": ([ERRORS, death(1, NINJA)], ("wheels-do-not-fit", "nvcc --version")),
    "a package that fails as it is imported": (
        [
            died_in(
                "<frozen runpy> _run_module_as_main",
                "/opt/transformers/hub_kernels.py <module>",
                "/opt/kernels/repos.py __init__",
                last="ValueError: no revision",
            )
        ],
        ("other-crash", "pip list"),
    ),
    "a process that waited for one that ended": (
        [died_in(*LAUNCH, "/usr/lib/multiprocessing/connection.py _recv", last="EOFError", rank="")],
        ("other-crash", "another process"),
    ),
    "a script without a main guard": (
        [died_in("/usr/lib/multiprocessing/spawn.py _check_not_importing_main", last="RuntimeError: ")],
        ("start-refused", "__main__"),
    ),
    "a first request without an answer": ([READ_TIMEOUT], ("start-refused", "py-spy dump")),
    "the thread that crashed, behind sixty others": (
        [*THREADS.splitlines(keepends=True)],
        ("unexplained-line", "code_generator.py:1234"),
    ),
    "a compiler that ends in native code": ([SEGFAULT], ("unexplained-line", "~/.triton/cache")),
    "an actor that Ray lost": (
        ["ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"],
        ("unexplained-line", "ray logs"),
    ),
    "a type that a format does not take": (
        [
            died_in(
                "configs/model_config.py verify",
                last="ValueError: bfloat16 is not supported. Supported dtypes: [torch.float16]",
            )
        ],
        ("refused-by-check", "--dtype float16"),
    ),
    "a workspace that a long prefill does not fit": (
        [died_in("/opt/flashinfer/prefill.py plan", last=f"RuntimeError: {WORKSPACE}")],
        ("kernel-failed", "--chunked-prefill-size"),
    ),
    "a memory saver that cannot resume": (
        ["[torch_memory_saver.cpp] CUresult error  result=1 file=csrc/torch_memory_saver.cpp func=resume line=206\n"],
        ("kernel-failed", "resume_memory_occupation"),
    ),
    "a memory saver that was not preloaded": (
        [
            died_in(
                "/opt/train.py <module>", last="AssertionError: TorchMemorySaver observes invalid LD_PRELOAD.", rank=""
            )
        ],
        ("start-refused", "LD_PRELOAD"),
    ),
    "a checkpoint without a chat template": (
        [died_in("/opt/transformers/base.py get_chat_template", last="ValueError: tokenizer.chat_template is not set")],
        ("chat-template", "-Instruct"),
    ),
    "a server without a parser of tools": (
        [f"{stamp(1)} Error in request: Unsupported tool_call_parser: None\n"],
        ("answer-parser", "none was set"),
    ),
    "a quantised width that ranks leave unpadded": (
        [started(tp_size=2), died_in("layers/quantization/modelopt_quant.py pad", last=f"AssertionError: {PADDING}")],
        ("quantised-kernel", "--tp 1"),
    ),
    "a weight of another format": (
        [died_in("layers/moe/layer.py _load_w13", last=f"RuntimeError: {SIZES}")],
        ("weight-names", "6144 against 3072"),
    ),
    "an illegal access under drafts and a MoE backend": (
        [started(speculative_algorithm="EAGLE", moe_runner_backend="flashinfer_trtllm"), decode(1), death(2, ILLEGAL)],
        ("illegal-access", "--speculative-moe-runner-backend triton"),
    ),
    "a GPU of AMD's that a build leaves out": (
        [died_in("layers/quantization/gptq.py process", last="RuntimeError: HIP error: invalid device function")],
        ("no-kernel-image", "no kernel for this GPU"),
    ),
    "an assertion on a GPU of AMD's": (
        ["Queue aborting with error : HSA_STATUS_ERROR_EXCEPTION\nKernel Name: _assert_async_cuda_kernel\n"],
        ("device-fault", "--enable-nan-detection"),
    ),
    "a request that the detokenizer forgot": (
        [died_in("managers/detokenizer_manager.py event_loop", last="KeyError: '6fa7b3aa'", rank="")],
        ("token-outside-vocabulary", "SGLANG_DETOKENIZER_MAX_STATES"),
    ),
    "a tokenizer whose code does not fit": (
        [
            died_in(
                "managers/detokenizer_manager.py run", "/x/tok.py convert_tokens_to_string", last=f"TypeError: {NONE}"
            )
        ],
        ("token-outside-vocabulary", "transformers"),
    ),
    "a scheduler that a signal ended": (
        [died_in("entrypoints/engine.py _wait_for_scheduler_ready", last=f"RuntimeError: {DIED}", rank="")],
        ("other-crash", "segmentation fault"),
    ),
    "a tensor where a value was meant": (
        [decode(1), died_in("managers/tokenizer_manager.py f", last=f"RuntimeError: {TRUTH}", rank="")],
        ("other-crash", "a defect of this build"),
    ),
    "a download that broke off": (
        [
            died_in(
                "/opt/huggingface_hub/file_download.py http_get", last=f"requests.exceptions.ConnectionError: {RESET}"
            )
        ],
        ("weights-missing", "HF_HUB_OFFLINE=1"),
    ),
    "a proxy before the server": (
        [died_in("/opt/requests/models.py json", last="requests.exceptions.JSONDecodeError: Expecting value", rank="")],
        ("start-refused", "no_proxy"),
    ),
    "a library of CUDA that fails inside": (
        [death(1, "RuntimeError: CUDA error: CUBLAS_STATUS_INTERNAL_ERROR when calling `cublasGemmEx( handle )`")],
        ("kernel-failed", "CUDA_LAUNCH_BLOCKING=1"),
    ),
    "an illegal access in a kernel of LoRA": (
        [
            decode(1),
            died_in("lora/backend/triton_backend.py run", "lora/sgemm_lora_a.py fwd", last=f"RuntimeError: {IMA}"),
        ],
        ("illegal-access", "the LoRA adapters"),
    ),
    "a crash of a server with much switched on": (
        [
            started(enable_dp_attention=True, cpu_offload_gb=4),
            decode(1),
            died_in("layers/x.py f", last="TypeError: no"),
        ],
        ("other-crash", "this server has --enable-dp-attention, --cpu-offload-gb"),
    ),
    "a transfer of which nothing more is known": (
        [f"{stamp(1)} Decode transfer failed for request with exception KVTransferError(bootstrap_room=1): no\n"],
        ("kv-transfer", "--disaggregation-transfer-backend nixl"),
    ),
    "a crash in AITER": (
        ['Fatal Python error: Segmentation fault\n\n  File "/opt/aiter/jit/core.py", line 80 in custom_wrapper\n'],
        ("unexplained-line", "SGLANG_USE_AITER=0"),
    ),
    "a kernel that a build lacks, in one line": (
        [decode(1), "CUDA error (/opt/flash_fwd.h:166): no kernel image is available for execution on the device\n"],
        ("no-kernel-image", "no kernel for this GPU"),
    ),
    "a runtime of another release on an NPU": (
        [
            died_in(
                "layers/attention/x.py f", last="RuntimeError: NPU function error: call aclnnX failed, error code is 5"
            )
        ],
        ("kernel-failed", "CANN"),
    ),
    "a draft of another width": (
        [died_in("models/llama_eagle3.py forward", "layers/linear.py forward", last=f"RuntimeError: {WIDTH}")],
        ("draft-model", "8x5120 meets weights of 15360x5120"),
    ),
    "half of the arguments of drafts": (
        [died_in("server_args.py _handle_speculative_decoding", last=f"TypeError: {UNSET}", rank="")],
        ("start-refused", "--speculative-eagle-topk"),
    ),
    "a package that is too old": (
        [died_in("utils/common.py assert_pkg_version", last=f"Exception: {OLD}", rank="")],
        ("wheels-do-not-fit", "flashinfer_python 0.3.1"),
    ),
    "weights that no GPU holds": (
        [
            died_in(
                "model_executor/model_runner.py load_model", "models/llama.py __init__", last=f"OutOfMemoryError: {OOM}"
            )
        ],
        ("out-of-memory", "more GPUs"),
    ),
    "a router of a split without servers": (
        ["2026-01-01 00:00:01 ERROR smg::pd: Failed to select PD pair error=No prefill workers available.\n"],
        ("router", "--prefill-selector"),
    ),
    "an index that an assertion stopped": (
        [started(enable_eplb=True), decode(1), died_in("layers/moe/topk.py select", last=ASSERTION)],
        ("index-outside-tensor", "once without the MoE kernels"),
    ),
    "a page fault of an AMD GPU": (
        [decode(1), "Memory access fault by GPU node-2 (Agent handle: 0x5) on address 0x0. Reason: Unknown.\n"],
        ("device-fault", "SGLANG_USE_AITER=0"),
    ),
    "a first request that a proxy refused": (
        [died_in("entrypoints/http_server.py _wait_and_warmup", last="AssertionError: res=<Response [503]>", rank="")],
        ("start-refused", "no_proxy"),
    ),
    "a watchdog without py-spy": (
        [decode(1), f"{stamp(400)} Pyspy failed to dump PID 9. Error: py-spy: command not found\n", WATCHDOG],
        ("hang", "pip install py-spy"),
    ),
}


@pytest.mark.parametrize("name", LEADS)
def test_what_leads(name):
    lines, (rule, word) = LEADS[name]
    first = found_in(lines)[0]
    assert first.rule == rule
    assert word in " ".join((first.cause, *first.advice))


class TestACompilationIsNoHang:
    def test_while_it_runs(self):
        finding = only([decode(1, rank="TP0"), JIT, WATCHDOG])
        assert finding.confidence is Confidence.LIKELY
        assert "it did not hang" in finding.cause

    def test_once_it_has_ended(self):
        finding = only([JIT, decode(3, rank="TP0"), WATCHDOG])
        assert "made no progress" in finding.cause


class TestWhatOnlyWaited:
    def test_is_not_told_beside_the_signal_that_it_waited_for(self):
        waited = died_in(*LAUNCH, "/usr/lib/multiprocessing/connection.py _recv", last="EOFError", rank="")
        assert only([f"{stamp(1)} Exit code: -9\n", waited]).rule == "killed-from-outside"

    def test_an_assertion_of_one_rank_is_no_split(self):
        finding = only([started(tp_size=1), died_in("models/gemma4.py __init__", last="AssertionError")])
        assert finding.rule == "other-crash"
