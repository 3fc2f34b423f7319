"""What was free on a device as a server began to serve, against what is as its memory runs out."""

from __future__ import annotations

import re

from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.notes_in_prose import NOTED
from gemma4_triage.logs.pictures_on_the_gpu import takes_pictures
from gemma4_triage.logs.remarks import number_in

_ASKED = pattern(r"Tried to allocate ([\d.]+) ([MG])iB")
_FREE = pattern(r"([\d.]+) ([MG])iB (?:is|are) free")
_MANY_TIMES = 4  # of what was asked for
_LEAST = 5.0  # GiB


def grown_since_start(facts: LogFacts, death: Death) -> tuple[str, tuple[str, ...]] | None:
    """Return cause and advice where far more went since the start than the encoder asks for at once; None else."""
    pools = facts.remarks.get("pools")
    at_first = number_in(pools.text, "available_gpu_mem") if pools is not None else None
    asked, free = _gib(_ASKED, death.message), _gib(_FREE, death.message)
    if at_first is None or asked is None or free is None:
        return None
    if at_first - free < max(_LEAST, _MANY_TIMES * asked):
        return None
    noted = facts.remarks.get("gpu_memory")
    return (
        f"The device's memory ran out in the image or audio encoder, which asked for {asked:.2f} GiB: {at_first:.1f} "
        f"GB were free as the server began to serve, and {free:.2f} are now. What went since is no pool and no weight: "
        "features of images that stay on the GPU from request to request, or images of one request that are too many."
        + (f" Line {noted.place.line} begins what nvidia-smi showed: if that only rises, they stay." if noted else ""),
        (
            "a later release, which frees the features of images after their prefill, or keeps them on the host "
            "(SGLang 7340); without --keep-mm-feature-on-device, if it is there",
            "until then, beside the share: fewer requests with images at once, and a restart before it is full "
            "(nvidia-smi -l 60 tells when)",
        ),
    )


_BY_A_NOTE = (
    "The device's memory ran out, and by a note it grew while the server served: pools and weights take theirs at the "
    "start, so that something else keeps what it took."
)
_KEEPS = (
    "gemma4-triage collect URL (or nvidia-smi) twice, some hours apart, has the memory of each process: of the "
    "scheduler's own it is torch's reserve, of another what that one does; a later release, and a restart in turns "
    "until then. A lower --mem-fraction-static only puts it off"
)
_OF_PICTURES = (
    "once with --disable-fast-image-processor: with pictures it is mostly the process that takes requests in, which "
    "prepares them on the GPU (0.4.9.post6 lost that memory: SGLang 8429)"
)


def grown_by_a_note(facts: LogFacts) -> tuple[str, tuple[str, ...]] | None:
    """Return cause and advice where somebody noted that memory grew as the server served; None elsewhere."""
    if NOTED.format("memory") not in facts.remarks or not facts.served:
        return None
    return _BY_A_NOTE, (*((_OF_PICTURES,) if takes_pictures(facts) else ()), _KEEPS)


def _gib(words: re.Pattern[str], message: str) -> float | None:
    found = words.search(message)
    return None if found is None else float(found[1]) / (1024 if found[2] == "M" else 1)
