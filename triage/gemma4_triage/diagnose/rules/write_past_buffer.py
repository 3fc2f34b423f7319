"""A write location outside the buffer, without the allocation that it came from."""

from gemma4_dumps.structures import Defect
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import lies_inside, said
from gemma4_triage.diagnose.incident import PAGE_TABLE, Incident
from gemma4_triage.diagnose.rule import LEAVES_BUFFERS, Exclusion, Rule, in_dump, met_by
from gemma4_triage.diagnose.where_wrong import where_wrong
from gemma4_triage.finding import Confidence, Finding

ID = "write-past-buffer"


def find(incident: Incident) -> Finding | None:
    dump = incident.first(rule=PAGE_TABLE, verdict="write_out_of_range")
    if dump is None:
        return None
    wrong = where_wrong(dump)
    return Finding(
        rule=ID,
        structure=wrong.structure,
        defect=wrong.defect or Defect.PAST_END,
        cause=(
            "New keys and values are about to be written outside the pool's buffer, into another tensor; an allocator "
            "gave out the slot, or the list of slots is not this batch's."
        ),
        confidence=Confidence.LIKELY if wrong.proof else Confidence.POSSIBLE,
        evidence=(
            said(dump, "offences.0.value", "the slot"),
            said(dump, "offences.0.upper", "the first slot that the buffer does not have"),
            said(dump, "offences.0.table", "the list that it is in"),
            met_by(dump, wrong.structure),
            *wrong.proof,
        ),
        advice=(
            "Trust no result since the first such write.",
            "With swa-allocator in trap mode the server stops at the hand-out, if that is where the slot comes from.",
        ),
        next_commands=(commands.serve(incident, "--debug trap"), commands.show(dump)),
    )


RULE = Rule(
    ID,
    find,
    ruled_out_if=(Exclusion("every slot that is listed lies inside the buffer", in_dump(lies_inside)),),
    leads_to=LEAVES_BUFFERS,
    fallback=True,
)
