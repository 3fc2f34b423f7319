"""Lines of a scheduler of jobs, a kubelet or the server that say by their own words what came to its end."""

from __future__ import annotations

from gemma4_triage.finding import Confidence
from gemma4_triage.logs.facts import Alarm, LogFacts
from gemma4_triage.logs.late_pattern import pattern

_OF_A_JOB = pattern(r"CANCELLED AT \S+ DUE TO (TIME LIMIT|PREEMPTION|NODE FAIL\w*|JOB REQUEUE)")
_JOBS = {
    "TIME LIMIT": (
        "The job's time limit was over, and Slurm ended it: the server itself did not fail.",
        "ask for more time (sbatch --time, up to MaxTime of the partition: scontrol show partition), or submit it "
        "again before it is over (--signal, --requeue)",
    ),
    "PREEMPTION": (
        "Another job took the node, and Slurm ended this one: the server itself did not fail.",
        "a partition or --qos that is not preempted, or --requeue so that it starts again by itself",
    ),
    "JOB REQUEUE": (
        "Slurm put the job back into its queue: the server itself did not fail.",
        "sacct -j of the job says who asked for it",
    ),
    "NODE FAIL": (
        "A node of the job failed, and Slurm ended it: the server itself did not fail.",
        "sinfo -R and dmesg -T of that node; --exclude keeps it out",
    ),
}
_EVICTED = pattern(r"node was low on resource: ([\w-]+)|[Pp]od evicted|Reason: +Evicted")
_EVICTS_FOR = {
    "memory": (
        "a memory request and limit of the container as large as what the server takes (host cache, weights as they "
        "load, /dev/shm): one that asks for little is the first to go; a smaller --hicache-size; a node with more"
    ),
    "ephemeral-storage": (
        "caches and models on a volume of their own (HF_HOME, TRITON_CACHE_DIR), an ephemeral-storage request that "
        "holds them, and logs that are rotated"
    ),
}
_DESCRIBE = "kubectl describe pod, and kubectl describe node of its node (Conditions, Events), say of what it had none"
_SLOTS = pattern(r"available req slots ?= ?(\d+), total slots ?= ?(\d+)")


def ended_by_the_host(alarm: Alarm) -> tuple[str, Confidence, tuple[str, ...]] | None:
    """Return who ended a server and why, by the words of a line, and what to do; None if it does not say so."""
    text = "\n".join((alarm.text, *alarm.more))
    if (job := _OF_A_JOB.search(text)) is not None:
        name = "NODE FAIL" if job[1].startswith("NODE") else job[1]
        return _JOBS[name][0], Confidence.LIKELY, (_JOBS[name][1],)
    if _EVICTED.search(text) is None:
        return None
    resource = next(filter(None, _EVICTED.findall(text)), "")
    lacks = f", whose node was short of {resource}" if resource else ""
    return (
        f"The kubelet evicted the pod{lacks}: the server was ended from outside.",
        Confidence.LIKELY,
        (*((_EVICTS_FOR[resource],) if resource in _EVICTS_FOR else ()), _DESCRIBE),
    )


def slots_lost(facts: LogFacts, alarm: Alarm) -> tuple[str, tuple[str, ...]] | None:
    """Return how many request slots an idle server lacks, as a clause, and what to do; None if it says nothing."""
    said = facts.remarks.get("request_slots")
    found = _SLOTS.search(said.text) if said is not None and abs(said.place.line - alarm.place.line) <= 1 else None
    if found is None:
        return None
    lost = int(found[2]) - int(found[1])
    return (
        f"the idle server found {found[1]} of {found[2]} request slots free: {lost} {'was' if lost == 1 else 'were'} "
        f"not given back as {'its request' if lost == 1 else 'their requests'} ended",
        (
            "the requests before it that ended otherwise than others (aborted, a session, a grammar that failed, "
            "retracted): send each kind alone, and look whether the line comes again",
            "a later release; --max-running-requests with room to spare until then, for each such slot is gone until "
            "the server starts again",
        ),
    )
