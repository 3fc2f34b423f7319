"""The ledger against a brute-force history: a dictionary per page, every event applied slot by slot."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from gemma4_runtime.checks.page_census import Fault, Whereabouts, check_census
from gemma4_runtime.checks.page_events import FULL, Kind, PageRows
from gemma4_runtime.checks.page_ledger import LastEvent, PageLedger, Site
from gemma4_runtime.checks.swa_mapping_census import (
    SlotPairs,
    below_zero,
    check_mapping,
    held_swa_pages,
    led_apart,
    of_padding,
    out_of_place,
)
from gemma4_runtime.leak.event_log import EventLog

PAGES = 6
slot_lists = st.lists(st.integers(0, 63), min_size=1, max_size=8)


def fold_one(ledger, kind, slots, site, step, owner=0):
    """Fold one event; returns the pages that it found in the wrong state."""
    chunks = []
    log = EventLog(chunks.append, ledger.page_size)
    if kind is Kind.OWNED:
        log.add_owned(site, step, torch.tensor(slots), [owner], [owner + 1], [len(slots)])
    else:
        log.add(kind, FULL, site, step, torch.tensor(slots))
    log.drain()
    (events,) = chunks
    rows = PageRows.of(events, np.array([0]), FULL, ledger.pages)
    return ledger.fold(rows, events.site, events.step).page.tolist()


class Histories(RuleBasedStateMachine):
    page = 16

    @initialize()
    def start(self):
        self.ledger = PageLedger(PAGES, self.page, np.arange(1, PAGES))
        self.model = {page: {"event": LastEvent.CLEARED, "owner": -1} for page in range(1, PAGES)}
        self.model[PAGES] = {"event": LastEvent.NONE, "owner": -1}
        self.step = 0

    def slots(self, picks):
        return [pick % ((PAGES + 2) * self.page) for pick in picks]

    def known(self, slots):
        return sorted({slot // self.page for slot in slots} & set(range(1, PAGES + 1)))

    @rule(picks=slot_lists)
    def hand_out(self, picks):
        slots = self.slots(picks)
        self.step += 1
        bad = fold_one(self.ledger, Kind.HANDED_OUT, slots, Site.ALLOC_FOR_EXTEND, self.step)
        opened = self.known([slot for slot in slots if slot % self.page == 0])
        in_use = (LastEvent.HANDED_OUT, LastEvent.OWNED, LastEvent.FREE_ASKED)
        assert bad == [page for page in opened if self.model[page]["event"] in in_use]
        for page in self.known(slots):
            if page in opened:
                self.model[page] = {"owner": -1, "alloc": (Site.ALLOC_FOR_EXTEND, self.step)}
            self.model[page]["event"] = LastEvent.HANDED_OUT

    @rule(picks=slot_lists, owner=st.integers(1, 9))
    def own(self, picks, owner):
        slots = self.slots(picks)
        fold_one(self.ledger, Kind.OWNED, slots, Site.UNKNOWN, self.step, owner)
        for page in self.known(slots):
            self.model[page] |= {"event": LastEvent.OWNED, "owner": owner}

    @rule(picks=slot_lists)
    def ask(self, picks):
        slots = self.slots(picks)
        self.step += 1
        fold_one(self.ledger, Kind.FREE_ASKED, slots, Site.EVICT_TREE, self.step)
        for page in self.known(slots):
            self.model[page] |= {"event": LastEvent.FREE_ASKED, "free": (Site.EVICT_TREE, self.step)}

    @rule(picks=slot_lists)
    def free(self, picks):
        slots = self.slots(picks)
        self.step += 1
        again = fold_one(self.ledger, Kind.FREED, slots, Site.VERIFY, self.step)
        free = (LastEvent.FREED, LastEvent.CLEARED)
        twice = [page for page in self.known(slots) if self.page == 1 and slots.count(page) > 1]
        was_free = [page for page in self.known(slots) if self.model[page]["event"] in free]
        assert again == sorted({*twice, *was_free})
        for page in self.known(slots):
            if self.model[page]["event"] is not LastEvent.FREE_ASKED:
                self.model[page]["free"] = (Site.VERIFY, self.step)
            self.model[page]["event"] = LastEvent.FREED

    @rule()
    def clear(self):
        self.ledger.clear(self.step)
        self.model = {page: {"event": LastEvent.CLEARED, "owner": -1} for page in range(1, PAGES + 1)}

    @invariant()
    def same(self):
        for page, said in self.model.items():
            assert LastEvent(self.ledger.last_event[page]) is said["event"]
            assert self.ledger.owner[page] == said["owner"]
            if "alloc" in said:
                assert (self.ledger.alloc_site[page], self.ledger.alloc_step[page]) == said["alloc"]
            if "free" in said:
                assert (self.ledger.free_site[page], self.ledger.free_step[page]) == said["free"]


@pytest.mark.parametrize("page_size", [1, 16])
def test_it_agrees_with_brute_force(page_size):
    class Machine(Histories):
        page = page_size

    run_state_machine_as_test(Machine, settings=settings(max_examples=60, stateful_step_count=20, deadline=None))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(-1, 8), max_size=10), st.lists(st.lists(st.integers(-1, 8), max_size=4), max_size=4))
def test_the_census_agrees_with_counting(free, held):
    where = Whereabouts("full", 6, np.array(free, np.int64), held=[np.unique(np.array(h, np.int64)) for h in held])
    found = {finding.fault: finding.pages.tolist() for finding in check_census(where)}
    expected: dict[Fault, list[int]] = {}
    for page in range(1, 7):
        on_list, holders = free.count(page), sum(page in h for h in held)
        if on_list + holders == 0:
            expected.setdefault(Fault.NOWHERE, []).append(page)
        elif on_list and holders:
            expected.setdefault(Fault.FREE_AND_HELD, []).append(page)
        elif on_list > 1:
            expected.setdefault(Fault.FREE_TWICE, []).append(page)
        elif holders > 1:
            expected.setdefault(Fault.HELD_TWICE, []).append(page)
    strangers = sorted({page for page in free if not 1 <= page <= 6})
    if strangers:
        expected[Fault.OUT_OF_RANGE] = strangers
    if any(0 in h for h in held):
        expected[Fault.HELD_NULL] = [0]
    if outside := sorted({page for h in held for page in h if not 0 <= page <= 6}):
        expected[Fault.HELD_OUTSIDE] = outside
    assert found == expected


def pairs(*rows):
    full, swa, live = zip(*rows, strict=True)
    return SlotPairs(np.array(full), np.array(swa), np.array(live))


class TestMapping:
    def test_an_swa_page_of_two_full_pages_is_held_twice(self):
        shared = pairs((16, 16, True), (17, 17, True), (32, 18, True))
        assert held_swa_pages(shared, 16).tolist() == [1, 1]

    def test_a_slot_that_gave_up_its_swa_side_holds_nothing(self):
        assert held_swa_pages(pairs((16, 0, False), (17, 17, True)), 16).tolist() == [1]

    @pytest.mark.parametrize(
        ("row", "fault"),
        [
            ((16, 0, True), Fault.UNMAPPED),
            ((16, 32, True), Fault.STALE_MAPPING),
            ((16, 16, False), Fault.STALE_MAPPING),
            ((16, 16 * 9, True), Fault.STALE_MAPPING),
            ((16, 3, True), Fault.STALE_MAPPING),
        ],
        ids=["unmapped", "into a free page", "given up", "beyond the pool", "into the dummy page"],
    )
    def test_what_is_wrong(self, row, fault):
        (finding,) = check_mapping(pairs(row), np.array([2]), 4, 16)
        assert (finding.fault, finding.pages.tolist()) == (fault, [1])

    def test_a_page_that_leads_to_another_than_its_own(self):
        peers, none_free = np.array([0, 1, 2, 0]), np.array([], np.int64)
        swapped = pairs((16, 32, True), (32, 16, True), (48, 48, True))
        (finding,) = check_mapping(swapped, none_free, 4, 16, peers)
        assert (finding.fault, finding.pages.tolist()) == (Fault.MAPPED_ELSEWHERE, [1, 2])

    def test_slots_that_lead_to_another_place_of_their_own_page(self):
        peers, none_free = np.array([0, 2, 1]), np.array([], np.int64)
        rows = [(17, 34, True), (18, 33, True), (19, 35, True), (32, 17, False), (33, 0, True)]
        assert out_of_place(pairs(*rows), 16).tolist() == [[17, 34, 33], [18, 33, 34]]
        (finding,) = check_mapping(pairs(*rows[:3]), none_free, 4, 16, peers)
        assert (finding.fault, finding.pages.tolist()) == (Fault.MAPPED_ELSEWHERE, [1])
        assert out_of_place(pairs((5, 9, True)), 1).tolist() == []

    def test_slots_that_lead_elsewhere_than_the_rest_of_their_page(self):
        peers = np.array([0, 2, 1, 3])
        exchanged = [(16, 16, True), (17, 33, True), (32, 32, True), (33, 17, True), (48, 48, True)]
        assert led_apart(pairs(*exchanged), 16, peers).tolist() == [[16, 16, 32], [32, 32, 16]]
        # A page that leads elsewhere as a whole may have been handed out so; what is given up leads nowhere.
        assert led_apart(pairs((16, 16, True), (17, 17, True)), 16, peers).tolist() == []
        assert led_apart(pairs((16, 16, False), (17, 33, True)), 16, peers).tolist() == []

    def test_what_was_cleared_to_another_number_than_0(self):
        mapping = np.zeros(65, np.int64)
        mapping[-1] = -1
        assert below_zero(mapping, 16) == []
        mapping[[17, 18, 63]] = -1
        (finding,) = below_zero(mapping, 16)
        assert (finding.fault, finding.pages.tolist()) == (Fault.MAPPED_BELOW_ZERO, [1, 3])

    def test_padding_has_no_slot_of_its_own(self):
        mapping = np.zeros(65, np.int64)
        mapping[-1], mapping[16] = -1, 32
        assert of_padding(mapping, 16) == []
        mapping[[0, 3]] = 32, -1
        (finding,) = of_padding(mapping, 16)
        assert (finding.fault, finding.pages.tolist(), finding.places.tolist()) == (Fault.MAPPED_ELSEWHERE, [0], [1])

    def test_what_is_right(self):
        assert check_mapping(pairs((16, 16, True), (17, 0, False)), np.array([2]), 4, 16) == []
