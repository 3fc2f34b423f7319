"""The host or the container let a process have no more: files, threads, locked memory."""

from __future__ import annotations

from gemma4_triage.finding import Confidence
from gemma4_triage.logs.rule import Wording, of_wordings, pattern

_WORDINGS = (
    Wording(
        pattern(r"Too many open files|Errno 24\b|out of system resource"),
        "A process has as many files and connections open as it may: no further client or file is let in.",
        "ulimit -n 65536 (docker: --ulimit nofile=65536:65536), then look at what keeps connections open: ss -s, "
        "clients that never close theirs",
    ),
    Wording(
        pattern(r"can't start new thread|pthread_create failed|Resource temporarily unavailable|Errno 11\b"),
        "No further thread or process may be started: the limit of the user or of the container is reached.",
        "ulimit -u, pids.max of the cgroup (docker: --pids-limit -1); OMP_NUM_THREADS=1 starts fewer",
    ),
    Wording(
        pattern(
            r"(?:FileNotFoundError|OSError|FileExistsError|BlockingIOError).{0,200}(?:\.triton|torchinductor|/triton/|"
            r"cached_ops|tvm_ffi|deep_gemm)|Stale file handle"
        ),
        "Processes wrote and removed files of one cache of compiled kernels at the same time, as on a volume that "
        "several of them or several hosts share.",
        "a cache of its own for each server, on a local disk: TRITON_CACHE_DIR, TORCHINDUCTOR_CACHE_DIR, "
        "FLASHINFER_WORKSPACE_BASE, SGLANG_DG_CACHE_DIR; remove what is half written there, then start again",
    ),
    Wording(
        pattern(r"FileNotFoundError: .*\.db'$"),
        "A file of the metrics, which the server's processes share in a folder, is gone: /tmp was cleaned, or is "
        "another one in that process.",
        "PROMETHEUS_MULTIPROC_DIR on a folder that nothing cleans (and is empty at the start), or without "
        "--enable-metrics",
        frames=pattern(r"(?:\S*/)?mmap_dict\.py:"),
    ),
    Wording(
        pattern(r"(?i)memlock|ibv_reg_mr.{0,60}(?:fail|ENOMEM|Cannot allocate)|cannot lock memory|mlock.{0,40}fail"),
        "Memory could not be locked for a network card or a GPU: the limit of locked memory is too small.",
        "ulimit -l unlimited (docker: --ulimit memlock=-1, and the capability IPC_LOCK)",
    ),
)
RULE = of_wordings(
    "host-limits",
    "the host lets a process have no more files, threads or locked memory",
    _WORDINGS,
    Confidence.LIKELY,
    ruled_out_if=("cat /proc/PID/limits shows room while it happens",),
)
