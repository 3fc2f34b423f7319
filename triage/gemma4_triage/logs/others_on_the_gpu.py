"""What other processes hold of a GPU whose memory ran out, as torch's message lists them."""

from __future__ import annotations

from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.pictures_on_the_gpu import PROCESS, takes_pictures

_OWN = pattern(r"this process has (\d+\.\d+) ([KMG])iB memory in use")
_TOTAL = pattern(r"total capacity of (\d+\.\d+) GiB")
_LEAST_SHARE = 0.25  # of the GPU: what prepares pictures there, or a context alone, holds less
_LEAST_GIB = 1.0
_ENDS_IT = (
    "nvidia-smi, on the host if this is a container, says what it is (another server, a trainer, another rank of this "
    "server): end {0}, or keep the two apart (CUDA_VISIBLE_DEVICES, --base-gpu-id); a lower --mem-fraction-static "
    "alone only makes room for what does not belong there"
)
_BOTH_STAY = (
    "if both have to share it: start this server last, for --mem-fraction-static is of what is free as it starts, and "
    "what the other takes later is missing"
)


def _listed(death: Death) -> list[tuple[float, str]]:
    return sorted(((float(used), process) for process, used in PROCESS.findall(death.message)), reverse=True)


def of_another(death: Death) -> tuple[str, tuple[str, ...]] | None:
    """Return cause and advice where another process holds a great part of the GPU; None if none does.

    Torch calls its own process "this process"; within a container it does not know its own number, and lists it with
    the others.
    """
    listed, own, total = _listed(death), _OWN.search(death.message), _TOTAL.search(death.message)
    others = listed if own else listed[1:]
    if total is None or not others or others[0][0] < _LEAST_SHARE * float(total[1]):
        return None
    if own is not None:
        used, process = others[0]
        mine = float(own[1]) if own[2] == "G" else 0.0
        cause = (
            f"The device's memory ran out beside another process: process {process} holds {used:.1f} of the GPU's "
            f"{float(total[1]):.1f} GiB, this one {mine:.1f}."
        )
        return cause, (_ENDS_IT.format(f"process {process}"), _BOTH_STAY)
    names = " and ".join(f"process {process} holds {used:.1f}" for used, process in listed[:2])
    cause = (
        f"The device's memory ran out beside another process: {names} of the GPU's {float(total[1]):.1f} GiB, and one "
        "of them is not this one."
    )
    return cause, (_ENDS_IT.format("what is not this server's"), _BOTH_STAY)


# "|    0   N/A  N/A    181022      C   python3    18754MiB |", as nvidia-smi lists processes and people note them.
_ROW = pattern(r"(?m)\b(\d{2,8})\s+(?:C\+G|C|G)\s+(\S+)\s.*?\b(\d{2,6}) ?MiB")
_OF_RANKS = pattern(r"sglang::sched|VLLM::(?:Worker|Engine)|\bvllm::")
_A_CONTEXT_GIB = 2.0  # what a process has of a GPU on which it computes nothing is less
_LOSES = (
    "--disable-fast-image-processor: pictures are then prepared on the CPU; that process, which takes the requests in, "
    "prepares them on the GPU else, beside pools and weights",
    "a later release, if it grows with every picture: some have lost that memory (0.4.9.post6: SGLang 8429, SGLang "
    "9365), others keep what the largest picture took (SGLang 36295); until then a restart in turns. A lower "
    "--mem-fraction-static only puts it off",
)
_WHOSE = (
    "ps -o pid,ppid,args -p {0} says what it is: of this server the process that takes requests in (pictures that are "
    "prepared on the GPU: --disable-fast-image-processor), else another server or a trainer, which is to be kept apart "
    "(CUDA_VISIBLE_DEVICES, --base-gpu-id). A lower --mem-fraction-static only puts it off if it grows"
)


def of_a_list(facts: LogFacts) -> tuple[str, tuple[str, ...]] | None:
    """Return cause and advice where a list of processes in the notes has one that is no rank and holds much."""
    notes = facts.remarks["notes"].text if "notes" in facts.remarks else ""
    rows = [(float(used) / 1024, process, name) for process, name, used in _ROW.findall(notes)]
    others = sorted((row for row in rows if not _OF_RANKS.search(row[2])), reverse=True)
    # Of a list without names of ranks nobody knows which are the server's own.
    if len(others) == len(rows) or not others or others[0][0] < _A_CONTEXT_GIB:
        return None
    used, process, name = others[0]
    pictured = takes_pictures(facts)
    whose = ", mostly the one of this server that prepares pictures," if pictured else ""
    cause = (
        f"The device's memory ran out beside another process than the scheduler's: by the list in the notes process "
        f"{process} ({name}){whose} holds {used:.1f} GiB of the GPU."
    )
    return cause, _LOSES if pictured else (_WHOSE.format(process),)


def beside(death: Death) -> tuple[str, ...]:
    """Return what to do about who holds memory of the device beside this process, or the largest; empty of none."""
    others = _listed(death)
    others = others if _OWN.search(death.message) else others[1:]
    if not others or others[0][0] < _LEAST_GIB:
        return ()
    return (
        f"process {others[0][1]} holds {others[0][0]:.1f} GiB of the same GPU: another server, a trainer, or what "
        "prepares images on the first GPU (--disable-fast-image-processor)",
    )
