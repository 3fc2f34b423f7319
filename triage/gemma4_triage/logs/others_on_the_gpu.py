"""What other processes hold of a GPU whose memory ran out, as torch's message lists them."""

from __future__ import annotations

from gemma4_triage.logs.facts import Death
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.pictures_on_the_gpu import PROCESS

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
