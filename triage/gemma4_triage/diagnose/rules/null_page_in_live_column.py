"""A column that a request needs holds page 0, the pool's dummy."""

from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import cell, said, tensor_or_none
from gemma4_triage.diagnose.freed_pages import freed_by, given_back, is_anothers, may_be_the_row, was_taken_later
from gemma4_triage.diagnose.incident import PAGE_TABLE, Incident
from gemma4_triage.diagnose.rule import Exclusion, Rule, in_dump, met_by
from gemma4_triage.diagnose.where_wrong import BELIEVED, Wrong, where_wrong
from gemma4_triage.finding import Confidence, Evidence, Finding

ID = "null-page-in-live-column"
_UNKNOWN = (
    "A place that a request needs holds the null page; the dump does not say whether it was never filled, was cleared "
    "too early, or is of a length that reaches too far."
)
_FREED = (
    "An SWA page was given back while its request still needs it: the map has had nothing there since. A window that "
    "is reckoned too short, or a count of evicted tokens that is too large, frees like that."
)
_OF_ANOTHER = (
    "An SWA page was given back while its request still needs it, by the eviction of another request's window: that "
    "named a page that is not its own."
)
_EVICTED = (
    "The prefix cache evicted an SWA page that a running request still needs: the request's lock was given back too "
    "early, or the eviction passed over it. The counts of the nodes' locks before it tell which."
)
_TAKEN_LATER = (
    "The request took a page from the prefix cache whose SWA page had been given back before: the match went on into a "
    "part of the cache that has no SWA pages any more, as its window needs them."
)
_ROW_OR_FREE = (
    "An SWA page was given back as another request's than the one that needs it now: that call named a page of this "
    "request, or the row of this one has a page of that. Which of them is not known."
)
_GIVEN = (
    "The sliding-window pool handed out its null page, and the map has what it gave: page 0 was on that pool's free "
    "list. Somebody freed a slot that has no SWA page, or the list was written; which of them is not known."
)
_TWICE = (
    "The request's row of req_to_token has one page at two places. What the window gave back of the first is missing "
    "at the second."
)
_CAUSES: dict[Structure | None, str] = {
    Structure.SWA_MAPPING: (
        "The full-to-SWA mapping has nothing for a page that a request still needs: it was evicted too early, or never "
        "mapped."
    ),
    Structure.SWA_TABLE: "The sliding layers' table has the null page where the mapping has a real one.",
    Structure.FULL_TABLE: "The full layers' table has the null page where the request's own row has a real one.",
    Structure.REQUEST_ROW: "The request's row of req_to_token has the null page at a place that the request needs.",
    Structure.WRITE_LOCATIONS: "A token's keys and values are to be written to the null page; its row has a real one.",
    Structure.KERNEL_LENGTHS: "The kernel is told of more keys than the request has: its row has no page for them.",
    Structure.ROW_INDICES: "The batch reads a row of req_to_token that is not the request's: it holds nothing.",
}


_FEWER = (
    "The kernel is told of fewer keys than the request has: it looks for the window of the newest where older ones "
    "stand, whose pages were given back."
)


def _cause(dump: Dump, wrong: Wrong, freed: bool, given: bool) -> str:
    if wrong.structure is Structure.KERNEL_LENGTHS and _told_of_fewer(dump):
        return _FEWER
    if (wrong.structure, wrong.defect) == (Structure.REQUEST_ROW, Defect.DUPLICATE):
        return _TWICE
    return _FREED if freed else _GIVEN if given else _CAUSES.get(wrong.structure, _UNKNOWN)


def find(incident: Incident) -> Finding | None:
    """Return a finding where a live column, or a write, is of page 0."""
    dump = incident.first(rule=PAGE_TABLE, verdict="null_page_live")
    if dump is None:
        return None
    offences, lengths = dump.manifest.offences, tensor_or_none(dump, "cache_seqlens")
    row = offences[0].row if offences else -1
    length = ()
    if lengths is not None and 0 <= row < lengths.shape[0]:
        length = (cell(dump, "cache_seqlens", (row,), "keys of that row"),)
    wrong = where_wrong(dump)
    of_map, scalars = wrong.structure is Structure.SWA_MAPPING, dump.manifest.scalars
    of_map |= wrong.handed_out and offences[0].table == "swa_page_table"
    freed, given = of_map and scalars.get("peer_given_back") is True, of_map and scalars.get("null_page_given") is True
    taken_later = freed and was_taken_later(dump)
    by_other = freed and not taken_later and may_be_the_row(dump)
    # What the prefix cache evicts has no lock: a lock is missing, or the eviction did not look at it.
    by_cache = freed and not taken_later and scalars.get("peer_free_site") == "evict_tree"
    structure = None if by_other or by_cache else freed_by(dump) if freed else None if given else wrong.structure
    defect = wrong.defect if structure else Defect.ZERO
    if taken_later:
        structure, defect = Structure.TREE_NODE, Defect.STALE
    elif freed and not by_other:
        defect = None if is_anothers(dump) else Defect.EARLY
    return Finding(
        rule=ID,
        structure=structure,
        defect=defect,
        cause=_TAKEN_LATER
        if taken_later
        else _ROW_OR_FREE
        if by_other
        else _EVICTED
        if by_cache
        else _OF_ANOTHER
        if freed and defect is None
        else _cause(dump, wrong, freed, given),
        confidence=Confidence.CERTAIN if structure else Confidence.POSSIBLE,
        evidence=(
            said(dump, "offences.0.table", "the table"),
            said(dump, "offences.0.column", "the column"),
            *length,
            said(dump, "scalars.window_left", "keys before its own that the layer needs; -1: all"),
            # Where the slot itself is wrong it names no request.
            *(() if wrong.structure is Structure.ROW_INDICES else (met_by(dump, structure),)),
            *wrong.proof,
            *(given_back(dump) if freed else ()),
            *((said(dump, "scalars.null_page_given", "whether the pool's latest hand-out had page 0"),) * given),
            *_asked(dump),
        ),
        advice=(
            "Compare the column with the row's length and window: inside, the request's attention is wrong.",
            "If the request had already finished, this is stale metadata and harmless.",
        ),
        next_commands=(commands.serve(incident, "--debug trap", "--probes page-table,swa-allocator"), commands.DOCTOR),
    )


def _told_of_fewer(dump: Dump) -> bool:
    told, believed = tensor_or_none(dump, "cache_seqlens"), tensor_or_none(dump, BELIEVED)
    row = dump.manifest.offences[0].row
    if told is None or believed is None or not 0 <= row < min(len(told), len(believed)):
        return False
    return int(told[row]) < int(believed[row])


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


RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion(
            "the request's row has another's page there: then the row is wrong, not the map", in_dump(_of_another)
        ),
        Exclusion(
            "the request had finished or was retracted before this step's result was processed", in_dump(_had_ended)
        ),
    ),
    follows_calls=True,
)
