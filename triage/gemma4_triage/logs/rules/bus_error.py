"""A bus error: a page of a file that is mapped into memory could not be read, or /dev/shm was full."""

from __future__ import annotations

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.rule import at, of_death, of_failure, remarked
from gemma4_triage.logs.shells_of_others import is_of_the_bus

_WORDS = pattern(r"Bus error|\bSIGBUS\b|exit ?code[ =:]*(?:-7|135)\b")
_LOADS = pattern(r".*(?:load_weights|weight_loader|load_model|safetensors)")


def _explains(death: Death) -> bool:
    return _WORDS.search(death.message) is not None or is_of_the_bus(death.message)


def _tell(facts: LogFacts, death: Death) -> Finding:
    crash = next((alarm for alarm in facts.alarms if alarm.kind == "signalled"), None)
    frames = [text for text in (crash.more if crash else ()) if ".py:" in text]
    loading = any(_LOADS.match(frame) for frame in frames) or (
        "before_weights" in facts.remarks and "after_weights" not in facts.remarks
    )
    shared = not loading and any(map(_SHARED.match, frames[:_INNER]))
    if shared:
        cause = (
            "/dev/shm was full: what one process leaves for another there, such as features of images, is written to "
            "memory that the system could not give, and that ends the process by a signal and without an exception."
        )
    elif loading:
        cause = (
            "A bus error while weights were read: a weight file is shorter than its header says, or its disk failed."
        )
    else:
        cause = "A bus error: a file that is mapped into memory could not be read, or /dev/shm is full."
    shown = [at(facts, death.place, frames[0], "the innermost frame of the thread that crashed")] if frames else []
    return Finding(
        rule=RULE.id,
        cause=cause,
        confidence=Confidence.LIKELY if loading or shared else Confidence.POSSIBLE,
        evidence=(*of_failure(facts, death), *shown, *remarked(facts, "before_weights", "weights were being loaded")),
        ruled_out_if=("df -h /dev/shm shows room while it happens",)
        if shared
        else ("sizes and SHA-256 of all weight files are those of the repository, and df shows room",),
        advice=_ROOM
        if shared
        else (
            "compare sizes and SHA-256 of the weight files with the repository, and fetch anew what differs",
            "df -h of that disk and of /dev/shm, dmesg -T for errors of the disk; a local disk instead of a network's",
        ),
    )


_SHARED = pattern(r"(?:mm_utils|shared_memory|shm_\w+|\w*shm\w*)\.py:|.* \w*shm\w*$")
_INNER = 3  # frames
_ROOM = (
    "more shared memory for the container: docker --shm-size 32g or --ipc=host (Kubernetes: an emptyDir of medium "
    "Memory at /dev/shm, with a larger sizeLimit); df -h /dev/shm while it serves",
    "until then fewer or smaller images at once; ls /dev/shm/psm_* shows what the dead left there",
    "a later release, which asks for the room first and hands features over otherwise where there is none",
)

RULE = of_death("bus-error", "a mapped file could not be read", _explains, _tell, alarms=("signalled", "child"))
