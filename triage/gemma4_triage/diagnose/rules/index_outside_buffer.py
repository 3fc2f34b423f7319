"""An index outside its buffer that fits none of the known causes."""

from gemma4_dumps.reader import Dump
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import lies_inside, said
from gemma4_triage.diagnose.incident import PAGE_TABLE, Incident
from gemma4_triage.diagnose.rule import LEAVES_BUFFERS, Exclusion, Rule, in_dump
from gemma4_triage.diagnose.where_wrong import Wrong, drafts_page, where_wrong
from gemma4_triage.finding import Confidence, Finding

ID = "index-outside-buffer"


def find(incident: Incident) -> Finding | None:
    dump = incident.first(rule=PAGE_TABLE, verdict=("out_of_range", "negative"))
    if dump is None:
        return None
    wrong = where_wrong(dump)
    if wrong.structure and wrong.proof and (begins := drafts_page(dump)) is not None:
        return _not_filled(incident, dump, wrong, begins)
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


def _not_filled(incident: Incident, dump: Dump, wrong: Wrong, begins: int) -> Finding:
    return Finding(
        rule=ID,
        structure=wrong.structure,
        cause=(
            f"The {wrong.structure} has something else than a page where the drafts of a verification begin a new "
            f"one, from token {begins} on, and pages everywhere before: it was filled by the lengths without the "
            "drafts, and the kernel reads up to their end."
        ),
        confidence=Confidence.LIKELY,
        evidence=(
            said(dump, "offences.0.value", "the entry"),
            said(dump, "offences.0.column", "its column"),
            said(dump, "offence_count", "bad entries in all"),
            *wrong.proof,
        ),
        ruled_out_if=("the same column is filled in other verifications: then this one was overwritten",),
        advice=(
            "Look at by which lengths the table is filled in a verification: cache_seqlens_int32, which count the "
            "drafts, and not seq_lens.",
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
