"""SGLang's own indexing fails on a slot: it stands in a request's row, or in a call that gives slots back."""

import re
from collections.abc import Iterator

from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import cell, said, tensor_or_none
from gemma4_triage.diagnose.incident import PROCESS_END, Incident
from gemma4_triage.diagnose.rule import LEAVES_BUFFERS, Exclusion, Rule, Seen
from gemma4_triage.diagnose.rules.batch_length_wrong import first_wrong_length
from gemma4_triage.diagnose.written_by import where_to_look
from gemma4_triage.finding import Confidence, Evidence, Finding

ID = "slot-beyond-the-map"
_MESSAGE = re.compile(r"index (\d{1,18}) is out of bounds for dimension \d+ with size (\d{1,18})\b")
_GIVES_BACK = re.compile(r"\.free(_\w+)?:")
_INSERTS = re.compile(r"\.\w*(?:Cache|Tree)\.insert:")
_STORES = re.compile(r"\bSWAKVPool\.set_\w*kv_buffer\b")
"""Both pools' stores, behind the lookup of the forward's slots in the mapping, which is as long as the full pool."""
_INSERTED = (
    "What was put into the prefix cache as a request was cached has a slot that the pools do not have, and no row of "
    "the batch has it: the value that was inserted is wrong, or that of a node on its way, or the row of a request "
    "that has left the batch."
)
_ROWS, _ALLOCATOR, _WRITES = "req_to_token", "swa-allocator", "out_cache_loc"


def find(incident: Incident) -> Finding | None:
    """Return a finding where an exception names an index, and a row or a free explains where it comes from."""
    for dump in incident.of(rule=PROCESS_END):
        found = _MESSAGE.search(str(dump.manifest.scalars.get("message")))
        if found is not None and (told := _where(dump, int(found[1]))) is not None:
            structure, proof = told
            return _finding(incident, dump, structure, proof)
    return None


def _where(dump: Dump, slot: int) -> tuple[Structure, tuple[Evidence, ...]] | None:
    if _STORES.search(str(dump.manifest.scalars.get("traceback"))):
        writes = tensor_or_none(dump, _WRITES)
        at = () if writes is None or writes.ndim != 1 else (writes == slot).nonzero()[0].tolist()
        return (
            (Structure.WRITE_LOCATIONS, (cell(dump, _WRITES, at[:1], "the same slot, of the full pool"),))
            if at
            else None
        )
    in_row = next(_in_rows(dump, slot), None)
    if in_row is not None:
        return Structure.REQUEST_ROW, (cell(dump, _ROWS, in_row, "the same slot, in the row of a request"),)
    trace = str(dump.manifest.scalars.get("traceback"))
    if _INSERTS.search(trace) and tensor_or_none(dump, _ROWS) is not None:
        return Structure.TREE_NODE, ()
    # What a tree evicts it gives back too: then a node may be what is wrong.
    if _GIVES_BACK.search(trace) and "evict" not in trace and tensor_or_none(dump, _ROWS) is not None:
        return Structure.FREE_CALL, ()
    return None


def _in_rows(dump: Dump, slot: int) -> Iterator[tuple[int, int]]:
    rows = tensor_or_none(dump, _ROWS)
    if rows is not None and rows.ndim == 2:
        yield from ((int(row), int(column)) for row, column in zip(*(rows == slot).nonzero(), strict=True))


def _finding(incident: Incident, dump: Dump, structure: Structure, proof: tuple[Evidence, ...]) -> Finding:
    stores = structure is Structure.WRITE_LOCATIONS
    return Finding(
        rule=ID,
        structure=structure,
        defect=Defect.OTHER_SPACE if stores else Defect.PAST_END,
        cause=(
            "A sliding layer's keys and values are stored at a token's slot of the full pool, which was not "
            "translated: the sliding-window pool is shorter. Where it has such a slot, another's page is written."
            if stores
            else _INSERTED
            if structure is Structure.TREE_NODE
            else "SGLang looked up a slot that its pools do not have: it stands in a request's row of req_to_token."
            if proof
            else "SGLang was given a slot to free that its pools do not have, and no row of the batch has it."
        ),
        confidence=Confidence.LIKELY if structure is Structure.TREE_NODE else Confidence.CERTAIN,
        evidence=(
            said(dump, "scalars.message", "the index, and how many there are"),
            said(dump, "scalars.traceback", "where it was looked up"),
            *proof,
        ),
        advice=(
            where_to_look(structure) + " SWAKVPool.set_kv_buffer takes the translated ones (swa_loc)."
            if stores
            else "Look at what wrote that place since the request's last step; the dump has the rows as they were.",
        ),
        next_commands=(commands.show(dump), commands.serve(incident, "--debug 1")),
    )


def _was_handed_out(seen: Seen) -> bool | None:
    """Return whether an allocator gave such a slot out; None where the probe that looks at that was not there."""
    if seen.incident.first(verdict="alloc_out_of_range") is not None:
        return True
    return False if any(guards.attached(_ALLOCATOR) for guards in seen.incident.guards) else None


def _is_in_neither_pool(seen: Seen) -> bool | None:
    """Return None where a slot was to be stored at: the mapping had it, and may have led to the same number."""
    return None if seen.finding.structure is Structure.WRITE_LOCATIONS else False


def _was_looked_up_elsewhere(seen: Seen) -> bool | None:
    """Return False where the row itself has the slot, and no length says that another place was meant."""
    if seen.finding.structure is Structure.WRITE_LOCATIONS:
        return False
    in_row = seen.finding.structure is Structure.REQUEST_ROW
    return False if in_row and seen.dump is not None and first_wrong_length(seen.dump) is None else None


RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion("an allocator gave the slot out, as a dump of it says", _was_handed_out),
        Exclusion("the mapping leads to the same number, or the full pool does not have the slot", _is_in_neither_pool),
        Exclusion("the row was right, and whoever looked it up read another place of it", _was_looked_up_elsewhere),
    ),
    leads_to=LEAVES_BUFFERS,
)
