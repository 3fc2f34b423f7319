"""Lines that explain what comes later: memory at start, what an allocation asked for, stacks of processes that hang.

Sources: model_executor/model_runner.py, managers/scheduler.py, mem_cache/common.py, utils/cudacore_pyspy_dump_utils.py.
"""

from __future__ import annotations

import re

from gemma4_triage.logs import (
    just_installed,
    other_platform,
    pasted,
    pictures_over_ranks,
    pip_found_nothing,
    values_asked,
)
from gemma4_triage.logs.facts import Place, Remark, Stack
from gemma4_triage.logs.late_pattern import pattern

COMMANDED = "commanded"
COMMANDS = (
    *(b"/release_memory_occupation HTTP/", b"/resume_memory_occupation HTTP/", b"/start_profile HTTP/"),
    *(b"/load_lora_adapter HTTP/", b"/unload_lora_adapter HTTP/", b"/init_weights_update_group HTTP/"),
    b"/destroy_weights_update_group HTTP/",
)
"""How answers say what was asked of a server beside requests, which it may end of; a pause is one of its own."""
MARKS = (
    (b'load_lora_adapter HTTP/1.1" 404', "no_such_path"),
    *(
        (b"GET /" + path + b' HTTP/1.1" 404', "no_probe_path")
        for path in (b"health_generate", b"health", b"healthz", b"readyz", b"livez", b"ready", b"live", b"readiness")
    ),
    (b"available req slots=", "request_slots"),
    (b"Load weight begin. avail mem=", "before_weights"),
    (b"Load weight end. ", "after_weights"),
    (b"Capture cuda graph begin. ", "before_graphs"),
    (b"apture cuda graph end. ", "graphs_end"),
    (b"Memory pool end. ", "pools_end"),
    (b"max_total_num_tokens=", "pools"),
    (b" pool sizes: full=", "pool_sizes"),
    (b" != length of ", "lengths_differ"),
    (b"Try to allocate ", "asked"),
    (b"Available full tokens: ", "free_full"),
    (b"Available swa tokens: ", "free_swa"),
    (b"Available swa: ", "free_swa"),
    (b"Available tokens: ", "free_full"),
    # As releases before 0.4.7 spell it.
    (b"Avaliable tokens: ", "free_full"),
    (b"Testing retraction. ", "retracts_on_purpose"),
    (b"batch_size()=", "hung_batch"),
    (b"but the state was deleted in TokenizerManager", "orphan"),
    (b"aborted last request", "aborted_last"),
    (b"Abort request", "abort"),
    (b"Abort running request", "abort"),
    (b" aborted.", "abort"),
    (b"isconnected from the client side", "abort"),
    (b"client closed request", "abort"),
    (b"Aborted by AbortReq", "abort"),
    (b"NO_AVAILABLE_HANDLE", "store_full"),
    (b"Setup Custom allreduce failed", "no_own_sums"),
    (b"data items provided than corresponding tokens found", "no_media_marks"),
    (b"Streaming session already has an active request", "busy_session"),
    (b"parameter coreDim is invalid", "npu_grid"),
    (b"fault kernel_name=", "npu_kernel"),
    # Of our own runtime: SGLang's accept length then counts steps without drafts as ones that accept nothing.
    (b"gemma4-triage: draft-policy: drafts where they pay", "draft_policy"),
    (b"local protection error", "transport_protection"),
    (b"modify QP to RTR", "transport_retry"),
    (b"ransport retry counter exceeded", "transport_retry"),
    (b"ransport retry count exceeded", "transport_retry"),
    (b"writeBody failed. Error: Bad address", "transport_no_gpu"),
    (b"onnection refused", "transport_refused"),
    (b"No RDMA devices found", "transport_no_rdma"),
    (b"Found 0 HCAs", "transport_no_rdma"),
    (b"onnection timed out", "transport_timed_out"),
    (b"data transfer timeout", "transport_slow"),
    (b"Failed to complete transfers after", "transport_slow"),
    (b"SpecDecoding metrics: ", "vllm_drafts"),
    (b"Application startup complete", "http_ready"),
    (b"Start of pd disaggregation warmup", "pd_warmup"),
    (b", in sglang::", "own_native"),
    (b"Prefill. latency:", "bench_prefill"),
    (b"[topk_topp_sampler.py:", "vllm"),
    (b"EngineCore failed to start", "vllm"),
    (b"EngineCore encountered a fatal error", "vllm"),
    (b"[gpu_model_runner.py:", "vllm"),
    (b"Initializing a V1 LLM engine", "vllm"),
    (b'"n": ', "samples"),
    (b"Avg prompt throughput: ", "vllm_serves"),
    (b"profiling/warmup run took", "vllm_start"),
    (b"Available KV cache memory: ", "vllm_start"),
    (b"Maximum concurrency for ", "vllm_start"),
    (b"torch.compile took", "vllm_start"),
    (b"Graph capturing finished in", "vllm_start"),
    (b"Cudagraph mode ", "vllm_graph_sizes"),
    (b"Setting attention block size to ", "vllm_block"),
    (b"GPU KV cache size: ", "vllm_pool"),
    *(
        (name, "bench_client")
        for name in (
            b"sglang.bench_serving",
            b"bench_serving.py --",
            b"vllm bench serve",
            b"evalscope perf",
            b"genai-bench",
            b"guidellm benchmark",
        )
    ),
    (b"] Exception: ", "own_exception"),
    # The first line of a message that begins below its exception.
    (b"attempt has been made to start a new process", "unguarded_main"),
    (b"sglang.bench_latency", "benchmark"),
    (b"sglang.bench_offline_throughput", "benchmark"),
    (b"sglang.bench_one_batch", "benchmark"),
    (b"sglang.bench_offline", "benchmark"),
    (b"Service discovery enabled", "discovery"),
    (b"Policy: CacheAware", "cache_aware"),
    (b"Removed worker", "worker_removed"),
    (b"fp8e4nv not supported", "no_fp8_e4m3"),
    (b"fp8e4nv data type is not supported", "no_fp8_e4m3"),
    (b"NIXL_ERR_", "transport_nixl"),
    # SGLang's router on what a worker answered to a client's mistake.
    (b" status=4", "router_refused"),
    (b" status_code=4", "router_refused"),
    # What suspects.py asks for: scales, and layers that keep states.
    (b"Using FP8 KV cache but no scaling factors", "no_kv_scales"),
    (b"FlashAttention3 only supports fp8_e4m3", "e5m2_on_triton"),
    (b"Mamba Cache is allocated", "states"),
    (b"https://huggingface.co/", "hub"),
    # A start that somebody ended before it was one.
    (b"fired up and ready to roll", "ready"),
    (b"SIGTERM received", "sigterm"),
    (b"DeepGEMM JIT Pre-Compile session", "deep_gemm"),
    (b"Capture cuda graph bs [", "graph_sizes"),
    (b"Capture target decode CUDA graph begin", "graph_sizes"),
    # Work that holds a scheduler up, and its end.
    (b"[EPLBManager] rebalance start", "busy"),
    (b"Loading JIT ops", "busy"),
    (b"Try DeepGEMM JIT Compiling", "busy"),
    (b"Start load Lora adapter", "busy"),
    (b"Start unload Lora adapter", "busy"),
    (b"LoRA adapter unloading completes", "busy_no_more"),
    (b"LoRA adapter loading completes", "busy_no_more"),
    (b"[EPLBManager] rebalance end", "experts_moved"),
    (b"Finished loading JIT ops", "busy_no_more"),
    (b"_assert_async", "device_assert"),
    (b"index out of bounds: 0 <= ", "bound_asserted"),
    (b"kernel: _Z", "faulted_kernel"),
    (b"Kernel Name: ", "faulted_kernel"),
    (b"Init torch distributed begin", "groups_begin"),
    (b"Init nccl begin", "groups_begin"),
    (b"using different TP sizes", "split_differs"),
    (b"Init torch distributed ends", "groups_end"),
    (b"NCCL WARN", "nccl_warn"),
    (b"Start update_weights", "weights_put"),
    (b"Update engine weights online", "weights_put"),
    (b"/update_weights", "weights_put"),
    *((path, COMMANDED) for path in COMMANDS),
    (b".wq_a.qweight not found in params_dict", "low_rank_left_out"),
    (b"not found in params_dict", "left_out"),
    (b"are not initialized from checkpoints", "not_loaded"),
    (b"Ignore import error when loading", "not_imported"),
    (b"host memory for hierarchical", "host_pool"),
    (b"Cannot map memory with base addr", "host_not_mapped"),
    (b"NVRM: failed to allocate page table", "host_not_mapped"),
    # Requests that a server refused, which is its clients' doing; refused_by_check.py says why.
    (b"longer than the model", "refused_length"),
    (b"exceeds the maximum allowed length", "refused_length"),
    (b"longer than the maximum model length", "refused_length"),
    (b"maximum context length", "refused_length"),
    (b"exceeds the maximum number of tokens", "refused_length"),
    (b"lease add `--", "refused_argument"),
    (b"lease set `--", "refused_argument"),
    (b"lease launch with `--", "refused_argument"),
    (b"LoRA is not enabled", "refused_argument"),
    (b"with --enable-", "refused_argument"),
    (b"Please relaunch without --", "refused_argument"),
    (b"Error in request: ", "refused_request"),
    (b"BadRequest", "refused_request"),
    (b" validation error", "refused_request"),
    (b"Skip invalid ", "refused_request"),
    (b"preprocessing timed out", "refused_request"),
    (b"Error code: 400", "refused_request"),
    (b'/embeddings HTTP/1.1" 400', "refused_embeddings"),
    (b'HTTP/1.1" 400', "answered_400"),
    (b"literal_error", "refused_form"),
    (b'HTTP/1.1" 422', "answered_422"),
    (b"mooncake::", "native_library"),
    (b"mooncake/engine.so", "native_library"),
    (b"exceeds registered buffer", "transport_outside"),
    (b"Failed to get segment descriptor for segment", "transport_outside"),
    (b"Address not registered by any device", "transport_outside"),
    (b"hipErrorStreamCapture", "capture_refused"),
    (b"is not a valid argument for this processor", "processor_passes_over"),
    (b"nixl.libs/", "native_library"),
    (b"coredump: kernel ", "dumped_kernel"),
    (b"coredump names ", "dumped_kernel"),
    (b"Capture prefill cuda graph begin", "prefills_captured"),
    (b"target prefill CUDA graph begin", "prefills_captured"),
    (b"Capturing batches (bs=", "captures"),
    (b"target prefill CUDA graph end", "prefill_graphs"),
    (b"Capture prefill cuda graph end", "prefill_graphs"),
    (b"Capture prefill CUDA graph end", "prefill_graphs"),
    (b"Disable prefill CUDA graph because", "prefills_eager"),
    (b" keys requested, ", "keys_returned"),
    (b"speculators_model_type", "speculators"),
    (b"libnixl", "native_library"),
    (b"ncclProxy", "native_library"),
    (b"libnccl", "native_library"),
    (b"nixlUcx", "native_library"),
    (b"Bidirectional attention for image tokens requires", "needs_triton"),
    (b"Piecewise CUDA Graph failed with error", "prefill_graph"),
    (b" for prefill runner", "prefill_runner"),
    (b"Capture draft cuda graph begin", "draft_graphs"),
    (b"Capture draft CUDA graph begin", "draft_graphs"),
    (b"Capture draft extend cuda graph begin", "draft_graphs"),
    (b"--cuda-graph-backend-prefill=", "prefill_graph"),
    (b"Using a slow tokenizer", "slow_tokenizer"),
    (b"due to insufficient hits (0)", "prefetch_revoked"),
    *((name, "store_unread") for name in (b"is ever read back", b"never read back", b"are never read", b", Get 0")),
    (b"Patched sglang.", "patched"),
    *(
        (name, "rtx_blackwell")
        for name in (b"NVIDIA RTX PRO 6000 B", b"NVIDIA GeForce RTX 50", b"NVIDIA RTX PRO 5000 B")
    ),
    *((name, "blackwell") for name in (b"NVIDIA B200", b"NVIDIA B300", b"NVIDIA GB200", b"NVIDIA GB300")),
    (b'"content": "thought\\n', "thoughts_in_content"),
    (b"Use trtllm_mha", "trtllm_chosen"),
    (b"Forcing TRITON_ATTN", "vllm_forced_triton"),
    (b"ache flushed successfully", "flushed"),
    (b"Regular { worker_urls: [] }", "no_workers"),
    (b"Starting router on ", "router_starts"),
    (b"GET /v1/models status=5", "router_hands_on"),
    (b"GET /get_model_info status=5", "router_hands_on"),
    (b"GET /get_server_info status=5", "router_hands_on"),
    (b"Failed to load tokenizer '", "router_no_tokenizer"),
    (b"Available mamba: ", "free_mamba"),
    (b"Exception in background task", "background"),
    (b"Pyspy failed to dump", "no_pyspy"),
    (b"errors detected in the compilation", "compiler"),
    (b"coreDim=", "npu_grid"),
    *(
        (name, "picture_unseen")
        for name in (b"as if never seen", b"never sees the ", b"not see the image", b"not see the picture")
    ),
    *((name, "picture_unseen") for name in (b"mage is ignored", b"icture is ignored", b"mages are ignored")),
    (b"/usr/local/nvidia/lib64", "libraries_of_gke"),
    (b"GKE", "libraries_of_gke"),
    # What somebody writes of a server beside a stack of it.
    (b"not answer", "stands"),
    (b"o batch line", "stands"),
    (b"any reply", "stands"),
    (b" no reply", "stands"),
    (b"any answer", "stands"),
    (b" no answer", "stands"),
    (b"any response", "stands"),
    (b" no response", "stands"),
    (b"o progress", "stands"),
    (b" hangs", "stands"),
    (b" stuck", "stands"),
    (b"othing more", "stands"),
    (b"frozen", "stands"),
    (b"o line after", "stands"),
    (b"othing comes", "stands"),
    (b"hen nothing", "stands"),
    (b"othing follows", "stands"),
    (b"othing happens", "stands"),
    (b"answered any more", "stands"),
    (b"othing more is", "stands"),
    (b"lashinfer allreduce backend", "fused_sums"),
    (b"Allreduce norm fusion workspace", "fused_sums"),
    (b" via P2P/", "nccl_p2p"),
    (b"gai error", "name_unknown"),
    (b"Name or service not known", "name_unknown"),
    (b"failure in name resolution", "name_unknown"),
    (b"=compute_", "compiled_for"),
    (b"cubin only", "compiled_for"),
    (b" fatal error: ", "compiler"),
    (b"requires .target sm_", "compiler"),
    (b"CMake Error", "compiler"),
    (b"undefined reference to", "compiler"),
    (b"cannot find -l", "compiler"),
    (b" error: use of", "compiler"),
    (b": error: ", "compiler"),
    (b"ompute capability", "capability"),
    (b"CUDA_VISIBLE_DEVICES')='", "visible"),
    (b"driver on your system is too old", "old_driver"),
    (b"Mamba cache mode is set to", "vllm_states"),
    (b"HugePages_Total:", "huge_pages"),
    (b"Cancelled via cancel scope", "cancelled"),
    (b"Abort transfer queue request", "transfer_aborted"),
    (b"FlashInfer workspace size check failed", "workspace_check"),
    (b"transformers serve", "served_by_transformers"),
    (b"Resolved architecture: Transformers", "generic_class"),
    # What somebody wrote down of the host's memory, again and again.
    (b"# nvidia-smi", "gpu_memory"),
    (b"kubectl top", "memory_seen"),
    (b"docker stats", "memory_seen"),
    (b"VmRSS", "memory_seen"),
    (b"rss=", "memory_seen"),
    (b"RSS ", "memory_seen"),
    (b"RSS:", "memory_seen"),
    (b"Driver was not detected or is too old", "old_driver"),
    (b"nvcc: not found", "compiler"),
    (b"hipcc: not found", "compiler"),
    (b"_marlin during runtime", "made_marlin"),
    (b"hared experts fusion optimization enabled", "experts_fused"),
    (b"Using ROCm AITER", "aiter"),
    (b"ROCM_AITER", "aiter"),
    # Of vLLM's processes that wait for each other, and of what they did last.
    (b"No available shared memory broadcast block found", "vllm_waits"),
    (b"Capturing CUDA graph", "vllm_captures"),
    (b"llreduce enabled", "own_sums"),
    (b"llreduce first dispatch", "own_sums"),
    (b"Score: ", "scored"),
    (b"ccuracy: ", "scored"),
    *((b"|" + name, "score_row") for name in (b"exact_match", b"acc", b"pass@1")),
    # Gauges of /metrics, which people ask for and paste.
    (b"num_grammar_queue_reqs{", "grammar_gauge"),
    (b"num_running_reqs{", "running_gauge"),
    *pasted.MARKS,
    *values_asked.MARKS,
    *other_platform.MARKS,
    *pip_found_nothing.MARKS,
    *just_installed.MARKS,
    *pictures_over_ranks.MARKS,
)
OF_A_START = frozenset(
    {"before_weights", "after_weights", "before_graphs", "pools_end", "pools", "ready", "graph_sizes"}
    | {"groups_begin", "groups_end", "deep_gemm", "vllm_drafts", "vllm_start", "vllm_serves", "http_ready"}
    | {"bench_prefill"}
)
"""What a server alone writes, most of it as it starts: a log that has nothing else is a server's all the same."""
ORPHANS = pattern(rb"output for (?:self\.)?rid=(\S+)")
"""What names a request whose outputs nobody waits for."""
FIRST_TOO = (
    "before_weights",
    "after_weights",
    "left_out",
    "hung_batch",
    "compiler",
    "memory_seen",
    "vllm_waits",
    "own_native",
    "bench_prefill",
)
"""Remarks of which the first of a start is kept beside the last, as "first_NAME": a target loads before its draft."""
STACKS = (b"Pyspy dump for PID ", b": sglang::scheduler", b'): "MainThread"')
DUMPED = "pyspy_dump"
"""SGLang's own line above what py-spy printed of a process: its watchdog asks for that."""
MOST_STACKS = 16
_LONGEST_TEXT = 400
_LONGEST_STACK = 200  # lines
_FRAMES = 12
_PROCESS = pattern(rb"sglang::scheduler((?:_[A-Z]+\d+)*)")
_PYSPY_FRAME = pattern(rb"\s+([\w.<>:~ *()]{1,120}?) \(([^()]{1,200})\)\s*(?:#.*)?$")
_THREAD = pattern(rb"\s*Thread ")


def number_in(text: str, name: str) -> float | None:
    """Return the number after a name, as in "avail mem=27.80 GB" or "Try to allocate 8192 tokens"; None if it lacks."""
    found = re.search(rf"{re.escape(name)}\s*=?\s*(\d+(?:\.\d+)?)", text)
    return None if found is None else float(found[1])


def remark(line: bytes, rank: str, place: Place) -> Remark:
    """Return a line with one of MARKS as it stands."""
    return Remark(place, rank, line[:_LONGEST_TEXT].decode(errors="replace").strip())


STANDING = "standing engine "
"""Before an engine's name, and " 1" to " 3": vLLM's first, second and last line in a row by which it stands."""
_STANDS = pattern(
    r"Avg prompt throughput: 0\.0 .{0,40}generation throughput: 0\.0 .{0,20}Running: 0 reqs,.{0,30}?"
    r"(?:Waiting|Pending): [1-9]\d* reqs"
)
_ENGINE = pattern(r"Engine (\d{1,4}): ")
_MOST_ENGINES = 64


def keep_standing(kept: dict[str, Remark], name: str) -> None:
    """Keep vLLM's lines in a row by which requests wait and none runs; a line by which one runs ends them."""
    if name != "vllm_serves":
        return
    said = kept[name]
    found = _ENGINE.search(said.text)
    lines = [f"{STANDING}{found[1] if found else ''} {number}" for number in (1, 2, 3)]
    if _STANDS.search(said.text) is None:
        for line in lines:
            kept.pop(line, None)
    elif len(kept) < len(MARKS) + 3 * _MOST_ENGINES:
        kept[next((line for line in lines if line not in kept), lines[-1])] = said


class StackReader:
    """Reads what py-spy printed of one process after another; `inside` says whether the next line may belong to one."""

    def __init__(self) -> None:
        self.inside = False
        self.stacks: list[Stack] = []
        self._place, self._rank = Place(0), ""
        self._frames: list[str] = []
        self._left = 0
        self._main = self._threads = False

    def add(self, stack: Stack) -> None:
        """Take a stack that stands in one line."""
        if len(self.stacks) < MOST_STACKS:
            self.stacks.append(stack)

    def begin(self, line: bytes, rank: str, place: Place) -> None:
        """Take note of a line with one of STACKS; people paste the main thread without what names its process."""
        if self.inside and not self._frames:
            # py-spy names the process below SGLang's own line.
            return
        self.end()
        named = _PROCESS.search(line)
        rank = rank or (named[1].replace(b"_", b" ").decode().strip() if named else "")
        self.inside, self._left = True, _LONGEST_STACK
        self._rank, self._place, self._frames = rank, place, []
        self._main = self._threads = _THREAD.match(line) is not None

    def line(self, line: bytes) -> bool:
        """Say whether the line belongs to the stack."""
        self._left -= 1
        # Dumps of several processes, one right below the other, are a stack each.
        another = line.startswith(b"Process ") and bool(self._frames)
        if (
            another
            or self._left < 0
            or (line and not line[:1].isspace() and not line.startswith((b"Process ", b"Thread ", b"Python ")))
        ):
            self.end()
            return False
        if line.startswith(b"Thread "):
            # Of all threads the main one holds the loop; without names the first one is it.
            self._main = b"MainThread" in line or (not self._frames and b'"' not in line)
            self._threads = True
        # People paste a process' frames right below its name.
        elif (self._main or not self._threads) and len(self._frames) < _FRAMES and (match := _PYSPY_FRAME.match(line)):
            self._frames.append(f"{match[2].decode(errors='replace')} {match[1].decode(errors='replace')}")
        return True

    def end(self) -> None:
        """Keep the stack that is open, if one is."""
        if self.inside and self._frames and len(self.stacks) < MOST_STACKS:
            self.stacks.append(Stack(self._place, self._rank, tuple(self._frames)))
        self.inside = False


def keep_benchmark(kept: dict[str, Remark], line: bytes, place: Place) -> None:
    """Keep a command that runs a benchmark without a server, as MARKS knows it in any other line."""
    if any(mark in line for mark, name in MARKS if name == "benchmark"):
        kept.setdefault("benchmark", Remark(place, "", line[:400].decode(errors="replace").strip()))
