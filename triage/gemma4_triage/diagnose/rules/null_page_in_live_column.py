"""A column that a request needs holds page 0, the pool's dummy."""

from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import cell, said, tensor_or_none
from gemma4_triage.diagnose.incident import PAGE_TABLE, Incident
from gemma4_triage.diagnose.null_page_causes import (
    EVICTED,
    OF_ANOTHER,
    ROW_OR_FREE,
    TAKEN_LATER,
    cause_of,
    freed_by,
    given_back,
    impossible_length,
    is_anothers,
    kept,
    may_be_the_row,
    was_taken_later,
)
from gemma4_triage.diagnose.rule import Exclusion, Rule, in_dump, met_by
from gemma4_triage.diagnose.where_wrong import row_has_another, where_wrong
from gemma4_triage.finding import Confidence, Evidence, Finding

ID = "null-page-in-live-column"


def find(incident: Incident) -> Finding | None:
    """Return a finding where a live column, or a write, is of page 0."""
    dump = incident.first(rule=PAGE_TABLE, verdict="null_page_live")
    if dump is None:
        return None
    offences, lengths = dump.manifest.offences, tensor_or_none(dump, "cache_seqlens")
    row = offences[0].row if offences else -1
    length = ()
    wrong, impossible = where_wrong(dump), impossible_length(dump)
    of_length = wrong.structure is None and impossible is not None
    row = impossible[0] if of_length and impossible is not None else row
    if lengths is not None and 0 <= row < lengths.shape[0]:
        length = (cell(dump, "cache_seqlens", (row,), "keys of that row"),)
    of_map, scalars = wrong.structure is Structure.SWA_MAPPING, dump.manifest.scalars
    of_map |= wrong.handed_out and offences[0].table == "swa_page_table"
    freed, given = of_map and scalars.get("peer_given_back") is True, of_map and scalars.get("null_page_given") is True
    taken_later = freed and was_taken_later(dump)
    by_other = freed and not taken_later and may_be_the_row(dump)
    # What the prefix cache evicts has no lock: a lock is missing, or the eviction did not look at it.
    by_cache = freed and not taken_later and scalars.get("peer_free_site") == "evict_tree"
    structure = None if by_other or by_cache else freed_by(dump) if freed else None if given else wrong.structure
    defect = wrong.defect if structure else None if of_length else Defect.ZERO
    if taken_later:
        structure, defect = Structure.TREE_NODE, Defect.STALE
    elif freed and not by_other:
        defect = None if is_anothers(dump) else Defect.EARLY
    return Finding(
        rule=ID,
        structure=structure,
        defect=defect,
        cause=TAKEN_LATER
        if taken_later
        else ROW_OR_FREE
        if by_other
        else EVICTED
        if by_cache
        else OF_ANOTHER
        if freed and defect is None
        else cause_of(dump, wrong, freed, given),
        confidence=Confidence.CERTAIN if structure else Confidence.POSSIBLE,
        evidence=(
            said(dump, "offences.0.table", "the table"),
            said(dump, "offences.0.column", "the column"),
            *length,
            said(dump, "scalars.window_left", "keys before its own that the layer needs; -1: all"),
            # Where the slot itself is wrong it names no request.
            *(() if wrong.structure is Structure.ROW_INDICES else (met_by(dump, structure),)),
            *wrong.proof,
            *(given_back(dump) if freed else kept(dump) if of_map and not given else ()),
            *((said(dump, "scalars.null_page_given", "whether the pool's latest hand-out had page 0"),) * given),
            *_asked(dump),
        ),
        advice=(
            "Compare the column with the row's length and window: inside, the request's attention is wrong.",
            "If the request had already finished, this is stale metadata and harmless.",
        ),
        next_commands=(commands.serve(incident, "--debug trap", "--probes page-table,swa-allocator"), commands.DOCTOR),
    )


def _asked(dump: Dump) -> tuple[Evidence, ...]:
    what = "whether the leak ledger was asked if the page that the place had was given back"
    return () if dump.manifest.scalars.get("owners") is None else (said(dump, "scalars.owners", what),)


def _had_ended(dump: Dump) -> bool | None:
    """Return False where a source still has the page, or the batch another length: then the derived one is wrong."""
    wrong = where_wrong(dump)
    derived = (Structure.SWA_TABLE, Structure.FULL_TABLE, Structure.WRITE_LOCATIONS, Structure.KERNEL_LENGTHS)
    return False if wrong.proof and wrong.structure in derived else None


def _of_another(dump: Dump) -> bool | None:
    """Return False where the map is not accused: whose page the row has there no dump of this probe says."""
    return None if where_wrong(dump).structure is Structure.SWA_MAPPING else False


def _row_has_it(dump: Dump) -> bool | None:
    """Return False where the list is not accused, or the row's own slot of the token is known to be another."""
    return False if row_has_another(dump) or where_wrong(dump).structure is not Structure.WRITE_LOCATIONS else None


RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion(
            "the request's row has another's page there: then the row is wrong, not the map", in_dump(_of_another)
        ),
        Exclusion("the row itself has that slot for the token: then it is the row", in_dump(_row_has_it)),
        Exclusion(
            "the request had finished or was retracted before this step's result was processed", in_dump(_had_ended)
        ),
    ),
    follows_calls=True,
)
