"""-1, the mark of an index that was never assigned, stands in a column that a request needs."""

from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import cell, said, tensor_or_none
from gemma4_triage.diagnose.incident import PAGE_TABLE, Incident
from gemma4_triage.diagnose.rule import LEAVES_BUFFERS, Exclusion, Rule, in_dump, met_by
from gemma4_triage.diagnose.where_wrong import ROWS, where_wrong
from gemma4_triage.finding import Confidence, Finding

ID = "unassigned-page"
_MARK = -1


def find(incident: Incident) -> Finding | None:
    for dump in incident.of(rule=PAGE_TABLE, verdict=("negative", "write_out_of_range")):
        if any(offence.value == _MARK for offence in dump.manifest.offences):
            break
    else:
        return None
    row = dump.manifest.offences[0].row
    lengths = tensor_or_none(dump, "cache_seqlens")
    length = ()
    if lengths is not None and 0 <= row < lengths.shape[0]:
        length = (cell(dump, "cache_seqlens", (row,), "keys of that row, which say that the column is live"),)
    wrong = where_wrong(dump)
    return Finding(
        rule=ID,
        structure=wrong.structure,
        defect=Defect.NEGATIVE,
        cause=(
            "An index that was never assigned reached a kernel: -1 marks a place that is still to be filled, and here "
            "it stands where a request reads or writes."
        ),
        confidence=Confidence.POSSIBLE if wrong.handed_out or wrong.unsure else Confidence.CERTAIN,
        evidence=(
            said(dump, "offences.0.value", "the mark of an unassigned index"),
            said(dump, "offences.0.table", "in which table"),
            said(dump, "offences.0.column", "in which column"),
            *length,
            met_by(dump, wrong.structure),
            *wrong.proof,
        ),
        advice=(
            "-1 is legal only as the last location of an empty prefix. Look for a sequence that grew past the pages "
            "that were allocated for it: draft tokens that cross into a new page, or an allocation that was skipped.",
        ),
        next_commands=(commands.serve(incident, "--debug trap"), commands.corpus("negative-page")),
        upstream=("TensorRT-LLM 16280",),
    )


def _was_a_page(dump: Dump) -> bool | None:
    """Return False where the request's row has no page from that place on: it was never filled."""
    rows, bad = tensor_or_none(dump, ROWS), dump.manifest.offences[0]
    if rows is None or rows.ndim != 2 or not (0 <= bad.row < rows.shape[0] and 0 <= bad.column < rows.shape[1]):
        return None
    return None if (rows[bad.row, bad.column :] > 0).any() else False


RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion(
            "other values stand beside -1: then the table is damaged, not unfilled",
            in_dump(lambda dump: any(offence.value != _MARK for offence in dump.manifest.offences)),
        ),
        Exclusion("-1 was written over a page that was there", in_dump(_was_a_page)),
    ),
    injected_by=("negative-page",),
    leads_to=LEAVES_BUFFERS,
    follows_calls=True,
)
