"""A server log with a crash, and no dump of it."""

from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.diagnose.rule import Exclusion, Rule
from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.rule import at, exception_text
from gemma4_triage.logs.rules import bus_error, disk_full, killed_from_outside, no_gpu, no_kernel_image, shared_memory
from gemma4_triage.logs.rules.probe_stopped import dump_names

ID = "crash-without-dump"
_OF_THE_HOST = tuple(
    module.RULE.explains
    for module in (bus_error, disk_full, killed_from_outside, no_gpu, no_kernel_image, shared_memory)
)
"""Whether an end is of the machine or what is installed on it, of which no probe sees anything."""


def find(incident: Incident) -> Finding | None:
    if incident.dumps or not incident.crashed or any(dump_names(facts) for facts in incident.logs):
        return None
    firsts = [death for facts in incident.logs for death in facts.deaths[:1]]
    if all(any(explains(death) for explains in _OF_THE_HOST) for death in firsts):
        return None
    return Finding(
        rule=ID,
        cause="The server crashed and no probe wrote a dump, so there is no evidence from before the access.",
        confidence=Confidence.POSSIBLE,
        evidence=tuple(
            at(facts, death.place, exception_text(death), "what a process died of")
            for facts in incident.logs
            for death in facts.deaths[:1]
        ),
        advice=("Serve it guarded and send the same load: a probe stops before the access and writes what it saw.",),
        next_commands=(commands.serve(incident, "--patches none", "--debug 1"), commands.DOCTOR),
    )


RULE = Rule(ID, find, ruled_out_if=(Exclusion("the dumps of this run are in another folder: see --dir"),))
