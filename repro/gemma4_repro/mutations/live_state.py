"""What is live in a scheduler at one moment, as entries: who holds which pages, what is free, what a batch believes.

Runs inside the engine's processes; harness, not part of the patched runtime. What a later release has elsewhere is read
through `gemma4_runtime.release`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from gemma4_repro.engine.serving import prompt_of
from gemma4_repro.mutations.entry import Entry
from gemma4_runtime.release.requests import held

_NEXT = 8
"""How many places of a free list are entries: what lies behind them may not be handed out before a load ends."""


@dataclass(frozen=True)
class Holder:
    """Who holds slots of the full pool: a running request, or a node of the prefix cache. slots: tensor [tokens]."""

    name: str
    prompt: int | None
    row: int | None
    slots: Any


def slots_of_node(node: Any) -> Any:
    """Return what of a prefix cache's node has its full slots as `value`; since 0.5.23 that is a part of the node."""
    return node.component_data[_component("FULL")] if hasattr(node, "component_data") else node


def locks_of_node(node: Any) -> dict[str, tuple[Any, str]]:
    """Return the counts of a node's holders by name: the object that has each, and its attribute there."""
    if not hasattr(node, "component_data"):
        return {name: (node, name) for name in ("full_lock_ref", "swa_lock_ref")}
    kinds = ("FULL", "SWA")
    return {f"{kind.lower()} lock_ref": (node.component_data[_component(kind)], "lock_ref") for kind in kinds}


def _component(name: str) -> Any:
    from gemma4_runtime.release import ComponentType

    return ComponentType[name]


class LiveState:
    """A scheduler and the batch that it runs."""

    def __init__(self, scheduler: Any, batch: Any) -> None:
        self.scheduler, self.batch = scheduler, batch
        self.page_size: int = scheduler.page_size
        self.allocator = scheduler.token_to_kv_pool_allocator
        self.rows = scheduler.req_to_token_pool.req_to_token
        self.mapping = self.allocator.full_to_swa_index_mapping
        self.tree = scheduler.tree_cache
        self._core = getattr(self.tree, "tree_core", None)

    @property
    def full_end(self) -> int:
        """The first page id that the full pool does not have."""
        return self.allocator.full_attn_allocator.num_pages + 1

    @property
    def swa_end(self) -> int:
        """The first page id that the sliding-window pool does not have."""
        return self.allocator.swa_attn_allocator.num_pages + 1

    def requests(self) -> list[tuple[int, Any, int]]:
        """Return those that run: their number in the batch, the request, and how many tokens it has."""
        if self.batch is None or self.batch.seq_lens is None:
            return []
        lengths = self.batch.seq_lens.tolist()
        return [
            (number, request, lengths[number])
            for number, request in enumerate(self.batch.reqs)
            if number < len(lengths) and held(request).req_pool_idx is not None and not request.finished()
        ]

    def running(self) -> list[Holder]:
        """Return a holder for each request that runs."""
        return [
            Holder(
                f"prompt {prompt_of(request.rid)}",
                prompt_of(request.rid),
                int(held(request).req_pool_idx),
                self.rows[held(request).req_pool_idx, :length].long(),
            )
            for _, request, length in self.requests()
            if length > 0
        ]

    def nodes(self) -> list[Any]:
        """Return the prefix cache's nodes that hold slots, the root left out. None where the tree is Rust's own."""
        core = self.tree if self._core is None else self._core
        root = getattr(core, "root_node", None)
        if root is None or not hasattr(root, "children"):
            return []
        found, left = [], [root]
        while left:
            node = left.pop()
            left += node.children.values()
            if node is not root and (slots := slots_of_node(node).value) is not None and len(slots):
                found.append(node)
        return sorted(found, key=lambda node: node.id)

    def cached(self) -> list[Holder]:
        """Return a holder for each of those nodes; of a tree in Rust, for each run of slots that it holds."""
        if self._core is not None and not hasattr(self._core, "_node_arena"):
            # Imports torch, which the process that draws does without.
            from gemma4_runtime.release.prefix_caches import runs_of

            slots = [run.value.to(self.rows.device) for run in runs_of(self.tree)]
            return [Holder(f"run {number}", None, None, run) for number, run in enumerate(slots)]
        return [Holder(f"node {node.id}", None, None, slots_of_node(node).value.long()) for node in self.nodes()]

    def pages(self, slots: Any, swa: bool) -> list[int]:
        """Return the page of each page-sized piece of `slots`, translated into the sliding-window pool or not."""
        firsts = slots[:: self.page_size]
        found = (self.mapping[firsts] if swa else firsts) // self.page_size
        return [page for page in found.tolist() if page > 0]

    def free_pages(self, swa: bool) -> list[int]:
        """Return what the pool's allocator may hand out, the next first."""
        pool = self.allocator.swa_attn_allocator if swa else self.allocator.full_attn_allocator
        return pool.free_pages.tolist()

    def slots_of(self, page: int) -> Any:
        """Return the slots of a page of the full pool."""
        start = page * self.page_size
        return self.mapping.new_tensor(range(start, start + self.page_size))

    def page_entries(
        self, holder: Holder, slots: Any, twins: Any, put: Callable[[Any], None], read: Callable[[], Any], swa: bool
    ) -> Iterator[Entry]:
        """Yield an entry for each page-sized piece of `slots`, whose value is its page.

        Args:
            holder: Whose slots they are.
            slots: Tensor [tokens]; what is put in its place is another tensor.
            twins: Tensor [tokens], what the other pool has for them.
            put: Stores a new tensor in their place.
            read: Returns the tensor that is there now.
            swa: Whether they are slots of the sliding-window pool.
        """
        held = [page for page in (slots[:: self.page_size] // self.page_size).tolist() if page > 0]
        others = [other for other in (*self.running(), *self.cached()) if other.name != holder.name]
        elsewhere = {page for other in others for page in self.pages(other.slots, swa)}
        for start in range(0, len(slots), self.page_size):
            page, twin = int(slots[start]) // self.page_size, int(twins[start]) // self.page_size
            if page > 0:
                yield Entry(
                    where=f"{holder.name}, page {start // self.page_size} of {len(slots[:: self.page_size])}",
                    value=page,
                    write=self._writer(slots, start, put, read),
                    read=self._reader(start, read),
                    upper=self.swa_end if swa else self.full_end,
                    prompt=holder.prompt,
                    row=holder.row,
                    own=[other for other in held if other != page],
                    foreign=sorted(elsewhere - set(held)),
                    stale=self.free_pages(swa)[:_NEXT],
                    other_space=[twin] if twin > 0 else [],
                )

    def _writer(self, slots: Any, start: int, put: Callable[[Any], None], read: Callable[[], Any]) -> Any:
        piece = slice(start, min(start + self.page_size, len(slots)))
        offsets = slots[piece] % self.page_size

        def write(page: int) -> None:
            # A new tensor: the ledger keeps tensors by reference, and reads them later.
            changed = read().clone()
            changed[piece] = (page * self.page_size + offsets).to(changed.dtype)
            put(changed)

        return write

    def _reader(self, start: int, read: Callable[[], Any]) -> Callable[[], int | None]:
        def now() -> int | None:
            slots = read()
            return int(slots[start]) // self.page_size if slots is not None and start < len(slots) else None

        return now

    def row_entries(self) -> list[Entry]:
        """Return the pages of every running request's row."""
        return [entry for holder in self.running() for entry in self._row_entries(holder)]

    def _row_entries(self, holder: Holder) -> Iterator[Entry]:
        place = (holder.row, slice(0, len(holder.slots)))

        def put(slots: Any) -> None:
            self.rows[place] = slots.to(self.rows.dtype)

        slots = holder.slots.clone()
        return self.page_entries(holder, slots, self.mapping[slots], put, lambda: self.rows[place], swa=False)

    def mapping_entries(self, holders: list[Holder]) -> list[Entry]:
        """Return what the map says of every page that these hold."""
        return [entry for holder in holders for entry in self._mapping_entries(holder)]

    def _mapping_entries(self, holder: Holder) -> Iterator[Entry]:
        slots = holder.slots.clone()

        def put(values: Any) -> None:
            self.mapping[slots] = values

        translated = self.mapping[slots].clone()
        return self.page_entries(holder, translated, slots, put, lambda: self.mapping[slots], swa=True)

    def free_list_entries(self, swa: bool) -> list[Entry]:
        """Return the next pages that the pool's allocator will hand out."""
        pool = self.allocator.swa_attn_allocator if swa else self.allocator.full_attn_allocator
        held = {page for holder in (*self.running(), *self.cached()) for page in self.pages(holder.slots, swa)}
        listed = pool.free_pages.tolist()
        held -= set(listed)
        return [
            self._free_list_entry(pool, listed, place, sorted(held), swa) for place in range(min(_NEXT, len(listed)))
        ]

    def _free_list_entry(self, pool: Any, listed: list[int], place: int, held: list[int], swa: bool) -> Entry:
        page = listed[place]
        changed: list[int] = [page]

        def write(value: int) -> None:
            pages = pool.free_pages.clone()
            pages[place] = value
            pool.free_pages, changed[0] = pages, value

        def drop() -> None:
            pages = pool.free_pages.tolist()
            del pages[place]
            pool.free_pages = pool.free_pages.new_tensor(pages)

        return Entry(
            where=f"place {place} of {len(listed)}",
            value=page,
            write=write,
            read=lambda: changed[0] if changed[0] in pool.free_pages.tolist() else None,
            upper=self.swa_end if swa else self.full_end,
            own=listed[:place] + listed[place + 1 :],
            foreign=held,
            drop=drop,
        )

    def node_entries(self) -> list[Entry]:
        """Return the pages of every node of the prefix cache."""
        return [entry for node in self.nodes() for entry in self._node_entries(node)]

    def _node_entries(self, node: Any) -> Iterator[Entry]:
        holds = slots_of_node(node)

        def put(slots: Any) -> None:
            holds.value = slots

        def drop() -> None:
            for key, child in list(node.parent.children.items()):
                if child is node:
                    del node.parent.children[key]

        holder = Holder(f"node {node.id}", None, None, holds.value)
        slots = holds.value.clone()
        for entry in self.page_entries(holder, slots, self.mapping[slots], put, lambda: holds.value, swa=False):
            yield replace(entry, drop=drop)
