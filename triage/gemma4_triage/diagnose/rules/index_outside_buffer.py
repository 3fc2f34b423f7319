"""An index outside its buffer that fits none of the known causes."""

from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import lies_inside, said
from gemma4_triage.diagnose.incident import PAGE_TABLE, Incident
from gemma4_triage.diagnose.rule import LEAVES_BUFFERS, Exclusion, Rule, in_dump
from gemma4_triage.diagnose.where_wrong import where_wrong
from gemma4_triage.finding import Confidence, Finding

ID = "index-outside-buffer"


def find(incident: Incident) -> Finding | None:
    dump = incident.first(rule=PAGE_TABLE, verdict=("out_of_range", "negative"))
    if dump is None:
        return None
    wrong = where_wrong(dump)
    return Finding(
        rule=ID,
        structure=wrong.structure,
        defect=wrong.defect,
        cause=(
            f"An entry of the {wrong.structure.value} leads outside the buffer that it indexes: its source is another."
            if wrong.structure and wrong.proof
            else "A table entry leads outside the buffer that it indexes; the values do not say where it comes from."
        ),
        confidence=Confidence.LIKELY if wrong.structure and wrong.proof else Confidence.POSSIBLE,
        evidence=(
            said(dump, "offences.0.value", "the entry"),
            said(dump, "offences.0.upper", "the first index that the buffer does not have"),
            said(dump, "provenance.table_space", "whose ids the table holds"),
            said(dump, "provenance.buffer_space", "whose buffer they index"),
            said(dump, "offence_count", "bad entries in all"),
            *wrong.proof,
        ),
        advice=(
            "Compare the row with its neighbours: one bad entry is a stray write or an unset place, a bad row is a row "
            "that nobody filled, bad rows everywhere are a table of another batch.",
        ),
        next_commands=(commands.show(dump), commands.serve(incident, "--debug trap"), commands.DOCTOR),
    )


RULE = Rule(
    ID,
    find,
    ruled_out_if=(Exclusion("every entry that is listed lies inside the buffer", in_dump(lies_inside)),),
    leads_to=LEAVES_BUFFERS,
    fallback=True,
)
