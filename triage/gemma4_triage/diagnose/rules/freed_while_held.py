"""A page on the free list that a request or the prefix cache still holds."""

from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import said
from gemma4_triage.diagnose.incident import LEAK, Incident
from gemma4_triage.diagnose.rule import Rule
from gemma4_triage.finding import Confidence, Finding

ID = "freed-while-held"


def find(incident: Incident) -> Finding | None:
    dump = incident.first(rule=LEAK, verdict="freed_in_use")
    if dump is None:
        return None
    return Finding(
        rule=ID,
        structure=Structure.FREE_CALL,
        defect=Defect.EARLY,
        cause=(
            "Pages are free although a request or the prefix cache still reads them, so the next owner overwrites "
            "them: somebody freed more than was his."
        ),
        confidence=Confidence.CERTAIN,
        evidence=(
            said(dump, "offence_count", "pages that are free and held"),
            said(dump, "offences.0.value", "in how many places the first one is"),
            said(dump, "offences.0.request_slot", "its last owner's request slot"),
            said(dump, "step", "the step of the audit"),
        ),
        ruled_out_if=("the holder is a request that has ended: then it was not released, and nothing reads",),
        advice=("The audit names who freed each page and when: start with free_site of the first row.",),
        next_commands=(commands.audit(dump), commands.serve(incident, "--debug trap", "--probes swa-allocator")),
    )


RULE = Rule(ID, find, explains=("page-given-twice",), leads_to=("pool-leak",))
