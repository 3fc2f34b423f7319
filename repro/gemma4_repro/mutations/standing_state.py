"""What stands between forwards, as entries, beside what live_state.py has: locks, counters, lengths, bindings, calls.

Runs inside the engine's processes; harness, not part of the patched runtime. What a later release has elsewhere is read
through `gemma4_runtime.release`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gemma4_dumps.structures import Structure
from gemma4_repro.engine.serving import prompt_of
from gemma4_repro.mutations.entry import Entry
from gemma4_repro.mutations.forward_state import list_entries
from gemma4_repro.mutations.live_state import LiveState, locks_of_node
from gemma4_runtime.release.requests import held, set_swa_evicted, swa_evicted, swa_kept_until

_NO_END = 1 << 30
_EVICTED = "swa_evicted_seqlen"
_COUNTERS = ("kv_committed_len", "kv_allocated_len", "cache_protected_len", _EVICTED)
_PAGE_ALIGNED = ("cache_protected_len", _EVICTED)


def age(allocator: Any, seed: int) -> None:
    """Shuffle the ids that both pools will hand out, as hours of serving do."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    for pool in (allocator.full_attn_allocator, allocator.swa_attn_allocator):
        order = torch.randperm(len(pool.free_pages), generator=generator)
        pool.free_pages = pool.free_pages[order.to(pool.free_pages.device)]


def entries(structure: Structure, live: LiveState) -> list[Entry]:
    """Return the live entries of a structure that stands between forwards.

    Raises:
        ValueError: it does not.
    """
    match structure:
        case Structure.REQUEST_ROW:
            return live.row_entries()
        case Structure.SWA_MAPPING:
            return live.mapping_entries(live.running() or live.cached())
        case Structure.FULL_FREE_LIST:
            return live.free_list_entries(swa=False)
        case Structure.SWA_FREE_LIST:
            return live.free_list_entries(swa=True)
        case Structure.TREE_NODE:
            return live.node_entries()
        case Structure.TREE_LOCK:
            return list(_lock_entries(live))
        case Structure.REQUEST_COUNTERS:
            return list(_counter_entries(live))
        case Structure.BATCH_LENGTHS:
            return _batch_length_entries(live)
        case _:
            raise ValueError(f"{structure} is made for each forward or call")


def _lock_entries(live: LiveState) -> Iterator[Entry]:
    for node in live.nodes():
        for name, (owner, attribute) in locks_of_node(node).items():
            if getattr(owner, attribute) > 0:
                yield _attribute(owner, attribute, f"{name} of node {node.id}", _NO_END)


def _counter_entries(live: LiveState) -> Iterator[Entry]:
    requests = [request for _, request, _ in live.requests()]
    for request in requests:
        for name in _COUNTERS:
            unit = live.page_size if name in _PAGE_ALIGNED else 1
            yield Entry(
                where=f"{name} of prompt {prompt_of(request.rid)}",
                value=_count(request, name) // unit,
                write=partial(_set_count, request, name, unit),
                read=lambda request=request, name=name, unit=unit: _count(request, name) // unit,
                upper=live.rows.shape[1] // unit + 1,
                prompt=prompt_of(request.rid),
                row=int(held(request).req_pool_idx),
                foreign=[_count(other, name) // unit for other in requests if other is not request],
                taken=partial(_taken, live.page_size, request) if name == _EVICTED else int,
            )


def _taken(page_size: int, request: Any, pages: int) -> int:
    """Return for how many pages gone from the window SGLang takes a count: for those that the cache keeps at least."""
    return pages if pages < 0 else max(pages, swa_kept_until(request, page_size) // page_size)


def _count(request: Any, name: str) -> int:
    return int((swa_evicted(request) or 0) if name == _EVICTED else getattr(held(request), name))


def _set_count(request: Any, name: str, unit: int, value: int) -> None:
    if name == _EVICTED:
        set_swa_evicted(request, value * unit)
    else:
        setattr(held(request), name, value * unit)


def _attribute(owner: Any, name: str, where: str, upper: int, **more: Any) -> Entry:
    """Return a number of an object's as an entry."""
    return Entry(
        where=where,
        value=int(getattr(owner, name)),
        write=lambda value: setattr(owner, name, value),
        read=lambda: int(getattr(owner, name)),
        upper=upper,
        **more,
    )


def _batch_length_entries(live: LiveState) -> list[Entry]:
    batch = live.batch
    # With overlap a batch may be without requests that have ended while its tensors have them still.
    if batch is None or batch.seq_lens is None or not 0 < len(batch.seq_lens) == len(batch.reqs):
        return []

    def put(lengths: Any) -> None:
        # The scheduler keeps the same numbers twice, on the device and on the host.
        batch.seq_lens, batch.seq_lens_cpu = lengths, lengths.to("cpu").clone()

    def reader(request: Any) -> Callable[[], int | None]:
        def read() -> int | None:
            at = next((place for place, other in enumerate(batch.reqs) if other is request), None)
            return None if at is None or at >= len(batch.seq_lens) else int(batch.seq_lens[at])

        return read

    rows = [int(held(request).req_pool_idx or 0) for request in batch.reqs]
    entries = list_entries(batch.seq_lens, put, live.rows.shape[1] + 1, batch, rows)
    # A batch keeps its requests' lengths in their order, without those that have ended.
    return [replace(one, read=reader(request)) for one, request in zip(entries, batch.reqs, strict=True)]


def size_entries(allocator: Any) -> list[Entry]:
    """Return how many pages the allocators of both pools believe that they have."""
    pools = {"full": allocator.full_attn_allocator, "sliding-window": allocator.swa_attn_allocator}

    def put(pool: Any, pages: int) -> None:
        pool.num_pages, pool.size = pages, pages * pool.page_size
        # It makes its free list of them.
        pool.clear()

    return [
        Entry(
            where=f"pages of the {name} pool",
            value=int(pool.num_pages),
            write=partial(put, pool),
            read=lambda pool=pool: int(pool.num_pages),
            upper=_NO_END,
            other_space=[int(other.num_pages) for other in pools.values() if other is not pool],
        )
        for name, pool in pools.items()
    ]


def scale_entries(model: Any) -> list[Entry]:
    """Return by what the target's layers multiply the keys and values that they read; 1 where nothing is said."""
    from gemma4_runtime.release import RadixAttention

    return [
        Entry(
            where=f"{name} of layer {layer.layer_id}",
            value=1,
            write=lambda value, layer=layer, name=name: setattr(layer, name, float(value)),
            read=lambda layer=layer, name=name: int(getattr(layer, name)),
            upper=_NO_END,
        )
        for layer in model.modules()
        if isinstance(layer, RadixAttention)
        for name in ("k_scale_float", "v_scale_float")
        if getattr(layer, name) in (None, 1.0)
    ]


def binding_entries(worker: Any) -> list[Entry]:
    """Return which layer of the target each draft layer reads, and the width of its window. worker: the MTP worker."""
    target = worker.target_worker.model_runner
    # Layers that share another's keys have no buffer of their own.
    owners = sorted(target.token_to_kv_pool.layers_mapping)
    types = target.model_config.hf_text_config.layer_types
    layers = worker.draft_model_runner.model.model.layers
    found = []
    for number, layer in enumerate(layers):
        attention = layer.self_attn.attn
        bound = int(attention.layer_id)
        found.append(
            _attribute(
                attention,
                "layer_id",
                f"layer_id of draft layer {number}",
                owners[-1] + 1,
                own=[bound],
                foreign=[at for at in owners if types[at] == types[bound] and at != bound],
                other_space=[at for at in owners if types[at] != types[bound]],
            )
        )
        if (attention.sliding_window_size or -1) > 0:
            upper = int(target.model_config.context_len)
            where = f"sliding_window_size of draft layer {number}"
            found.append(_attribute(attention, "sliding_window_size", where, upper))
    return found


class Slots:
    """The slots of one call, which an entry may replace by others."""

    def __init__(self, slots: Any) -> None:
        self.now = slots


def slot_entries(live: LiveState, given: Slots, swa: bool) -> list[Entry]:
    """Return the pages of what a call hands out or gives back.

    Args:
        live: What is live beside it.
        given: The call's slots.
        swa: Whether they are of the sliding-window pool.
    """
    size = live.page_size
    pages = sorted({page for page in (given.now // size).tolist() if page > 0})
    used = sorted({page for holder in (*live.running(), *live.cached()) for page in live.pages(holder.slots, swa)})
    return [_slot_entry(live, given, page, pages, used, swa) for page in pages]


def _slot_entry(live: LiveState, given: Slots, page: int, pages: list[int], used: list[int], swa: bool) -> Entry:
    size, mine = live.page_size, given.now // live.page_size == page

    def write(value: int) -> None:
        changed = given.now.clone()
        changed[mine] = value * size + changed[mine] % size
        given.now = changed

    def drop() -> None:
        given.now = given.now[~mine]

    prompt, row = _owner(live, page)
    return Entry(
        where=f"page {page} of {len(pages)} in the call",
        value=page,
        write=write,
        read=lambda: None,
        upper=live.swa_end if swa else live.full_end,
        prompt=prompt,
        row=row,
        own=[other for other in pages if other != page],
        foreign=[other for other in used if other not in pages],
        stale=live.free_pages(swa)[:8],
        drop=drop,
    )


@dataclass(frozen=True)
class Free:
    """A call that gives back, still to be made.

    Attributes:
        function: Is to be called.
        given: The slots.
        named: Its other arguments.
    """

    function: Callable[..., Any]
    given: Slots
    named: dict[str, Any]

    def make(self) -> None:
        """Make the call, if it has any slots left."""
        if len(self.given.now):
            self.function(self.given.now, **self.named)


class WithheldFrees:
    """Holds back, from now on and until its end, frees of an allocator's sliding-window side."""

    _NAMES = ("free_swa", "free_swa_segment")

    def __init__(self, allocator: Any) -> None:
        self._allocator, self._frees = allocator, list[Free]()
        for name in self._NAMES:
            if (function := getattr(allocator, name, None)) is not None:
                setattr(allocator, name, partial(self._hold, function))

    def _hold(self, function: Callable[..., Any], free_index: Any, **named: Any) -> None:
        self._frees.append(Free(function, Slots(free_index), named))

    def end(self) -> list[Free]:
        """Return what was held back, in order."""
        for name in self._NAMES:
            vars(self._allocator).pop(name, None)
        return self._frees


def eviction_entries(live: LiveState, given: Slots, request: Any) -> list[Entry]:
    """Return the pages, of the full pool, whose sliding-window side the eviction of a request's window gives back."""
    row = int(held(request).req_pool_idx)
    mine = set(live.pages(live.rows[row, : request.seqlen].long(), swa=False))
    others = [holder for holder in (*live.running(), *live.cached()) if holder.row != row]
    # One beside it is OFF_BY_ONE; what has left its window already has nothing to give back.
    used = {page for holder in others for page in live.pages(holder.slots[live.mapping[holder.slots] > 0], swa=False)}
    return [
        replace(
            entry,
            prompt=prompt_of(request.rid),
            row=row,
            own=(),
            foreign=sorted(used - mine - {entry.value - 1, entry.value + 1}),
        )
        for entry in slot_entries(live, given, swa=False)
    ]


def in_the_window(live: LiveState, given: Slots, request: Any) -> Entry | None:
    """Return the page of the request's row behind those that its eviction gives back; None if its last token is there.

    It is to be given back too early.
    """
    row, last = int(held(request).req_pool_idx), int(given.now[-1])
    slots = live.rows[row, : request.seqlen - 1].long()
    behind = slots[int((slots == last).nonzero()[0]) + 1 :]
    if len(behind) <= live.page_size:
        return None
    page = int(behind[0]) // live.page_size
    where = f"page {page}, behind {len(given.now) // live.page_size} in the call"
    return Entry(
        where=where,
        value=page,
        write=lambda _: None,
        read=lambda: None,
        upper=live.full_end,
        prompt=prompt_of(request.rid),
        row=row,
    )


def user_of(live: LiveState, page: int) -> Entry | None:
    """Return the first running request's entry of a page of the full pool; None if none of them has it."""
    return next((entry for entry in used_page_entries(live) if entry.value == page), None)


def with_page(live: LiveState, given: Slots, page: int) -> Any:
    """Return a call's slots with those of one page more, named already or not."""
    import torch

    return torch.cat((given.now, live.slots_of(page).to(given.now.dtype)))


def group_entries(live: LiveState) -> list[Entry]:
    """Return the pages that the calls of an open group have given back, of both pools; none where no group is open.

    They lie aside until the group ends, by slots or by page ids, a tensor for each call.
    """
    allocator, size = live.allocator, live.page_size
    full = allocator.full_attn_allocator
    piles: tuple[tuple[Any, str, int, bool], ...] = (
        (full, "free_group", size, False),
        (full, "free_page_ids_group", 1, False),
        (allocator, "swa_free_group", size, True),
        (allocator, "swa_page_ids_group", 1, True),
    )
    return [
        entry
        for owner, name, unit, swa in piles
        for place, given in enumerate(_pile(owner, name))
        for page in sorted({page for page in (given // unit).tolist() if page > 0})
        for entry in [_group_entry(live, _pile(owner, name), place, page, unit, swa)]
    ]


def _pile(owner: Any, name: str) -> list[Any]:
    pile: list[Any] | None = getattr(owner, name, None)
    return [] if pile is None else pile


def _group_entry(live: LiveState, pile: list[Any], place: int, page: int, unit: int, swa: bool) -> Entry:
    pages = {one for given in pile for one in (given // unit).tolist() if one > 0}

    def write(value: int) -> None:
        given = pile[place].clone()
        mine = given // unit == page
        given[mine] = value * unit + given[mine] % unit
        pile[place] = given

    def drop() -> None:
        given = pile[place]
        pile[place] = given[given // unit != page]

    return Entry(
        where=f"{'sliding-window' if swa else 'full'} page {page} of {len(pages)} in the group",
        value=page,
        write=write,
        read=lambda: None,
        upper=live.swa_end if swa else live.full_end,
        # One beside it is OFF_BY_ONE.
        own=sorted(pages - {page - 1, page, page + 1}),
        drop=drop,
    )


def _owner(live: LiveState, page: int) -> tuple[int | None, int | None]:
    """Return the prompt and the row of the request of the batch whose row has this page of the full pool."""
    for request in () if live.batch is None else live.batch.reqs:
        slot = held(request).req_pool_idx
        if slot is not None:
            row = live.rows[slot, : request.seqlen] // live.page_size
            if bool((row == page).any()):
                return prompt_of(request.rid), int(slot)
    return None, None


def used_page_entries(live: LiveState) -> list[Entry]:
    """Return pages of the full pool that running requests use, to be given back too early."""
    return [
        Entry(
            where=f"{holder.name}, page {page}",
            value=page,
            write=lambda _: None,
            read=lambda: None,
            upper=live.full_end,
            prompt=holder.prompt,
            row=holder.row,
        )
        for holder in live.running()
        for page in sorted(set(live.pages(holder.slots, swa=False)))
    ]
