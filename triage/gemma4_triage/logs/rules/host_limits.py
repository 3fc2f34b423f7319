"""The host or the container let a process have no more: files, threads, locked memory."""

from __future__ import annotations

from gemma4_triage.finding import Confidence
from gemma4_triage.logs.rule import of_wordings

RULE = of_wordings(
    "host-limits",
    "the host lets a process have no more files, threads or locked memory",
    "host_limits.toml",
    Confidence.LIKELY,
    ruled_out_if=("cat /proc/PID/limits shows room while it happens",),
)
