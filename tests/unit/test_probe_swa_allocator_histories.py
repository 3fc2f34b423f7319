"""Legal lives on SGLang's own allocator, every entry point mixed: the probe stays silent and its ledger stays true.

What is legal is what SGLang does: requests with shared prefixes, a prefix cache that evicts and tombstones, rejected
drafts, sliding-window eviction, free groups, drafts that are rolled back, HiCache's use of the inner allocators.
"""

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from gemma4_dumps.store import DumpStore
from gemma4_runtime.checks.slot_ledger import UNKNOWN
from gemma4_runtime.probes.swa_allocator_state import books_of, free_lists
from gemma4_runtime.release.allocators import in_free_group
from gemma4_runtime.releases import at_least, installed_or_base
from swa_pools import PROBE, decode, extend, make_allocator

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")

SEGMENTS = at_least(installed_or_base(), "0.5.23")
"""Whether the release frees runs of a row, says where they begin, and frees each side of them apart."""


class Lives(RuleBasedStateMachine):
    """Requests that come and go, and a prefix cache.

    A request is the node whose slots it shares, its own slots, and how many of those have left the window. Nodes are
    whole pages of the prefix cache, with or without SWA slots. A node that is shared is not evicted.
    """

    allocator = None

    @initialize()
    def start(self):
        # SGLang clears pools between steps, when no group is open.
        if in_free_group(self.allocator):
            self.allocator.free_group_end()
        self.allocator.clear()
        self.requests, self.nodes, self.grouped = [], [], False

    @property
    def page(self):
        return self.allocator.page_size

    def room(self, tokens, requests=1):
        return self.allocator.available_size() >= tokens + requests * self.page

    def free(self, slots, start, gone=0):
        """Free a run of a row, whose first token is the row's `start`-th; the first `gone` have left the window."""
        if not SEGMENTS:
            if slots:
                self.allocator.free(torch.tensor(slots, dtype=torch.int32))
            return
        for part, begin, free in (
            (slots[:gone], start, self.allocator.free_full_segment if gone else None),
            (slots[gone:], start + gone, self.allocator.free_segment),
        ):
            if part:
                free(torch.tensor(part, dtype=torch.int32), start_pos=begin)

    def shared(self):
        return {id(request["node"]) for request in self.requests}

    @rule(tokens=st.integers(1, 70), pick=st.integers(0, 9))
    def begin(self, tokens, pick):
        usable = [node for node in self.nodes if node["swa"]]
        node = usable[pick % len(usable)] if usable and pick % 2 else None
        held = node["slots"] if node else []
        if self.room(tokens):
            new = extend(self.allocator, tokens, held)
            self.requests.append({"node": node, "own": new.tolist(), "gone": 0})

    @precondition(lambda self: self.requests)
    @rule(tokens=st.integers(1, 40), pick=st.integers(0, 9))
    def chunk(self, tokens, pick):
        request = self.requests[pick % len(self.requests)]
        if self.room(tokens):
            request["own"] += extend(self.allocator, tokens, self.held(request)).tolist()

    def own_from(self, request):
        """Return how many tokens of a request's row come before its own."""
        return len(request["node"]["slots"]) if request["node"] else 0

    def held(self, request):
        return (request["node"]["slots"] if request["node"] else []) + request["own"]

    @precondition(lambda self: self.requests)
    @rule()
    def step(self):
        if not self.room(0, len(self.requests)):
            return
        if self.page == 1:
            new = self.allocator.alloc(len(self.requests))
        else:
            new = decode(self.allocator, [self.held(request) for request in self.requests])
        for request, slot in zip(self.requests, new.tolist(), strict=True):
            request["own"].append(slot)

    @precondition(lambda self: self.requests)
    @rule(drafts=st.integers(2, 20), kept=st.integers(1, 20), pick=st.integers(0, 9))
    def verify(self, drafts, kept, pick):
        """MTP: room for all drafts, then the rejected are freed by whole pages; the rest keep their entries."""
        request = self.requests[pick % len(self.requests)]
        if not self.room(drafts):
            return
        new = extend(self.allocator, drafts, self.held(request)).tolist()
        held = len(self.held(request)) + min(kept, drafts)
        row = self.held(request) + new
        first_empty_page = -(-held // self.page) * self.page
        request["own"] += new[: min(kept, drafts)]
        self.free(row[first_empty_page:], first_empty_page)

    @precondition(lambda self: self.requests)
    @rule(pick=st.integers(0, 9), pages=st.integers(1, 4))
    def leave_window(self, pick, pages):
        request = self.requests[pick % len(self.requests)]
        end = min(request["gone"] + pages * self.page, (len(request["own"]) - 1) // self.page * self.page)
        if end > request["gone"]:
            slots = torch.tensor(request["own"][request["gone"] : end], dtype=torch.int32)
            if SEGMENTS:
                self.allocator.free_swa_segment(slots, start_pos=self.own_from(request) + request["gone"])
            else:
                self.allocator.free_swa(slots)
            request["gone"] = end

    @precondition(lambda self: self.requests)
    @rule(pick=st.integers(0, 9), cache=st.booleans())
    def finish(self, pick, cache):
        request = self.requests.pop(pick % len(self.requests))
        whole = len(request["own"]) // self.page * self.page if cache else 0
        if cache and request["gone"] < whole and request["node"] is None:
            if request["gone"]:
                self.nodes.append({"slots": request["own"][: request["gone"]], "swa": False})
            self.nodes.append({"slots": request["own"][request["gone"] : whole], "swa": True})
        else:
            self.free(request["own"][:whole], self.own_from(request), min(request["gone"], whole))
        rest = max(request["gone"] - whole, 0)
        self.free(request["own"][whole:], self.own_from(request) + whole, rest)

    @precondition(lambda self: self.nodes)
    @rule(pick=st.integers(0, 9), how=st.sampled_from(["evict", "tombstone", "unified"]))
    def evict(self, pick, how):
        node = self.nodes[pick % len(self.nodes)]
        slots = torch.tensor(node["slots"])
        if how == "tombstone" and node["swa"]:
            self.allocator.free_swa(slots)
            node["swa"] = False
        if how == "tombstone" or id(node) in self.shared():
            return
        self.nodes.remove(node)
        if how == "evict" and (node["swa"] or not SEGMENTS):
            self.allocator.free(slots)
            return
        if node["swa"] or not SEGMENTS:
            self.allocator.free_swa(slots)
        (self.allocator.free_full if SEGMENTS else self.allocator.full_attn_allocator.free)(slots)

    @rule(pages=st.integers(1, 3))
    def load_back(self, pages):
        """HiCache: both inner allocators directly, then the mapping."""
        if self.allocator.available_size() >= pages * self.page:
            full = self.allocator.full_attn_allocator.alloc(pages * self.page)
            swa = self.allocator.swa_attn_allocator.alloc(pages * self.page)
            if full is None or swa is None:  # need_sort: enough in the released list only
                for inner, slots in (
                    (self.allocator.full_attn_allocator, full),
                    (self.allocator.swa_attn_allocator, swa),
                ):
                    if slots is not None:
                        inner.free(slots)
                return
            self.allocator.set_full_to_swa_mapping(full, swa)
            self.nodes.append({"slots": full.tolist(), "swa": True})

    @precondition(lambda self: not SEGMENTS)
    @rule(tokens=st.integers(1, 40), pick=st.integers(0, 9))
    def roll_back(self, tokens, pick):
        """Allocate a draft block, look, and restore: 0.5.23 takes no allocation back."""
        held = self.held(self.requests[pick % len(self.requests)]) if self.requests else []
        if self.room(tokens):
            state = self.allocator.backup_state()
            extend(self.allocator, tokens, held)
            self.allocator.restore_state(state)

    @precondition(lambda self: self.page > 1)
    @rule(tokens=st.integers(1, 70), window=st.integers(1, 40))
    def preallocate(self, tokens, window):
        """Disaggregated decode: SWA slots for the tail, which begins with a page."""
        if self.room(tokens):
            gone = max(0, tokens - window) // self.page * self.page
            lens = [torch.tensor([x]) for x in (0, 0, tokens, tokens, -1)]
            new = self.allocator.alloc_extend_swa_tail(*lens, tokens, tokens - gone)
            self.requests.append({"node": None, "own": new.tolist(), "gone": gone})

    @rule(pages=st.integers(0, 50))
    def ask_for_too_much(self, pages):
        tokens = self.allocator.available_size() + 1 + pages * self.page
        assert extend(self.allocator, tokens) is None

    @precondition(lambda self: not self.grouped)
    @rule()
    def begin_group(self):
        self.allocator.free_group_begin()
        self.grouped = True

    @precondition(lambda self: self.grouped)
    @rule()
    def end_group(self):
        self.allocator.free_group_end()
        self.grouped = False

    @rule(sure=st.integers(0, 9))
    def clear(self, sure):
        if sure == 9:  # seldom, or no history gets long
            self.start()

    @invariant()
    def the_ledger_is_true(self):
        if self.allocator is None or self.grouped:
            return
        ledger, mapping = books_of(self.allocator).ledger, self.allocator.full_to_swa_index_mapping
        lists = free_lists(self.allocator)
        for live, free in ((ledger.full_live, lists[:2]), (ledger.swa_owner != 0, lists[2:])):
            assert sorted(live.nonzero().flatten().tolist() + torch.cat(free).tolist()) == list(range(1, len(live)))
        held = [slot for request in self.requests for slot in request["own"][request["gone"] :]]
        held += [slot for node in self.nodes if node["swa"] for slot in node["slots"]]
        for slot in held:
            peer = int(mapping[slot])
            assert int(ledger.swa_owner[peer // self.page]) in (slot // self.page, UNKNOWN)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "need_sort"),
    [
        (4, True),
        (16, False),
        (16, True),
        (4, False),
        (1, False),
        (1, True),
    ],
)
def test_silent_on_every_legal_history(attach, page, need_sort):
    dumps = attach("trap", *PROBE)
    Machine = type("Machine", (Lives,), {"allocator": make_allocator(page, need_sort)})
    run_state_machine_as_test(Machine, settings=settings(max_examples=60, stateful_step_count=60, deadline=None))
    assert DumpStore(dumps).list() == []
