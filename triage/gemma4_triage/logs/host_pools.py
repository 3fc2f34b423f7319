"""What the hierarchical cache takes of the host, by the numbers of a start: its size is that of one rank."""

from __future__ import annotations

from gemma4_triage.logs.facts import LogFacts, Place, Remark
from gemma4_triage.logs.late_pattern import pattern

_LIMIT = pattern(r"\b(?:docker|podman) run\b.{0,300}?\s(?:--memory|-m)[= ](?P<size>\d+)(?P<unit>[gGmM])i?[bB]?\b")
_UNITS = {"g": 1.0, "m": 1.0 / 1024}
_LONGEST = 1000  # bytes of a line
LIMIT = "container_memory"
"""Name under which the command that gives a container its memory is kept."""
_GONE = pattern(r"(?i)\b(?:ranks?|workers?|process\w*|schedulers?)\b.{0,40}\b(?:gone|missing|vanish\w*|disappear\w*)\b")
_LAUNCHER = (
    " A rank that is killed for memory says nothing, and the launcher goes on waiting for those that are left: dmesg "
    "-T | grep -i oom on the host, docker inspect (OOMKilled), ps for ranks that are gone"
)


def keep(kept: dict[str, Remark], line: bytes, place: Place) -> None:
    """Keep the command that gives a container so much of the host's memory."""
    if b" run " not in line:
        return
    text = line[:_LONGEST].decode(errors="replace").strip()
    if _LIMIT.search(text):
        kept[LIMIT] = Remark(place, "", text)


def taken(facts: LogFacts) -> int:
    """Return how many GB the pools of all ranks take; 0 if the start does not say."""
    size, ranks = facts.settings.get("hicache_size", "0"), facts.settings.get("tp_size", "1")
    return int(size) * int(ranks) if size.isdecimal() and ranks.isdecimal() else 0


def _room(facts: LogFacts) -> float:
    """Return how many GB the container has; 0 if no command says."""
    found = _LIMIT.search(facts.remarks[LIMIT].text) if LIMIT in facts.remarks else None
    return float(found["size"]) * _UNITS[found["unit"].lower()] if found else 0.0


def too_large(facts: LogFacts) -> tuple[str, ...]:
    """Return what the pools of all ranks take, beside what the container has; empty if the start does not say."""
    if not (whole := taken(facts)):
        return ()
    size, ranks, room = facts.settings["hicache_size"], facts.settings.get("tp_size", "1"), _room(facts)
    beside = f", and the container has {room:.0f} (line {facts.remarks[LIMIT].place.line})" if room else ""
    return (f"--hicache-size {size} is per rank: {ranks} ranks take {whole} GB of the host{beside}; lower it",)


def of_a_silent_start(facts: LogFacts, note: str) -> tuple[str, ...]:
    """Return the same where a start stands as its ranks pin memory: the container has less, or ranks are gone."""
    told = too_large(facts)
    if not told or not (0 < _room(facts) <= taken(facts) or _GONE.search(note)):
        return ()
    return (f"{told[0]}, or give the container more.{_LAUNCHER}",)
