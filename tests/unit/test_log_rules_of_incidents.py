"""Classes of public incidents: which rule leads for each, and a word of what it says to do."""

import pytest

from gemma4_triage.finding import Confidence
from made_logs import ASSERTION, ILLEGAL, death, decode, found_in, only, prefill, retraction, stamp, started, steady


def died(*frames: str, last: str, rank: str = "TP0") -> str:
    """Return a scheduler's traceback of frames such as "mem_cache/common.py alloc", then its last line."""
    rows = [f"{stamp(9, rank)} Scheduler hit an exception: Traceback (most recent call last):"]
    for frame in frames:
        file, _, function = frame.partition(" ")
        rows.append(f'  File "{file if file[0] in "/<" else "/srv/sglang/srt/" + file}", line 12, in {function}')
    return "\n".join([*rows, last, ""])


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
BUFFER = "AssertionError: LoRA buffer shape torch.Size([16, 384])"
EMPTY = "torch.Size([16, 0])"
NO_POOL = "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.6. "
NO_POOL += "Raise --mem-fraction-static above 0.712 (minimum viable = 0.7113)."
NO_LAYOUT = "AttributeError: module 'triton_kernels.layout' has no attribute 'make_layout'"
TIKTOKEN = "AttributeError: 'TiktokenTokenizer' object has no attribute 'all_special_ids'"
NO_CONFIG = "AttributeError: 'ServerArgs' object has no attribute 'get_model_config'"
CAPTURING = "torch.AcceleratorError: CUDA error: operation not permitted when stream is capturing"
BUILD = "RuntimeError: Error building extension 'hicache_hash_cpp': c++ -c a.cpp"
PACKED = "mat1 and mat2 shapes cannot be multiplied (7x5120 and 2560x248320)"
SHORT = "RuntimeError: Insufficient multimodal embedding length: num_mm_tokens_in_input_ids=275 vs "
SHORT += "num_mm_tokens_in_embedding=256"
LEADS = {
    "HiCache at a server without a prefix cache": (
        [died("managers/scheduler.py get_new_batch", last=f"{LIST[:16]}'ChunkCache' object has no attribute 'evict'")],
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
        [died("layers/quantization/fp8.py create_weights", last=BLOCK)],
        ("uneven-split", "--tp"),
    ),
    "a capture that another rank's end broke": ([death(1, CAPTURE + GONE)], ("collective-timeout", "ended first")),
    "a capture without a kernel for the heads": ([death(1, CAPTURE + HEAD_DIM)], ("attention-kernel", "triton")),
    "DeepEP waits for a rank": (
        [died("/opt/deep_ep/buffer.py dispatch", last="RuntimeError: DeepEP error: timeout (dispatch CPU)")],
        ("expert-transport", "compile_deep_gemm"),
    ),
    "an output layer that is tied": (
        [died("models/llama.py load_weights", last="KeyError: 'lm_head.weight'")],
        ("weight-names", "tie_word_embeddings"),
    ),
    "a draft that is given as a model": (
        [died("models/qwen3.py load_weights", last="KeyError: 'midlayer.self_attn.qkv_proj.weight'")],
        ("weight-names", "--speculative-draft-model-path"),
    ),
    "an encoder that is given as a language model": (
        [died("models/qwen3.py load_weights", last="KeyError: 'embed_tokens.weight'")],
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
            died(
                "a.py <module>",
                last="ImportError: cannot import name 'launch' from 'sglang.utils' (/opt/sglang/utils.py)",
            )
        ],
        ("told-by-words", "sglang.utils has no launch, which another of SGLang's own files asks for"),
    ),
    "a list of a request that is not there": (
        [
            decode(1),
            died("managers/scheduler.py move_ready_grammar_requests", last="IndexError: list index out of range"),
        ],
        ("other-crash", "requests with structured output"),
    ),
    "pip that finds no wheel": (
        ["ERROR: No matching distribution found for sgl-kernel==0.3.18\n"],
        ("unexplained-line", "a fresh environment, or uv pip install"),
    ),
    "a kernel of Triton's that Ascend cannot compile": (
        [started(device="npu"), decode(1), died("triton/compiler.py compile", last="MLIRCompilationError: no")],
        ("triton-compile", "triton-ascend"),
    ),
    "slots that no pool gave": (
        [decode(1), died("managers/schedule_batch.py f", last="TypeError: 'NoneType' object is not subscriptable")],
        ("other-crash", "was never set"),
    ),
    "frames of native code": (
        ['!!! Segfault encountered !!!\n  File "<unknown>", line 0, in nixlUcxSharedThread::run()\n'],
        ("unexplained-line", "mooncake-transfer-engine nixl"),
    ),
    "a prompt without its image's placeholder": (
        [died("layers/rotary_embedding.py get_input_positions", last="ValueError: 151655 is not in list")],
        ("image-tokens", "placeholder"),
    ),
    "a mask whose kernel cannot be launched": (
        [decode(1), died(*MASK, last="RuntimeError: Triton Error [HIP]:  Code: 1, Messsage: invalid argument")],
        ("grammar-request", "--grammar-backend outlines"),
    ),
    "a mask that is asked for with another argument": (
        [decode(1), died("constrained/xgrammar_backend.py fill_vocab_mask", last=BITMASK)],
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
            died(
                "models/moe.py __init__",
                last="AssertionError: Tensor parallel size 16 is greater than the number of experts 8.",
            )
        ],
        ("uneven-split", "experts"),
    ),
    "heads that do not divide, without a word": (
        [started(tp_size=3), died("models/gemma4.py __init__", last="AssertionError")],
        ("uneven-split", "heads"),
    ),
    "a GPU that is too old for a format": (
        [
            died(
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
        [died("/opt/transformers/models/auto/configuration_auto.py __getitem__", last="KeyError: 'qwen3_5_moe'")],
        ("wheels-do-not-fit", "upgrade SGLang together with the transformers"),
    ),
    "a toolkit that is not there": (
        [died("/opt/deep_gemm/__init__.py _find_cuda_home", last="AssertionError")],
        ("wheels-do-not-fit", "CUDA_HOME"),
    ),
    "a kernel that does not compile": ([ERRORS, death(1, NINJA)], ("wheels-do-not-fit", "nvcc --version")),
    "a package that fails as it is imported": (
        [
            died(
                "<frozen runpy> _run_module_as_main",
                "/opt/transformers/hub_kernels.py <module>",
                "/opt/kernels/repos.py __init__",
                last="ValueError: no revision",
            )
        ],
        ("other-crash", "pip list"),
    ),
    "a process that waited for one that ended": (
        [died(*LAUNCH, "/usr/lib/multiprocessing/connection.py _recv", last="EOFError", rank="")],
        ("other-crash", "another process"),
    ),
    "a script without a main guard": (
        [died("/usr/lib/multiprocessing/spawn.py _check_not_importing_main", last="RuntimeError: ")],
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
            died(
                "configs/model_config.py verify",
                last="ValueError: bfloat16 is not supported. Supported dtypes: [torch.float16]",
            )
        ],
        ("refused-by-check", "--dtype float16"),
    ),
    "a workspace that a long prefill does not fit": (
        [died("/opt/flashinfer/prefill.py plan", last=f"RuntimeError: {WORKSPACE}")],
        ("kernel-failed", "--chunked-prefill-size"),
    ),
    "a memory saver that cannot resume": (
        ["[torch_memory_saver.cpp] CUresult error  result=1 file=csrc/torch_memory_saver.cpp func=resume line=206\n"],
        ("kernel-failed", "resume_memory_occupation"),
    ),
    "a memory saver that was not preloaded": (
        [died("/opt/train.py <module>", last="AssertionError: TorchMemorySaver observes invalid LD_PRELOAD.", rank="")],
        ("start-refused", "LD_PRELOAD"),
    ),
    "a checkpoint without a chat template": (
        [died("/opt/transformers/base.py get_chat_template", last="ValueError: tokenizer.chat_template is not set")],
        ("chat-template", "-Instruct"),
    ),
    "a server without a parser of tools": (
        [f"{stamp(1)} Error in request: Unsupported tool_call_parser: None\n"],
        ("answer-parser", "none was set"),
    ),
    "a quantised width that ranks leave unpadded": (
        [started(tp_size=2), died("layers/quantization/modelopt_quant.py pad", last=f"AssertionError: {PADDING}")],
        ("quantised-kernel", "--tp 1"),
    ),
    "a weight of another format": (
        [died("layers/moe/layer.py _load_w13", last=f"RuntimeError: {SIZES}")],
        ("weight-names", "6144 against 3072"),
    ),
    "an illegal access under drafts and a MoE backend": (
        [started(speculative_algorithm="EAGLE", moe_runner_backend="flashinfer_trtllm"), decode(1), death(2, ILLEGAL)],
        ("illegal-access", "--speculative-moe-runner-backend triton"),
    ),
    "a GPU of AMD's that a build leaves out": (
        [died("layers/quantization/gptq.py process", last="RuntimeError: HIP error: invalid device function")],
        ("no-kernel-image", "no kernel for this GPU"),
    ),
    "an assertion on a GPU of AMD's": (
        ["Queue aborting with error : HSA_STATUS_ERROR_EXCEPTION\nKernel Name: _assert_async_cuda_kernel\n"],
        ("device-fault", "--enable-nan-detection"),
    ),
    "a request that the detokenizer forgot": (
        [died("managers/detokenizer_manager.py event_loop", last="KeyError: '6fa7b3aa'", rank="")],
        ("token-outside-vocabulary", "SGLANG_DETOKENIZER_MAX_STATES"),
    ),
    "a tokenizer whose code does not fit": (
        [died("managers/detokenizer_manager.py run", "/x/tok.py convert_tokens_to_string", last=f"TypeError: {NONE}")],
        ("token-outside-vocabulary", "transformers"),
    ),
    "a scheduler that a signal ended": (
        [died("entrypoints/engine.py _wait_for_scheduler_ready", last=f"RuntimeError: {DIED}", rank="")],
        ("other-crash", "segmentation fault"),
    ),
    "a tensor where a value was meant": (
        [decode(1), died("managers/tokenizer_manager.py f", last=f"RuntimeError: {TRUTH}", rank="")],
        ("other-crash", "a defect of this build"),
    ),
    "a download that broke off": (
        [died("/opt/huggingface_hub/file_download.py http_get", last=f"requests.exceptions.ConnectionError: {RESET}")],
        ("weights-missing", "HF_HUB_OFFLINE=1"),
    ),
    "a proxy before the server": (
        [died("/opt/requests/models.py json", last="requests.exceptions.JSONDecodeError: Expecting value", rank="")],
        ("start-refused", "no_proxy"),
    ),
    "a library of CUDA that fails inside": (
        [death(1, "RuntimeError: CUDA error: CUBLAS_STATUS_INTERNAL_ERROR when calling `cublasGemmEx( handle )`")],
        ("kernel-failed", "CUDA_LAUNCH_BLOCKING=1"),
    ),
    "an illegal access in a kernel of LoRA": (
        [
            decode(1),
            died("lora/backend/triton_backend.py run", "lora/sgemm_lora_a.py fwd", last=f"RuntimeError: {IMA}"),
        ],
        ("illegal-access", "the LoRA adapters"),
    ),
    "a crash of a server with much switched on": (
        [started(enable_dp_attention=True, cpu_offload_gb=4), decode(1), died("layers/x.py f", last="TypeError: no")],
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
        [died("layers/attention/x.py f", last="RuntimeError: NPU function error: call aclnnX failed, error code is 5")],
        ("kernel-failed", "CANN"),
    ),
    "a draft of another width": (
        [died("models/llama_eagle3.py forward", "layers/linear.py forward", last=f"RuntimeError: {WIDTH}")],
        ("draft-model", "8x5120 meets weights of 15360x5120"),
    ),
    "half of the arguments of drafts": (
        [died("server_args.py _handle_speculative_decoding", last=f"TypeError: {UNSET}", rank="")],
        ("start-refused", "--speculative-eagle-topk"),
    ),
    "a package that is too old": (
        [died("utils/common.py assert_pkg_version", last=f"Exception: {OLD}", rank="")],
        ("wheels-do-not-fit", "flashinfer_python 0.3.1"),
    ),
    "weights that no GPU holds": (
        [
            died(
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
        [started(enable_eplb=True), decode(1), died("layers/moe/topk.py select", last=ASSERTION)],
        ("index-outside-tensor", "once without the MoE kernels"),
    ),
    "a page fault of an AMD GPU": (
        [decode(1), "Memory access fault by GPU node-2 (Agent handle: 0x5) on address 0x0. Reason: Unknown.\n"],
        ("device-fault", "SGLANG_USE_AITER=0"),
    ),
    "a first request that a proxy refused": (
        [died("entrypoints/http_server.py _wait_and_warmup", last="AssertionError: res=<Response [503]>", rank="")],
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
        waited = died(*LAUNCH, "/usr/lib/multiprocessing/connection.py _recv", last="EOFError", rank="")
        assert only([f"{stamp(1)} Exit code: -9\n", waited]).rule == "killed-from-outside"

    def test_an_assertion_of_one_rank_is_no_split(self):
        finding = only([started(tp_size=1), died("models/gemma4.py __init__", last="AssertionError")])
        assert finding.rule == "other-crash"


FLUSH = "TimeoutError: The scheduler did not answer in time"
CAUGHT = f"""{stamp(3)} Error in request
Traceback (most recent call last):
  File "/srv/sglang/srt/managers/tokenizer_manager.py", line 12, in flush_cache
    return self.wait(raise_timeout_error=True)
{FLUSH}
"""
SLOTS = "RuntimeError: Out of memory. Try to lower your batch size."
PAIR = "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:18312"
PREFETCH = "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f (most recent call first):\n"
PREFETCH += '  File "/srv/cache_controller.py", line 12 in _page_transfer\n\n'
FIRED = "{} Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)\n"
BEATS = "tic start time: 00:05:09. last_heartbeat time: 00:00:01"
SILENT = f"Health check failed. Server couldn't get a response from detokenizer for last 20 seconds. {BEATS}\n"
SPLIT = "RuntimeError: split_with_sizes expects split_sizes to sum exactly to 8 (input tensor's size at dimension 0)"
LEAK = "ValueError: pool memory leak detected! available_size=90, protected_size=0, max_total_num_tokens=100\n"
NANS = "probability tensor contains either `inf`, `nan` or element < 0"
NOT_ALIVE = (
    f"{stamp(2)} Prefill transfer failed for request rank=0 req.rid='a' req.bootstrap_room=1 with exception "
    "KVTransferError(bootstrap_room=1): Decode instance could be dead, remote mooncake session a:1 is not alive\n"
)
OOM_OF_TWO = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB "
    "of which 1.00 GiB is free. Process 11 has 60.00 GiB memory in use. Process 12 has 9.50 GiB memory in use."
)


def hung(*frames: str, ranks: int = 2) -> str:
    """Return what a watchdog writes of ranks that all stand in these frames."""
    return "".join(
        f"{FIRED.format(stamp(400, f'TP{rank}'))}{stamp(400, f'TP{rank}')} Pyspy dump for PID {rank}:\n"
        f'Process {rank}: sglang::scheduler_TP{rank}\nThread {rank} (active): "MainThread"\n'
        + "".join(f"    {frame}\n" for frame in frames)
        + "\n"
        for rank in range(ranks)
    )


TOLD = {
    "a cache that is flushed while requests run": ([decode(1), CAUGHT], "abort every request first"),
    "drafts that find no slots after a retraction": (
        [
            started(speculative_algorithm="EAGLE"),
            *(decode(1), retraction(2)),
            died("managers/scheduler.py run_batch", "speculative/eagle_worker.py verify", last=SLOTS),
        ],
        "SGLang 14942",
    ),
    "a sampler that finds NaN in rows that fill a graph": (
        [decode(1), f"{stamp(2)} NaN in the probability\n"],
        "--disable-cuda-graph-padding",
    ),
    "two halves of a batch that share a buffer": (
        [
            started(enable_two_batch_overlap=True),
            *(decode(1), died("two_batch_overlap.py _model_forward_tbo", "layers/moe/topk.py select", last=ILLEGAL)),
        ],
        "once without --enable-two-batch-overlap: its halves",
    ),
    "a kernel of DeepGEMM that left its buffer": (
        [decode(1), died("layers/quantization/fp8_kernel.py w8a8_block_fp8_matmul_deepgemm", last=ILLEGAL)],
        "SGLANG_ENABLE_JIT_DEEPGEMM=0",
    ),
    "a capture that was stopped": (
        [
            f"{stamp(1)} Load weight begin. avail mem=20.00 GB\n",
            f"{stamp(9)} Capture cuda graph begin. This can take minutes. avail mem=8.00 GB\n",
            f"{stamp(900)} SIGTERM received. signum=15\n",
        ],
        "nvidia-nccl-cu12",
    ),
    "a sampler that finds NaN": ([decode(1), f"{stamp(2)} NaN in the probability\n"], "--sampling-backend pytorch"),
    "pages that a store wrote to its disk": (
        [decode(1), "E0429 client.cpp:700] Batch RPC call failed: Expected DiskDescriptor\n", decode(3)],
        "does not read them back",
    ),
    "a prefetch that crashed, and the ranks that waited for it": (
        [decode(1), PREFETCH, death(3, PAIR, "TP1")],
        "--hicache-storage-prefetch-policy wait_complete",
    ),
    "a thread of NCCL that crashed": (
        [decode(1), "Fatal Python error: Segmentation fault\n", " 0 /lib/libnccl.so.2(+0x5f) ncclProxyService\n"],
        "nvidia-nccl",
    ),
    "graphs that no rank leaves": (
        [decode(1), hung("cuGraphLaunch (libcuda.so.580)", "replay (torch/cuda/graphs.py:100)")],
        "SGLang 29548",
    ),
    "ranks that ask each other what the host cache wrote": (
        [
            *(started(enable_hierarchical_cache=True, tp_size=2), decode(1)),
            hung("all_reduce (torch/distributed/distributed_c10d.py:30)", "writing_check (hiradix_cache.py:780)"),
        ],
        "SGLang 28429",
    ),
    "a model that was compiled": (
        [started(enable_torch_compile=True), FIRED.format(stamp(400))],
        "once without --enable-torch-compile",
    ),
    "a stage that waits for itself": (
        [
            started(pp_size=2, max_running_requests=1),
            prefill(1, queued=3).replace("#running-req: 4", "#running-req: 0"),
            f"{stamp(309)} {SILENT}",
        ],
        "SGLang 23006",
    ),
    "a kernel that is loaded where others wait": (
        [decode(1), hung("cuModuleLoadData (libcuda.so.580)", "run (triton/runtime/jit.py:700)", ranks=1)],
        "CUDA_MODULE_LOADING=EAGER",
    ),
    "a check of the cache that does not end": (
        [decode(1), hung("sanity_check (sglang/srt/mem_cache/mamba_radix_cache.py:9)", ranks=1)],
        "SGLANG_ENABLE_TREE_CACHE_SANITY_CHECK",
    ),
    "a step that stands in a part of SGLang": (
        [decode(1), hung("fetch_new_loras (sglang/srt/lora/lora_manager.py:9)", ranks=1)],
        "it is in LoRA adapters",
    ),
    "pools that a watchdog counts in the middle of a step": (
        [
            started(enable_hierarchical_cache=True),
            *(decode(1), f"{stamp(400)} [full] total=100, available=30, evictable=60, protected=6\n", WATCHDOG),
        ],
        "until its watchdog fired",
    ),
    "a scheduler that stood still while one request ran": (
        [started(enable_hierarchical_cache=True), decode(1, running=1, queue=2), f"{stamp(309)} {SILENT}"],
        "it hung, or was idle",
    ),
    "ranks that may have dropped a request by their own clocks": (
        [started(tp_size=4), decode(1), f"{stamp(309)} {SILENT}".replace("00:05:09", "00:00:30")],
        "SGLANG_REQ_WAITING_TIMEOUT",
    ),
    "a session that was marked as dead": (
        [started(disaggregation_mode="prefill"), prefill(1), NOT_ALIVE],
        "restart this prefill server",
    ),
    "a draft's call that a library refuses": (
        [
            started(speculative_algorithm="EAGLE", enable_dp_attention=True, dp_size=2, tp_size=8),
            decode(1),
            died(
                *("speculative/eagle_worker_v2.py draft", "layers/attention/dsa_backend.py forward"),
                *("/opt/site-packages/sgl_kernel/flash_attn.py fwd",),
                last="RuntimeError: batch_size must be equal to batch_size_k",
            ),
        ],
        "--dp-size as large as --tp-size",
    ),
    "a stage's call that a library refuses": (
        [
            started(pp_size=2),
            decode(1),
            died(
                *("layers/attention/dsa_backend.py forward", "/opt/site-packages/sgl_kernel/flash_attn.py fwd"),
                last="RuntimeError: batch_size must be equal to batch_size_k",
            ),
        ],
        "once with --pp-size 1",
    ),
    "NaN of experts by another library": (
        [started(moe_runner_backend="flashinfer_trtllm"), decode(1), died("x.py f", last=f"RuntimeError: {NANS}")],
        "another --moe-runner-backend than flashinfer_trtllm",
    ),
    "copies to the host that hold up the loop": (
        [started(enable_hierarchical_cache=True), decode(1), f"{stamp(309)} {SILENT}"],
        "SGLang 30314",
    ),
    "a batch that is split by sizes of another": (
        [decode(1), died("managers/scheduler.py run_batch", "models/qwen3.py forward", last=SPLIT)],
        "differ in size",
    ),
    "drafts of a model with states that lose what they begin from": (
        [
            started(model_path="Qwen/Qwen3.5-35B", speculative_algorithm="NEXTN"),
            *steady(40, accept=3.1, rate=900),
            *steady(40, start=40, accept=1.1, rate=400),
        ],
        "extra_buffer_lazy",
    ),
    "a leak of a split server": ([started(disaggregation_mode="prefill"), LEAK], "SGLang 36926"),
    "a leak where chunks are mixed": ([started(enable_mixed_chunk=True), LEAK], "--enable-mixed-chunk"),
    "memory that another process holds": ([decode(1), death(2, OOM_OF_TWO)], "process 12 holds 9.5 GiB"),
    "ranks that meet after the pools": (
        [
            f"{stamp(1)} Load weight begin. avail mem=20.00 GB\n",
            *(f"{stamp(9)} Memory pool end. avail mem=8.00 GB\n", f"{stamp(900)} SIGTERM received. signum=15\n"),
        ],
        "--enforce-disable-flashinfer-allreduce-fusion",
    ),
    "experts that were being moved": (
        [
            started(enable_eplb=True),
            decode(1),
            died("managers/scheduler.py run_batch", "eplb/expert_location_updater.py update", last=PAIR),
        ],
        "without --enable-eplb",
    ),
    "a wrapper of LoRA that hides what the model reads": (
        [died("models/deepseek_v2.py forward", last="AttributeError: 'FusedMoEWithLoRA' object has no attribute 'x'")],
        "FusedMoEWithLoRA) does not hand on x",
    ),
    "an adapter whose share of a rank is empty": (
        [died("lora/mem_pool.py load_lora_weight_tensor", last=f"{BUFFER} does not match weight shape {EMPTY}.")],
        "--ep-size 1",
    ),
    "weights that fill the share, and the share that they need": (
        [died("mem_cache/kv_cache_configurator.py profile", last=NO_POOL)],
        "above 0.712, where weights alone fit; 0.76",
    ),
    "weights that no share leaves room beside": (
        [died("mem_cache/kv_cache_configurator.py profile", last=NO_POOL.replace("0.712", "0.931"))],
        "more GPUs (--tp)",
    ),
    "a copy in compressed-tensors that is called AWQ": (
        [
            started(model_path="/m/gemma-4-26B-A4B-it-AWQ", quantization="compressed-tensors"),
            died("layers/quantization/marlin_utils.py apply", last="ValueError: this is not as it should be"),
        ],
        "name another backend",
    ),
    "a package that lacks what the layers' preparation calls": (
        [died("layers/quantization/mxfp4.py process_weights_after_loading", last=NO_LAYOUT)],
        "installed triton_kernels has no make_layout",
    ),
    "a tokenizer of its own kind": (
        [died("managers/detokenizer_manager.py loop", "utils/a.py decode_plain", last=TIKTOKEN)],
        "TiktokenTokenizer, has no all_special_ids",
    ),
    "a peer that is gone without a word": (
        [decode(1), died("utils/common.py broadcast_pyobj", last=f"RuntimeError: {GONE}")],
        "its host's memory ran out",
    ),
    "a caller of SGLang of another release": (
        [died("/opt/site-packages/dynamo/sglang/args.py parse", last=NO_CONFIG)],
        "dynamo was written for another one",
    ),
    "a program around SGLang of another release": (
        [died("/opt/dynamo/inc.py run", last="TypeError: GenerateReqInput.__init__() missing 1 required x: 'y'")],
        "versions that belong together",
    ),
    "what a switch adds to a step that is captured": (
        [
            started(enable_expert_distribution_metrics=True, ep_size=8),
            died("layers/moe/topk.py forward", "eplb/expert_distribution.py collect", last=CAPTURING),
        ],
        "once without --enable-expert-distribution-metrics: its code failed there",
    ),
    "a header of the system that a compiler lacks": (
        [
            f"{died('mem_cache/cpp_utils/native_hash.py load', last=BUILD).rstrip()}\n"
            "a.cpp:3:10: fatal error: openssl/sha.h: No such file or directory\n",
        ],
        "openssl/sha.h, is missing",
    ),
    "a draft that takes a packed head for a whole one": (
        [
            started(model_path="/m/Qwen3-NVFP4", speculative_algorithm="DSPARK"),
            died("models/dspark.py compute_base_logits", last=f"RuntimeError: {PACKED}"),
        ],
        "lm_head as if it were whole",
    ),
    "a draft of another width, of a target that is not packed": (
        [
            started(model_path="/m/Qwen3", speculative_algorithm="DSPARK"),
            died("models/dspark.py compute_base_logits", last=f"RuntimeError: {PACKED}"),
        ],
        "does not fit this target",
    ),
    "a request that lacks what it is made of": (
        [
            decode(1),
            died(
                "managers/scheduler.py handle_embedding_request",
                "managers/schedule_batch.py __init__",
                last="TypeError: object of type 'NoneType' has no len()",
            ),
        ],
        "a router or its health check",
    ),
    "an HTTP worker that dies as often as it starts": (
        [
            started(tokenizer_worker_num=8),
            *(decode(1), f"{stamp(2)} INFO:     Child process [411] died\n", decode(3)),
        ],
        "--tokenizer-worker-num 1",
    ),
    "an image's embedding from the cache that is another's": (
        [decode(1), died("managers/mm_utils.py embed", last=SHORT)],
        "SGLang 32404",
    ),
    "an image without a mark, whose keys the client gave": (
        [decode(1), died("managers/mm_utils.py embed", last=SHORT.replace("ids=275", "ids=0"))],
        "mm_hashes",
    ),
    "copies in the host cache that a check refused": (
        [
            started(enable_hierarchical_cache=True),
            *(decode(1), died("mem_cache/hiradix_cache.py writing_check", last="AssertionError")),
        ],
        "--enable-hierarchical-cache",
    ),
}


@pytest.mark.parametrize("name", TOLD)
def test_the_next_step_is_named(name):
    lines, word = TOLD[name]
    first = found_in(lines)[0]
    assert word in " ".join((first.cause, *first.advice))
