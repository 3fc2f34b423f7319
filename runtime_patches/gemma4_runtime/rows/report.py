"""What the checks of `request-rows` find, as a report and a dump."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gemma4_dumps.draft import DumpDraft, TensorPayload
from gemma4_dumps.schema import Provenance
from gemma4_dumps.structures import Defect, Structure
from gemma4_runtime import current
from gemma4_runtime.checks.request_rows import WrongEntry
from gemma4_runtime.checks.violation import MAX_LISTED, BadIndex, Violation
from gemma4_runtime.evidence import offences
from gemma4_runtime.settings import Mode

RULE = "request-rows"
ROW, ROW_INDEX, LENGTH, WRITE = "row_entry", "row_index", "length_differs", "write_misplaced"
TABLE, COUNTER, POSITION, LOCK = "table_entry", "counter_wrong", "position_wrong", "lock_missing"
INSERTED, TOKEN, WINDOW, TEXT = "insert_wrong", "token_differs", "window_kept", "text_differs"
FINITE, NOT_STORED, KEPT = "not_finite", "not_stored", "keys_changed"
MISPLACED, MODE, STOP, SAMPLING = "request_misplaced", "mode_left", "stop_missed", "sampling_differs"
NEXT, RUN = "Scheduler.get_next_batch_to_run", "Scheduler.run_batch"
CHANGED = "ScheduleBatch.filter_batch or merge_batch"
INIT = "ForwardBatch.init_new"
EXTEND = "alloc_for_extend"
METADATA = "TRTLLMHAAttnBackend.init_forward_metadata"
LISTS = "TritonAttnBackend.init_forward_metadata"
DRAFT_POSITIONS = "set_frozen_kv_positions"
INSERT = "UnifiedRadixCache.insert"
SAMPLE, SAMPLER = "eagle_sample", "Sampler.forward"


def or_swapped(wrong: Sequence[WrongEntry], kinds: list[Defect | None]) -> list[Defect | None]:
    """Return `kinds`, with SWAPPED for wrong entries that have each other's values.

    Those are two, or as many as have the values that belong there in another order: all of them, or all of one row.
    """
    pairs = {(one.value, one.expected) for one in wrong}
    rows = {one.row for one in wrong}
    of_rows = {row: [one for one in wrong if one.row == row] for row in rows} if len(rows) < len(wrong) else {}
    turned = rows if _is_turned(wrong) else {row for row, entries in of_rows.items() if _is_turned(entries)}
    return [
        Defect.SWAPPED
        if one.row in turned or (one.expected is not None and (one.expected, one.value) in pairs)
        else kind
        for one, kind in zip(wrong, kinds, strict=True)
    ]


def _is_turned(wrong: Sequence[WrongEntry]) -> bool:
    expected = [one.expected for one in wrong if one.expected is not None]
    return len(wrong) > 1 and sorted(one.value for one in wrong) == sorted(expected)


def common_defect(kinds: Sequence[Defect | None]) -> Defect | None:
    """Return in which way all of the wrong entries are wrong; None where they are not wrong in the same way.

    A run of positions that begins anew, or of lengths that is shifted, may begin with a zero or end one off.
    """
    return kinds[0] if len(set(kinds)) == 1 else None


def _bad(one: WrongEntry) -> BadIndex:
    """Return it as an index that had to be one value; where that is not known, as one that had to be above 0."""
    lower, upper = (1, 1 << 62) if one.expected is None else (one.expected, one.expected + 1)
    return BadIndex(one.row, one.column, one.value, lower, upper)


def _extents(scheduler: Any) -> dict[str, int]:
    """Return how many rows there are, and how large the full pool is, the dummy page 0 included."""
    allocator = scheduler.token_to_kv_pool_allocator
    inner = getattr(allocator, "full_attn_allocator", allocator)
    slots, page = int(inner.size) + int(allocator.page_size), int(allocator.page_size)
    rows = int(scheduler.req_to_token_pool.req_to_token.shape[0])
    return {"rows_of_requests": rows, "pages_full_pool": slots // page, "slots_full_pool": slots}


def _of_forward(made: Any, row: int) -> dict[str, int]:
    """Return what lengths and positions of a forward's row are made of: its prefix, or the tokens of a verification."""
    mode, lengths = getattr(made, "forward_mode", None), getattr(made, "seq_lens", None)
    if mode is None or lengths is None or not len(lengths):
        return {}
    if mode.is_target_verify():
        tokens = getattr(made, "input_ids", None)
        return {} if tokens is None else {"drafts": int(tokens.shape[0]) // len(lengths)}
    prefixes = getattr(made, "extend_prefix_lens_cpu", None) if mode.is_extend() else None
    return {"prefix": int(prefixes[row])} if prefixes is not None and 0 <= row < len(prefixes) else {}


def report_wrong(
    scheduler: Any,
    wrong: Sequence[WrongEntry],
    verdict: str,
    site: str,
    structure: Structure | str,
    kinds: Sequence[Defect | None],
    made: Any,
    slots: Sequence[int | None],
    tensors: Mapping[str, TensorPayload] | None = None,
    had: Mapping[str, Any] | None = None,
    role: str | None = "target",
    summary: str | None = None,
    act: Mode | None = None,
) -> None:
    """Report wrong entries of one structure, with a dump.

    Args:
        scheduler: Whose requests they are.
        wrong: The entries, the first of which the summary names.
        verdict: One of the names above.
        site: The function of SGLang's at which they were seen.
        structure: Which one is wrong; in words of its own where it is none of KV memory.
        kinds: In which way, of each entry; None where that is not known.
        made: The forward's batch; None between forwards.
        slots: Request slot of each row.
        tensors: What the dump shows of it.
        had: What the first entry's place had at the check before.
        role: Whose forward it is.
        summary: What is wrong, in one clause; made of the first entry where it is left out.
        act: LOG for an event that stops nothing, and of which the first is enough.
    """
    first, name = wrong[0], str(structure)
    kind = common_defect(kinds)
    listed = tuple(map(_bad, wrong[:MAX_LISTED]))
    violation = Violation(verdict, listed, len(wrong))
    should = "" if first.expected is None else f", and should have {first.expected}"
    places = {ROW: "token {}", WRITE: "token {}", TABLE: "column {}", POSITION: "token {} of the forward"}
    place = (places | {INSERTED: "token {} of the path"}).get(verdict, "its entry").format(first.column)
    said = summary or (
        f"{name}: {place} of request slot {slots[first.row]} has {first.value}{should} "
        f"({first.why}; {len(wrong)} entries)"
    )
    mode = getattr(made, "forward_mode", None)

    def draft() -> DumpDraft:
        return DumpDraft(
            rule=RULE,
            site=site,
            summary=said,
            verdict=verdict,
            provenance=Provenance(table_origin=name, explanation=said),
            forward_mode=getattr(mode, "name", None),
            role=role if made is not None else None,
            step=int(scheduler.forward_ct),
            page_size=int(scheduler.page_size),
            extents=_extents(scheduler),
            scalars={
                "structure": name,
                "defect": None if kind is None else kind.value,
                "why": first.why,
                "value": first.value,
                "expected": first.expected,
                "token": first.column,
                "request_slot": slots[first.row],
                **(had or {"as_before": None}),
                **(_of_forward(made, first.row) if verdict in (LENGTH, POSITION) else {}),
                "owners": current.owners_asked(),
            },
            offences=offences(listed, "rows" if verdict == ROW else name, tuple(slots)),
            tensors=dict(tensors or {}),
        )

    current.guard().report(violation, RULE, site, draft, act=act, key=(name,), once=act is not None)
