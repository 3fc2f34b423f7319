"""The processes of a server on this machine, as /proc shows them; what another user's process hides stays hidden."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
MAX_PROCESSES = 256
_STATUS = ("Name", "State", "Threads", "VmRSS", "VmHWM", "VmSwap", "Uid")
_PREFIXES = (
    *("SGLANG_", "SGL_", "GEMMA4_", "CUDA_", "NCCL_", "TORCH_", "PYTORCH_", "FLASHINFER_", "TRITON_", "NVIDIA_"),
    *("HF_", "HUGGINGFACE_", "OMP_", "MKL_", "VLLM_", "PYTHON", "LD_", "GLOO_", "UCX_", "MC_"),
)
_SGLANG = re.compile(r"sglang|launch_server")


@dataclass(frozen=True)
class Process:
    """One process.

    Attributes:
        pid: its id.
        parent: its parent's id.
        command: a word each; empty if it cannot be read.
        title: the first line of what `ps` shows.
        started_s: since the epoch; None if it cannot be read.
    """

    pid: int
    parent: int
    command: tuple[str, ...]
    title: str
    started_s: float | None


def process(pid: int) -> Process | None:
    """Return a process; None if there is none, or none any more."""
    try:
        fields = (PROC / str(pid) / "stat").read_text(errors="replace")
        command = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return None
    # The name stands in parentheses and may hold some.
    rest = fields[fields.rindex(")") + 1 :].split()
    words = tuple(word.decode(errors="replace") for word in command.split(b"\0") if word)
    started = _boot_s()
    ticks = os.sysconf("SC_CLK_TCK")
    return Process(
        pid=pid,
        parent=int(rest[1]),
        command=words,
        title=" ".join(words)[:200] or fields[fields.index("(") : fields.rindex(")") + 1],
        started_s=None if started is None else started + int(rest[19]) / ticks,
    )


def server_of(pid: int) -> list[Process]:
    """Return the launcher that a process belongs to, with everything below it; empty if the process is not there.

    A parent is the launcher as long as its command is SGLang's too. Below a process that is none of SGLang's, such as a
    container's first one, only what is SGLang's and what that started belong to a server.
    """
    top = process(pid)
    while top is not None and (above := process(top.parent)) is not None and _is_sglang(above):
        top = above
    if top is None:
        return []
    every = [one for number in _pids() if (one := process(number)) is not None]
    found = [top]
    for one in found:
        if len(found) < MAX_PROCESSES:
            found += [other for other in every if other.parent == one.pid and other not in found]
    kept: list[Process] = []
    for one in found:
        if serves([one]) or any(one.parent == other.pid for other in kept):
            kept.append(one)
    return kept or found


def serves(found: Iterable[Process]) -> bool:
    """Return whether one of these processes is SGLang's, by its command or by its title."""
    return any(_SGLANG.search(one.title) or _is_sglang(one) for one in found)


def has_ended(one: Process) -> bool:
    """Return whether a process is only an entry that waits for its parent to ask how it ended."""
    return status_of(one.pid).get("State", "")[:1] in ("Z", "X")


def _is_sglang(one: Process) -> bool:
    return bool(_SGLANG.search(" ".join(one.command)))


def listening_on(port: int) -> int | None:
    """Return the id of a process of ours that listens on a TCP port; None if none is found."""
    inodes = set()
    for name in ("tcp", "tcp6"):
        try:
            lines = (PROC / "net" / name).read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            if len(fields) > 9 and fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(fields[9])
    wanted = {f"socket:[{inode}]" for inode in inodes}
    return next((pid for pid in _pids() if wanted & set(_targets(pid))), None) if wanted else None


def _pids() -> Iterator[int]:
    yield from sorted(int(name) for name in os.listdir(PROC) if name.isdecimal())


def _targets(pid: int) -> Iterator[str]:
    try:
        for name in os.listdir(PROC / str(pid) / "fd"):
            yield os.readlink(PROC / str(pid) / "fd" / name)
    except OSError:
        return


def status_of(pid: int) -> dict[str, str]:
    """Return what the kernel says of a process: state, threads, memory, and where in the kernel it waits."""
    found: dict[str, str] = {}
    try:
        for line in (PROC / str(pid) / "status").read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name in _STATUS:
                found[name] = " ".join(value.split())
        found["wchan"] = (PROC / str(pid) / "wchan").read_text(errors="replace")
    except OSError as error:
        found.setdefault("problem", error.strerror or str(error))
    return found


def environment_of(pid: int) -> dict[str, str]:
    """Return the variables of a process that are about serving. Raises OSError: it is gone or another user's."""
    data = (PROC / str(pid) / "environ").read_bytes()
    pairs = (entry.decode(errors="replace").partition("=") for entry in data.split(b"\0") if b"=" in entry)
    return {name: value for name, _, value in pairs if name.startswith(_PREFIXES)}


def folder_of(pid: int) -> Path:
    """Return the folder that a process runs in; the current one if that is not to be seen."""
    try:
        return Path(os.readlink(PROC / str(pid) / "cwd"))
    except OSError:
        return Path()


def logs_of(pid: int) -> tuple[list[Path], list[str]]:
    """Return the regular files that stdout and stderr of a process go to, and what else they are."""
    files: list[Path] = []
    others: list[str] = []
    for number in (1, 2):
        link = PROC / str(pid) / "fd" / str(number)
        try:
            target, mode = os.readlink(link), os.stat(link).st_mode
        except OSError as error:
            others.append(error.strerror or str(error))
            continue
        if stat.S_ISREG(mode) and not target.endswith(" (deleted)"):
            files.append(Path(target))
        else:
            others.append(target)
    return list(dict.fromkeys(files)), list(dict.fromkeys(others))


def port_of(command: tuple[str, ...]) -> int | None:
    """Return the port that a launch command names, or SGLang's default; None if it is no launch command."""
    if not _SGLANG.search(" ".join(command)):
        return None
    for at, word in enumerate(command):
        value = command[at + 1] if word == "--port" and at + 1 < len(command) else word.removeprefix("--port=")
        if (word == "--port" or word.startswith("--port=")) and value.isdecimal():
            return int(value)
    return 30000


def _boot_s() -> float | None:
    try:
        lines = (PROC / "stat").read_text().splitlines()
    except OSError:
        return None
    return next((float(line.split()[1]) for line in lines if line.startswith("btime ")), None)
