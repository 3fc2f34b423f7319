"""What a dump holds only when asked for: keys and values of the pages that the rows concerned name, and token ids.

And, with the leak ledger, what became of a page that the map lost.

Read only where a violation is described. What cannot be read is a note in the dump, and costs neither other evidence
nor the trap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import torch

from gemma4_dumps.draft import TensorPayload
from gemma4_dumps.included import KEYS, KV, PAGE_IDS, TOKEN_IDS, TOKEN_INDPTR, TOKEN_ROWS, TOKENS, VALUES, WORDS
from gemma4_runtime import current, steps
from gemma4_runtime.checks.page_events import SWA
from gemma4_runtime.checks.page_ledger import LastEvent, Site
from gemma4_runtime.checks.violation import BadIndex
from gemma4_runtime.evidence import payload
from gemma4_runtime.indices.buffers import layer_buffers
from gemma4_runtime.indices.build import Build, Use
from gemma4_runtime.indices.owner import runner_of
from gemma4_runtime.leak.ledger import ledger_of
from gemma4_runtime.settings import Mode

_Tensors = dict[str, TensorPayload]


class _NotHere(Exception):
    """There is nothing to include; it says why."""


def included(
    build: Build, use: Use, evidence: Mapping[str, TensorPayload], rows: Sequence[int], offences: Sequence[BadIndex]
) -> tuple[_Tensors, tuple[str, ...]]:
    """Return the tensors that the settings ask for, named as in `gemma4_dumps.included`, and notes about them.

    `evidence` is what the dump holds anyhow; `rows` are those whose requests are concerned, none at a capture;
    `offences` are the bad entries of `use.array`: pages nearest to them come first; with none, those nearest to the
    first row's first.
    """
    asked = current.settings().include
    found: _Tensors = {}
    notes = []
    # Token ids first: keys and values take what room is left.
    for word, read in ((TOKENS, _token_ids), (KV, _keys_and_values)):
        if word not in asked or not rows:
            continue
        try:
            found |= read(build, use, {**evidence, **found}, rows, offences)
        except _NotHere as reason:
            notes.append(f"no {WORDS[word]}: {reason}")
        # Broad on purpose: the state that is being read is known to be bad, and the device may be gone.
        except Exception as error:  # noqa: BLE001
            text = next(iter(str(error).splitlines()), "")
            notes.append(f"{WORDS[word]} could not be read: {type(error).__name__}: {text}")
    if KEYS in found and current.guard().mode.at(build.in_graph) is not Mode.TRAP:
        notes.append("KV values are of when this dump was written, which may be after the step that it is about")
    return found, tuple(notes)


def _token_ids(
    build: Build, use: Use, evidence: _Tensors, rows: Sequence[int], offences: Sequence[BadIndex]
) -> _Tensors:
    """Prompt and output so far of each request concerned."""
    requests = {row // build.rows_per_request: row for row in sorted(rows, reverse=True)}
    known = {row: request for at, row in sorted(requests.items()) if (request := steps.request_of(at)) is not None}
    if not known:
        raise _NotHere("these rows belong to no scheduler step")
    said = [part for request in known.values() for part in (request.origin_input_ids, request.output_ids)]
    ends = np.cumsum([0, *map(len, said)], dtype=np.int64)[::2]
    # No more than the dump can hold, in a process where time counts.
    room = min(current.guard().bytes_per_dump // np.dtype(np.int64).itemsize, int(ends[-1]))
    ids = np.fromiter(chain.from_iterable(said), np.int64, room)
    return {
        TOKEN_IDS: replace(TensorPayload.from_array(ids), cut_from=int(ends[-1])),
        TOKEN_INDPTR: TensorPayload.from_array(ends),
        TOKEN_ROWS: TensorPayload.from_array(np.array([*known], np.int64)),
    }


def _keys_and_values(
    build: Build, use: Use, evidence: _Tensors, rows: Sequence[int], offences: Sequence[BadIndex]
) -> _Tensors:
    """Return keys and values of the layer that the dump names, as many pages as fit."""
    if use.writes:
        raise _NotHere(f"{use.array} says where keys are written, and attention reads nothing through it")
    buffers = None if use.layer_id is None else layer_buffers(build.pool, use.layer_id)
    if buffers is None:
        raise _NotHere(f"{type(build.pool).__name__} has no layer {use.layer_id}")
    if buffers.keys.ndim != 3 or buffers.values.ndim != 3:
        raise _NotHere(f"the layout of the buffer is not known: {list(buffers.keys.shape)}")
    page_size = build.page_size
    pages = _nearest_pages(build, use, evidence, rows, offences, buffers.keys.shape[0] // page_size)
    if not pages:
        raise _NotHere("no live entry of these rows names a page of the buffer")
    # No more than the dump can hold; the writer, which knows what else is in it, may cut further.
    room_bytes = current.guard().bytes_per_dump - sum(tensor.size_bytes for tensor in evidence.values())
    slot_bytes = sum(part[0].numel() * part.element_size() for part in (buffers.keys, buffers.values))
    kept = pages[: max(room_bytes, 0) // (slot_bytes * page_size)]
    found = {
        PAGE_IDS: TensorPayload.from_array(np.array(kept, np.int64)),
        KEYS: _gather(buffers.keys, kept, page_size, buffers.dtype),
        VALUES: _gather(buffers.values, kept, page_size, buffers.dtype),
    }
    return {name: replace(tensor, cut_from=len(pages), cut_with=KV) for name, tensor in found.items()}


def _nearest_pages(
    build: Build,
    use: Use,
    evidence: _Tensors,
    rows: Sequence[int],
    offences: Sequence[BadIndex],
    pages_in_buffer: int,
) -> list[int]:
    """Pages that live entries name, and those that they should name where the dump knows it.

    Nearest to an offence first: by rows, then columns; without the null page and what lies outside.
    """
    translated = evidence.get("translated_page_table") if build.array(use.array).paged else None
    right = None if translated is None else _on_host(translated)
    found: list[np.ndarray] = []
    near = offences or (BadIndex(rows[0], 0, 0, 0, 0),)
    for row, entries in _live_pages(build, use, evidence, rows):
        far = np.min([np.stack(_distance(entries.shape[0], row, bad)) for bad in _nearest_of(row, near)], axis=0)
        found.append(np.stack([*far, entries]))
        if right is not None:
            should = right[row, : entries.shape[0]]
            found.append(np.stack([*far[:, : should.shape[0]], should]))
    rows_away, columns_away, pages = np.concatenate(found, axis=1)
    order = np.lexsort((columns_away, rows_away))
    inside = (pages > 0) & (pages < pages_in_buffer)
    return list(dict.fromkeys(pages[order][inside[order]].tolist()))


def _nearest_of(row: int, offences: Sequence[BadIndex]) -> list[BadIndex]:
    least = min(abs(bad.row - row) for bad in offences)
    return [bad for bad in offences if abs(bad.row - row) == least]


def _distance(columns: int, row: int, bad: BadIndex) -> tuple[np.ndarray, np.ndarray]:
    """Return how far each entry of `row` is away, in rows and in columns, both [columns]."""
    return np.full(columns, abs(bad.row - row)), np.abs(np.arange(columns) - bad.column)


def _live_pages(build: Build, use: Use, evidence: _Tensors, rows: Sequence[int]) -> Iterator[tuple[int, np.ndarray]]:
    """Yield each row with the pages that its live entries lie in, [columns] int64."""
    array, page_size = build.array(use.array), build.page_size
    ids = _on_host(evidence[array.name])
    if array.indptr is not None:
        ends = np.maximum(_on_host(evidence[f"{array.name}_indptr"]), 0).tolist()
        yield from ((row, ids[ends[row] : ends[row + 1]] // page_size) for row in rows)
    elif array.paged:
        columns = -(-np.maximum(_on_host(evidence["cache_seqlens"]), 0) // page_size)
        yield from ((row, ids[row, : columns[row]]) for row in rows)
    else:
        yield from ((row, ids[row] // page_size) for row in rows)


def _on_host(tensor: TensorPayload) -> np.ndarray:
    return np.frombuffer(tensor.data, tensor.dtype).reshape(tensor.shape).astype(np.int64)


def _gather(buffer: torch.Tensor, pages: list[int], page_size: int, dtype: torch.dtype) -> TensorPayload:
    """[pages, page_size, heads, head_dim] of a buffer [slots, heads, head_dim]."""
    whole = buffer[: buffer.shape[0] // page_size * page_size].unflatten(0, (-1, page_size))
    # As it is stored: there is no gather for eight-bit floats.
    return payload(whole.index_select(0, torch.tensor(pages, dtype=torch.int64, device=buffer.device)).view(dtype))


def peer_history(build: Build, use: Use, verdict: str, listed: tuple[BadIndex, ...]) -> dict[str, Any]:
    """Say what the leak ledger saw of the SWA page that the map has lost for a full page.

    Where the SWA pool's latest hand-out was page 0, it says that alone.
    """
    if verdict != "null_page_live" or use.array != "swa_page_table":
        return {}
    asked = {"owners": current.owners_asked()}
    if not current.switched_on("leak-ledger"):
        return asked
    allocator = getattr(runner_of(build.backend), "token_to_kv_pool_allocator", None)
    names = [array.name for array in build.arrays]
    if allocator is None or not listed or "page_table" not in names:
        return {}
    ledger, bad = ledger_of(allocator), listed[0]
    given = ledger.latest_swa_hand_out
    if given is not None and bool((given < build.page_size).any()):
        # Page 0 was handed out as a page like any other: the map has what it was told.
        return asked | {"null_page_given": True}
    ledger.log.drain()
    full, swa = ledger.pools["full"], ledger.pools["swa"]
    page = int(build.array("page_table").values[bad.row, bad.column])
    peer = int(full.peer[page]) if 0 < page <= full.pages else 0
    if not peer:
        return {}
    # Its next owner's hand-out came behind the free.
    given_back = int(swa.peer[peer]) != page or swa.last_event[peer] in (LastEvent.FREE_ASKED, LastEvent.FREED)
    site, step = Site(int(swa.free_site[peer])).name.lower(), int(swa.free_step[peer])
    told = {**asked, "peer": peer, "peer_given_back": given_back, "peer_free_site": site, "peer_free_step": step}
    slot = int(build.request_slots[bad.row])
    if taken := [int(share[3]) for share in full.shares_of(page) if share[0] == slot]:
        told["page_taken_step"] = max(taken)
    giver = ledger.giver_of(peer, SWA) if given_back else None
    return told if giver is None else told | {"peer_freed_by": giver}
