"""A full and sliding-window pool pair as SGLang documents it, in plain Python: what each call may hand out and take.

Written from the semantics of `SWATokenToKVPoolAllocator`, not from the probe that wrote the dump: it is what the dump
is held against. Slots come and go by whole pages; page 0 is the dummy; a call takes from both pools or from none; each
full slot maps to an SWA slot at the same offset of a page that serves its full page alone; 0 stands for none.

After a call that breaks an invariant the pair follows the record, so that later calls are judged on what was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from itertools import islice

from gemma4_dumps.allocator_calls import GIVE_EACH_PAGE, SEGMENTS, SWA_FREES, AllocatorCall
from gemma4_triage.replay.reference_pool import (
    CHANGED_BETWEEN,
    FREE,
    FULL,
    MAPPING_CHANGED,
    SWA,
    USED,
    WRONG_COUNT,
    Broken,
    Findings,
    Pool,
)


class ReferenceAllocator:
    """Both pools, the mapping of full slots to SWA slots, by full page, and which full page an SWA page serves.

    known: the state that the calls begin with. exact, compared: of the hand-outs whose very slots could be foretold,
    how many were so.
    """

    def __init__(self, full_pages: int, swa_pages: int, page_size: int, need_sort: bool) -> None:
        self.page_size = page_size
        self.full = Pool(FULL, full_pages, page_size, need_sort)
        self.swa = Pool(SWA, swa_pages, page_size, need_sort)
        self.mapping: dict[int, dict[int, int]] = {}
        self.serves: dict[int, int] = {}
        self.exact = self.compared = 0
        self.known = False
        self._free_tokens: tuple[int, int] | None = None

    def start(
        self, lists: Sequence[Sequence[int]], mapping: Iterable[tuple[int, int]], unwritten: Collection[int] = ()
    ) -> list[Broken]:
        """Begin with a state, and return what is wrong with it.

        Args:
            lists: Pages that are free and released of the full pool, then of the SWA pool.
            mapping: Entries, a full slot and its SWA slot each.
            unwritten: Full pages that are in use already and whose entries a later call writes first.
        """
        self.known = True
        found = [*self.full.start(*lists[:2]), *self.swa.start(*lists[2:])]
        for slot, peer in mapping:
            if peer:
                here, there = slot // self.page_size, peer // self.page_size
                self.mapping.setdefault(here, {})[slot] = peer
                # Entries left from a rejected draft are overwritten before they are used: all of a free page, those of
                # a page that HiCache has taken and not mapped yet, and those behind the last token of a page in use.
                # The first slot of any other page in use has been written.
                used = self.full.of(here) == USED and self.swa.of(there) == USED and here not in unwritten
                if used and slot % self.page_size == 0:
                    self.serves.setdefault(there, here)
        return found

    def apply(self, call: AllocatorCall, full: Sequence[int], swa: Sequence[int]) -> list[Broken]:
        """Judge one call and make its change. full, swa: the slots that it names, as many each."""
        found = list(self._changed_between(call))
        match call.call:
            case "alloc" | "alloc_extend" | "alloc_extend_swa_tail" | "alloc_decode":
                found += self._last_locs(call)
                if call.returned:
                    found += self._hand_out(call, full, swa) if call.full is not None else self._gave_nothing(call)
            case "set_full_to_swa_mapping":
                found += self._mapping_write(call, full, swa)
            case "free_group_end" if call.settled:
                found += self._end_group(call, full, swa)
            case "free_group_begin":
                found += self._dropped_group(full)
            case "restore_state":
                found += self._restore(call)
            case name if name in SWA_FREES:
                found += self._free_swa(call, full, swa)
            case _:
                found += self._free(call, full, swa)
        return found

    def _changed_between(self, call: AllocatorCall) -> Iterable[Broken]:
        was, self._free_tokens = self._free_tokens, call.free_after if call.returned else call.free_before
        if was not in (None, call.free_before):
            text = f"{was[0]} full and {was[1]} SWA tokens were free after the call before, and "
            text += f"{call.free_before[0]} and {call.free_before[1]} are when {call.call} begins"
            yield Broken(CHANGED_BETWEEN, FULL if was[0] != call.free_before[0] else SWA, (), text)

    # Hand-outs.

    def _last_locs(self, call: AllocatorCall) -> Iterable[Broken]:
        fresh = call.prefix_lens or [length - 1 for length in call.seq_lens or ()]
        bad = [
            slot
            for slot, before in zip(call.last_loc or (), fresh, strict=False)
            if slot not in self.full.slots and not (slot == -1 and before <= 0)
        ]
        if bad:
            text = f"{call.call} was asked to continue from slot {bad[0]}; {self.full.legal}"
            yield Broken("alloc_out_of_range", FULL, self._pages(bad), text)

    def _hand_out(self, call: AllocatorCall, full: Sequence[int], swa: Sequence[int]) -> list[Broken]:
        mapped = range(len(full) - (len(full) if call.swa_tail is None else call.swa_tail), len(full))
        found = self._bad_hand_out(call, full, swa, mapped)
        foretold = self._foretell(call)
        if foretold is not None:
            self.compared += 1
            self.exact += foretold == (list(full), [swa[at] for at in mapped])
        peers = [swa[at] for at in mapped]
        opened = [self._opened(self.full, full), self._opened(self.swa, peers)]
        for pool, pages in zip((self.full, self.swa), opened, strict=True):
            pool.take(pages)
        if call.swa_tail != 0:
            for slot, peer in zip(full, swa, strict=True):
                self._map(slot, peer, opens=peer % self.page_size == 0)
        return found + self._conserved(call, *(-len(pages) for pages in opened))

    def _bad_hand_out(
        self, call: AllocatorCall, full: Sequence[int], swa: Sequence[int], mapped: range
    ) -> list[Broken]:
        page, found = self.page_size, Findings(self.page_size)
        asked = call.need if call.call == "alloc" else _tokens(call)
        if asked is not None and asked != len(full):
            found.add(WRONG_COUNT, FULL, 0, f"{call.call} gave {len(full)} slots, and {asked} were asked for")
        new: tuple[set[int], dict[int, int]] = (set(), {})
        seen: tuple[set[int], set[int]] = (set(), set())
        for at, (slot, peer) in enumerate(zip(full, swa, strict=True)):
            here, there = slot // page, peer // page
            if slot not in self.full.slots:
                found.add("alloc_out_of_range", FULL, slot, f"{call.call} gave full slot {slot}; {self.full.legal}")
                continue
            if slot in seen[0]:
                found.add("alloc_overlap", FULL, slot, f"{call.call} gave full slot {slot} twice")
            elif slot % page == 0 and self.full.of(here) == USED:
                found.add("alloc_overlap", FULL, slot, f"{call.call} gave full page {here}, which is in use")
            elif slot % page and here not in new[0] and self.full.of(here) == FREE:
                found.add("alloc_overlap", FULL, slot, f"{call.call} continues full page {here}, which is free")
            seen[0].add(slot)
            if slot % page == 0:
                new[0].add(here)
            if at not in mapped:
                if peer:
                    found.add("stale_mapping", SWA, peer, f"full slot {slot} has no SWA slot and maps to {peer}")
                continue
            if peer not in self.swa.slots:
                text = f"{call.call} mapped full slot {slot} to SWA slot {peer}; {self.swa.legal}"
                found.add("alloc_out_of_range", SWA, peer, text)
                continue
            if peer in seen[1]:
                found.add("alloc_overlap", SWA, peer, f"{call.call} gave SWA slot {peer} twice")
            elif peer % page == 0 and self.swa.of(there) == USED:
                found.add("alloc_overlap", SWA, peer, f"{call.call} gave SWA page {there}, which is in use")
            elif peer % page and there not in new[1] and self.swa.of(there) == FREE:
                text = f"full slot {slot} continues in SWA slot {peer}, whose page {there} is free"
                found.add("stale_mapping", SWA, peer, text)
            seen[1].add(peer)
            if peer % page == 0:
                new[1].setdefault(there, here)
            owner = new[1].get(there, self.serves.get(there))
            if (owner is not None and owner != here) or (peer - slot) % page:
                text = f"full slot {slot} maps to SWA slot {peer}, and SWA page {there} serves full page {owner}"
                found.add("pool_alias", SWA, peer, text)
        return found.broken()

    def _gave_nothing(self, call: AllocatorCall) -> list[Broken]:
        # What a failed call took it took from the head of the list; the record has the count only.
        if call.call == "alloc_decode":
            self._merge(call)
        found = self._conserved(call, 0, 0)
        if call.free_after is not None:
            for pool, before, after in zip((self.full, self.swa), call.free_before, call.free_after, strict=True):
                if pool.free is not None and before > after:
                    pool.take([*islice(pool.free, (before - after) // pool.page_size)])
        return found

    def _foretell(self, call: AllocatorCall) -> tuple[list[int], list[int]] | None:
        """Return the slots that SGLang's allocator gives in this state; None if the state is not known well enough."""
        self._merge(call)
        if self.full.free is None or self.swa.free is None or (call.call != "alloc" and _tokens(call) is None):
            return None
        last = call.last_loc or []
        if call.call == "alloc":
            need = max(call.need or 0, 0)
            return [*islice(self.full.free, need)], [*islice(self.swa.free, need)]
        seq = call.seq_lens or []
        prefix = call.prefix_lens or [length - 1 for length in seq]
        if call.swa_tail is not None:
            tail = [0], [call.swa_tail], [-1]
        else:
            tail = prefix, seq, [slot if slot < 0 else self._peer(slot) for slot in last]
        first = _extended(self.full.free, prefix, seq, last, self.page_size)
        second = _extended(self.swa.free, *tail, self.page_size)
        return None if first is None or second is None else (first, second)

    def _merge(self, call: AllocatorCall) -> None:
        if call.call == "alloc":
            tokens, requests, spare = max(call.need or 0, 0), 0, 0
        elif call.call == "alloc_decode":
            tokens, requests, spare = 0, len(call.seq_lens or ()), 0
        else:
            tokens = sum(call.seq_lens or ()) - sum(call.prefix_lens or ())
            requests, spare = len(call.seq_lens or ()), 1
        for pool, asked in ((self.full, tokens), (self.swa, tokens if call.swa_tail is None else call.swa_tail)):
            if pool.free is not None:
                pool.merge_if(asked // self.page_size + requests + spare > len(pool.free))

    def _mapping_write(self, call: AllocatorCall, full: Sequence[int], swa: Sequence[int]) -> list[Broken]:
        page, found, seen = self.page_size, Findings(self.page_size), set()
        self._move(call, full, swa)
        for slot, peer in zip(full, swa, strict=True):
            there = peer // page
            if slot not in self.full.slots:
                found.add("alloc_out_of_range", FULL, slot, f"full slot {slot} was mapped; {self.full.legal}")
                continue
            if peer not in self.swa.slots:
                text = f"full slot {slot} was mapped to SWA slot {peer}; {self.swa.legal}"
                found.add("alloc_out_of_range", SWA, peer, text)
                continue
            if self.swa.of(there) == FREE:
                text = f"full slot {slot} was mapped to SWA slot {peer}, whose page {there} is free"
                found.add("stale_mapping", SWA, peer, text)
            owner = self.serves.get(there)
            if peer in seen or owner not in (None, slot // page) or (peer - slot) % page:
                text = f"full slot {slot} was mapped to SWA slot {peer}, which is not its own"
                found.add("pool_alias", SWA, peer, text)
            seen.add(peer)
            self._map(slot, peer)
        return found.broken()

    def _move(self, call: AllocatorCall, full: Sequence[int], swa: Sequence[int]) -> None:
        """Take SWA pages from full pages that had no entry for them any more when another page's were written."""
        if call.left is None:
            return
        joined = {peer // self.page_size for peer in expand(call.left[1])}
        for slot, peer in zip(full, swa, strict=True):
            there = peer // self.page_size
            owner = self.serves.get(there)
            if owner not in (None, slot // self.page_size) and there not in joined:
                del self.serves[there]
                had = self.mapping.pop(owner, {})
                self.mapping[owner] = {one: to for one, to in had.items() if to // self.page_size != there}

    # Releases.

    def _free(self, call: AllocatorCall, full: Sequence[int], swa: Sequence[int]) -> list[Broken]:
        found = self._bad_release(call, full, swa, keeps_full=False)
        if call.grouped or not call.returned:
            self._settle(call, full)
            return found
        pages = self.full.give(full, by_row=call.call in SEGMENTS)
        released = self._release_swa(call, full, swa)
        return found + self._conserved(call, len(pages), len(released))

    def _free_swa(self, call: AllocatorCall, full: Sequence[int], swa: Sequence[int]) -> list[Broken]:
        found = self._bad_release(call, full, swa, keeps_full=True)
        if not call.returned:
            return found
        named = {slot // self.page_size for slot, peer in zip(full, swa, strict=True) if peer > 0}
        if call.grouped:
            self._settle(call, full)
            return found + self._leftovers(call, named, {peer // self.page_size for peer in swa if peer > 0})
        released = self._release_swa(call, full, swa)
        found += self._conserved(call, 0, len(released))
        return found + self._leftovers(call, named, set(released))

    def _settle(self, call: AllocatorCall, full: Sequence[int]) -> None:
        """Take out of the mapping what a call of a group gives back, where the release does so at once."""
        for slot in full if call.settled and call.returned else ():
            self._map(slot, 0)

    def _end_group(self, call: AllocatorCall, full: Sequence[int], swa: Sequence[int]) -> list[Broken]:
        """Give back what the calls of a group have named; each has been judged when it came in."""
        found, seen = Findings(self.page_size), set()
        named = [slot for slot in full if slot]
        for slot in named:
            if slot in seen:
                found.add("double_free", FULL, slot, f"two calls of the group named full slot {slot}")
            seen.add(slot)
        if not call.returned:
            return found.broken()
        peers = [peer for peer in swa if peer > 0]
        gained = len(self.full.give(named)), len(released := self.swa.give(peers))
        # In which order a group's pages are listed depends on which of its calls named them.
        for pool, slots in ((self.full, named), (self.swa, peers)):
            pool.free = None if slots and not pool.need_sort else pool.free
        for page in released:
            self.serves.pop(page, None)
        return found.broken() + self._conserved(call, *gained)

    def _leftovers(self, call: AllocatorCall, named: set[int], released: set[int]) -> list[Broken]:
        """Entries of pages that live on, into SWA pages that this call released. What was looked at decides."""
        found = Findings(self.page_size)
        if call.left is not None and self.page_size > 1:
            for here in named:
                self.mapping.pop(here, None)
            for slot, peer in zip(*map(expand, call.left), strict=True):
                self.mapping.setdefault(slot // self.page_size, {})[slot] = peer
        for here in named:
            for slot, peer in self.mapping.get(here, {}).items():
                page = peer // self.page_size
                if page in released:
                    text = f"{call.call} released SWA page {page}, and full slot {slot} still maps to slot {peer} of it"
                    found.add("stale_mapping", SWA, peer, text)
        return found.broken()

    def _bad_release(
        self, call: AllocatorCall, full: Sequence[int], swa: Sequence[int], keeps_full: bool
    ) -> list[Broken]:
        page, found, seen, name = self.page_size, Findings(self.page_size), set(), call.call
        legal = range(0 if keeps_full else page, self.full.slots.stop)
        for number, (slot, peer) in enumerate(zip(full, swa, strict=True)):
            here, there = slot // page, peer // page
            if slot not in legal:
                dummy = ", and page 0 is the dummy" if here == 0 else ""
                found.add("free_out_of_range", FULL, slot, f"{name} of full slot {slot}; {self.full.legal}{dummy}")
                continue
            if slot in seen and (peer > 0 or not keeps_full):
                found.add("double_free", FULL, slot, f"{name} names full slot {slot} twice")
            elif not keeps_full and self.full.of(here) == FREE:
                found.add("double_free", FULL, slot, f"{name} of full slot {slot}, whose page {here} is free already")
            seen.add(slot)
            if self.known and peer != self._peer(slot):
                text = (
                    f"full slot {slot} maps to SWA slot {peer}, and to {self._peer(slot)} by the calls so far: "
                    "something else wrote the mapping"
                )
                found.add(MAPPING_CHANGED, SWA, peer, text)
            if peer == 0 and name in GIVE_EACH_PAGE and number % page == 0:
                text = f"{name} of full slot {slot}, which has no SWA slot, frees SWA page 0; {self.swa.legal}"
                found.add("free_out_of_range", SWA, peer, text)
            if peer <= 0:
                continue
            if peer not in self.swa.slots:
                text = f"{name} of full slot {slot} frees SWA slot {peer}; {self.swa.legal}"
                found.add("free_out_of_range", SWA, peer, text)
            elif self.swa.of(there) == FREE:
                text = f"{name}: full slot {slot} still maps to SWA slot {peer}, whose page {there} is free"
                found.add("stale_mapping", SWA, peer, text)
            elif self.serves.get(there, here) != here or (peer - slot) % page:
                text = f"{name}: full slot {slot} maps to SWA slot {peer}, whose page serves {self.serves.get(there)}"
                found.add("pool_alias", SWA, peer, text)
        return found.broken()

    def _release_swa(self, call: AllocatorCall, full: Sequence[int], swa: Sequence[int]) -> list[int]:
        pages = self.swa.give([peer for peer in swa if peer > 0], by_row=call.call in SEGMENTS)
        for page in pages:
            self.serves.pop(page, None)
        for slot in full:
            self._map(slot, 0)
        return pages

    def _dropped_group(self, full: Sequence[int]) -> Iterable[Broken]:
        if full:
            text = f"a new free group begins and forgets {len(full)} slots that the one before was to free"
            yield Broken("pool_leak", FULL, self._pages(full), text)

    def _restore(self, call: AllocatorCall) -> list[Broken]:
        if call.lists is None:
            return []
        before = [bytes(pool.state) for pool in (self.full, self.swa)]
        lists = [list(expand(runs)) for runs in call.lists]
        found = [*self.full.start(*lists[:2]), *self.swa.start(*lists[2:])]
        self.serves = {page: served for page, served in self.serves.items() if self.swa.of(page) == USED}
        for pool, was in zip((self.full, self.swa), before, strict=True):
            lost = [page for page in range(1, pool.pages + 1) if was[page] == FREE and pool.state[page] == USED]
            if lost:
                text = f"restore_state takes {pool.name} page {lost[0]} back into use, and whoever had it has freed it"
                found.append(Broken("pool_leak", pool.name, tuple(lost), text))
        return found

    # Shared.

    def _conserved(self, call: AllocatorCall, full: int, swa: int) -> list[Broken]:
        """full, swa: pages that the pools' free lists should have gained."""
        if call.free_after is None:
            return []
        found = []
        for pool, gained, before, after in zip(
            (self.full, self.swa), (full, swa), call.free_before, call.free_after, strict=True
        ):
            off = after - before - gained * self.page_size
            if off:
                gave_nothing = call.full is None and off < 0
                lost = tuple(islice(pool.free or (), -off // self.page_size)) if gave_nothing else ()
                text = (
                    f"{call.call} left {abs(off)} tokens {'fewer' if off < 0 else 'more'} free in the {pool.name} pool "
                    "than the slots that it named account for"
                )
                if gave_nothing:
                    text = f"{call.call} gave nothing, and took {-off} tokens out of the {pool.name} pool"
                found.append(Broken("pool_leak", pool.name, lost, text))
        return found

    def _opened(self, pool: Pool, slots: Sequence[int]) -> list[int]:
        legal = pool.slots
        return [slot // self.page_size for slot in dict.fromkeys(slots) if slot % self.page_size == 0 and slot in legal]

    def _peer(self, slot: int) -> int:
        return self.mapping.get(slot // self.page_size, {}).get(slot, 0)

    def _map(self, slot: int, peer: int, opens: bool = False) -> None:
        here, there = slot // self.page_size, peer // self.page_size
        if peer > 0:
            self.mapping.setdefault(here, {})[slot] = peer
            if opens or there not in self.serves:
                self.serves[there] = here
        elif here in self.mapping:
            self.mapping[here].pop(slot, None)

    def _pages(self, slots: Iterable[int]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(slot // self.page_size for slot in slots))


def _tokens(call: AllocatorCall) -> int | None:
    """Return how many slots an extend or a decode asks for; None if its lengths make no sense."""
    seq = call.seq_lens or []
    if call.prefix_lens is None:
        return len(seq)
    steps = [end - begin for begin, end in zip(call.prefix_lens, seq, strict=False)]
    return None if min(steps, default=0) < 0 else sum(steps)


def expand(runs: Iterable[Sequence[int]]) -> Iterable[int]:
    """Yield the values that runs stand for, see `gemma4_dumps.allocator_calls`."""
    for start, count, *step in runs:
        yield from (range(start, start + count) if step in ([], [1]) else [start] * count)


def _extended(
    free: deque[int], prefix: Sequence[int], seq: Sequence[int], last: Sequence[int], page: int
) -> list[int] | None:
    """Slots for each request from prefix[i] to seq[i]: the rest of its last page, then pages off the free list."""
    given: list[int] = []
    pages = iter(list(free))
    for begin, end, before in zip(prefix, seq, last, strict=False):
        room = min(-begin % page, end - begin)
        given.extend(range(before + 1, before + 1 + room))
        for at in range(begin + room, end, page):
            new = next(pages, None)
            if new is None:
                return None
            given.extend(range(new * page, new * page + min(page, end - at)))
    return given
