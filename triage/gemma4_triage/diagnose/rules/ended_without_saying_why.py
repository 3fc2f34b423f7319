"""A guarded server that is gone, or that failed, without a dump."""

from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import guarded
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.diagnose.process_state import State, state_of_incident
from gemma4_triage.diagnose.rule import Exclusion, Rule
from gemma4_triage.finding import Confidence, Finding

ID = "ended-without-saying-why"


_GIVE_LOG = "Give diagnose the server's log with --log: a traceback, a signal or an exit code says more."
_ASK_KERNEL = "Ask the kernel's log (dmesg) or the container's exit code whether it was killed: 137 is SIGKILL."


def find(incident: Incident) -> Finding | None:
    """Return a finding where the manifests' marks leave the end of the server open."""
    if incident.dumps or incident.crashed:
        return None
    state = state_of_incident(incident)
    marking = [one for one in incident.guards if one.marks_its_end]
    if state is State.GONE:
        cause = (
            "The server ended without saying why: its processes are gone, none left a mark of its end, and there is no "
            "dump. It was killed, by the system for memory or by hand, or it crashed outside Python."
        )
        evidence = [
            guarded(one, "ended", "no mark of an end, and no process of this number and start") for one in marking
        ]
    elif state is State.FAILED:
        cause = "The server failed and there is no dump of it: a process of it says so in its guard manifest."
        evidence = [
            guarded(one, f"ended.{name}", meaning)
            for one in marking
            if one.ended is not None
            for name, meaning in (("how", "how this process ended"), ("why", "in its own words"))
        ]
    else:
        return None
    return Finding(
        rule=ID,
        cause=cause,
        confidence=Confidence.POSSIBLE,
        evidence=tuple(evidence),
        advice=(*(() if incident.logs else (_GIVE_LOG,)), _ASK_KERNEL),
        next_commands=(
            *(() if incident.logs else ("gemma4-triage diagnose --log SERVER_LOG",)),
            commands.serve(incident, "--debug 1"),
        ),
    )


RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion("the dumps of this run are in another folder: see --dir"),
        Exclusion("it was stopped before it served"),
    ),
)
