"""A process was killed with SIGKILL: by the kernel or a container runtime for its memory, or by somebody."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from gemma4_triage.finding import Confidence, Evidence, Finding
from gemma4_triage.logs import host_pools
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.rule import (
    COLLECT,
    at,
    last_sign_of_life,
    last_work,
    of_death,
    of_failure,
    of_settings,
)
from gemma4_triage.logs.shells_of_others import is_killed

_OF_MEMORY = pattern(
    r"OOMKilled|killed by the OOM killer|[Oo]om[-_]kill|Out of memory: Killed process|Memory cgroup out of memory"
)
_CODE = pattern(
    r"[Ee]xit(?:ed with)? ?(?:[Cc]ode)?\W{0,12}(?:-9|137)\b|exitcode[ =:]*(?:-9|137)\b|terminated with -9\b|"
    r"\bstatus=9/KILL\b|: Killed\W*$|\bline \d+: +\d+ Killed\b|\b[Ee]xited \(137\)|signal 9\b|signal: killed\b|"
    r"^(?:\w+: |\[\d+\][+-]? +(?:\d+ )?)[Kk]illed +\w|"
    r"(?:terminated by |was sent |via signal \[|Negsignal\.|: )SIGKILL\b"
)


_PASSED_ON = frozenset({"child", "sigquit"})


def _explains(death: Death) -> bool:
    return bool(
        _OF_MEMORY.search(death.message)
        or _CODE.search(death.message)
        or re.search(r"^\W*Killed\W*$", death.message)
        or is_killed(death.message)
    )


def _tell(facts: LogFacts, death: Death) -> Finding:
    texts = [alarm.text for alarm in facts.alarms] + [death.message]
    for_memory = any(_OF_MEMORY.search(text) for text in texts)
    went_on = last_work(facts) > death.place.line
    starting = not facts.served and (facts.starts > 0 or "before_weights" in facts.remarks)
    loading = starting and "before_weights" in facts.remarks and "after_weights" not in facts.remarks
    while_what = " while weights were loading" if loading else " while the server started" if starting else ""
    cause = f"SIGKILL ended a process{while_what}"
    cause += (
        ": the host or its container had no memory left." if for_memory else "; the usual reason is the host's memory."
    )
    return Finding(
        rule=_OF_DEATH.id,
        cause=cause,
        # What goes on behind it was not what was killed, or began anew.
        confidence=Confidence.CERTAIN if for_memory and not went_on else Confidence.POSSIBLE,
        evidence=(*_evidence(facts, death), *of_settings(facts, "enable_hierarchical_cache", "tp_size")),
        ruled_out_if=()
        if for_memory and not went_on
        else (
            "the server goes on behind it: then another process or container was killed"
            if went_on
            else "dmesg and the container's state name no OOM at that time",
        ),
        advice=(
            *host_pools.too_large(facts),
            *((_ROOMS,) if for_memory and _waits_for_rooms(facts) else ()),
            *((_COPIES_OF_RETRACTED,) if for_memory and _retracts_as_it_decodes(facts) else ()),
            *((_LOADS,) if loading else ()),
            *((_GROWS,) if not starting and facts.settings.get("hicache_storage_backend", "None") != "None" else ()),
            "dmesg -T | grep -i oom on the host; docker inspect, kubectl describe pod: OOMKilled; free -g meanwhile",
            "more host memory or shared memory for the container; a smaller --hicache-size; fewer loaders at once",
            "collect, while the next one runs, has the memory of each process, now and at its most",
        ),
        next_commands=(COLLECT,),
    )


_HANDSHAKE = pattern(r"[Hh]andshake (?:failed|timed out)")
_ROOMS = (
    "if it was the prefill server, and grew while it computed little: decode servers announce rooms to it for which no "
    "request came, as their time-outs here show, and it keeps an entry of each for ever. Let nobody but "
    "the router reach the servers' own ports (a network policy, a private --host), restart the prefill server, then a "
    "later release; more memory only makes it last longer"
)


def _waits_for_rooms(facts: LogFacts) -> bool:
    """Say whether a decode server's requests were never met by the prefill server."""
    transfers = [alarm for alarm in facts.alarms if alarm.kind == "transfer"]
    return any(_HANDSHAKE.search(alarm.text) and "timed out" in alarm.text for alarm in transfers)


_COPIES_OF_RETRACTED = (
    "fewer retractions on this decode server (--max-running-requests, a larger --num-reserved-decode-tokens, more "
    "room for KV): it keeps a copy of the KV of each retracted request in the host's memory until that comes back, and "
    "of one that is aborted meanwhile some releases keep it for good (SGLang 18701); then a later release"
)


def _retracts_as_it_decodes(facts: LogFacts) -> bool:
    """Say whether a decode server of a split pair had to retract requests."""
    decodes = facts.settings.get("disaggregation_mode") == "decode"
    return decodes and any(rank.retractions.requests for rank in facts.schedulers)


_LOADS = (
    "weights pass through the host's memory, and some loaders hold all of them beside the model; where the GPU shares "
    "that memory (GB10, Jetson) both count: fewer loaders at once (--model-loader-extra-config), a smaller copy, a "
    "later release; --mem-fraction-static does not help"
)
_GROWS = (
    "with --hicache-storage-backend the host's memory has grown until a rank was killed (SGLang 20271): watch it, "
    "serve once without that storage, then a later release (SGLang 21624)"
)


def _evidence(facts: LogFacts, death: Death) -> list[Evidence]:
    found = of_failure(facts, death, "what ended")
    loading = facts.remarks.get("before_weights")
    if loading is not None and "after_weights" not in facts.remarks:
        found.append(at(facts, loading.place, loading.text, "weights were being loaded"))
    return found + last_sign_of_life(facts, death.place)


def _find(facts: LogFacts) -> Iterator[Finding]:
    """Say nothing where something else failed before: SGLang ends its own processes with SIGKILL then.

    Who only passes on that a process ended tells of nothing else, wherever it stands.
    """
    passed_on = {alarm.place.line for alarm in facts.alarms if alarm.kind in _PASSED_ON}
    failures = [one for one in facts.failures if one.type_name or one.place.line not in passed_on]
    for finding in _OF_DEATH.find(facts):
        killed = next(filter(_explains, facts.failures))
        others = (one for one in failures if not _explains(one) and one.place.line < killed.place.line)
        if finding.confidence is Confidence.CERTAIN or not any(others):
            yield finding


_OF_DEATH = of_death("killed-from-outside", "a process was killed with SIGKILL", _explains, _tell)
RULE = replace(_OF_DEATH, find=_find, alarms=frozenset({"killed", "child", "no-start"}))
