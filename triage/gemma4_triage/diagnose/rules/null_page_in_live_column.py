"""A column that a request needs holds page 0, the pool's dummy."""

from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import cell, said, tensor_or_none
from gemma4_triage.diagnose.incident import PAGE_TABLE, Incident
from gemma4_triage.diagnose.rule import Rule
from gemma4_triage.finding import Confidence, Finding

ID = "null-page-in-live-column"


def find(incident: Incident) -> Finding | None:
    dump = incident.first(rule=PAGE_TABLE, verdict="null_page_live")
    if dump is None:
        return None
    offences, lengths = dump.manifest.offences, tensor_or_none(dump, "cache_seqlens")
    row = offences[0].row if offences else -1
    length = ()
    if lengths is not None and 0 <= row < lengths.shape[0]:
        length = (cell(dump, "cache_seqlens", (row,), "keys of that row"),)
    return Finding(
        rule=ID,
        structure=Structure.SWA_MAPPING,
        defect=Defect.ZERO,
        cause=(
            "A live column holds the null page: the page was evicted or never mapped while its request still needs it, "
            "or the metadata is that of a request which had already finished."
        ),
        confidence=Confidence.LIKELY,
        evidence=(
            said(dump, "offences.0.table", "the table"),
            said(dump, "offences.0.column", "the column"),
            *length,
            said(dump, "scalars.window_left", "keys before its own that the layer needs; -1: all"),
            said(dump, "offences.0.request_slot", "the request"),
        ),
        ruled_out_if=("the request had finished or was retracted before this step's result was processed",),
        advice=(
            "Compare the column with the row's length and window: inside, the request's attention is wrong.",
            "If the request had already finished, this is stale metadata and harmless.",
        ),
        next_commands=(commands.serve(incident, "--debug trap", "--probes page-table,swa-allocator"), commands.DOCTOR),
    )


RULE = Rule(ID, find)
