"""What one forward follows, as entries: page tables, lengths, rows and write locations.

Runs inside the engine's processes; harness, not part of the patched runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

from gemma4_repro.engine.serving import prompt_of
from gemma4_repro.mutations.entry import Entry
from gemma4_repro.mutations.live_state import LiveState


def table_entries(live: LiveState, backend: Any, forward_batch: Any, swa: bool) -> list[Entry]:
    """Return the live entries of a forward's page table: those of a sliding table inside the window only.

    Args:
        live: What is live beside it.
        backend: The attention backend, whose metadata has just been built.
        forward_batch: The forward's batch.
        swa: Whether the sliding layers' table is meant.
    """
    metadata = backend.forward_metadata
    table, other = metadata.page_table, metadata.swa_page_table
    if table is None or other is None:
        return []
    if swa:
        table, other = other, table
    lengths, page = metadata.cache_seqlens_int32.tolist(), live.page_size
    asked = max(1, int(getattr(metadata, "max_seq_len_q", 1) or 1))
    window = live.tree.sliding_window_size if swa else None
    first = [0 if window is None else max(0, length - asked - window) // page for length in lengths]
    columns = [range(first[row], min(-(-length // page), table.shape[1])) for row, length in enumerate(lengths)]
    held = [[int(table[row, column]) for column in columns[row]] for row in range(len(lengths))]
    entries = []
    for row, of_row in enumerate(columns):
        elsewhere = sorted({value for n, values in enumerate(held) if n != row for value in values if value > 0})
        for column in of_row:
            value = int(table[row, column])
            if value > 0:
                entries.append(
                    Entry(
                        where=f"row {row}, column {column} of {len(of_row)}",
                        value=value,
                        write=_cell_writer(table, (row, column)),
                        read=lambda place=(row, column): int(table[place]),
                        upper=live.swa_end if swa else live.full_end,
                        prompt=_prompt(forward_batch, row),
                        row=int(forward_batch.req_pool_indices[row]),
                        own=[one for one in held[row] if one != value],
                        foreign=elsewhere,
                        stale=live.free_pages(swa)[:8],
                        other_space=[int(other[row, column])],
                    )
                )
    return entries


def _cell_writer(table: Any, place: tuple[int, int]) -> Callable[[int], None]:
    def write(value: int) -> None:
        # The table was made for this forward, and nobody has seen it yet.
        table[place] = value

    return write


def length_entries(live: LiveState, backend: Any, forward_batch: Any, before: dict[int, int]) -> list[Entry]:
    """Return what the kernels are told of each row's length. before: by row of req_to_token, of the forward before."""
    metadata = backend.forward_metadata
    rows = forward_batch.req_pool_indices.tolist()

    def put(lengths: Any) -> None:
        metadata.cache_seqlens_int32 = lengths

    upper = metadata.page_table.shape[1] * live.page_size + 1
    stale = [[before[row]] if row in before else [] for row in rows]
    return list_entries(metadata.cache_seqlens_int32, put, upper, forward_batch, rows, stale=stale)


def row_index_entries(live: LiveState, forward_batch: Any) -> list[Entry]:
    """Return which row of req_to_token a forward takes for each of its requests."""
    rows = forward_batch.req_pool_indices.tolist()

    def put(values: Any) -> None:
        forward_batch.req_pool_indices = values

    unused = [row for row in live.scheduler.req_to_token_pool.free_slots if row > 0][:8]
    upper = live.rows.shape[0]
    return list_entries(forward_batch.req_pool_indices, put, upper, forward_batch, rows, stale=[unused] * len(rows))


def write_entries(live: LiveState, forward_batch: Any, before: Sequence[int]) -> list[Entry]:
    """Return where a forward stores its tokens. before: the locations of an earlier forward."""
    locations = forward_batch.out_cache_loc
    if locations is None or not len(locations):
        return []
    values, rows = locations.tolist(), forward_batch.req_pool_indices.tolist()
    mine = _request_of_tokens(forward_batch, len(values), len(rows))

    def write(place: int, value: int) -> None:
        # A new tensor: the batch and the ledger keep the one that is there.
        changed = forward_batch.out_cache_loc.clone()
        changed[place] = value
        forward_batch.out_cache_loc = changed

    held = {holder.row: holder.slots.tolist() for holder in live.running()}
    elsewhere = {
        number: sorted(
            {slot for row, slots in held.items() if row != rows[number] for slot in slots[-live.page_size :]}
        )
        for number in set(mine)
    }
    return [
        Entry(
            where=f"token {place} of {len(values)}",
            value=value,
            write=partial(write, place),
            read=lambda place=place: int(forward_batch.out_cache_loc[place]),
            upper=live.full_end * live.page_size,
            prompt=_prompt(forward_batch, mine[place]),
            row=rows[mine[place]],
            own=[other for at, other in enumerate(values) if mine[at] == mine[place] and at != place],
            foreign=elsewhere[mine[place]],
            stale=[slot for slot in before if slot not in values],
            other_space=[int(live.mapping[value])],
        )
        for place, value in enumerate(values)
    ]


def position_entries(live: LiveState, forward_batch: Any) -> list[Entry]:
    """Return at which place of its sequence each token of a forward stands."""
    if forward_batch.positions is None or not len(forward_batch.req_pool_indices):
        return []
    values, rows = forward_batch.positions.tolist(), forward_batch.req_pool_indices.tolist()
    mine = _request_of_tokens(forward_batch, len(values), len(rows))

    def write(place: int, value: int) -> None:
        changed = forward_batch.positions.clone()
        changed[place] = value
        forward_batch.positions = changed

    return [
        Entry(
            where=f"token {place} of {len(values)}",
            value=value,
            write=partial(write, place),
            read=lambda place=place: int(forward_batch.positions[place]),
            upper=live.rows.shape[1],
            prompt=_prompt(forward_batch, mine[place]),
            row=rows[mine[place]],
            own=[other for at, other in enumerate(values) if mine[at] == mine[place] and at != place],
            foreign=[other for at, other in enumerate(values) if mine[at] != mine[place]],
        )
        for place, value in enumerate(values)
    ]


def list_entries(
    values: Any,
    put: Callable[[Any], None],
    upper: int,
    batch: Any,
    rows: Sequence[int],
    stale: Sequence[Sequence[int]] | None = None,
) -> list[Entry]:
    """Return an entry for each request of a batch, of which the tensor `values` [requests] says a number."""
    listed = values.tolist()
    present = [values]

    def writer(place: int) -> Callable[[int], None]:
        def write(value: int) -> None:
            changed = present[0].clone()
            changed[place] = value
            present[0] = changed
            put(changed)

        return write

    return [
        Entry(
            where=f"request {place} of {len(listed)}",
            value=value,
            write=writer(place),
            read=lambda place=place: int(present[0][place]),
            upper=upper,
            prompt=_prompt(batch, place),
            row=rows[place],
            foreign=[other for at, other in enumerate(listed) if at != place],
            stale=() if stale is None else stale[place],
        )
        for place, value in enumerate(listed)
    ]


def _prompt(batch: Any, number: int) -> int | None:
    """Return the prompt of a request of a ForwardBatch or a ScheduleBatch."""
    rids = getattr(batch, "rids", None) or [request.rid for request in getattr(batch, "reqs", ())]
    return prompt_of(rids[number]) if number < len(rids) else None


def _request_of_tokens(forward_batch: Any, tokens: int, requests: int) -> list[int]:
    lengths = forward_batch.extend_seq_lens_cpu
    if lengths is None or sum(lengths) != tokens:
        lengths = [tokens // requests] * requests
    ends = list(accumulate(int(length) for length in lengths))
    return [next((number for number, end in enumerate(ends) if token < end), requests - 1) for token in range(tokens)]
