"""What cannot be unpickled: a message between processes that none of the server's own wrote, or a weight file."""

from __future__ import annotations

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.rule import of_death, of_failure, of_settings

_WORDS = pattern(r"UnpicklingError|invalid load key|pickle data was truncated|Ran out of input|unpickling stack")
_OF_A_SOCKET = pattern(r".* (?:recv\w*|handle_loop|event_loop\w*|_chain|_deserialize)$|_?future\.py|socket\.py")


def _explains(death: Death) -> bool:
    return _WORDS.search(f"{death.type_name}: {death.message}") is not None


def _tell(facts: LogFacts, death: Death) -> Finding:
    if any(map(_OF_A_SOCKET.match, death.frames)):
        cause = (
            "A message on a socket between the server's processes is none of theirs: something else wrote to that port."
        )
        advice = (
            "look at what connects to the server's ports: a scanner, a health check of a platform, another server on "
            "the "
            "same host or of another release; ss -tnp names it",
            "keep all but --port closed to others (network policy, firewall), and give a second server other ports",
        )
    else:
        cause = "A weight file is damaged, is a Git LFS pointer, or is no file of torch: it cannot be unpickled."
        advice = ("compare sizes and SHA-256 with the repository; fetch again (git lfs pull) what differs",)
    return Finding(
        rule=RULE.id,
        cause=cause,
        confidence=Confidence.LIKELY,
        evidence=(*of_failure(facts, death), *of_settings(facts, "model_path")),
        ruled_out_if=("it comes again after a restart in a network that nobody else reaches",),
        advice=advice,
    )


RULE = of_death("foreign-message", "a message or a file cannot be unpickled", _explains, _tell)
