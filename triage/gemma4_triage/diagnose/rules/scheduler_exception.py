"""The scheduler died of an exception, and no check had found anything before."""

from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import said
from gemma4_triage.diagnose.exception_as_log import told_by_rules_over_logs
from gemma4_triage.diagnose.incident import PROCESS_END, Incident
from gemma4_triage.diagnose.rule import Exclusion, Rule
from gemma4_triage.finding import Confidence, Finding, at_most

ID = "scheduler-exception"
_ADVICE = (
    "Compare the rows in the dump with what each request counts: a slot outside the pool, or a row that is not the "
    "request's, is what such an exception comes from.",
    "Serve it with every probe and GEMMA4_TRIAGE_LEAK=dump, and send the same load.",
)


def find(incident: Incident) -> Finding | None:
    """Return what the dump of an exception says, where it showed, and what rules over logs make of it."""
    dump = incident.first(rule=PROCESS_END, verdict="exception")
    if dump is None:
        return None
    scalars = dump.manifest.scalars
    told = told_by_rules_over_logs(dump, incident)
    died = f"The scheduler died of {scalars.get('exception')} in {dump.manifest.site}."
    return Finding(
        rule=ID,
        cause=f"{died} What led there is not known: no check found anything before."
        if told is None
        else f"{died} {told.cause}",
        confidence=Confidence.POSSIBLE if told is None else at_most(told.confidence, Confidence.LIKELY),
        evidence=(
            said(dump, "scalars.message", "what it said"),
            said(dump, "scalars.stage", "what the scheduler's loop was doing"),
            said(dump, "scalars.traceback", "where, outermost first"),
            said(dump, "scalars.requests", "requests of the batch, which the tensor `requests` shows"),
        ),
        advice=(*(told.advice if told is not None else ()), *_ADVICE),
        ruled_out_if=() if told is None else told.ruled_out_if,
        next_commands=(commands.show(dump), commands.serve(incident, "--debug 1")),
        upstream=() if told is None else told.upstream,
    )


RULE = Rule(
    ID,
    find,
    ruled_out_if=(Exclusion("an earlier dump of the same process, or the log, names what was wrong before"),),
    fallback=True,
)
