"""What cuda-gdb prints of a GPU core dump: which kernel met which exception, where.

SGLang has CUDA write `core.cuda.TIME.PID` (server_args.py, _handle_crash_dump_env) or `cuda_coredump_HOST.PID.TIME`
(debug_utils/cuda_coredump.py of 0.5.23), CUDA by itself `core_TIME_HOST_PID.nvcudmp`; cuda-gdb makes text of it. The
text is read, never the core file. A core dump may also be asked for while a kernel hangs: then it has a focus and no
exception. Sources: NVIDIA's cuda-gdb manual (exception codes, focus) and transcripts that people published of its
releases 11 to 13.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from gemma4_dumps.unpacked import origin
from gemma4_triage.finding import Confidence, Evidence, Finding
from gemma4_triage.logs.rule import COLLECT
from gemma4_triage.readers.reading import MAX_FACTS, MAX_MOMENTS, SERVE_GUARDED, Identity, Moment, NotThis, Reading, cut
from gemma4_triage.readers.text_file import Lines

KIND = "cuda-gdb"
MAX_BYTES = 64 * 1024**2
MATCHED = 1000
"""How much of a line is held against a pattern that looks back, which takes the square of it."""
_HEAD = re.compile(
    rb"Opening GPU coredump|CUDA_EXCEPTION_\d+|CUDA Exception:|(?:Current|Switching) focus (?:set )?to CUDA"
)
_CORE = re.compile(r"Opening GPU coredump:? +(\S+)")
_CORE_NAME = re.compile(
    r"core\.cuda\.(?P<time>\d{9,11})\.(?P<pid>\d{1,10})$|\.(?P<pid2>\d{1,10})\.(?P<time2>\d{9,11})$|"
    r"core_(?P<time3>\d{9,11})_.{1,200}_(?P<pid3>\d{1,10})\.nvcudmp$"
)
# Of an assert in a kernel cuda-gdb prints no exception's name.
_EXCEPTION = re.compile(
    r"CUDA_EXCEPTION_\d+\W+([A-Z][\w -]{3,60})|CUDA Exception: ([A-Z][\w -]{3,60})|^(Assertion failed)\.\s*$"
)
_FOCUS = re.compile(
    r"(?:Current focus set|Switching focus) to CUDA kernel (\d+)"
    r".*?block (\([\d,]+\)).*?thread (\([\d,]+\))(?:.*?device (\d+))?"
)
# A frame of a kernel: "#0  0x7f.. in NAME<<<(grid),(block)>>> ()", of the call stack or alone.
_FRAME = re.compile(r"^[\s*]*(?:#\d+\s+)?(?:0x[0-9a-f]+ in )?(\S.{0,2000}?) ?(?:<<<|\(\) at |\(\)$)")
_AT = re.compile(r" at (\S+:\d+)")
# "PC 0x7f.. (a.cu:14)", and later releases "PC 0x7f..  KERNEL(ARGUMENTS)  (a.cu:14)".
_PC = re.compile(r"exception was triggered at PC (0x[0-9a-f]+)(.*)")
_PLACE = re.compile(r" ?\(([^()\s]+:\d+)\)$")
# Of the exceptions in NVIDIA's cuda-gdb manual those of an address of data; stacks and asserts are others.
_ADDRESS_WORDS = re.compile(
    r"(?i)illegal address|out[- ]of[- ]range address|misaligned address|address space|MMU fault"
)
_COLLECTIVE = re.compile(r"nccl|allreduce|all_reduce|allgather|all_gather|nvshmem|one_shot|two_shot")


class _At(NamedTuple):
    """Something that the text says, and its line."""

    text: str
    line: int


def takes(head: bytes) -> bool:
    """Return whether a file has the words of cuda-gdb in its beginning, and is no serving log."""
    return b"\0" not in head[:4096] and _HEAD.search(head) is not None and b"server_args=" not in head


def read(paths: Sequence[Path]) -> Iterator[Reading]:
    """Yield a reading for each file. Raises NotThis."""
    for path in paths:
        yield _read(path)


def _read(path: Path) -> Reading:
    lines = Lines(path, MAX_BYTES)
    exception: _At | None = None
    focus: _At | None = None
    kernel: _At | None = None
    raiser: _At | None = None
    before = ""
    pids: list[int] = []
    moments: list[Moment] = []
    facts: list[tuple[str, str]] = []
    for number, line in lines:
        if (match := _CORE.search(line)) and (named := _CORE_NAME.search(match[1])):
            pid = named["pid"] or named["pid2"] or named["pid3"]
            time = named["time"] or named["time2"] or named["time3"]
            pids.append(int(pid))
            moments.append(Moment(float(time), f"process {pid} wrote a GPU core dump", f"line {number}"))
        if exception is None and (match := _EXCEPTION.search(line)):
            exception = _At((match[1] or match[2] or match[3]).strip(), number)
        if match := _PC.search(line[: 2 * MATCHED]):
            place = _PLACE.search(match[2])
            name = (match[2][: place.start()] if place else match[2]).strip()
            facts.append(("raised at", cut(" ".join(filter(None, (match[1], name, place[1] if place else ""))))))
            raiser = raiser or (_At(cut(_function(name)), number) if name else None)
        if focus is None and "focus" in line and (match := _FOCUS.search(line[:MATCHED])):
            device = f", device {match[4]}" if match[4] else ""
            focus = _At(f"kernel {match[1]}, block {match[2]}, thread {match[3]}{device}", number)
        # A long frame is broken ahead of its grid.
        whole = f"{before.rstrip()} {line.lstrip()}" if line.lstrip().startswith("<<<") else line
        before, line = line, whole
        shows_frame = "<<<" in line or ((focus or exception) and line.lstrip("* ").startswith("#0"))
        if kernel is None and shows_frame and (match := _FRAME.match(line)):
            name = _function(match[1])
            kernel = _At(cut(name), number) if name and name != "??" else None
            if kernel and (at := _AT.search(line)):
                facts.append(("in source", cut(at[1])))
    kernel = kernel or raiser
    if exception is None and kernel is None and not pids:
        raise NotThis
    if focus:
        facts.append(("focus", focus.text))
    what = "no exception" if exception is None else exception.text
    findings = []
    if exception is not None:
        findings.append(_raised(str(path), exception, kernel, focus))
    elif kernel is not None:
        findings.append(_was_running(str(path), kernel, focus))
    return Reading(
        name=str(path),
        kind=KIND,
        title=f"a GPU core dump as cuda-gdb shows it: {what}" + (f" in {kernel.text}" if kernel else ""),
        identity=Identity(pids=tuple(dict.fromkeys(pids))),
        moments=tuple(moments[:MAX_MOMENTS]),
        facts=tuple(facts[:MAX_FACTS]),
        findings=tuple(findings),
        problem=lines.problem,
    )


def _function(frame: str) -> str:
    """Return a kernel's name without its return type and its parameters."""
    name, depth = frame.strip(), 0
    if name.endswith(")"):
        for at in range(len(name) - 1, -1, -1):
            depth += {")": 1, "(": -1}.get(name[at], 0)
            if depth == 0:
                name = name[:at]
                break
    return name.removeprefix("void ").strip()


def _evidence(name: str, found: _At | None, meaning: str) -> list[Evidence]:
    return (
        [] if found is None else [Evidence(source=name, field=f"line {found.line}", value=found.text, meaning=meaning)]
    )


def _raised(name: str, exception: _At, kernel: _At | None, focus: _At | None) -> Finding:
    of_address = bool(_ADDRESS_WORDS.search(exception.text))
    who = f"The kernel {kernel.text}" if kernel else "A kernel, which the text does not name,"
    if of_address:
        cause = f"{who} touched an address that is not its own ({exception.text}); who gave it that address is not in "
        advice, command = (
            "Serve it guarded: a probe stops before the kernel and says whose index is wrong.",
            SERVE_GUARDED,
        )
    else:
        cause = f"{who} was ended by the GPU ({exception.text}); why is not in "
        advice, command = (
            "Give diagnose the server's log of that time: an assert of a kernel says there what failed.",
            f"gemma4-triage diagnose {shlex.quote(origin(Path(name)))} SERVER_LOG",
        )
    return Finding(
        rule="illegal-access" if of_address else "kernel-failed",
        cause=f"{cause}the dump.",
        confidence=Confidence.LIKELY if kernel else Confidence.POSSIBLE,
        evidence=(
            *_evidence(name, exception, "the exception that the GPU raised"),
            *_evidence(name, kernel, "the kernel that raised it"),
            *_evidence(name, focus, "where in its grid"),
        ),
        ruled_out_if=("the exception is a consequence of another process's, which the first core dump in time tells",),
        advice=(advice,),
        next_commands=(command,),
    )


def _was_running(name: str, kernel: _At, focus: _At | None) -> Finding:
    collective = bool(_COLLECTIVE.search(kernel.text))
    what = "a collective, in which it waits for other ranks" if collective else "a kernel"
    return Finding(
        rule="hang",
        cause=f"The GPU was in {kernel.text} when the core dump was asked for, and had raised no exception: {what}.",
        confidence=Confidence.POSSIBLE,
        evidence=(
            *_evidence(name, kernel, "the kernel that ran"),
            *_evidence(name, focus, "the thread that the debugger chose"),
        ),
        ruled_out_if=("the server went on: a core dump of a busy GPU shows a kernel too",),
        advice=(
            ("Look at the rank that is not in this collective: its stack or its exception is the cause.",)
            if collective
            else ("Ask for two core dumps some seconds apart: the same kernel and thread in both hang.",)
        ),
        next_commands=(COLLECT,),
    )
