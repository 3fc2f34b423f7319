"""What a report about an index says: place, provenance, and what shows it."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import torch

from gemma4_dumps.draft import DumpDraft, TensorPayload
from gemma4_dumps.schema import Graph, Layer, Provenance
from gemma4_runtime.checks.violation import BadIndex, Violation
from gemma4_runtime.evidence import offences, payload
from gemma4_runtime.indices.buffers import extents
from gemma4_runtime.indices.build import Build, IndexArray, Use
from gemma4_runtime.indices.included import included, peer_history
from gemma4_runtime.indices.owner import attention_layers, runner_of, step_of

logger = logging.getLogger(__name__)


def bounds_draft(build: Build, use: Use, violation: Violation, rule: str) -> DumpDraft:
    """Describe entries that leave a buffer, are null and must not be, or do not fit their table."""
    bad, array = violation.first, build.array(use.array)
    noun = "page" if array.paged else "slot"
    if violation.verdict == "table_too_narrow":
        said = f"row {bad.row} needs {bad.value} columns of {bad.column} in {use.array}"
    else:
        said = f"{noun} {bad.value} of {use.bound} in {use.array}[{bad.row}, {bad.column}]"
    explanation = "" if use.belongs(array) else _missing_translation(build, use, bad)
    held = () if violation.verdict == "table_too_narrow" else violation.listed
    rows = tuple(dict.fromkeys(entry.row for entry in violation.listed))
    draft = _draft(build, use, rule, violation.verdict, said, explanation, violation.listed, held)
    return _with_included(draft, build, use, rows, violation.listed)


def wrong_space_draft(build: Build, use: Use, violation: Violation, rule: str, with_rows: bool) -> DumpDraft:
    """Describe ids of another pool than their buffer's.

    Args:
        build: The metadata build.
        use: The layers that would follow the ids.
        violation: What was found.
        rule: Under which it is reported.
        with_rows: Look up the first live entry, which synchronises; without, the build has no request's rows.
    """
    bad = _telling_entry(build, use) if with_rows else None
    said = f"{use.array} as a whole" if bad is None else f"{use.array}[{bad.row}, {bad.column}] = {bad.value}"
    explanation = _missing_translation(build, use, bad)
    found = () if bad is None else (bad,)
    draft = _draft(build, use, rule, violation.verdict, said, explanation, found, found)
    # Of all requests: each row is as wrong as the one that is shown.
    rows = tuple(row for row, slot in enumerate(_on_host(build.request_slots)) if slot) if with_rows else ()
    return _with_included(draft, build, use, rows, found)


def _with_included(
    draft: DumpDraft, build: Build, use: Use, rows: tuple[int, ...], bad: tuple[BadIndex, ...]
) -> DumpDraft:
    tensors, notes = included(build, use, draft.tensors, rows, bad)
    return replace(draft, tensors={**draft.tensors, **tensors}, notes=notes)


def _draft(
    build: Build,
    use: Use,
    rule: str,
    verdict: str,
    said: str,
    explanation: str,
    listed: tuple[BadIndex, ...],
    held: tuple[BadIndex, ...],
) -> DumpDraft:
    """Describe one use of one array.

    Args:
        build: The metadata build.
        use: The layers that would follow the array.
        rule: Under which it is reported.
        verdict: What was found.
        said: The same in words, with the entry.
        explanation: Of the provenance; empty where the ids are of the buffer's own pool.
        listed: The bad entries that the dump names.
        held: Those of them that hold what they held when the check saw them; in contain mode that is gone from the
            arrays.
    """
    array = build.array(use.array)
    layer_type = "sliding" if use.window_left >= 0 else "full"
    does = "written to" if use.writes else "on"
    buffer = "no buffer of the pool in force" if use.buffer_space is None else f"the {use.buffer_space} buffer"
    ids = "page ids" if array.paged else "slots"
    kv_pool = type(build.pool).__name__
    return DumpDraft(
        rule=rule,
        site=build.site,
        summary=(f"{said}, {build.role} layer {use.layer_id} ({layer_type}): {array.space} {ids} {does} {buffer}"),
        verdict=verdict,
        layer=Layer(id=use.layer_id, type=layer_type),
        pool_kind=use.buffer_space,
        provenance=Provenance(
            table_space=array.space,  # pyright: ignore[reportArgumentType]
            buffer_space=use.buffer_space or "unknown",  # pyright: ignore[reportArgumentType]
            table_origin=array.origin,
            buffer_origin=f"{kv_pool}.get_kv_buffer({use.layer_id})",
            explanation=explanation,
        ),
        offences=offences(listed, use.array, _on_host(build.request_slots)),
        role=build.role,
        backend=build.backend_name,
        forward_mode=build.forward_mode,
        graph=Graph(captured=build.in_graph, bucket=build.bucket),
        step=step_of(build.backend),
        page_size=build.page_size,
        extents={
            ("pages_in_buffer" if array.paged else "slots_in_buffer"): use.bound,
            **({"table_columns": int(array.values.shape[1])} if array.paged else {}),
            **extents(build.pool, build.page_size),
            **_rows_of_requests(build),
        },
        tensors=_tensors(build, use, held),
        scalars={
            "max_seq_len_q": build.query_tokens,
            "window_left": use.window_left,
            **_layer_scalars(build, use),
            **peer_history(build, use, verdict, listed),
            **_rows_are_copied(build),
        },
    )


def _rows_are_copied(build: Build) -> dict[str, bool]:
    """Say whether the rows that the backend reads are others than the pool's; nothing where it keeps none."""
    rows, pool = getattr(build.backend, "req_to_token", None), getattr(build.backend, "req_to_token_pool", None)
    own = getattr(pool, "req_to_token", None)
    return {} if rows is None or own is None else {"rows_are_copied": rows.data_ptr() != own.data_ptr()}


def _layer_scalars(build: Build, use: Use) -> dict[str, Any]:
    """Say what a replay of the layer's attention needs to know of it; empty if the layer is not found."""
    layer = next((one for one in attention_layers(build.backend) if one.layer_id == use.layer_id), None)
    if layer is None:
        return {}
    return {
        "q_heads": int(layer.tp_q_head_num),
        "kv_heads": int(layer.tp_k_head_num),
        "head_dim": int(layer.head_dim),
        "scaling": float(layer.scaling),
        "kv_dtype": str(build.pool.dtype).removeprefix("torch."),
    }


def _missing_translation(build: Build, use: Use, bad: BadIndex | None) -> str:
    if use.buffer_space is None:
        return (
            f"the pool that the backend holds, {type(build.pool).__name__}, has no layer {use.layer_id}: it is not the "
            "pool that this layer was bound to, so a pool swap did not reach this backend"
        )
    array = build.array(use.array)
    if bad is None or not _lacks_translation(array, use):
        return f"{array.space} ids index the {use.buffer_space} buffer; each pool has an id space of its own"
    pages = extents(build.pool, build.page_size)
    to = int(translate(build.pool, torch.tensor([[bad.value]]), build.page_size))
    same = ", the same only because both pools are young" if to == bad.value else ""
    return (
        f"page {bad.value} is a full-pool page (of {pages['pages_full_pool']}); the full-to-SWA map would have made it "
        f"page {to} of {use.bound}{same}: translation missing"
    )


def _lacks_translation(array: IndexArray, use: Use) -> bool:
    return (array.space, use.buffer_space, array.paged) == ("full", "swa", True)


def _telling_entry(build: Build, use: Use) -> BadIndex | None:
    """Return a live entry of a row: the first that the missing translation would change, else the first of all."""
    array = build.array(use.array)
    if not array.paged:
        return None
    columns = torch.arange(array.values.shape[1], device=array.values.device)
    live = columns[None, :] * build.page_size < build.cache_seqlens[:, None]
    # In a translated table the window leaves null pages behind.
    live &= (build.request_slots.to(live.device) != 0)[:, None] & (array.values != 0)
    changed = live
    if _lacks_translation(array, use):
        changed = live & (translate(build.pool, array.values, build.page_size) != array.values)
    found = (changed if bool(changed.any()) else live).nonzero()
    if found.shape[0] == 0:
        return None
    row, column = found[0].tolist()
    return BadIndex(row, column, int(array.values[row, column]), 1, use.bound)


def _tensors(build: Build, use: Use, held: tuple[BadIndex, ...]) -> dict[str, Any]:
    tensors = {array.name: _used(build, array) for array in build.arrays}
    tensors |= {f"{array.name}_indptr": array.indptr for array in build.arrays if array.indptr is not None}
    tensors |= {"cache_seqlens": build.cache_seqlens, "request_slots": build.request_slots}
    if build.believed_lengths is not None:
        tensors["believed_lengths"] = build.believed_lengths
    found = {}
    for name, tensor in tensors.items():
        try:
            found[name] = payload(tensor)
        except RuntimeError as error:
            # After a crash the device is gone; what the host knows is worth a dump.
            logger.warning("gemma4-triage: %s is lost: %s", name, str(error).splitlines()[0])
    rows = _request_rows(build)
    if rows is not None:
        found["request_rows"] = rows
    if use.writes and (slots := _row_slots(build)) is not None:
        found["row_slots"] = slots
    full_pages = _to_translate(build, use, held)
    if full_pages is not None:
        found["translated_page_table"] = payload(translate(build.pool, full_pages, build.page_size))
    return found


def _req_to_token(build: Build) -> torch.Tensor | None:
    return getattr(getattr(runner_of(build.backend), "req_to_token_pool", None), "req_to_token", None)


def _rows_of_requests(build: Build) -> dict[str, int]:
    """Return how many rows req_to_token has, so that a request slot past it can be told; empty if that is not known."""
    table = _req_to_token(build)
    return {} if table is None else {"rows_of_requests": int(table.shape[0])}


def _request_rows(build: Build) -> TensorPayload | None:
    """Return the pages that each row's request has by req_to_token now, int64 [rows, columns]; None if unknown.

    A row whose request slot is none of the table's is -1 throughout. Held against the table, this says which of the two
    is wrong.
    """
    table = _req_to_token(build)
    # Lists of slots have an entry for each token: their rows would be as large again.
    if table is None or not build.rows or not any(array.paged for array in build.arrays):
        return None
    try:
        columns = max(-(-int(build.cache_seqlens.max()) // build.page_size), 1)
        slots = build.request_slots.to(table.device, torch.int64)
        known = (slots >= 0) & (slots < table.shape[0])
        rows = table[slots.clamp(0, table.shape[0] - 1), :: build.page_size][:, :columns].to(torch.int64)
        return payload(torch.where(known[:, None], rows // build.page_size, -1))
    except RuntimeError:
        # After a crash nothing of the device can be asked.
        return None


def _row_slots(build: Build) -> TensorPayload | None:
    """Return what each request's row has now for the tokens that are written, int64 [rows, tokens]; None if unknown."""
    table = _req_to_token(build)
    writes = next((one for one in build.arrays if not one.paged and one.indptr is None and one.space == "full"), None)
    if table is None or writes is None or writes.values.ndim != 2 or not build.rows:
        return None
    try:
        slots, each = build.request_slots.to(table.device, torch.int64)[:, None], writes.values.shape[1]
        lengths = build.cache_seqlens.to(table.device, torch.int64)[:, None]
        tokens = lengths - each + torch.arange(each, device=table.device)
        known = (slots >= 0) & (slots < table.shape[0]) & (tokens >= 0) & (tokens < table.shape[1])
        rows = table[slots.clamp(0, table.shape[0] - 1), tokens.clamp(0, table.shape[1] - 1)].to(torch.int64)
        return payload(torch.where(known, rows, -1))
    except RuntimeError:
        # After a crash nothing of the device can be asked; a draft's rows may be counted otherwise.
        return None


def _to_translate(build: Build, use: Use, held: tuple[BadIndex, ...]) -> torch.Tensor | None:
    """Return the full-pool page ids, [rows, columns], that the used table should be translated from, or None."""
    array = build.array(use.array)
    if _lacks_translation(array, use):
        pages = array.values.clone()
        for bad in held:
            # Containment has replaced it.
            pages[bad.row, bad.column] = bad.value
        return pages
    if (array.space, use.buffer_space, array.paged) == ("swa", "swa", True):
        return next((other.values for other in build.arrays if other.paged and other.space == "full"), None)
    return None


def _used(build: Build, array: IndexArray) -> torch.Tensor:
    """Return the part of an array that rows use. A graph's static buffers are sized for the longest context."""
    try:
        if array.indptr is not None:
            return array.values[: max(int(array.indptr[build.rows]), 0)]
        if array.paged and build.rows:
            return array.values[:, : max(-(-int(build.cache_seqlens.max()) // build.page_size), 1)]
    except RuntimeError:
        # After a crash nothing of the device can be asked.
        pass
    return array.values


def translate(pool: Any, page_table: torch.Tensor, page_size: int) -> torch.Tensor:
    """Full-pool page ids [rows, columns] -> the SWA page ids that they map to; ids outside the map give -1."""
    mapping = pool.full_to_swa_index_mapping
    slots = page_table.to(mapping.device, torch.int64) * page_size
    inside = (slots >= 0) & (slots < mapping.shape[0] - 1)
    return torch.where(inside, mapping[slots.clamp(0, mapping.shape[0] - 2)] // page_size, -1).to(torch.int32)


def _on_host(slots: torch.Tensor) -> list[int]:
    try:
        return slots.tolist()
    except RuntimeError:
        return []
