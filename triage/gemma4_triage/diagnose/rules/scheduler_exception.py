"""The scheduler died of an exception, and no check had found anything before."""

from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import said
from gemma4_triage.diagnose.incident import PROCESS_END, Incident
from gemma4_triage.diagnose.rule import Exclusion, Rule
from gemma4_triage.finding import Confidence, Finding

ID = "scheduler-exception"


def find(incident: Incident) -> Finding | None:
    """Return what the dump of an exception says, which is where it showed and not why."""
    dump = incident.first(rule=PROCESS_END, verdict="exception")
    if dump is None:
        return None
    scalars = dump.manifest.scalars
    return Finding(
        rule=ID,
        cause=(
            f"The scheduler died of {scalars.get('exception')} in {dump.manifest.site}. What led there is not known: "
            "no check found anything before."
        ),
        confidence=Confidence.POSSIBLE,
        evidence=(
            said(dump, "scalars.message", "what it said"),
            said(dump, "scalars.stage", "what the scheduler's loop was doing"),
            said(dump, "scalars.traceback", "where, outermost first"),
            said(dump, "scalars.requests", "requests of the batch, which the tensor `requests` shows"),
        ),
        advice=(
            "Compare the rows in the dump with what each request counts: a slot outside the pool, or a row that is not "
            "the request's, is what such an exception comes from.",
            "Serve it with every probe and GEMMA4_TRIAGE_LEAK=dump, and send the same load.",
        ),
        next_commands=(commands.show(dump), commands.serve(incident, "--debug 1")),
    )


RULE = Rule(
    ID,
    find,
    ruled_out_if=(Exclusion("an earlier dump of the same process, or the log, names what was wrong before"),),
    fallback=True,
)
