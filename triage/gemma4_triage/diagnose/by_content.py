"""What a file or folder is, told by its content and not by its name."""

from __future__ import annotations

import os
import re
from pathlib import Path

from gemma4_dumps.directory_name import time_key
from gemma4_dumps.manifest_file import EVENTS_NAME, MANIFEST_NAME
from gemma4_dumps.tensor_file import TENSORS_NAME
from gemma4_triage.diagnose.incident import GUARDS, LEDGERS
from gemma4_triage.errors import UsageMistake
from gemma4_triage.logs.source import NotUnpacked, Source
from gemma4_triage.own_document import is_guard_manifest, is_ledger
from gemma4_triage.readers.catalog import head_of

_LOG_MARKS = re.compile(
    rb"server_args=|Prefill batch|Decode batch|Traceback \(most recent call last\)|CUDA error: |Uvicorn running|"
    rb"gemma4-triage: |NCCL (?:WARN|error)|^Killed$|Segmentation fault|Scheduler hit an exception|"
    rb"; seen \d+ times; dump: |[Mm]em(?:ory)? [Ll]eak [Dd]etected!",
    re.MULTILINE,
)
_BINARIES = (
    (
        b"\x7fELF",
        "a program or a core dump",
        "cuda-gdb -batch -ex 'target cudacore {0}' -ex bt > core.txt, then name that",
    ),
    (b"SQLite format 3", "a database, such as Nsight Systems writes", "gemma4-triage profile reads torch's traces"),
)
# Texts that tools print of a server, which no reader takes.
_TEXTS = (
    (
        re.compile(rb"^Thread \d+ \((?:Thread 0x|LWP )[^\n]{1,200}\n+#\d+ ", re.MULTILINE),
        "gdb's stacks of threads, which are not read",
        "py-spy dump --pid PID > stacks.txt shows those of Python, which are: name that",
    ),
    (
        re.compile(rb"^ *Kernel +Parent +Dev +Grid +Status ", re.MULTILINE),
        "cuda-gdb's table of kernels, which is not read alone",
        "cuda-gdb -batch -ex 'target cudacore FILE' -ex bt > core.txt shows the exception and where: name that",
    ),
    (
        re.compile(rb"internal record id: \d{1,12}\s[^\n]{0,200}group info: "),
        "what torchfrtrace says of flight recorders, which is not read",
        "name the recorders that it was made of, a file of each rank",
    ),
)


def is_dump(path: Path) -> bool:
    """Return whether a folder's manifest.json is a dump's, or another file says that it lost one."""
    manifest = path / MANIFEST_NAME
    if not os.path.lexists(manifest):
        return os.path.lexists(path / TENSORS_NAME) or _has_our_events(path / EVENTS_NAME)
    if any(os.path.lexists(path / name) for name in (TENSORS_NAME, EVENTS_NAME)) or time_key(path.name):
        return True
    try:
        head = head_of(manifest)
    except OSError:
        return True
    return b'"dump_id"' in head or b'"verdict"' in head


def _has_our_events(path: Path) -> bool:
    """Return whether it has lines of an allocator's calls or an audit."""
    try:
        head = head_of(path)
    except OSError:
        return False
    return b'"site": ' in head and any(name in head for name in (b'"call": ', b'"pool": '))


def kind_of(head: bytes) -> str | None:
    """Return GUARDS for a guard manifest, LEDGERS for a ledger, None for neither."""
    return GUARDS if is_guard_manifest(head) else LEDGERS if is_ledger(head) else None


def binary_of(head: bytes) -> tuple[str, str] | None:
    """Return what a binary is and what to do instead, with {} for its path; None for others."""
    return next(((what, hint) for magic, what, hint in _BINARIES if head.startswith(magic)), None)


def text_of(head: bytes) -> tuple[str, str] | None:
    """Return what a tool's text is and what to do instead; None if a log has such lines, or it is no such text.

    A reader that takes it has been asked before.
    """
    if _LOG_MARKS.search(head):
        return None
    return next(((what, hint) for form, what, hint in _TEXTS if form.search(head)), None)


def is_log(path: Path) -> bool:
    """Return whether a file has lines that a server writes. Raises NotUnpacked."""
    try:
        first = next(Source(str(path), "diagnose").chunks(), b"")
    except NotUnpacked:
        raise
    except UsageMistake:
        return False
    return _LOG_MARKS.search(first) is not None
