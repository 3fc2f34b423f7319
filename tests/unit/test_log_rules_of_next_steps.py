"""Classes of public incidents: what a finding says to do next."""

import pytest

from made_logs import ILLEGAL, death, decode, died_in, found_in, prefill, retraction, stamp, started, steady

GONE = "[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:18312"
WATCHDOG = f"{stamp(400, 'TP0')} Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)\n"
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
            died_in("managers/scheduler.py run_batch", "speculative/eagle_worker.py verify", last=SLOTS),
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
            *(decode(1), died_in("two_batch_overlap.py _model_forward_tbo", "layers/moe/topk.py select", last=ILLEGAL)),
        ],
        "once without --enable-two-batch-overlap: its halves",
    ),
    "a kernel of DeepGEMM that left its buffer": (
        [decode(1), died_in("layers/quantization/fp8_kernel.py w8a8_block_fp8_matmul_deepgemm", last=ILLEGAL)],
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
            died_in(
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
            died_in(
                *("layers/attention/dsa_backend.py forward", "/opt/site-packages/sgl_kernel/flash_attn.py fwd"),
                last="RuntimeError: batch_size must be equal to batch_size_k",
            ),
        ],
        "once with --pp-size 1",
    ),
    "NaN of experts by another library": (
        [started(moe_runner_backend="flashinfer_trtllm"), decode(1), died_in("x.py f", last=f"RuntimeError: {NANS}")],
        "another --moe-runner-backend than flashinfer_trtllm",
    ),
    "copies to the host that hold up the loop": (
        [started(enable_hierarchical_cache=True), decode(1), f"{stamp(309)} {SILENT}"],
        "SGLang 30314",
    ),
    "a batch that is split by sizes of another": (
        [decode(1), died_in("managers/scheduler.py run_batch", "models/qwen3.py forward", last=SPLIT)],
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
            died_in("managers/scheduler.py run_batch", "eplb/expert_location_updater.py update", last=PAIR),
        ],
        "without --enable-eplb",
    ),
    "a wrapper of LoRA that hides what the model reads": (
        [
            died_in(
                "models/deepseek_v2.py forward", last="AttributeError: 'FusedMoEWithLoRA' object has no attribute 'x'"
            )
        ],
        "FusedMoEWithLoRA) does not hand on x",
    ),
    "an adapter whose share of a rank is empty": (
        [died_in("lora/mem_pool.py load_lora_weight_tensor", last=f"{BUFFER} does not match weight shape {EMPTY}.")],
        "--ep-size 1",
    ),
    "weights that fill the share, and the share that they need": (
        [died_in("mem_cache/kv_cache_configurator.py profile", last=NO_POOL)],
        "above 0.712, where weights alone fit; 0.76",
    ),
    "weights that no share leaves room beside": (
        [died_in("mem_cache/kv_cache_configurator.py profile", last=NO_POOL.replace("0.712", "0.931"))],
        "more GPUs (--tp)",
    ),
    "a copy in compressed-tensors that is called AWQ": (
        [
            started(model_path="/m/gemma-4-26B-A4B-it-AWQ", quantization="compressed-tensors"),
            died_in("layers/quantization/marlin_utils.py apply", last="ValueError: this is not as it should be"),
        ],
        "name another backend",
    ),
    "a package that lacks what the layers' preparation calls": (
        [died_in("layers/quantization/mxfp4.py process_weights_after_loading", last=NO_LAYOUT)],
        "installed triton_kernels has no make_layout",
    ),
    "a tokenizer of its own kind": (
        [died_in("managers/detokenizer_manager.py loop", "utils/a.py decode_plain", last=TIKTOKEN)],
        "TiktokenTokenizer, has no all_special_ids",
    ),
    "a peer that is gone without a word": (
        [decode(1), died_in("utils/common.py broadcast_pyobj", last=f"RuntimeError: {GONE}")],
        "its host's memory ran out",
    ),
    "a caller of SGLang of another release": (
        [died_in("/opt/site-packages/dynamo/sglang/args.py parse", last=NO_CONFIG)],
        "dynamo was written for another one",
    ),
    "a program around SGLang of another release": (
        [died_in("/opt/dynamo/inc.py run", last="TypeError: GenerateReqInput.__init__() missing 1 required x: 'y'")],
        "versions that belong together",
    ),
    "what a switch adds to a step that is captured": (
        [
            started(enable_expert_distribution_metrics=True, ep_size=8),
            died_in("layers/moe/topk.py forward", "eplb/expert_distribution.py collect", last=CAPTURING),
        ],
        "once without --enable-expert-distribution-metrics: its code failed there",
    ),
    "a header of the system that a compiler lacks": (
        [
            f"{died_in('mem_cache/cpp_utils/native_hash.py load', last=BUILD).rstrip()}\n"
            "a.cpp:3:10: fatal error: openssl/sha.h: No such file or directory\n",
        ],
        "openssl/sha.h, is missing",
    ),
    "a draft that takes a packed head for a whole one": (
        [
            started(model_path="/m/Qwen3-NVFP4", speculative_algorithm="DSPARK"),
            died_in("models/dspark.py compute_base_logits", last=f"RuntimeError: {PACKED}"),
        ],
        "lm_head as if it were whole",
    ),
    "a draft of another width, of a target that is not packed": (
        [
            started(model_path="/m/Qwen3", speculative_algorithm="DSPARK"),
            died_in("models/dspark.py compute_base_logits", last=f"RuntimeError: {PACKED}"),
        ],
        "does not fit this target",
    ),
    "a request that lacks what it is made of": (
        [
            decode(1),
            died_in(
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
        [decode(1), died_in("managers/mm_utils.py embed", last=SHORT)],
        "SGLang 32404",
    ),
    "an image without a mark, whose keys the client gave": (
        [decode(1), died_in("managers/mm_utils.py embed", last=SHORT.replace("ids=275", "ids=0"))],
        "mm_hashes",
    ),
    "copies in the host cache that a check refused": (
        [
            started(enable_hierarchical_cache=True),
            *(decode(1), died_in("mem_cache/hiradix_cache.py writing_check", last="AssertionError")),
        ],
        "--enable-hierarchical-cache",
    ),
}


@pytest.mark.parametrize("name", TOLD)
def test_the_next_step_is_named(name):
    lines, word = TOLD[name]
    first = found_in(lines)[0]
    assert word in " ".join((first.cause, *first.advice))


SHORTENED = f"{stamp(3)} Scheduler hit an exception: Traceback (most recent call last):\n  ...\n"


class TestShortenedTracebacks:
    """Whoever pastes a traceback may leave out its frames, and the name of its exception."""

    def test_torchs_words_end_a_traceback_without_the_name_of_the_exception(self):
        (found,) = found_in([f"{SHORTENED}CUDA error: an illegal memory access was encountered\n"])
        assert found.rule == "illegal-access"

    @pytest.mark.parametrize(("ratio", "leads"), [("0.1", True), ("0.8", False), ("", False)])
    def test_a_small_pool_of_the_window_is_left_as_it_is_first(self, ratio, leads):
        asked = {"swa_full_tokens_ratio": ratio} if ratio else {}
        (found,) = found_in([started(**asked), f"{SHORTENED}CUDA error: an illegal memory access was encountered\n"])
        assert found.advice[0].startswith("once without --swa-full-tokens-ratio") is leads

    def test_a_copy_to_the_host_is_of_a_retraction(self):
        lines = [
            decode(1, full=0.99, queued=11),
            f"{SHORTENED}  ... allocator.get_cpu_copy(...)\nNotImplementedError\n",
        ]
        advice = " ".join(found_in(lines)[0].advice)
        assert "room enough that none is retracted" in advice
        # Without a line of a prefill nothing is known of an empty prompt.
        assert "empty prompt" not in advice

    def test_what_is_said_of_every_start_stands_behind_the_part_that_failed(self):
        failed = '  File "/s/sglang/srt/lora/lora_manager.py", line 9, in init_lora_modules\n'
        advice = found_in([f"{SHORTENED}{failed}TypeError\n"])[0].advice
        assert advice[0].startswith("once without the LoRA adapters")
        assert advice[-1].startswith("it died before its first batch")


@pytest.mark.parametrize(("page", "told"), [(64, True), (1, False)])
def test_a_decode_that_lacks_pages_and_no_tokens_leads_to_their_count(page, told):
    asked = "Try to allocate 148 tokens.\nAvaliable tokens: 2048\n"
    text = f"RuntimeError: Decode out of memory. Try to lower your batch size.\n{asked}"
    found = found_in([started(page_size=page), text])[0]
    assert found.advice[0].startswith("a release that counts whole pages before a decode") is told


def test_values_that_a_benchmark_without_a_server_made_up_are_said_to_be_that():
    nan = "[TP0] Detected errors during sampling! NaN in the probability.\n"
    benchmark = found_in(["$ python -m sglang.bench_latency --model-path m --tp 2\n", nan])[0]
    assert "feeds token ids that are no text" in benchmark.cause
    assert "feeds token ids" not in found_in(["$ python -m sglang.launch_server --model-path m --tp 2\n", nan])[0].cause
