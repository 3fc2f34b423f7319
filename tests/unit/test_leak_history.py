"""The ledger of a pool pair against a plain history: one event at a time, slot by slot, a dictionary per page."""

import itertools
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator

from gemma4_runtime.checks.page_events import FULL, SWA
from gemma4_runtime.checks.page_ledger import LIVES, SHARES
from gemma4_runtime.leak import event_log
from gemma4_runtime.leak.ledger import BY, SITE, LeakLedger, Site

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")

PAGES = {"full": 6, "swa": 4}
NAMES = ("full", "swa")
IN_USE, FREE = ("handed_out", "owned", "free_asked", "given"), ("freed", "cleared")
NUMBERS = ("alloc_step", "free_step", "owner", "given_step")
FACTS = ("last_event", "generation", "alloc_site", "free_site", "peer", *NUMBERS)


def make_ledger(page_size, hybrid, free):
    """Return a ledger of pools with the free pages `free` {name: pages}."""
    inner = {
        name: SimpleNamespaceWithIdentity(
            size=PAGES[name] * page_size,
            page_size=page_size,
            free_pages=torch.tensor(free[name], dtype=torch.int64),
            release_pages=torch.empty(0, dtype=torch.int64),
        )
        for name in NAMES
    }
    if not hybrid:
        return LeakLedger(inner["full"])
    allocator = SWATokenToKVPoolAllocator.__new__(SWATokenToKVPoolAllocator)
    allocator.page_size = page_size
    allocator.full_attn_allocator, allocator.swa_attn_allocator = inner["full"], inner["swa"]
    return LeakLedger(allocator)


class SimpleNamespaceWithIdentity(SimpleNamespace):
    __hash__ = object.__hash__


class PlainHistory:
    """The oracle. pages: {pool: {page: facts}}; page 0 of `pages` only keeps the peer of what is no page."""

    def __init__(self, page_size, hybrid, free):
        self.page_size = page_size
        self.pages = {name: {0: {"peer": 0}} for name in NAMES[: 1 + hybrid]}
        for name, known in self.pages.items():
            for page in range(1, PAGES[name] + 1):
                event = "cleared" if page in free[name] else "none"
                known[page] = dict.fromkeys(NUMBERS, -1) | {"last_event": event}
                known[page] |= dict.fromkeys(("generation", "alloc_site", "free_site", "peer"), 0)
        self.lives = {name: {page: [] for page in known} for name, known in self.pages.items()}
        self.shares = {name: {page: [] for page in known} for name, known in self.pages.items()}
        self.anomalies, self.recent = [], []

    def apply(self, kind, pool, site, step, slots, *about):
        by = about[0] if kind in ("freed", "free_asked", "shared") else None
        if by is not None and kind != "shared":
            self.strangers(slots, by[0], pool, site)
        getattr(self, kind)(pool, site, step, slots, *([] if kind in ("freed", "free_asked") else about))
        if kind == "paired":
            return
        named = self.named(pool, slots)
        said = {"kind": kind, "pool": pool, "site": site.name.lower(), "step": step}
        said |= {"pages": len(named), "first_pages": named[:8]}
        of_page_0 = len({slot for slot in slots if 0 <= slot < self.page_size})
        if kind == "free_asked" and not named and of_page_0 > 1:
            said["slots"] = of_page_0
        said |= {} if by is None else {"by_request_slot": by[0]}
        self.recent.append(said | ({"request_slots": about[0][:8]} if kind == "owned" else {}))

    def strangers(self, slots, slot, pool, site):
        inserting = site in (Site.CACHE_UNFINISHED_REQ, Site.CACHE_FINISHED_REQ)
        if pool == "full":
            for page in self.named(pool, slots):
                facts = self.pages[pool][page]
                of_the_cache = inserting and facts["given_step"] != -1
                if facts["owner"] not in (-1, slot) and not of_the_cache:
                    self.anomalies.append(("FREED_BY_OTHER", pool, page))

    def given(self, pool, site, step, slots):
        for page in self.named(pool, slots):
            facts = self.pages[pool][page]
            facts["last_event"] = "given"
            if facts["given_step"] == -1:
                facts["given_step"] = step

    def shared(self, pool, site, step, slots, by):
        for page in self.named(pool, slots):
            self.shares[pool][page].append((*by, int(site), step))

    def end_life(self, pool, page):
        facts = self.pages[pool][page]
        if facts["alloc_step"] == -1 or facts["last_event"] == "cleared":
            return
        free = (facts["free_site"], facts["free_step"]) if facts["last_event"] == "freed" else (-1, -1)
        alloc = (facts["alloc_site"], facts["alloc_step"])
        life = (facts["owner"], facts["generation"], *alloc, *free, facts["given_step"])
        self.lives[pool][page].append(tuple(map(int, life)))

    def named(self, pool, slots):
        return sorted({slot // self.page_size for slot in slots} & set(range(1, PAGES[pool] + 1)))

    def row(self, pool, page):
        """Facts of the page, of page 0 for what lies outside the pool."""
        return self.pages[pool].get(page, self.pages[pool][0])

    def handed_out(self, pool, site, step, slots):
        opened = self.named(pool, [slot for slot in slots if slot % self.page_size == 0])
        for page in self.named(pool, slots):
            facts = self.pages[pool][page]
            if page in opened:
                if facts["last_event"] in IN_USE:
                    self.anomalies.append(("HANDED_OUT_IN_USE", pool, page))
                self.end_life(pool, page)
                facts |= {"owner": -1, "generation": 0, "peer": 0, "alloc_site": site, "alloc_step": step}
                facts["given_step"] = -1
            facts["last_event"] = "handed_out"

    def paired(self, pool, site, step, slots, others):
        for full, swa in zip(slots, others, strict=True):
            self.row("full", full // self.page_size)["peer"] = swa // self.page_size
            self.row("swa", swa // self.page_size)["peer"] = full // self.page_size

    def owned(self, pool, site, step, slots, requests, generations, lengths):
        if sum(lengths) != len(slots):
            return
        whose = [(r, g) for r, g, n in zip(requests, generations, lengths, strict=True) for _ in range(n)]
        for slot, (request, generation) in zip(slots, whose, strict=True):
            self.own("full", slot // self.page_size, request, generation)
        for slot, (request, generation) in zip(slots, whose, strict=True):
            if "swa" in self.pages:
                self.own("swa", self.row("full", slot // self.page_size)["peer"], request, generation)

    def own(self, pool, page, request, generation):
        if 1 <= page <= PAGES[pool]:
            self.pages[pool][page] |= {"owner": request, "generation": generation, "last_event": "owned"}

    def free_asked(self, pool, site, step, slots):
        for page in self.named(pool, slots):
            self.pages[pool][page] |= {"free_site": site, "free_step": step, "last_event": "free_asked"}

    def freed(self, pool, site, step, slots):
        for page in self.named(pool, slots):
            facts = self.pages[pool][page]
            if facts["last_event"] in FREE or (self.page_size == 1 and slots.count(page) > 1):
                self.anomalies.append(("FREED_AGAIN", pool, page))
            if facts["last_event"] != "free_asked":
                facts |= {"free_site": site, "free_step": step}
            facts["last_event"] = "freed"

    def cleared(self, pool, site, step, slots):
        for page, facts in self.pages[pool].items():
            facts |= {"owner": -1, "generation": 0, "peer": 0, "free_site": Site.UNKNOWN, "free_step": step}
            facts |= {"given_step": -1, "last_event": "cleared" if page else None}
            self.lives[pool][page], self.shares[pool][page] = [], []
        self.anomalies.clear()


@st.composite
def slot_lists(draw, page_size, most=12):
    """Slots of either pool, a few of them outside; runs of neighbours as allocators hand them out, or anything."""
    highest = (max(PAGES.values()) + 2) * page_size
    if draw(st.booleans()):
        return draw(st.lists(st.integers(-2 * page_size, highest), max_size=most))
    starts = draw(st.lists(st.integers(0, highest), min_size=1, max_size=4))
    return [slot for start in starts for slot in range(start, start + draw(st.integers(1, 2 * page_size)))][:40]


@st.composite
def events(draw, page_size, hybrid):
    """(kind, pool, site, step increment, slots, *about)."""
    kinds = ["handed_out", "handed_out", "owned", "owned", "given", "shared", "free_asked", "freed", "freed"]
    kind = draw(st.sampled_from([*kinds, "shared", "cleared"] + ["paired"] * 3 * hybrid))
    pool = draw(st.sampled_from(NAMES[: 1 + hybrid])) if kind not in ("owned", "paired", "given", "shared") else "full"
    slots = draw(slot_lists(page_size)) if kind != "cleared" else []
    about = []
    if kind == "paired":
        others = draw(slot_lists(page_size))
        slots, about = slots[: len(others)], [others[: len(slots)]]
    if kind == "owned":
        lengths = draw(st.lists(st.integers(0, 6), max_size=5)) if draw(st.booleans()) else [len(slots)]
        lengths = [*lengths, max(len(slots) - sum(lengths), 0)]
        numbers = st.lists(st.integers(1, 9), min_size=len(lengths), max_size=len(lengths))
        about = [draw(numbers), draw(numbers), lengths]
    if kind == "shared":
        about = [draw(st.tuples(st.integers(1, 9), st.integers(1, 3)))]
    if kind in ("freed", "free_asked"):
        about = [draw(st.none() | st.tuples(st.integers(1, 9), st.integers(1, 3)))]
    return kind, pool, draw(st.sampled_from(Site)), draw(st.integers(0, 1)), slots, *about


@st.composite
def decoding(draw, page_size, hybrid):
    """Steps of a batch that decodes, each [(kind, pool, site, step increment, slots, *about)]; whatever goes wrong."""
    count = draw(st.integers(1, 3))
    pages = {name: draw(st.lists(st.integers(0, PAGES[name] + 1), min_size=count, max_size=count)) for name in NAMES}
    owners = draw(st.lists(st.integers(1, 9), min_size=count, max_size=count))
    tokens, at = draw(st.integers(1, 2)), draw(st.integers(0, page_size - 1))
    story = []
    for _ in range(draw(st.integers(2, 6))):
        if draw(st.integers(0, 3)) == 0:
            name, which = draw(st.sampled_from(NAMES)), draw(st.integers(0, count - 1))
            pages[name][which] = draw(st.integers(0, PAGES[name] + 1))
        if draw(st.integers(0, 5)) == 0:
            owners = draw(st.permutations(owners))
        places = [(at + token) % page_size for token in range(tokens)]
        slots = {name: [page * page_size + place for page in pages[name] for place in places] for name in NAMES}
        step = [("handed_out", name, Site.ALLOC_FOR_DECODE, 0, slots[name]) for name in NAMES[: 1 + hybrid]]
        step += [("paired", "full", Site.ALLOC_FOR_DECODE, 0, slots["full"], slots["swa"])] * hybrid
        step.append(("owned", "full", Site.UNKNOWN, 0, slots["full"], owners, [1] * count, [tokens] * count))
        if draw(st.integers(0, 3)) == 0:
            kind, pool, site, later, named, *about = draw(events(page_size, hybrid))
            named = slots[pool] if kind in ("freed", "free_asked", "given") else named
            step.insert(draw(st.integers(0, len(step))), (kind, pool, site, later, named, *about))
        if draw(st.integers(0, 7)) == 0:
            step = draw(st.permutations(step))
        if draw(st.integers(0, 7)) == 0:
            step.pop(draw(st.integers(0, len(step) - 1)))
        story.append(step)
        at = (at + draw(st.integers(0, tokens))) % page_size
    return story


@st.composite
def histories(draw):
    page_size, hybrid = draw(st.sampled_from([1, 16])), draw(st.booleans())
    free = {name: draw(st.lists(st.integers(1, count), unique=True)) for name, count in PAGES.items()}
    one = events(page_size, hybrid) | st.just("pump") | st.just("same tensors")
    parts = draw(st.lists(one.map(lambda event: [[event]]) | decoding(page_size, hybrid), max_size=40))
    return page_size, hybrid, free, [step for part in parts for step in part]


class Recorder:
    """Feeds a LeakLedger as the hooks do. Equal lists are one tensor in a step, and may be later; some are views."""

    def __init__(self, ledger):
        self.ledger, self.tensors, self.reuse = ledger, {}, False

    def begin_step(self):
        if not self.reuse:
            self.tensors.clear()

    def tensor(self, slots):
        key = tuple(slots)
        if key not in self.tensors:
            view = len(slots) % 3 == 0
            whole = torch.tensor(
                [*slots, 7] if view else slots, dtype=torch.int32 if len(slots) % 4 == 1 else torch.int64
            )
            self.tensors[key] = whole[:-1] if view else whole
        return self.tensors[key]

    def apply(self, kind, pool, site, step, slots, *about):
        self.ledger.step = step
        token = SITE.set(site)
        number = {"full": FULL, "swa": SWA}[pool]
        if kind == "paired":
            self.ledger.paired(self.tensor(slots), self.tensor(about[0]))
        elif kind == "owned":
            self.ledger.owned(self.tensor(slots), *about)
        elif kind == "cleared":
            self.ledger.cleared(number)
        elif kind == "shared":
            self.ledger.shared(self.tensor(slots), about[0])
        elif kind == "given":
            self.ledger.given(self.tensor(slots))
        elif kind == "handed_out":
            self.ledger.handed_out(number, self.tensor(slots))
        else:
            by = BY.set(about[0])
            getattr(self.ledger, kind)(number, self.tensor(slots))
            BY.reset(by)
        SITE.reset(token)


@pytest.mark.slow
@settings(max_examples=600, deadline=None)
@given(histories(), st.sampled_from([1, 3, 1000]))
def test_a_fold_of_many_events_is_what_they_come_to_one_by_one(history, copy_at):
    page_size, hybrid, free, story = history
    ledger, plain = make_ledger(page_size, hybrid, free), PlainHistory(page_size, hybrid, free)
    recorder, step = Recorder(ledger), 0
    with mock.patch.object(event_log, "COPY_AT_EVENTS", copy_at):
        for events_of_step in story:
            recorder.begin_step()
            for event in events_of_step:
                if event == "pump":
                    ledger.log.pump()
                elif event == "same tensors":
                    recorder.reuse = not recorder.reuse
                else:
                    kind, pool, site, later, slots, *about = event
                    step += later
                    recorder.apply(kind, pool, site, step, slots, *about)
                    plain.apply(kind, pool, site, step, slots, *about)
        ledger.log.drain()
    hold(ledger, plain)


def hold(ledger, plain):
    """Hold every page of `ledger` against `plain`."""
    for name, known in plain.pages.items():
        pool = ledger.pools[name]
        for page in range(1, PAGES[name] + 1):
            said = {fact: int(getattr(pool, fact)[page]) for fact in FACTS}
            names = ("none", "handed_out", "owned", "free_asked", "freed", "cleared", "given")
            said["last_event"] = names[said["last_event"]]
            assert said == known[page], (name, page)
            lives, count = plain.lives[name][page], int(pool.ended[page])
            kept = [tuple(pool.lives[page, number % LIVES].tolist()) for number in range(max(0, count - LIVES), count)]
            assert (kept, count) == (lives[-LIVES:], len(lives)), (name, page)
            assert [tuple(taken) for taken in pool.shares_of(page).tolist()] == plain.shares[name][page][-SHARES:]
    # One event may find several things of its pages, in no order of their own.
    assert {(a.fault.name, a.pool, a.page) for a in ledger.anomalies} == set(plain.anomalies)
    assert ledger.recent == plain.recent[-64:]


@pytest.fixture(scope="module")
def block():
    """Return the events of one step of a batch of two: slots of each pool, for SITE.ALLOC_FOR_DECODE."""

    def of_step(place):
        full, swa = [16 + place, 32 + place], [48 + place, 16 + place]
        return [
            ("handed_out", "full", Site.ALLOC_FOR_DECODE, full),
            ("handed_out", "swa", Site.ALLOC_FOR_DECODE, swa),
            ("paired", "full", Site.ALLOC_FOR_DECODE, full, swa),
            ("owned", "full", Site.UNKNOWN, full, [4, 5], [1, 1], [1, 1]),
        ]

    return of_step


BETWEEN = [
    *[
        (kind, pool, Site.VERIFY, [slot], None)
        for kind in ("freed", "free_asked")
        for pool, slot in (("full", 16), ("swa", 48))
    ],
    ("freed", "full", Site.VERIFY, [16], (9, 1)),
    *[
        ("handed_out", pool, Site.UNKNOWN, [slot])
        for pool, slot in (("full", 16), ("full", 17), ("swa", 48), ("swa", 49))
    ],
    *[("paired", "full", Site.UNKNOWN, [full], [swa]) for full, swa in ((16, 16), (16, 64), (64, 48), (64, 32))],
    *[("owned", "full", Site.UNKNOWN, [slot], [7], [1], [1]) for slot in (16, 64)],
    ("given", "full", Site.CACHE_UNFINISHED_REQ, [16]),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "between", [None, *BETWEEN], ids=lambda event: event and "-".join(map(str, (*event[:2], event[3])))
)
def test_what_a_step_repeats_is_told_where_anything_comes_in_between(between, block):
    """Every event at every place of three steps, and every order of one of them, with and without a peer before."""
    steps = [block(place) for place in (3, 4, 5)]
    orders = [steps]
    if between is None:
        orders = [[order, *steps[1:]] for order in itertools.permutations(steps[0])]
        orders += [[steps[0], order, steps[2]] for order in itertools.permutations(steps[1])]
    for ordered in orders:
        story = [event for step in ordered for event in step]
        for at in range(len(story) + 1) if between else [0]:
            for before in ([], [("paired", "full", Site.UNKNOWN, [64, 16], [48, 64])]):
                told = story[:at] + ([between] if between else []) + story[at:]
                ledger, plain = (
                    make_ledger(16, True, {"full": [2], "swa": [3]}),
                    PlainHistory(16, True, {"full": [2], "swa": [3]}),
                )
                recorder = Recorder(ledger)
                for number, event in enumerate([*before, *told]):
                    kind, pool, site, slots, *about = event
                    recorder.apply(kind, pool, site, number, slots, *about)
                    plain.apply(kind, pool, site, number, slots, *about)
                    if number < len(before):
                        ledger.log.drain()
                ledger.log.drain()
                hold(ledger, plain)


class TestWaiting:
    @pytest.fixture
    def log(self):
        self.folded = []
        return event_log.EventLog(self.folded.append, 16)

    def test_slots_start_a_copy_as_events_do(self, log):
        log.add(event_log.Kind.HANDED_OUT, FULL, 0, 1, torch.arange(event_log.COPY_AT_SLOTS))
        log.pump()
        log.add(event_log.Kind.HANDED_OUT, FULL, 0, 2, torch.arange(4))
        log.pump()
        (events,) = self.folded
        assert events.step.tolist() == [1]

    def test_a_tensor_of_many_events_is_copied_once(self, log):
        slots = torch.arange(8)
        for step in range(5):
            log.add(event_log.Kind.HANDED_OUT, FULL, 0, step, slots)
        log.drain()
        (events,) = self.folded
        assert (events.slots.size, events.kind.size) == (8, 5)

    def test_a_view_that_changes_between_steps_is_two_lists(self, log):
        row = torch.arange(10, dtype=torch.int32)
        view = row[2:5]
        for step in range(2):
            log.add(event_log.Kind.FREED, FULL, 0, step, view)
            log.pump()
            row += 100
        log.drain()
        (events,) = self.folded
        assert [events.slots_of(number).tolist() for number in range(2)] == [[2, 3, 4], [102, 103, 104]]

    def test_pairs_that_do_not_fit_are_left_out(self):
        ledger = make_ledger(16, True, {"full": [1, 2], "swa": [1, 2]})
        ledger.paired(torch.tensor([16, 17]), torch.tensor([16]))
        ledger.log.drain()
        assert not np.any(ledger.pools["full"].peer)
