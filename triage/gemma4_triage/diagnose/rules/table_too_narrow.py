"""A row needs more columns than its page table has."""

from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import cell, said, tensor_or_none
from gemma4_triage.diagnose.incident import PAGE_TABLE, Incident
from gemma4_triage.diagnose.rule import LEAVES_BUFFERS, Exclusion, Rule, in_dump
from gemma4_triage.diagnose.where_wrong import BELIEVED, index_list, where_wrong
from gemma4_triage.finding import Confidence, Finding

ID = "table-too-narrow"


def find(incident: Incident) -> Finding | None:
    dump = incident.first(rule=PAGE_TABLE, verdict="table_too_narrow")
    if dump is None:
        return None
    # Outside a graph a table is made for each forward, as wide as the longest length that it was made for.
    made_for_it = not dump.manifest.graph.captured
    if (of_queries := _of_query_bounds(incident, dump)) is not None:
        return of_queries
    return Finding(
        rule=ID,
        structure=_of_lengths(dump) if made_for_it else index_list(dump),
        defect=Defect.PAST_END if made_for_it else None,
        cause=(
            "A sequence is longer than its row of the page table, so the kernel reads on into the next row or beyond "
            "the table: "
            + (
                "the length that the kernel is given is not the one that the table was made for."
                if made_for_it
                else "the table was sized for a shorter context than the sequence has."
            )
        ),
        confidence=Confidence.CERTAIN,
        evidence=(
            said(dump, "offences.0.value", "columns that the row needs"),
            said(dump, "offences.0.column", "columns that there are"),
            said(dump, "offences.0.request_slot", "the request"),
            said(dump, "page_size", "tokens of a page"),
        ),
        advice=("Compare the context length of draft and target, and --context-length with what requests may reach.",),
        next_commands=(commands.serve(incident, "--debug trap", "--probes page-table,geometry"), commands.show(dump)),
    )


def _of_query_bounds(incident: Incident, dump: Dump) -> Finding | None:
    """Return the finding where it is the list of slots to write that ends before a request's tokens do."""
    bad = dump.manifest.offences[0] if dump.manifest.offences else None
    if bad is None or not bad.table.endswith("out_cache_loc"):
        return None
    if _bounds_turned(dump):
        return Finding(
            rule=ID,
            structure=Structure.KERNEL_LENGTHS,
            cause="The bounds of a prefill's queries (cu_seqlens_q) begin where its first request ends, and end with "
            "0: the sums are those of its lengths, and the 0 that belongs before them stands behind them.",
            confidence=Confidence.CERTAIN,
            evidence=(
                cell(dump, f"{bad.table}_indptr", (0,), "where the first request's queries begin"),
                cell(dump, f"{bad.table}_indptr", (dump.record("cache_seqlens").shape[0],), "where the last one's end"),
                cell(dump, "cache_seqlens", (0,), "keys of the first request, which has no prefix"),
                said(dump, "offences.0.request_slot", "the request"),
            ),
            advice=("Look at what pads the running sums of the lengths: with a 0 in front, F.pad(..., (1, 0)).",),
            next_commands=(commands.show(dump), commands.serve(incident, "--debug trap", "--probes page-table")),
        )
    prefixes = _prefixes(dump)
    return Finding(
        rule=ID,
        cause="The bounds of the queries (cu_seqlens_q) are sums of the requests' prefixes, "
        f"{', '.join(map(str, prefixes))}, and not of the tokens that are new: lengths less these are the batch's."
        if prefixes
        else "A request's new tokens end behind the batch's: the bounds of its queries (cu_seqlens_q) are not those "
        "of what is computed, or the list of slots to write is too short.",
        confidence=Confidence.LIKELY if prefixes else Confidence.POSSIBLE,
        evidence=(
            said(dump, "offences.0.value", "where the tokens of the row end"),
            said(dump, "offences.0.column", "slots that the batch has to write"),
            said(dump, "offences.0.request_slot", "the request"),
        ),
        advice=("Compare the bounds with the lengths of the batch's new tokens, without their cached prefixes.",),
        next_commands=(commands.show(dump), commands.serve(incident, "--debug trap", "--probes page-table")),
    )


def _bounds_turned(dump: Dump) -> bool:
    """Return whether the bounds of the queries are the running sums of the lengths, and then 0."""
    bad = dump.manifest.offences[0] if dump.manifest.offences else None
    lengths = tensor_or_none(dump, "cache_seqlens")
    bounds = None if bad is None else tensor_or_none(dump, f"{bad.table}_indptr")
    if bounds is None or lengths is None or bounds.shape != (len(lengths) + 1,) or not len(lengths):
        return False
    return lengths[0] > 0 and bounds.tolist() == [*lengths.cumsum().tolist(), 0]


def _prefixes(dump: Dump) -> list[int]:
    """Return the tokens between the bounds where lengths less these are what the batch writes; empty where not."""
    begins, lengths = tensor_or_none(dump, "out_cache_loc_indptr"), tensor_or_none(dump, BELIEVED)
    if begins is None or lengths is None or begins.shape != (len(lengths) + 1,):
        return []
    counts, new = begins[1:] - begins[:-1], lengths - (begins[1:] - begins[:-1])
    fits = (counts >= 0).all() and (new > 0).all() and int(new.sum()) == dump.manifest.offences[0].column
    return counts.tolist() if fits and counts.any() else []


def _of_lengths(dump: Dump) -> Structure | None:
    """Return which length is too long: the kernel's, or the batch's, where the kernel was told what the batch has."""
    bad = dump.manifest.offences[0] if dump.manifest.offences else None
    told, believed = tensor_or_none(dump, "cache_seqlens"), tensor_or_none(dump, BELIEVED)
    if bad is None or told is None or believed is None or not 0 <= bad.row < min(len(told), len(believed)):
        # In trap mode the batch's own length was looked at before.
        return Structure.KERNEL_LENGTHS if dump.manifest.mode == "trap" else None
    return Structure.BATCH_LENGTHS if int(told[bad.row]) == int(believed[bad.row]) else Structure.KERNEL_LENGTHS


def _is_other(dump: Dump) -> bool | None:
    """Return False where the batch's length fits the table."""
    bad = dump.manifest.offences[0] if dump.manifest.offences else None
    if _bounds_turned(dump):
        return False
    believed, page = tensor_or_none(dump, BELIEVED), dump.manifest.page_size or 1
    if bad is None or believed is None or believed.ndim != 1 or not 0 <= bad.row < believed.shape[0]:
        return None
    fits = -(-int(believed[bad.row]) // page) <= bad.column
    return False if fits and where_wrong(dump).structure is Structure.KERNEL_LENGTHS else None


RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion(
            "the other of the two is wrong: compare cache_seqlens with the request's tokens",
            in_dump(_is_other),
        ),
    ),
    leads_to=LEAVES_BUFFERS,
)
