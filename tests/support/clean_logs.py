"""Logs of servers with which nothing is wrong, in the words of SGLang's releases 0.4 to 0.5.23: small, and made by us.

Each holds something that looks like trouble to a reader of words: settings with "timeout" and "watchdog", downloads
that are tried again, optional imports, refused requests, clients that go away, servers that are stopped.
"""

import re
from pathlib import Path

_DAY = "2026-11-24"
_BESIDE = Path(__file__).parents[1] / "data" / "clean_logs.txt"


def _at(second: int, text: str, rank: str = "", fraction: str = "") -> str:
    clock = f"{3 + second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}{fraction}"
    return f"[{_DAY} {clock}{' ' + rank if rank else ''}] {text}\n"


def _old_decode(second: int, end: str = ", \n") -> str:
    return _at(
        second,
        f"Decode batch. #running-req: 4, #token: {1200 + second}, token usage: 0.04, "
        "gen throughput (token/s): 310.55, largest-len: 0, #queue-req: 0" + end.rstrip("\n"),
    )


def _old_prefill(second: int) -> str:
    return _at(
        second,
        "Prefill batch. #new-seq: 1, #new-token: 311, #cached-token: 64, cache hit rate: 17.00%, "
        "token usage: 0.02, #running-req: 3, #queue-req: 0",
    )


def _decode(second: int, rank: str = "", extra: str = "", usage: str = "token usage: 0.31") -> str:
    return _at(
        second,
        f"Decode batch, #running-req: 8, #token: {90000 + second}, {usage}, {extra}cuda graph: True, "
        "gen throughput (token/s): 911.20, #queue-req: 0",
        rank,
    )


def _prefill(second: int, rank: str = "", head: str = "Prefill batch", usage: str = "token usage: 0.30") -> str:
    return _at(
        second,
        f"{head}, #new-seq: 2, #new-token: 700, #cached-token: 128, {usage}, #running-req: 6, #queue-req: 0, "
        "#pending-token: 0, cuda graph: False, input throughput (token/s): 4100.31",
        rank,
    )


_SWA = "full token usage: 0.31, swa token usage: 0.42"
_ACCESS = '10.0.0.7:50120 - "POST /v1/chat/completions HTTP/1.1"'


def _serving(first: int = 60, rank: str = "", **parts: str) -> str:
    """Return a prefill, six decode lines with an answer between them."""
    usage = parts.get("usage", "token usage: 0.30")
    rows = [_prefill(first, rank, parts.get("head", "Prefill batch"), usage)]
    rows += [_decode(first + 1 + second, rank, parts.get("extra", ""), usage) for second in range(6)]
    return "".join([*rows, _at(first + 8, f"INFO:     {_ACCESS} 200 OK")])


_START = (
    _at(0, "server_args=ServerArgs(model_path='google/gemma-4-E4B-it', tokenizer_path='google/gemma-4-E4B-it', "
        "watchdog_timeout=300, soft_watchdog_timeout=None, dist_timeout=None, schedule_conservativeness=1.0, "
        "attention_backend='trtllm_mha', page_size=16, mem_fraction_static=0.83, tp_size=1, crash_dump_folder=None, "
        "enable_nan_detection=False, sleep_on_idle=False, disaggregation_mode='null', log_requests=False)")
    + _at(9, "Load weight begin. avail mem=78.33 GB")
    + _at(31, "Load weight end. type=Gemma4ForConditionalGeneration, dtype=torch.bfloat16, avail mem=62.20 GB, "
        "mem usage=16.13 GB.")
    + _at(32, "KV Cache is allocated. #tokens: 290771, K size: 22.19 GB, V size: 22.19 GB")
    + _at(33, "Capture cuda graph begin. This can take up to several minutes. avail mem=16.50 GB")
    + _at(41, "Capture cuda graph end. Time elapsed: 8.11 s. mem usage=0.78 GB. avail mem=15.72 GB.")
    + _at(42, "max_total_num_tokens=290771, chunked_prefill_size=8192, max_prefill_tokens=16384, "
        "max_running_requests=256, context_len=131072, available_gpu_mem=15.72 GB")
    + _at(43, "INFO:     Started server process [1]")
    + _at(43, "INFO:     Waiting for application startup.")
    + _at(43, "INFO:     Application startup complete.")
    + _at(43, "INFO:     Uvicorn running on http://0.0.0.0:30000 (Press CTRL+C to quit)")
    + _at(47, "The server is fired up and ready to roll!")
)  # fmt: skip
_STOP = (
    "INFO:     Shutting down\n"
    "INFO:     Waiting for application shutdown.\n"
    "INFO:     Application shutdown complete.\n"
    "INFO:     Finished server process [1]\n"
)
_CTRL_C = (
    "^C" + _at(90, "SIGTERM received. signum=None frame=None. Draining requests and shutting down...")
    + _at(91, "Gracefully exiting... Remaining number of requests 0. Remaining requests remaining_rids=[].")
)  # fmt: skip
_INTERRUPT = (
    "Process sglang::scheduler:\n"
    "Traceback (most recent call last):\n"
    '  File "/usr/lib/python3.12/multiprocessing/process.py", line 314, in _bootstrap\n    self.run()\n'
    '  File "/opt/sglang/srt/managers/scheduler.py", line 3300, in run_scheduler_process\n'
    "    scheduler.event_loop_overlap()\n"
    '  File "/opt/sglang/srt/managers/scheduler.py", line 1190, in event_loop_overlap\n'
    "    recv_reqs = self.recv_requests()\n"
    "KeyboardInterrupt\n"
)
_UVICORN_CANCELLED = (
    "ERROR:    Traceback (most recent call last):\n"
    '  File "/usr/lib/python3.12/asyncio/runners.py", line 118, in run\n'
    "    return self._loop.run_until_complete(task)\n"
    "asyncio.exceptions.CancelledError\n\n"
    "During handling of the above exception, another exception occurred:\n\n"
    "Traceback (most recent call last):\n"
    '  File "/usr/lib/python3.12/asyncio/runners.py", line 190, in run\n'
    "    return runner.run(main)\n"
    "KeyboardInterrupt\n\n"
)
_OPTIONAL_IMPORT = _at(3, "Ignore import error when loading sglang.srt.models.mllama: No module named 'mllama'") + (
    _at(3, "WARNING: triton_kernels is not installed, the fused path is skipped")
    + "Traceback (most recent call last):\n"
    '  File "/opt/sglang/srt/layers/optional.py", line 12, in load\n    import triton_kernels\n'
    "ModuleNotFoundError: No module named 'triton_kernels'\n"
)
_RETRIED = (
    _at(4, "Error while downloading from https://huggingface.co/x/model-00001.safetensors: Read timed out.")
    + "Trying to resume download...\n"
    + "Retrying in 1s [Retry 1/5].\n"
    + "model-00001-of-00002.safetensors: 100%|██████████| 4.97G/4.97G [01:10<00:00, 70.1MB/s]\n"
)
_BAR = (
    "\rLoading safetensors checkpoint shards:   0% Completed | 0/2 [00:00<?, ?it/s]"
    "\rLoading safetensors checkpoint shards:  50% Completed | 1/2 [00:01<00:01,  1.20s/it]"
    "\rLoading safetensors checkpoint shards: 100% Completed | 2/2 [00:02<00:00,  1.10s/it]"
)
_REFUSED = (
    _at(70, f"INFO:     {_ACCESS} 400 Bad Request")
    + _at(70, "Input length (140000 tokens) exceeds the maximum allowed length (131066 tokens). "
        "Use a shorter input or enable --allow-auto-truncate.")
)  # fmt: skip
_GONE = (
    _at(71, "Abort request rid='b61f2c' because the client disconnected")
    + _at(71, "Client disconnected from the stream, rid=b61f2c")
)  # fmt: skip
_PROMPT = (
    _at(62, "Receive: obj=GenerateReqInput(text='Why does my server say CUDA out of memory? Traceback (most recent "
        "call last):\\n  File \"a.py\", line 3, in f\\nRuntimeError: watchdog timeout (x) memory leak detected!', "
        "sampling_params={'max_new_tokens': 9}, timeout=None)")
    + _at(63, "Finish: obj=GenerateReqInput(text='it died'), out={'text': 'It was killed: Segmentation fault'}")
)  # fmt: skip
_JSON_REQUESTS = (
    '{"timestamp": "2026-11-24T03:01:02", "event": "request.received", "rid": "a", "obj": {"text": "CUDA out of '
    'memory. Scheduler hit an exception: Traceback (most recent call last): failed"}}\n'
    '{"timestamp": "2026-11-24T03:01:03", "event": "request.finished", "rid": "a", "out": {"text": "it crashed"}}\n'
)
_WARNINGS = (
    "/opt/venv/lib/python3.12/site-packages/torch/cuda/__init__.py:63: FutureWarning: The pynvml package is "
    "deprecated.\n  import pynvml  # type: ignore[import]\n"
    "[W1124 03:00:01.123456789 ProcessGroupGloo.cpp:514] Warning: Unable to resolve hostname to a local address. "
    "Using the loopback address as fallback. (function operator())\n"
    "`torch_dtype` is deprecated! Use `dtype` instead!\n"
)

_TP = "".join(_serving(60 + 10 * n, f"TP{n}") for n in range(2))
_DP = "".join(_serving(60, f"DP{n} TP{n} EP{n}") for n in range(4))

CLEAN: dict[str, str] = {
    "0.4.0-first-lines": _old_prefill(60) + "".join(_old_decode(61 + n) for n in range(6)),
    "0.4.1-no-comma": "".join(_old_decode(61 + n, "\n") for n in range(6)),
    "0.4.3-cuda-graph": "".join(
        _at(60 + n, "Decode batch. #running-req: 1, #token: 99, token usage: 0.00, cuda graph: True, "
            "gen throughput (token/s): 44.18, #queue-req: 0") for n in range(5)
    ),
    "0.4.6-accept": "".join(
        _at(60 + n, "Decode batch. #running-req: 1, #token: 990, token usage: 0.01, accept len: 2.81, "
            "cuda graph: True, gen throughput (token/s): 91.2, #queue-req: 0, ") for n in range(5)
    ),
    "0.4.6-pd-prefill": "".join(
        _at(60 + n, "Prefill batch. #new-seq: 1, #new-token: 900, #cached-token: 0, token usage: 0.01, "
            "#unbootstrapped-req: 0, #queue-req: 0, #transferring-req: 1, ") for n in range(4)
    ),
    "0.4.6-pd-decode": "".join(
        _at(60 + n, "Decode batch. #running-req: 3, #token: 990, token usage: 0.01, #prealloc-req: 0, "
            "#transfer-req: 1, #retracted-req: 0, cuda graph: True, gen throughput (token/s): 91.2, #queue-req: 0, ")
        for n in range(4)
    ),
    "0.5.0-comma": _START + _serving(),
    "0.5.5-prefill-number": _serving(head="Prefill batch [17]"),
    "0.5.6-swa": _serving(usage=_SWA),
    "0.5.9-accept-rate": _serving(extra="accept len: 3.01, accept rate: 0.75, ", usage=_SWA),
    "0.5.10-mamba": _serving(usage="full token usage: 0.31, mamba num: 4, mamba usage: 0.10"),
    "0.5.13-cpu-graph": _serving().replace("cuda graph", "cpu graph"),
    "0.5.15-npu-graph": _serving().replace("cuda graph", "npu graph"),
    "0.5.17-swa": _START + _serving(usage=_SWA),
    "0.5.23-tp-ep": _TP + _DP,
    "milliseconds": "".join(_at(60 + n, "Decode batch, #running-req: 1, #token: 9, token usage: 0.00, cuda graph: "
        "True, gen throughput (token/s): 44.18, #queue-req: 0", "TP0", ".123") for n in range(5)),
    "start-only": _START,
    "timeouts-in-settings": _START + _serving(),
    "retried-download": _RETRIED + _START + _serving(),
    "progress-bars": _BAR + _START + _BAR + _serving(),
    "bar-glued-to-a-line": _START.replace("[2026-11-24 03:00:41]", _BAR + "[2026-11-24 03:00:41]") + _serving(),
    "optional-import": _OPTIONAL_IMPORT + _START + _serving(),
    "warnings": _WARNINGS + _START + _serving(),
    "refused": _serving() + _REFUSED + _serving(80),
    "client-gone": _serving() + _GONE + _serving(80),
    "validation-error": _serving() + _at(69, "Error in request: 1 validation error for ChatCompletionRequest")
        + _at(70, f"INFO:     {_ACCESS} 422 Unprocessable Entity") + _serving(80),
    "not-found": _serving() + _at(70, 'INFO:     10.0.0.7:50120 - "GET /favicon.ico HTTP/1.1" 404 Not Found')
        + _serving(80),
    "prompts-that-tell-of-crashes": _START + _PROMPT + _serving(70),
    "json-requests": _START + _JSON_REQUESTS + _serving(70),
    "health-checks": _START + "".join(
        _at(60 + n, 'INFO:     10.0.0.1:123 - "GET /health_generate HTTP/1.1" 200 OK') for n in range(5)
    ) + _serving(70),
    "flush-cache": _serving() + _at(70, "Cache flushed successfully!") + _serving(80),
    "idle": _START + _serving() + _at(3000, 'INFO:     10.0.0.1:123 - "GET /health HTTP/1.1" 200 OK'),
    "stopped-by-sigterm": _START + _serving() + _CTRL_C + _STOP,
    "stopped-by-ctrl-c": _START + _serving() + _CTRL_C + _INTERRUPT,
    "uvicorn-cancelled": _START + _serving() + _UVICORN_CANCELLED + _STOP,
    "resource-tracker": _serving() + _STOP + "/usr/lib/python3.12/multiprocessing/resource_tracker.py:279: "
        "UserWarning: resource_tracker: There appear to be 1 leaked shared_memory objects to clean up at shutdown\n"
        "  warnings.warn('resource_tracker: There appear to be %d '\n",
    "restarted": _START + _serving() + _STOP + _START + _serving(),
    "watchdog-starts": _START + _at(44, "Watchdog TokenizerManager initialized.") + _serving(),
    "nccl-notes": _at(5, "sglang is using nccl==2.27.3", "TP0") + _at(6, "Init torch distributed begin.", "TP0")
        + _at(7, "Custom allreduce is disabled because this process group spans across nodes.", "TP0") + _TP,
    "lora-and-hicache": _START + _at(50, "LoRA adapter loading starts: LoRARef(lora_name=a). avail mem=9.10 GB")
        + _at(51, "LoRA adapter loading completes: LoRARef(lora_name=a). avail mem=9.02 GB")
        + _at(52, "Allocating 12.00 GB host memory for hierarchical KV cache.") + _serving(),
    "tuning-config-missing": _at(8, "Using default MoE kernel config. Performance might be sub-optimal! Config file "
        "not found at /opt/E=128,N=704.json, you can create them with the tuning script") + _START + _serving(),
    "grammar-compile": _serving() + _at(70, "Grammar preprocessing timeout_s=10 is set") + _serving(80),
    "begins-in-the-middle": "".join(_decode(61 + n) for n in range(5)).split("#token", 1)[1] + _serving(80),
    "shell-around-it": "$ python3 -m sglang.launch_server --model google/gemma-4-E4B-it --watchdog-timeout 600 "
        "--dist-timeout 600\n" + _START + _serving() + _CTRL_C + _STOP + "$ \n",
    "retraction-test": _serving() + _at(70, "Testing retraction. #retracted_reqs: 1, #new_tokens_gained: 30")
        + _serving(80),
    "decode-with-other-words": _serving(extra="spec_verify_calls: 3, #failed-req: 0, #timeout-req: 0, "),
}  # fmt: skip


def _beside() -> dict[str, str]:
    """Return the logs of clean_logs.txt by their names."""
    parts = re.split(r"^=== (\S+)\n", _BESIDE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    texts = (text.replace("@start\n", _START).replace("@serving\n", _serving()) for text in parts[1::2])
    return dict(zip(parts[::2], texts, strict=True))


CLEAN |= _beside()
