"""What cuda-gdb prints of a GPU core dump: which kernel met which exception, where.

SGLang has CUDA write `core.cuda.TIME.PID` (server_args.py, _handle_crash_dump_env); cuda-gdb makes text of it. The text
is read, never the core file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from gemma4_triage.finding import Confidence, Evidence, Finding
from gemma4_triage.readers.reading import MAX_FACTS, MAX_MOMENTS, Identity, Moment, NotThis, Reading, cut
from gemma4_triage.readers.text_file import Lines

KIND = "cuda-gdb"
MAX_BYTES = 64 * 1024**2
_HEAD = re.compile(rb"Opening GPU coredump|CUDA_EXCEPTION_\d+|CUDA Exception:|\[Current focus set to CUDA kernel")
_CORE = re.compile(r"Opening GPU coredump:? +(\S+)")
_CORE_NAME = re.compile(r"core\.cuda\.(\d{9,11})\.(\d{1,10})\b")
_EXCEPTION = re.compile(r"CUDA_EXCEPTION_(\d+)\W+([A-Z][\w ]{3,60})|CUDA Exception: ([A-Z][\w ]{3,60})")
_FOCUS = re.compile(
    r"Current focus set to CUDA kernel (\d+).*?block (\([\d,]+\)).*?thread (\([\d,]+\))(?:.*?device (\d+))?"
)
_KERNEL = re.compile(r"\bin ([\w:~<>, ]{1,300}?)(?:<<<|\()|^\*?\s*#0\s+(?:0x[0-9a-f]+ in )?([\w:]{1,300})")
_AT = re.compile(r" at (\S+:\d+)")
_PC = re.compile(r"exception was triggered at PC (0x[0-9a-f]+)(?: \(?(.{1,200}?)\)?)?$")
# Ids of NVIDIA's cuda-gdb manual, "CUDA Exception Codes": those of an address that a kernel may not touch.
_ADDRESS = frozenset({1, 2, 6, 9, 10, 14, 15})
_ADDRESS_WORDS = re.compile(r"(?i)illegal address|out[- ]of[- ]range address|misaligned|address space|outside")


def takes(head: bytes) -> bool:
    """Return whether a file has the words of cuda-gdb in its beginning, and is no serving log."""
    return b"\0" not in head[:4096] and _HEAD.search(head) is not None and b"server_args=" not in head


def read(paths: Sequence[Path]) -> Iterator[Reading]:
    """Yield a reading for each file. Raises NotThis."""
    for path in paths:
        yield _read(path)


def _read(path: Path) -> Reading:
    lines = Lines(path, MAX_BYTES)
    exception: tuple[int, str, int] | None = None
    focus: tuple[int, str] | None = None
    kernel: tuple[int, str] | None = None
    pids: list[int] = []
    moments: list[Moment] = []
    facts: list[tuple[str, str]] = []
    for number, line in lines:
        if (match := _CORE.search(line)) and (named := _CORE_NAME.search(match[1])):
            pids.append(int(named[2]))
            moments.append(Moment(float(named[1]), f"process {named[2]} wrote a GPU core dump", f"line {number}"))
        if exception is None and (match := _EXCEPTION.search(line)):
            exception = int(match[1] or -1), (match[2] or match[3]).strip(), number
        if match := _PC.search(line):
            facts.append(("raised at", cut(f"{match[1]} {match[2] or ''}".strip())))
        if focus is None and (match := _FOCUS.search(line)):
            device = f", device {match[4]}" if match[4] else ""
            focus = number, f"kernel {match[1]}, block {match[2]}, thread {match[3]}{device}"
        if kernel is None and ("<<<" in line or line.lstrip("* ").startswith("#0")) and (match := _KERNEL.search(line)):
            name = (match[1] or match[2] or "").strip()
            kernel = (number, cut(name)) if name and name != "??" else None
            if kernel and (at := _AT.search(line)):
                facts.append(("in source", cut(at[1])))
    if exception is None and kernel is None and not pids:
        raise NotThis
    if focus:
        facts.append(("focus", focus[1]))
    what = "no exception" if exception is None else exception[1]
    return Reading(
        name=str(path),
        kind=KIND,
        title=f"a GPU core dump as cuda-gdb shows it: {what}" + (f" in {kernel[1]}" if kernel else ""),
        identity=Identity(pids=tuple(dict.fromkeys(pids))),
        moments=tuple(moments[:MAX_MOMENTS]),
        facts=tuple(facts[:MAX_FACTS]),
        findings=() if exception is None else (_finding(str(path), exception, kernel, focus),),
        problem=lines.problem,
    )


def _finding(
    name: str, exception: tuple[int, str, int], kernel: tuple[int, str] | None, focus: tuple[int, str] | None
) -> Finding:
    code, words, line = exception
    of_address = code in _ADDRESS or bool(_ADDRESS_WORDS.search(words))
    who = f"The kernel {kernel[1]}" if kernel else "A kernel, which the text does not name,"
    evidence = [Evidence(source=name, field=f"line {line}", value=words, meaning="the exception that the GPU raised")]
    if kernel:
        meaning = "the kernel that raised it"
        evidence.append(Evidence(source=name, field=f"line {kernel[0]}", value=kernel[1], meaning=meaning))
    if focus:
        evidence.append(Evidence(source=name, field=f"line {focus[0]}", value=focus[1], meaning="where in its grid"))
    cause = f"{who} touched an address that is not its own" if of_address else f"{who} was ended by the GPU"
    return Finding(
        rule="illegal-access" if of_address else "kernel-failed",
        cause=f"{cause} ({words}); who gave it that address is not in the dump.",
        confidence=Confidence.LIKELY if kernel else Confidence.POSSIBLE,
        evidence=tuple(evidence),
        ruled_out_if=(
            "the core dump was asked for by a signal: then the focus is on any kernel, and none is at fault",
        ),
        advice=("Serve it guarded: a probe stops before the kernel and says whose index is wrong.",),
    )
