"""The single lines that matter beside batches and tracebacks: what SGLang 0.5.13 and this project's plugin write.

Sources: managers/scheduler.py (retraction), scheduler_components/invariant_checker.py (pool equations),
model_executor/pool_configurator.py (pool sizes), server_args.py; gemma4_runtime/guard.py and plugin.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from gemma4_dumps.directory_name import time_key
from gemma4_triage.logs.facts import Death, GuardLine, LeakLine, Place, Pool, Process

RETRACTIONS = (b"KV cache pool is full. Retract requests.", b"Decode out of memory happened. #retracted_reqs")
"""How a release says that it retracted requests: later ones, and those before 0.4.7."""
POOL_SIZES = b"Use sliding window memory pool"
SERVER_ARGS = (b"server_args=ServerArgs(", b"server_args={'")
"""How a release prints its arguments: up to 0.5.13 as an object, 0.5.23 as a dict."""
NAMES_A_FILE = (b", guard manifest ", b" requests before crash to ")
NAMES_A_PROCESS = (
    *(b" (pid=", b" gpu_id ", b"Started server process [", b"kill_process_tree called: ", b" NCCL INFO Bootstrap"),
    *(b" torch/", b" closing signal ", b" (pid: ", b".cc:", b".cpp:"),
)
LEAK_MARKS = (b"memory leak detected!", b"Mem Leak Detected!", b"] total=", b"Warning: available_size=")
GUARD_MARK = b"; dump: "
FAULT_MARK = b"gemma4-triage: FAULT INJECTED: "
# What only an end prints. Anywhere in a line: C++ and other processes write it without a traceback.
DEATH_MARKS = (
    b"an illegal memory access was encountered",
    b"device-side assert triggered",
    b"CUDA out of memory",
    b"watchdog timeout (",
    b"operation not supported on global/shared address space",
)

_SETTINGS = (
    *("attention_backend", "prefill_attention_backend", "decode_attention_backend", "page_size"),
    *("swa_full_tokens_ratio", "mem_fraction_static", "chunked_prefill_size", "max_running_requests"),
    *(
        "max_total_tokens",
        "speculative_adaptive",
        "speculative_algorithm",
        "speculative_num_steps",
        "disable_cuda_graph",
    ),
    *("disable_overlap_schedule", "disable_radix_cache", "tp_size", "dp_size", "kv_cache_dtype"),
    *("enable_hierarchical_cache", "enable_lora", "max_lora_rank", "quantization", "cuda_graph_max_bs", "nnodes"),
    *("tool_call_parser", "reasoning_parser", "disaggregation_mode", "enable_dp_attention", "context_length"),
    *(
        "model_path",
        "speculative_draft_model_path",
        "moe_runner_backend",
        "skip_tokenizer_init",
        "hicache_storage_backend",
    ),
    *("hicache_size", "pp_size", "enable_torch_compile", "disable_custom_all_reduce", "grammar_backend"),
    *("disaggregation_transfer_backend", "disaggregation_ib_device", "disaggregation_decode_enable_offload_kvcache"),
    *("disaggregation_decode_enable_radix_cache", "enable_lmcache", "ep_size"),
    *("tokenizer_worker_num", "device"),
    *("model_path", "speculative_draft_model_path", "speculative_eagle_topk", "speculative_num_draft_tokens"),
    *("dtype", "trust_remote_code", "enable_multimodal", "pp_size", "ep_size"),
    *("enable_mixed_chunk", "enable_piecewise_cuda_graph", "enforce_piecewise_cuda_graph", "enable_memory_saver"),
    *("enable_two_batch_overlap", "enable_eplb", "cpu_offload_gb", "moe_a2a_backend"),
    *("max_prefill_tokens", "disable_hybrid_swa_memory", "host", "port", "attn_cp_size", "dcp_size", "load_format"),
    *("max_mamba_cache_size", "mamba_full_memory_ratio", "is_embedding", "moe_dense_tp_size", "chat_template"),
    "completion_template",
    *("cuda_graph_backend_decode", "cuda_graph_backend_prefill", "disable_piecewise_cuda_graph"),
)
# Of switches that no rule asks for, those that are on are kept: they say what a server does beyond plain serving.
_SETTING = re.compile(
    rf"\b({'|'.join(_SETTINGS)}|enable_\w{{1,60}}(?==True|': True))(?:=|': )('[^']{{0,200}}'|[\w.+-]{{1,40}})"
)
_RETRACTED = re.compile(rb"#retracted_reqs: (\d{1,9})")
_POOL_TOKENS = re.compile(rb"\b(full|swa)_layer_tokens=(\d{1,18})")
_EQUATION = re.compile(
    r"\[(\w{1,20})\] total=(\d{1,18}), available=(-?\d{1,18}), evictable=(-?\d{1,18}), protected=(-?\d{1,18})"
    r"(?:, session_held=(-?\d{1,18}))?(?:, uncached=(-?\d{1,18}))?"
)
# Releases before 0.5.13 name the sides as their code does, in an order of their own.
_SUM = re.compile(r"\btotal_tokens=(\d{1,18}) vs (?:self\.)?max_total_num_tokens=(\d{1,18})")
_SIDES = re.compile(r"\b([\w.]{0,60}(?:max_total_num_tokens|_size))(?:\(\))?=(-?\d{1,18})")
_OLD_LEAK = "memory leak detected!"
# Releases of 2024 print it above "KV cache pool leak detected!", and go on.
_OLDEST = re.compile(r"Warning: available_size=(\d{1,18}), max_total_num_tokens?=(\d{1,18})")
_GUARD = re.compile(r"([\w-]{1,60}): (.*) \[(trapped|contained|logged); seen \d+ times; dump: (.*)\]")
_OF_DUMP = re.compile(r".*_([a-z0-9-]{1,60})_\d+")
"""The name of a dump, and in it the probe's rule."""
# What ends a server because a request alone cannot be ended names the verdict and no probe, but its dump does.
_TRAPPED = re.compile(r"(?:([\w-]{1,60}): )?(.*) \[(?:dump: (.*)|no dump was written: (.*))\]")
_SCHEDULER_ID = re.compile(
    rb"Subprocess scheduler_\d+ \(pid=(\d{1,10})\)|\bProcess (\d{1,10}) gpu_id \d|"
    rb"Pyspy dump for PID (\d{1,10}) \(sglang::scheduler|:(\d{1,10}):\d{1,10} \[\d{1,3}\] NCCL INFO "
)
_PROCESS_ID = re.compile(
    rb"Subprocess (?!scheduler)\w{1,60} \(pid=(\d{1,10})\)|"
    rb"Started server process \[(\d{1,10})\]|kill_process_tree called: parent_pid=(\d{1,10})|"
    # torch's Python: "W1126 10:00:00.123000 12345 torch/…/api.py:900] …", and what torchrun says of its workers.
    rb"\b[A-Z]\d{4} \d\d:\d\d:\d\d\.\d{6} (\d{1,10}) torch/[\w./-]{1,200}\.py:\d{1,7}\]|"
    rb"Sending process (\d{1,10}) closing signal |local_rank: \d{1,5} \(pid: (\d{1,10})\) of binary: "
)
# glog, as Mooncake and other C++ writes it, says which thread it was.
_THREAD_ID = re.compile(
    rb"\b[IWEF]\d{4} \d\d:\d\d:\d\d\.\d{6} +(\d{1,10}) [\w./-]{1,200}\.(?:cc|cpp|cu|h|hpp):\d{1,7}\]"
)
_PROCESS_FORMS: tuple[tuple[Process, re.Pattern[bytes]], ...] = (
    ("scheduler", _SCHEDULER_ID),
    ("other", _PROCESS_ID),
    ("thread", _THREAD_ID),
)
_SCHEDULER_RANK = re.compile(rb"Subprocess scheduler_(\d{1,5}) \(pid=(\d{1,10})\)")
_FAULT = re.compile(rb"FAULT INJECTED: ([\w-]{1,60})")
_LONGEST_TEXT = 2000
_BEFORE = 100  # bytes before a mark in a long line


def retracted_requests(line: bytes) -> int:
    """Return how many requests a line with one of RETRACTIONS says were retracted, at least 1."""
    found = _RETRACTED.search(line)
    return max(1, int(found[1])) if found else 1


def pool_tokens(line: bytes) -> dict[Pool, int]:
    """Return the tokens of each pool that a line with POOL_SIZES names."""
    return {("full" if name == b"full" else "swa"): int(count) for name, count in _POOL_TOKENS.findall(line)}


def asked_for(arguments: Mapping[str, str]) -> dict[str, str]:
    """Return those of the arguments that rules ask for, the switches that are on, and variables."""
    switched = (
        name for name, value in arguments.items() if name.isupper() or (name.startswith("enable_") and value == "True")
    )
    return {name: arguments[name] for name in (*filter(arguments.__contains__, _SETTINGS), *switched)}


def settings(line: bytes) -> dict[str, str]:
    """Return the settings of pools, attention and drafts that a line with SERVER_ARGS names."""
    text = line[line.find(b"server_args=") :].decode(errors="replace")
    return {name: value.strip("'") for name, value in _SETTING.findall(text)}


_FILE = re.compile(
    rb", guard manifest /?(?:[^\s/]{1,200}/){0,40}([^\s/]{1,200}\.json)|"
    rb" requests before crash to /?(?:[^\s/]{1,200}/){0,40}([^\s/]{1,200}\.pkl)"
)


def named_file(line: bytes) -> str | None:
    """Return the name of the guard manifest or crash snapshot that a line with one of NAMES_A_FILE names."""
    found = _FILE.search(line)
    return (found[1] or found[2]).decode(errors="replace") if found else None


def process_ids(line: bytes) -> list[tuple[Process, int]]:
    """Return the processes of the server that a line of its own names, with what each is."""
    return [
        (kind, int(next(filter(None, match.groups()))))
        for kind, form in _PROCESS_FORMS
        for match in form.finditer(line)
    ]


def scheduler_ranks(line: bytes) -> list[tuple[int, int]]:
    """Return the ranks of schedulers that a line names with their processes, as [(rank, process id)]."""
    return [(int(rank), int(pid)) for rank, pid in _SCHEDULER_RANK.findall(line)]


def injected_fault(line: bytes) -> str | None:
    """Return the id of the fault that a line with FAULT_MARK announces; None if it has none."""
    found = _FAULT.search(line)
    return found[1].decode() if found else None


def leaks(text: str, place: Place) -> list[LeakLine]:
    """Return what leaked of which pool, by the equations in a line or message; an equation that holds is no leak."""
    found = []
    for match in _EQUATION.finditer(text[: 4 * _LONGEST_TEXT]):
        total, *sides = (int(number or 0) for number in match.groups()[1:])
        if total != sum(sides) or min(sides) < 0:
            found.append(LeakLine(place, match[1], match[0], total, total - sum(sides), min(sides) < 0))
    return found or _older_leak(text, place)


def _older_leak(text: str, place: Place) -> list[LeakLine]:
    """Return the leak of the only pool, by the sides that releases before 0.5.13 print."""
    if found := _SUM.search(text):
        there, total = int(found[1]), int(found[2])
        return [LeakLine(place, "full", found[0], total, total - there, negative=False)] if there != total else []
    if found := _OLDEST.search(text):
        there, total = int(found[1]), int(found[2])
        return [LeakLine(place, "full", found[0], total, total - there, negative=False)] if there != total else []
    at = text.find(_OLD_LEAK)
    if at < 0:
        return []
    said = text[at + len(_OLD_LEAK) :][:_LONGEST_TEXT]
    sides = {name.rsplit(".", 1)[-1]: int(number) for name, number in _SIDES.findall(said)}
    total = sides.pop("max_total_num_tokens", None)
    if total is None or "available_size" not in sides:
        return []
    # Up to 0.4.7 what can be evicted is part of what is available, and only HiCache counts what is protected.
    known = sum(sides.values()) if "evictable_size" in sides else sides["available_size"]
    missing = total - known
    if "evictable_size" not in sides and missing == sides.get("protected_size"):
        return []
    if not missing and min(sides.values()) >= 0:
        return []
    return [LeakLine(place, "full", said.strip(), total, missing, min(sides.values()) < 0)]


def guard_line(line: bytes, place: Place) -> GuardLine | None:
    """Return a probe's line in `log` or `contain` mode."""
    match = _GUARD.search(line[: 4 * _LONGEST_TEXT].decode(errors="replace"))
    if match is None:
        return None
    dump = match[4] if _is_dump(match[4]) else ""
    problem = "" if dump else match[4][:_LONGEST_TEXT]
    return GuardLine(place, match[1], match[3], match[2][:_LONGEST_TEXT], dump, problem)


def trapped(death: Death) -> GuardLine | None:
    """Return a TrappedViolation as what the probe found; None for any other exception."""
    if death.type_name != "TrappedViolation":
        return None
    match = _TRAPPED.fullmatch(death.message)
    if match is None:
        return GuardLine(death.place, "", "trapped", death.message, "")
    dump = match[3] or ""
    rule = match[1] or _OF_DUMP.sub(r"\1", dump.rstrip("/").rpartition("/")[2])
    return GuardLine(death.place, rule, "trapped", match[2], dump, match[4] or "")


_LONGEST_OF_MEMORY = 700  # bytes


def death_message(line: bytes) -> str:
    """Return a line with one of DEATH_MARKS, from the mark's sentence on."""
    at = min(position for mark in DEATH_MARKS if (position := line.find(mark)) >= 0)
    begin = 0 if at <= 2 * _BEFORE else at - _BEFORE
    # Of memory torch names every process that has some of that GPU.
    return line[begin : at + (_LONGEST_OF_MEMORY if b"out of memory" in line else 200)].decode(errors="replace").strip()


def _is_dump(text: str) -> bool:
    """Return whether a line names a dump; where none was written the reason stands there."""
    # Servers with dumps in a relative folder named them by that.
    return text.startswith("/") or time_key(text.rpartition("/")[2]) is not None
