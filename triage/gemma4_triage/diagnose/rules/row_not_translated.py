"""One request of many: its row of the sliding-window table is a copy of its row of the full table."""

import numpy as np

from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import cell, said, tensor_or_none
from gemma4_triage.diagnose.incident import PAGE_TABLE, Incident
from gemma4_triage.diagnose.rule import LEAVES_BUFFERS, Exclusion, Rule, Seen
from gemma4_triage.finding import Confidence, Evidence, Finding

ID = "row-not-translated"
_SWA, _FULL, _LENGTHS, _SWA_WRITES = "swa_page_table", "page_table", "cache_seqlens", "swa_out_cache_loc"


def find(incident: Incident) -> Finding | None:
    for dump in incident.of(rule=PAGE_TABLE, table_space="swa", buffer_space="swa"):
        place = _copied(dump)
        if place is not None:
            return _finding(incident, dump, place)
    return None


def _copied(dump: Dump) -> tuple[int, int] | None:
    """Return the first offence's place, if its whole live row is equal in both tables, [rows, columns] each."""
    swa, full, lengths = (tensor_or_none(dump, name) for name in (_SWA, _FULL, _LENGTHS))
    offences, page = [bad for bad in dump.manifest.offences if bad.table == _SWA], dump.manifest.page_size
    if not offences or not page or swa is None or full is None or lengths is None or swa.shape != full.shape:
        return None
    row, column = offences[0].row, offences[0].column
    if not (0 <= row < min(swa.shape[0], lengths.shape[0]) and 0 <= column < swa.shape[1]):
        return None
    held = swa[row].astype(np.int64)
    for bad in offences:
        if bad.row == row and 0 <= bad.column < held.shape[0]:
            # Containment has replaced it in the saved table.
            held[bad.column] = bad.value
    live = np.arange(held.shape[0]) * page < lengths[row]
    # One equal entry could be chance, and where there is no page both tables have 0.
    same = bool((held == full[row])[live].all())
    return (row, column) if same and (full[row][live] > 0).sum() >= 2 else None


def _finding(incident: Incident, dump: Dump, place: tuple[int, int]) -> Finding:
    row, column = place
    proof = _translated_write(dump, row)
    return Finding(
        rule=ID,
        structure=Structure.SWA_TABLE,
        defect=Defect.OTHER_SPACE,
        cause=(
            f"Row {row} of the sliding-window table was never translated: it holds the full-pool page ids of its "
            "request, entry for entry."
        ),
        confidence=Confidence.CERTAIN,
        evidence=(
            said(dump, "offences.0.row", "the row"),
            said(dump, "offences.0.value", "no page of the sliding-window buffer"),
            cell(dump, _FULL, (row, column), "the same id at the same place of the full table, as in the whole row"),
            said(dump, "extents.pages_full_pool", "pages of the full pool, which has that id"),
            *proof,
        ),
        advice=(
            "Look at what builds rows one by one: a path that fills a request's row without the full-to-SWA map "
            "(late joiners, padded or idle rows, a batch that was merged).",
        ),
        next_commands=(commands.corpus("one-untranslated-row"), commands.serve(incident, "--debug trap")),
        upstream=("SGLang 24402",),
    )


def _translated_write(dump: Dump, row: int) -> tuple[Evidence, ...]:
    """Return the new token's SWA slot went through the map: where its page is not the row's, the row did not."""
    writes, swa, lengths = (tensor_or_none(dump, name) for name in (_SWA_WRITES, _SWA, _LENGTHS))
    if writes is None or swa is None or lengths is None or writes.ndim != 2 or not writes.shape[1]:
        return ()
    page, last = dump.manifest.page_size or 1, writes.shape[1] - 1
    column = (int(lengths[row]) - 1) // page
    if row >= writes.shape[0] or not 0 <= column < swa.shape[1]:
        return ()
    to = int(writes[row, last]) // page
    # Containment leaves a 0 behind, which proves nothing.
    if swa[row, column] == 0 or to in (0, swa[row, column]):
        return ()
    return (
        cell(dump, _SWA, (row, column), "the page of the row's last token, as the row has it"),
        cell(dump, _SWA_WRITES, (row, last), f"the same token's SWA slot, translated: page {to}"),
    )


def _ids_are_equal(seen: Seen) -> bool | None:
    """Return False where the row's last token has another page in the pool than in the row."""
    known = any(piece.field.startswith(_SWA_WRITES) for piece in seen.finding.evidence)
    return False if known else None


RULE = Rule(
    ID,
    find,
    ruled_out_if=(Exclusion("the pools have equal ids there, so that a translated row looks alike", _ids_are_equal),),
    injected_by=("one-untranslated-row",),
    explains=("page-past-pool-end",),
    leads_to=LEAVES_BUFFERS,
)
