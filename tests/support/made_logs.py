"""Logs made of lines as SGLang 0.5.13 writes them, for what no CPU can show: many ranks, long runs, CUDA's messages.

One is for each rule, which fires on it alone.
"""

from collections.abc import Iterator

from gemma4_triage.finding import Finding
from gemma4_triage.logs.catalog import findings
from gemma4_triage.logs.read import read_log


def stamp(second: int, rank: str = "") -> str:
    """Return a stamp such as [2026-01-01 00:00:07 TP0], for 7 seconds after midnight of the first day."""
    day, rest = divmod(second, 86400)
    clock = f"{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    return f"[2026-01-{1 + day:02d} {clock}{' ' + rank if rank else ''}]"


def prefill(second: int, new: int = 1000, cached: int = 0, full: float = 0.5, swa: float = 0.5, **other) -> str:
    """other: seqs, queued, rank."""
    return (
        f"{stamp(second, other.get('rank', ''))} Prefill batch, #new-seq: {other.get('seqs', 1)}, #new-token: {new}, "
        f"#cached-token: {cached}, full token usage: {full:.2f}, swa token usage: {swa:.2f}, #running-req: 4, "
        f"#queue-req: {other.get('queued', 0)}, #pending-token: 0, cuda graph: False, "
        "input throughput (token/s): 1000.00\n"
    )


def decode(second: int, accept: float = 2.5, rate: float = 900.0, full: float = 0.5, swa: float = 0.5, **other) -> str:
    """other: running, queued, rank, graph."""
    return (
        f"{stamp(second, other.get('rank', ''))} Decode batch, #running-req: {other.get('running', 8)}, "
        f"#full token: 1000, full token usage: {full:.2f}, #swa token: 500, swa token usage: {swa:.2f}, "
        f"accept len: {accept:.2f}, accept rate: 0.50, cuda graph: {other.get('graph', True)}, "
        f"gen throughput (token/s): {rate:.2f}, "
        f"#queue-req: {other.get('queued', 0)}\n"
    )


def retraction(second: int, requests: int = 1, rank: str = "") -> str:
    return (
        f"{stamp(second, rank)} KV cache pool is full. Retract requests. #retracted_reqs: {requests}, "
        "#new_tokens_gained: 1000, #new_token_ratio: 0.7000 -> 0.8000\n"
    )


def death(second: int, last_line: str, rank: str = "", frame: str = "scheduler.py", function: str = "step") -> str:
    """Return a scheduler's traceback."""
    return (
        f"{stamp(second, rank)} Scheduler hit an exception: Traceback (most recent call last):\n"
        f'  File "/srv/sglang/{frame}", line 12, in {function}\n'
        f"    call()\n{last_line}\n\n"
    )


def steady(lines: int, start: int = 0, **values) -> Iterator[str]:
    """Decode lines, one a second. values: of `decode`."""
    return (decode(start + second, **values) for second in range(lines))


ILLEGAL = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
ASSERTION = "torch.AcceleratorError: CUDA error: device-side assert triggered"
VERIFY_INPUT = "AttributeError: 'FrozenKVMTPVerifyInput' object has no attribute 'merge_batch'"
LMCACHE = "AssertionError: Committed KV cache already freed (self.kv_committed_len=14)"
NO_SLOT = "RuntimeError: Decode out of memory. Try to lower your batch size."

CANARY = (
    "kv_canary violation: launch_tag=PER_FORWARD_K_SWA fail_reason=TOKEN slot_idx=812 position=44 stored_token=7 "
    "expected_token=9 stored_chain_hash=0x01 expected_aux=0x02"
)
HEADS = "RuntimeError: FlashAttention forward only supports head dimension at most 256"
PLACEHOLDERS = (
    "RuntimeError: Insufficient multimodal embedding length: num_mm_tokens_in_input_ids=268 vs "
    "num_mm_tokens_in_embedding=256."
)
COLLECTIVE = (
    "[rank{0}]:[E1124 ProcessGroupNCCL.cpp:632] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=1201, OpType=ALLREDUCE, NumelIn=5376)\n"
)

TRACEBACK = "Traceback (most recent call last):\n"
MISFIT = "RuntimeError: Sizes of tensors must match except in dimension 1. Expected size 896 but got size 3584"
BOOTSTRAP = (
    f"{stamp(300)} Prefill bootstrap failed for request rank=0 with exception KVTransferError(bootstrap_room=7): "
    "Request 7 timed out after 300.0s in KVPoll.Bootstrapping\n"
)


def starved(begin: int, running: int = 32, rate: float = 20.0) -> list[str]:
    """Return prefills of a full queue, then the one decode line between them and the next."""
    prompts = [prefill(begin + at, new=8192, queued=40) for at in range(6)]
    return [*prompts, decode(begin + 7, running=running, rate=rate, queued=40)]


# Of what this CPU cannot produce.
ROOM = "max_total_num_tokens=100000, chunked_prefill_size=2048, max_running_requests=4, context_len=131072\n"
BESIDE_ROOM = "Decode batch, #running-req: {}, #token: 9000, token usage: 0.05, gen throughput (token/s): 170.0, "
BESIDE_ROOM += "#queue-req: 1\n"
MOVING = "Decode batch, #running-req: {}, #token: 900, token usage: 0.04, #transfer-req: {}, gen throughput "
MOVING += "(token/s): 58.0, #queue-req: 0\n"
TOP = "2026-05-31T2{}:10:30Z kubectl top pod serves-0 --containers   server   1301m   {}Mi\n"
TOO_LONG = "Request 5c1f7ed0 exceeds the maximum number of tokens: {} > {}\n"

SESSION = '{"error":{"message":"Streaming session already has an active request."}}\n'
OF_A_CONNECTOR = (
    """$ vllm serve m --kv-transfer-config '{"kv_connector":"MooncakeConnector","kv_role":"kv_consumer"}'\n"""
)
STANDS = "(APIServer pid=1) INFO 03-04 0{}:52:02 [loggers.py:248] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg "
STANDS += "generation throughput: 0.0 tokens/s, Running: 0 reqs, Waiting: 64 reqs, GPU KV cache usage: 99.4%\n"

MADE = {
    "busy-session": [decode(1, running=1), decode(9, running=0), SESSION],
    "blocks-kept": [
        OF_A_CONNECTOR,
        "(Worker pid=2) ERROR 03-04 07:12:40 [mooncake_connector.py:702] Mooncake transfer failed: reset\n",
        *(STANDS.format(hour) for hour in (7, 8)),
    ],
    "one-waits": [
        f"{stamp(0)} {ROOM}",
        *(f"{stamp(second)} {BESIDE_ROOM.format(3)}" for second in (10, 30, 50, 70)),
    ],
    "requests-unserved": [
        decode(1, running=0),
        *(f"{stamp(second)} Receive: obj=GenerateReqInput(rid='r', text='hi')\n" for second in (10, 200, 400)),
    ],
    "noted-silence": [decode(1, running=3), "# from here on nothing is answered, GPUs at 0%\n"],
    "batch-of-nan": [
        f"{stamp(1)} Decode batch, #running-req: 2, #token: 22, token usage: nan, accept len: nan, cuda graph: True, "
        "gen throughput (token/s): 88.0, #queue-req: 0\n"
    ],
    "starts-again": [
        f"{stamp(second)} server_args=ServerArgs(model_path='m', tp_size=1, watchdog_timeout=300)\n"
        f"{stamp(second + 1)} Load weight begin. avail mem=138.5 GB\n"
        for second in (1, 30, 60)
    ],
    "noted-trouble": [decode(1, running=1), "# answers are garbage\n"],
    "request-values": [
        death(
            1, "TypeError: 'NoneType' object cannot be interpreted as an integer", "", "min_new_tokens.py", "_prepare"
        )
    ],
    "refused-for-room": [f"{stamp(0)} {ROOM}", prefill(1), f"{stamp(2)} {TOO_LONG.format(120000, 100000)}", decode(3)],
    "memory-grows": [TOP.format(hour, 6100 + 150 * hour) for hour in range(4)],
    "transfers-stand": [f"{stamp(second)} {MOVING.format(1, 31)}" for second in (0, 200, 400)],
    "illegal-access": [prefill(1), decode(2, swa=0.4), death(3, ILLEGAL)],
    "unmergeable-batch": [prefill(1), death(3, VERIFY_INPUT)],
    "own-checks": [decode(1), f"{stamp(2)} {CANARY}\n", decode(3)],
    "hang": [decode(1), f"{stamp(400)} Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)\n"],
    "throughput-collapse": [*steady(40, rate=900), *steady(20, start=40, rate=200)],
    "known-issue": [death(1, LMCACHE, frame="lmc_radix_cache.py")],
    "draft-model": [death(1, "AttributeError: 'Qwen2ForCausalLM' object has no attribute 'set_embed'")],
    "draft-bookkeeping": [decode(1), death(2, MISFIT, frame="eagle_utils.py")],
    "quantised-kernel": [death(1, "RuntimeError: mat_a must be a multiple of 16 bytes", frame="fp8_utils.py")],
    "grammar-request": [decode(1), death(2, "AssertionError", frame="xgrammar_backend.py")],
    "bus-error": [f"{stamp(1)} Load weight begin. avail mem=20.00 GB\n", "Fatal Python error: Bus error\n"],
    "media-unreadable": [
        decode(1),
        f"{stamp(2)} Error in request: Error while loading data\n{TRACEBACK}"
        '  File "/opt/base_processor.py", line 502, in _load_single_item\nRuntimeError: outside of the buffer\n',
        decode(3),
    ],
    "kv-transfer": [decode(1), BOOTSTRAP],
    "storage-tier": [decode(1), f"{stamp(2)} Draft L3 write failed (best-effort), skipping.\n", decode(3)],
    "other-crash": [decode(1), death(2, "KeyError: 'layer_9'")],
    "unexplained-line": [decode(1), "Fatal Python error: Segmentation fault\n"],
    "answer-parser": [f"{stamp(1)} Tool call parsing error: Expecting ',' delimiter\n", decode(2)],
    "attention-kernel": [death(1, HEADS, frame="flashattention_backend.py")],
    "collective-timeout": [decode(1), COLLECTIVE.format(3), COLLECTIVE.format(1)],
    "device-fault": [decode(1), "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n"],
    "graph-capture": [
        death(1, "Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 2.00 GiB.")
    ],
    "requests-held-back": [*steady(12, running=16, queued=9, full=0.4, swa=0.4)],
    "uneven-ranks": [
        decode(at, running=count, rank=f"DP{of} TP{of}") for of, count in ((0, 60), (1, 4)) for at in range(9)
    ],
    "kv-transfer-waits": [
        decode(at, running=20).replace("cuda graph:", "#transfer-req: 90, cuda graph:") for at in range(10)
    ],
    "drafts-never-accepted": [*steady(20, accept=1.0)],
    "kernel-failed": [decode(1), death(2, "torch.AcceleratorError: CUDA error: misaligned address")],
    "token-outside-vocabulary": [death(2, "OverflowError: out of range integral type conversion attempted")],
    "uneven-split": [death(1, "AssertionError: 10 is not divisible by 4", frame="parallel_state.py")],
    "weight-names": [death(1, "ValueError: Unknown quantization method: fp5")],
    "image-tokens": [decode(1), death(2, PLACEHOLDERS, frame="mm_utils.py"), decode(3)],
    "killed-from-outside": [decode(1), "Killed\n"],
    "lora-refused": [death(1, "RuntimeError: LoRA adapter a with rank 64 is incompatible with the memory pool")],
    "never-admitted": [
        decode(1, running=1, queued=3),
        f"{stamp(90)} Health check failed. Server couldn't get a response\n",
    ],
    "non-finite-logits": [decode(1), f"{stamp(2)} Detected errors during sampling! NaN in the logits.\n", decode(3)],
    "orphaned-requests": [
        decode(1),
        *(f"{stamp(2)} Received output for rid='7f2c' but the state was deleted in TokenizerManager.\n",) * 8,
        decode(3),
    ],
    "outgrown-pool": [*steady(3, running=2, full=0.99, swa=0.98), retraction(4), decode(5, running=1, full=0.5)],
    "prefix-not-reused": [prefill(turn, new=8000 + 100 * turn, cached=64) for turn in range(1, 9)],
    "shared-memory": [
        "RuntimeError: unable to write: No space left on device: /dev/shm/torch_1, shared memory (shm)\n"
    ],
    "no-fp8": [death(1, "ValueError: type fp8e4nv not supported in this architecture.")],
    "queue-stands": [prefill(1, queued=2), f'{stamp(90)} INFO:  10.0.0.7:1 - "GET /health HTTP/1.1" 200 OK\n'],
    "grammar-waits": [
        prefill(1),
        decode(2),
        'sglang:num_running_reqs{model_name="m",pp_rank="0"} 0.0\n',
        'sglang:num_grammar_queue_reqs{model_name="m",pp_rank="0"} 1.0\n',
    ],
    "workers-stand": [
        f"(EngineCore pid=1) INFO 07-06 20:4{minute}:31 [shm_broadcast.py:681] No available shared memory broadcast "
        "block found in 60 seconds.\n"
        for minute in (5, 6)
    ],
    "eager-decode": [*steady(6, running=8), *steady(6, start=6, running=24, graph=False)],
    "prefill-starves-decode": [line for at in range(0, 40, 8) for line in starved(at)],
    "start-stopped": [
        f"{stamp(1)} Load weight begin. avail mem=20.00 GB\n",
        f"{stamp(600)} SIGTERM received. signum=15\n",
    ],
    "refused-by-check": [death(1, "ValueError: --stream-interval must be at least 1", frame="srt/server_args.py")],
    "told-by-words": [death(1, "ImportError: torchao is not installed", frame="srt/torchao_utils.py")],
    "chat-template": [death(1, "RuntimeError: Chat template a.jinja is not a built-in template name", frame="a.py")],
    "expert-transport": ["nvshmem/src/host/init/init.cu:1007: non-zero status: 7 nvshmem setup connections failed\n"],
    "foreign-message": [decode(1), death(2, "_pickle.UnpicklingError: invalid load key, 'G'.", frame="_future.py")],
    "host-limits": [decode(1), death(2, "OSError: [Errno 24] Too many open files", frame="socket.py")],
    "torch-compile": [death(1, "torch._dynamo.exc.InternalTorchDynamoError: AssertionError: ", frame="lists.py")],
    "router": ["2026-01-01 00:00:01 ERROR smg::routers: No available workers\n"],
    "start-refused": ["launch_server.py: error: unrecognized arguments: --gemma\n"],
    "swa-not-evicted": [*steady(20, running=1, full=0.2, swa=0.97, queued=3)],
    "weights-missing": [death(1, "RuntimeError: Cannot find any model weights with `google/gemma-4-26b-it`")],
    "no-kernel-image": [death(1, "RuntimeError: RMSNorm failed: no kernel image is available for execution")],
    "kernel-too-large": [
        death(1, "OutOfResources: out of resource: shared memory, Required: 131072, Hardware limit: 101376.")
    ],
    "no-gpu": [death(1, "RuntimeError: No CUDA GPUs are available")],
    "no-prefix-cache": [death(1, "AttributeError: 'ChunkCache' object has no attribute 'check_hicache_events'")],
    "disk-full": [death(1, "OSError: [Errno 28] No space left on device", frame="file_download.py")],
    "wheels-do-not-fit": [death(1, "ImportError: libnvrtc.so.12: cannot open shared object file: No such file")],
    "no-slot": [decode(1, swa=0.99), death(2, NO_SLOT)],
    "out-of-memory": [decode(1), death(2, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")],
    "index-outside-tensor": [decode(1), death(2, ASSERTION)],
    "prefill-graph": [decode(1), death(2, "KeyError: 'rows'", frame="prefill_cuda_graph_runner.py")],
    "triton-compile": [decode(1), death(2, "triton.compiler.errors.CompilationError: at 1:1:", frame="jit.py")],
    "types-differ": [decode(1), death(2, "RuntimeError: expected scalar type Float but found BFloat16")],
    "idle-rank": [
        decode(1),
        death(2, "RuntimeError: max(): Expected reduction dim to be specified for input.numel() == 0", rank="DP1 TP1"),
    ],
    "sizes-differ": [decode(1), death(2, "RuntimeError: shape mismatch").replace("in step", "in forward")],
    "library-kernel": [decode(1), death(2, "RuntimeError: Error in function 'TopKSampling' at sampling.cuh:3: failed")],
}


def died_in(*frames: str, last: str, rank: str = "TP0") -> str:
    """Return a scheduler's traceback of frames such as "mem_cache/common.py alloc", then its last line."""
    rows = [f"{stamp(9, rank)} Scheduler hit an exception: Traceback (most recent call last):"]
    for frame in frames:
        file, _, function = frame.partition(" ")
        rows.append(f'  File "{file if file[0] in "/<" else "/srv/sglang/srt/" + file}", line 12, in {function}')
    return "\n".join([*rows, last, ""])


def found_in(lines) -> tuple[Finding, ...]:
    """Return what is found in a log of these lines."""
    return findings(read_log("made.log", ["".join(lines).encode()]))


def only(lines) -> Finding:
    """Return the one finding of a log of these lines."""
    (finding,) = found_in(lines)
    return finding


def started(**settings: object) -> str:
    """Return the line in which a server tells its arguments."""
    said = ", ".join(f"{name}={value!r}" for name, value in settings.items())
    return f"{stamp(0)} server_args=ServerArgs({said}, watchdog_timeout=300)\n"


SRT = '  File "/srv/sglang/srt/{}", line 7, in {}\n    {}\n'
"""A frame in SGLang's own code: its file, its function, its line of source."""


def died(last: str, *frames: tuple[str, str, str], rank: str = "TP0") -> str:
    """Return a scheduler's traceback through frames of (file, function, line of source)."""
    head = f"{stamp(3, rank)} Scheduler hit an exception: {TRACEBACK}"
    return head + "".join(SRT.format(*frame) for frame in frames) + f"{last}\n\n"


def told(finding) -> str:
    return " ".join((finding.cause, *finding.advice))


CLI = '  File "<frozen runpy>", line 198, in _run_module_as_main\n'
CLI += '  File "/srv/sglang/launch_server.py", line 30, in <module>\n'
SITE = '  File "/opt/lib/python3.12/site-packages/{}", line 7, in {}\n    call()\n'


def ended(last: str, *frames: str) -> str:
    """Return the traceback of a program that ended before it was a server."""
    return f"{TRACEBACK}{CLI}{''.join(frames)}{last}\n"
