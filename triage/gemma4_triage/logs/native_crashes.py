"""Where a process ended in native code: what its innermost Python frames, or a library in its C stack, say to do."""

from __future__ import annotations

from collections.abc import Iterator

from gemma4_triage.logs.alarms import IN_NATIVE
from gemma4_triage.logs.facts import Alarm, LogFacts
from gemma4_triage.logs.late_pattern import pattern

_TRANSPORT = (
    "it was in the transport or the store of KV (Mooncake, NIXL with its UCX): a later release of that package (pip "
    "show mooncake-transfer-engine nixl), as SGLang's newest image has it; one server per node, stores that stay up; "
    "once without --hicache-storage-backend, or with the other of --disaggregation-transfer-backend"
)
_OF_NCCL = (
    "it was in a thread of NCCL's own: another release of it (pip show nvidia-nccl-cu12), NCCL_DEBUG=INFO; over nodes "
    "once with NCCL_IB_DISABLE=1, then NCCL_IB_HCA and NCCL_IB_GID_INDEX; once with --disable-cuda-graph"
)
_NATIVE = (
    (
        pattern(r"cache_controller\w*\.py:\d+ (?:prefetch\w*|_page_transfer|backup\w*|_page_backup)$"),
        "it was in a thread that reads or writes the storage behind the hierarchical cache, mostly of pages that a "
        "prefetch had given up meanwhile: --hicache-storage-prefetch-policy wait_complete, stores that stay up, once "
        "without --hicache-storage-backend; then a later release of both (SGLang 31445)",
    ),
    (
        pattern(r".*aiter\w*\.py:|core\.py:\d+ (?:custom_)?wrapper$"),
        "it was in a kernel of AITER (AMD): once with SGLANG_USE_AITER=0, once with --disable-custom-all-reduce and "
        "SGLANG_USE_AITER_AR=0; then an image whose AITER is built for this GPU and ROCm",
    ),
    (
        pattern(r"\w*deep_?gemm\w*\.py:|.* \w*(?:gemm_fp8_\w+|gemm_nt_\w+|m_grouped_gemm\w*)$"),
        "it was in DeepGEMM: once with SGLANG_ENABLE_JIT_DEEPGEMM=0 (in 2025 SGL_ENABLE_JIT_DEEPGEMM); rm -r "
        "~/.cache/deep_gemm; then the deep_gemm that this release comes with",
    ),
    (
        pattern(r"\w*(?:code_generator|compiler|jit|semantic|driver)\w*\.py:|.* (?:ast_to_ttir|make_\w+ir|compile)$"),
        "it was compiling a kernel: rm -r ~/.triton/cache (TRITON_CACHE_DIR), then the triton that the installed torch "
        "asks for; a kernel of another --attention-backend or --moe-runner-backend if it names this GPU",
    ),
    (
        pattern(r"\w*(?:pynccl|parallel_state|communicator|all_reduce|symm_mem|deep_?ep|nvshmem)\w*\.py:"),
        "it was exchanging data between GPUs: once with --disable-custom-all-reduce, then NCCL_P2P_DISABLE=1; "
        "NCCL_DEBUG=INFO and nvidia-smi topo -m",
    ),
    (pattern(r"\w*(?:mooncake|nixl|conn|transfer_engine|hf3fs|storage)\w*\.py:"), _TRANSPORT),
    (
        pattern(r"\w*(?:weight_utils|loader|safetensors|torch_load|serialization)\w*\.py:"),
        "it was reading weights: compare the files with the repository, and look at the volume (dmesg -T: I/O errors)",
    ),
    (
        pattern(r"\w*hicache\.py:\d+ \w*transfer\w*"),
        "a copy of the hierarchical cache between GPU and host failed there: --hicache-io-backend direct in place of "
        "kernel (with --hicache-mem-layout page_first_direct, layer_first), then without --enable-hierarchical-cache; "
        "a later release. That kernel is compiled on this machine: nvcc --version has to be of torch.version.cuda "
        "(the same first number), then rm -r ~/.cache/tvm-ffi ~/.cache/sglang",
    ),
    (
        pattern(r"(?:hicache|jit_\w+|\w+_jit|pybind|ffi|function)\.(?:py|pxi):"),
        "a kernel that is compiled on this machine was called there: nvcc --version has to be of torch.version.cuda "
        "(the same first number), then rm -r ~/.cache/tvm-ffi ~/.cache/flashinfer ~/.cache/sglang; of HiCache's "
        "kernels once with --hicache-io-backend direct",
    ),
    (
        pattern(r"(?:_ops|elementwise|gemm|\w*attention\w*|flash_attn\w*|fused_moe\w*|core|moe|\w*graph\w*)\.py:"),
        "a compiled kernel or library was called there: sglang-kernel, flashinfer and torch of the releases that "
        "SGLang pins, for this GPU; once with --disable-cuda-graph and another backend of that part",
    ),
)
"""What to do where a process ended in native code, by its innermost Python frames."""


_BY_FUNCTION = (
    (
        pattern(r"C\+\+ (?:cu(?:da)?MemcpyBatchAsync\w*|transfer_kv_\w+)$"),
        "it was in the copy that sgl-kernel makes between the pools of GPU and host for the hierarchical cache, in one "
        "call of CUDA's whose arguments CUDA 13 has changed: an sgl-kernel of before May 2026 hands it those of CUDA "
        "12. A later sgl-kernel and release of SGLang, or an image of CUDA 12 (SGLang 23136); then memory of the host "
        "that another allocator gave (Mooncake's store, SGLang 21044). Until then --hicache-io-backend kernel with "
        "--hicache-mem-layout layer_first, or no --enable-hierarchical-cache",
    ),
    (
        pattern(r"C\+\+ cu(?:da)?[A-Z]\w+$"),
        "it was in a function of CUDA's own, which the library below it in that stack had called: one that was built "
        "for another CUDA hands over other arguments. torch.version.cuda, nvidia-smi and the wheel's own +cu… (pip "
        "list) have to agree in the first number; SGLang's image has those that do",
    ),
)
"""What to do where a process ended in native code, by the functions in torch's stack of the signal."""


def in_native_code(lead: Alarm) -> str:
    """Return what to do about a crash by its Python frame, or by its native ones; "" if none is known."""
    if lead.kind != "signalled":
        return ""
    frames = [frame for frame in lead.more if ".py:" in frame]
    native = [frame for frame in lead.more if frame.startswith(IN_NATIVE)]
    known = [look for words, look in _BY_FUNCTION if any(map(words.match, native))]
    return next(iter(known), "") or next((look for files, look in _NATIVE if any(map(files.match, frames))), "")


_STORE_SET_UP = pattern(r"mooncake_store\w*\.py:\d+ (?:__init__|setup|warmup|_?init\w*)$")


def of_two_engines(facts: LogFacts, lead: Alarm) -> str:
    """Return what to do where Mooncake's store was set up in a process that has its transfer engine; "" if not so."""
    asked = facts.settings
    both = (
        asked.get("disaggregation_transfer_backend", "mooncake") == asked.get("hicache_storage_backend") == "mooncake"
    )
    split = asked.get("disaggregation_mode", "null") not in ("null", "None")
    if not (both and split and lead.kind == "signalled" and any(map(_STORE_SET_UP.match, lead.more))):
        return ""
    tcp = facts.arguments.get("MOONCAKE_PROTOCOL", "") == "tcp"
    return (
        "it was Mooncake's store for the hierarchical cache, as it was set up in a process that has Mooncake's engine "
        f"for transfers already: {'MOONCAKE_PROTOCOL=rdma in place of tcp, ' if tcp else ''}another "
        "--hicache-storage-backend (file, nixl), or none on this server, or the other of "
        "--disaggregation-transfer-backend; then a later mooncake-transfer-engine and release of SGLang (SGLang 21678)"
    )


def in_library(facts: LogFacts, lead: Alarm) -> str:
    """Return what to do about a crash by the library in its C stack; "" if none is known."""
    found = facts.remarks.get("native_library") if lead.kind == "signalled" else None
    name = found.text.lower() if found else ""
    if "nccl" in name and "nixl" not in name:
        return _OF_NCCL
    if "nixl" in name and any(_OVER_TCP.search(text) for text in _native_texts(facts, lead)):
        return _NO_CUDA_IN_UCX
    return of_the_transport(name) if "mooncake" in name or "nixl" in name else ""


_OVER_TCP = pattern(r"uct_tcp|invalid permissions for mapped object")
_NO_CUDA_IN_UCX = (
    "it was UCX below NIXL, which copied memory of the GPU as if it were the host's, on its way over TCP: a UCX that "
    "knows CUDA (ucx_info -d | grep cuda), UCX_TLS with cuda_copy and cuda_ipc beside tcp, or RDMA; a later nixl; or "
    "--disaggregation-transfer-backend mooncake on both sides"
)
_COPIES_ITSELF = (
    "MC_STORE_MEMCPY=0 first, or mooncake-transfer-engine 0.3.11.post1 or later (pip show): the store copied straight "
    "from an address that it took for one of its own process, as it does where there is no RDMA, and as earlier ones "
    "take that of any process on the same host, such as a second server at one master (SGLang 26326); "
)


def _native_texts(facts: LogFacts, lead: Alarm) -> Iterator[str]:
    """Yield the line of a crash and what is kept of the stack below it."""
    yield lead.text
    yield from lead.more
    if "native_library" in facts.remarks:
        yield facts.remarks["native_library"].text


def of_the_transport(name: str) -> str:
    """Return what to do about a crash in what carries or stores KV, by the line of its stack."""
    return f"{_COPIES_ITSELF}{_TRANSPORT}" if "memcpy" in name and "mooncake" in name else _TRANSPORT


def looks(facts: LogFacts, lead: Alarm) -> tuple[str, ...]:
    """Return what to do about such a crash; empty if its frames and C stack say none."""
    of_storage = facts.arguments.get("hicache_storage_backend", "None") != "None"
    found = in_native_code(lead) or in_library(facts, lead)
    return (found,) if found else (_OF_STORAGE,) if of_storage and not any(".py:" in one for one in lead.more) else ()


_OF_STORAGE = (
    "once without --hicache-storage-backend, or with --hicache-storage-prefetch-policy wait_complete: its threads "
    "write to pages of the host that a prefetch had given up meanwhile (its time-out), which has ended processes so "
    "(SGLang 31445); faulthandler's stack below that line would say whether it was one of them"
)
