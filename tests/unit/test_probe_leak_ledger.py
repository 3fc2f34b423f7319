"""The leak audit on SGLang's own pools: silent on what SGLang does, it names page, owner and site of a loss."""

from types import SimpleNamespace
from typing import get_args

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attached_ledger import attached_ledger, prompt
from gemma4_dumps.audit_findings import EventKind
from gemma4_dumps.reader import read_dump
from gemma4_dumps.store import DumpStore
from gemma4_runtime.checks.page_events import Kind
from gemma4_runtime.checks.page_ledger import LastEvent, Site
from gemma4_runtime.errors import TrappedViolation
from gemma4_runtime.guard import Guard
from gemma4_runtime.leak.ledger import generations_of, ledger_of
from gemma4_runtime.leak.report import report
from gemma4_runtime.probes import leak_owners
from gemma4_runtime.release.prefix_caches import runs_of
from gemma4_runtime.release.requests import held
from gemma4_runtime.settings import Leak, Mode
from gemma4_triage.diagnose.conclude import conclude
from gemma4_triage.diagnose.grouping import group
from gemma4_triage.finding import Confidence
from pool_world import PoolWorld

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")

KINDS = [(16, True, True), (1, True, True), (16, False, True), (1, False, True), (16, True, False), (16, False, False)]
NAMES = ["swa-16", "swa-1", "plain-16", "plain-1", "swa-chunk-16", "plain-chunk-16"]


@pytest.fixture(scope="module", autouse=True)
def attached(tmp_path_factory):
    with attached_ledger(tmp_path_factory.mktemp("attached")):
        yield


@pytest.fixture(params=KINDS, ids=NAMES)
def world(request, monkeypatch):
    return PoolWorld(monkeypatch, *request.param)


@pytest.fixture
def swa(monkeypatch):
    return PoolWorld(monkeypatch, page_size=16)


@pytest.fixture
def guard(tmp_path):
    return Guard(Mode.OFF, tmp_path, dict)


actions = st.lists(st.tuples(st.sampled_from("sssdddddff"), st.integers(0, 3), st.integers(1, 90)), max_size=25)


@pytest.mark.sampled(2)
def test_silent_on_clean_histories(world):
    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(actions)
    def run(history):
        world.flush()
        for action, seed, length in history:
            if action == "s":
                world.start(prompt(seed, length))
            elif action == "d":
                for _ in range(length % 20):
                    world.decode()
            elif world.requests:
                world.finish(world.requests[length % len(world.requests)])
            found = world.audit()
            assert found.findings == ()
            assert all(equation.holds for equation in found.equations), [e.text() for e in found.equations]
        while world.requests:
            world.finish(world.requests[0])
        found = world.audit()
        assert found.findings == ()
        assert all(equation.holds for equation in found.equations), [e.text() for e in found.equations]

    run()


def test_a_page_that_left_the_window_names_its_eviction_and_its_request(world, monkeypatch):
    """In 0.5.23 a group around all evictions of a batch ends when nobody asks any more."""
    if not hasattr(world.allocator, "swa_attn_allocator"):
        return
    for name in ("SGLANG_SWA_EVICTION_INTERVAL", "SGLANG_SWA_EVICTION_INTERVAL_MULTIPLIER"):
        monkeypatch.setenv(name, "1")
    request = world.start(prompt(1, 40))
    for _ in range(80):
        world.decode()
    slot, ledger = held(request).req_pool_idx, ledger_of(world.allocator)
    assert world.audit().findings == ()
    swa = ledger.pools["swa"]
    evicted = [page for page in range(1, swa.pages + 1) if swa.free_step[page] >= 0]
    assert evicted
    # As a prompt is cached, 0.5.23 gives back at once what has left the window then.
    sites = {Site(swa.free_site[page]) for page in evicted}
    assert sites - {Site.CACHE_UNFINISHED_REQ} == {Site.EVICT_SWA}
    frees = [event for event in ledger.recent if event["site"] == "evict_swa" and event["pages"]]
    assert {(event["pool"], event["by_request_slot"]) for event in frees} == {("swa", slot)}


def test_a_request_that_is_forgotten(world):
    first, lost = world.start(prompt(1, 40)), world.start(prompt(2, 40))
    for _ in range(20):
        world.decode()
    world.finish(first)
    slot = held(lost).req_pool_idx
    world.requests.remove(lost)
    found = world.audit()
    leaks = {finding.pool: finding for finding in found.findings if finding.fault.name == "NOWHERE"}
    assert leaks["requests"].pages.tolist() == [slot]
    ledger = ledger_of(world.allocator).pools["full"]
    pages = leaks["full"].pages
    assert (ledger.owner[pages] == slot).all()
    assert (ledger.generation[pages] == 1).all()
    assert {Site(code) for code in ledger.alloc_site[pages]} <= {Site.ALLOC_FOR_EXTEND, Site.ALLOC_FOR_DECODE}
    (full, *_) = found.equations
    locked = sum(finding.pages.size for finding in found.findings if finding.fault.name == "LOCKED_AT_IDLE")
    assert full.total - full.accounted == pages.size * world.page
    assert bool(locked) is world.cached


@pytest.mark.releases("0.5.23")  # Before it one lock was for both pools.
def test_a_lock_of_the_window_alone_that_is_left_over(swa):
    request = swa.start(prompt(1, 40))
    assert swa.audit().findings == ()
    # What is said to have been given back already, and was not.
    request.lock.swa_released = True
    swa.finish(request)
    (finding,) = swa.audit().findings
    assert (finding.fault.name, finding.pool) == ("LOCKED_AT_IDLE", "full")
    assert (swa.tree.full_protected_size(), swa.tree.swa_protected_size() > 0) == (0, True)


@pytest.mark.releases("0.5.13.post1")  # 0.5.23 gives a request's pages and its slot back in one call.
def test_a_request_that_gave_its_pages_back_and_has_its_slot_still(world):
    # As between cache_finished_req and the free of the slot, which a scheduler's last batch may still name.
    request = world.start(prompt(1, 40))
    for _ in range(3):
        world.decode()
    world.tree.cache_finished_req(request)
    assert (request.kv_committed_freed, request.req_pool_idx is not None) == (True, True)
    assert world.faults() == {}


def test_the_last_slots_of_a_tail_allocation_have_peers(swa):
    """Which a request does that was prefilled elsewhere: SWA slots for the window only."""
    lengths = [torch.tensor([number]) for number in (0, 0, 64, 64, -1)]
    full = swa.allocator.alloc_extend_swa_tail(*lengths, 64, 32)
    pages, peers = full[::16] // 16, swa.allocator.full_to_swa_index_mapping[full[::16]] // 16
    ledger = ledger_of(swa.allocator)
    ledger.log.drain()
    assert peers.tolist()[:2] == [0, 0]
    assert ledger.pools["full"].peer[pages.numpy()].tolist() == peers.tolist()
    assert ledger.pools["swa"].peer[peers[2:].numpy()].tolist() == pages[2:].tolist()


def test_the_next_request_in_the_slot_is_another_owner(swa):
    first = swa.start(prompt(1, 20))
    slot = held(first).req_pool_idx
    swa.finish(first)
    # The pool hands slots out in turn, or the one that it got back last.
    for seed in range(2, 9):
        lost = swa.start(prompt(seed, 20))
        if held(lost).req_pool_idx == slot:
            break
        swa.finish(lost)
    swa.requests.remove(lost)
    (finding,) = [f for f in swa.audit().findings if (f.fault.name, f.pool) == ("NOWHERE", "full")]
    ledger = ledger_of(swa.allocator).pools["full"]
    assert ledger.owner[finding.pages].tolist() == [slot] * finding.pages.size
    assert ledger.generation[finding.pages].tolist() == [2] * finding.pages.size


def test_the_next_chunk_of_a_request_is_the_same_owner(swa):
    request = swa.start(prompt(1, 20))
    assert swa.rows.alloc([request]) == [held(request).req_pool_idx]
    assert generations_of(swa.rows)[held(request).req_pool_idx] == 1


def test_a_request_slot_that_its_hand_out_left_on_the_list_is_told(swa, monkeypatch):
    rows = swa.rows
    taken = swa.start(prompt(1, 20))
    assert not generations_of(rows).left
    monkeypatch.setattr(type(rows), "free_slots", property(lambda _: list(range(1, 7)), lambda *_: None), raising=False)
    slot = held(swa.start(prompt(2, 20))).req_pool_idx
    assert slot in generations_of(rows).left
    assert held(taken).req_pool_idx not in generations_of(rows).left - {slot}


@pytest.mark.releases("0.5.13.post1")  # 0.5.23 takes no allocation back by restoring the lists.
@pytest.mark.parametrize("freed_between", [False, True])
def test_allocations_that_are_taken_back(world, freed_between):
    # GIVEN a draft that takes pages and gives them back by restoring the lists of before
    world.start(prompt(1, 40))
    allocator = world.allocator
    inner = [getattr(allocator, name, None) for name in ("full_attn_allocator", "swa_attn_allocator")]
    inner = [allocator] if None in inner else inner
    state = allocator.backup_state()
    taken = [(part, part.alloc(2 * world.page)) for part in inner]
    if freed_between:
        for part, slots in taken:
            part.free(slots[: world.page])
    allocator.restore_state(state)
    # WHEN these pages are handed out in earnest
    for _ in range(40):
        world.decode()
    # THEN nothing is wrong
    assert world.faults() == {}


@pytest.mark.releases("0.5.13.post1")  # 0.5.23 takes no allocation back by restoring the lists.
def test_pages_that_a_restore_takes_from_the_free_list(swa):
    request = swa.start(prompt(1, 40))
    state = swa.allocator.backup_state()
    swa.finish(request)
    part = swa.allocator.full_attn_allocator
    now_free = torch.cat((part.free_pages, part.release_pages))
    freed = now_free[~torch.isin(now_free, state[0][0])]
    assert freed.numel()
    swa.allocator.restore_state(state)
    ledger = ledger_of(swa.allocator)
    ledger.log.drain()
    assert set(ledger.pools["full"].last_event[freed.numpy()]) == {LastEvent.HANDED_OUT}


def test_one_page_over_count(swa):
    request = swa.start(prompt(1, 64))
    swa.finish(request)
    peer = swa.allocator.full_to_swa_index_mapping[swa.value_of(request.last_node)[:1]] // 16
    inner = swa.allocator.swa_attn_allocator
    inner.free_pages = torch.cat((inner.free_pages, peer))
    found = swa.faults()
    assert set(found) == {("FREE_AND_HELD", "swa"), ("STALE_MAPPING", "full")}
    text = next(equation.text() for equation in swa.audit().equations if equation.pool == "swa")
    assert text.endswith("= 336 of 320 tokens, 16 too many")


def test_a_page_in_two_rows(world):
    one, two = world.start(prompt(1, 20)), world.start(prompt(2, 20))
    # Tokens of a decode step are in no tree yet.
    world.decode()
    stolen = world.rows.req_to_token[held(one).req_pool_idx, held(one).kv_allocated_len - 1].clone()
    world.rows.req_to_token[held(two).req_pool_idx, held(two).kv_allocated_len - 1] = stolen
    found = world.faults()
    assert found[("HELD_TWICE", "full")] == [int(stolen) // world.page]


def test_a_page_freed_while_a_request_holds_it(world):
    request = world.start(prompt(1, 20))
    for _ in range(3):
        world.decode()
    slot = world.rows.req_to_token[held(request).req_pool_idx, held(request).kv_allocated_len - 1 :][:1].to(torch.int64)
    world.allocator.free(slot.clone())
    assert world.faults()[("FREE_AND_HELD", "full")] == [int(slot) // world.page]


def test_a_double_free_across_calls(world):
    slots = torch.tensor([world.page * 39])
    world.finish(world.start(prompt(1, 20)))
    inner = getattr(world.allocator, "full_attn_allocator", world.allocator)
    inner.free(slots)
    assert world.faults()[("FREE_TWICE", "full")] == [39]


def test_a_stale_mapping(swa):
    request = swa.start(prompt(1, 40))
    swa.decode()
    slot = swa.rows.req_to_token[held(request).req_pool_idx, held(request).kv_allocated_len - 1].to(torch.int64)
    swa.allocator.full_to_swa_index_mapping[slot] = 16 * 19
    found = swa.faults()
    assert found[("STALE_MAPPING", "full")] == [int(slot) // 16]


# Before 0.5.14 a free leaves entries of its pages in the mapping, so they tell nothing there.
@pytest.mark.releases("0.5.23")
def test_a_mapping_that_a_reset_leaves_behind(swa):
    swa.start(prompt(1, 40))
    mapping = swa.allocator.full_to_swa_index_mapping
    before, pages = mapping.clone(), set((mapping[:-1] > 0).nonzero().flatten().div(16, rounding_mode="floor").tolist())
    swa.flush()
    assert swa.faults() == {}
    mapping.copy_(before)
    assert swa.faults() == {("STALE_MAPPING", "full"): sorted(pages)}


def test_pages_that_change_places_in_the_prefix_cache(swa):
    world = swa
    world.finish(world.start(prompt(1, 64)))
    assert world.faults() == {}
    node = next((run.node for run in runs_of(world.tree) if run.value.numel() >= 32), None)
    if node is None:
        pytest.skip("this cache's nodes are no objects of Python's")
    node.value = torch.cat((node.value[16:32], node.value[:16], node.value[32:]))
    assert {fault for fault, _ in world.faults()} == {"MOVED_IN_TREE"}


def test_pages_whose_mappings_are_exchanged(swa):
    request = swa.start(prompt(1, 40))
    swa.decode()
    slots = swa.rows.req_to_token[held(request).req_pool_idx, :32].to(torch.int64)
    mapping = swa.allocator.full_to_swa_index_mapping
    mapping[slots] = mapping[slots.roll(16)]
    assert swa.faults() == {("MAPPED_ELSEWHERE", "full"): sorted({int(slot) // 16 for slot in slots})}


def test_two_slots_of_a_page_whose_mappings_are_exchanged(swa):
    request = swa.start(prompt(1, 40))
    slots = swa.rows.req_to_token[held(request).req_pool_idx, 34:36].to(torch.int64)
    mapping = swa.allocator.full_to_swa_index_mapping
    mapping[slots] = mapping[slots.flip(0)]
    assert swa.faults() == {("MAPPED_ELSEWHERE", "full"): [int(slots[0]) // 16]}


def test_an_swa_slot_that_is_missing(swa):
    request = swa.start(prompt(1, 40))
    slot = swa.rows.req_to_token[held(request).req_pool_idx, held(request).kv_allocated_len - 1].to(torch.int64)
    swa.allocator.full_to_swa_index_mapping[slot] = 0
    assert swa.faults()[("UNMAPPED", "full")] == [int(slot) // 16]


def test_balanced_sums_do_not_hide_it(swa):
    """A leaked page and a page freed twice: SGLang's equation holds, and the audit names both."""
    swa.finish(swa.start(prompt(1, 20)))
    inner = swa.allocator.full_attn_allocator
    inner.free_pages = torch.cat((inner.free_pages[1:], inner.free_pages[1:2]))
    found = swa.audit()
    assert {finding.fault.name for finding in found.findings} == {"NOWHERE", "FREE_TWICE"}
    assert all(equation.holds for equation in found.equations)


def test_page_0_in_a_row_and_a_page_beyond_the_pool_are_findings(swa):
    request = swa.start(prompt(1, 40))
    slots = swa.rows.req_to_token[held(request).req_pool_idx]
    # What comes before is the prefix cache's.
    own = slots[32:40].clone()
    for value, fault in ((0, "HELD_NULL"), (16 * 4000, "HELD_OUTSIDE")):
        slots[32:40] = torch.arange(value, value + 8)
        assert swa.faults()[(fault, "full")] == [value // 16]
    slots[32:40] = own
    assert swa.faults() == {}


def test_a_request_whose_row_was_given_back_does_not_end_the_server(swa):
    request = swa.start(list(range(20)))
    row, held(request).req_pool_idx = held(request).req_pool_idx, None
    slots = swa.rows.req_to_token[row, 16:20].to(torch.int64)
    batch = SimpleNamespace(reqs=[request], req_to_token_pool=swa.rows, token_to_kv_pool_allocator=swa.allocator)
    leak_owners._own(batch, slots, [4])
    ledger_of(swa.allocator).log.drain()


def test_what_both_pools_count_as_free_is_what_the_one_with_fewer_has(swa, guard, monkeypatch):
    swa.finish(swa.start(prompt(1, 40)))
    kind = type(swa.allocator)
    assert swa.faults() == {}
    monkeypatch.setattr(kind, "available_size", lambda pair: pair.full_available_size())
    found = swa.audit()
    assert [(finding.fault.name, finding.pool) for finding in found.findings] == [("UNBALANCED", "swa")]
    report(found, found.findings, "idle", Leak.DUMP, guard)
    (entry,) = DumpStore(guard.root).list()
    (cause,) = conclude(group([read_dump(entry.path)])[0])
    assert (cause.rule, cause.confidence) == ("pool-count-wrong", Confidence.CERTAIN)
    assert "told of room that there is not" in cause.cause


def test_counters_that_do_not_add_up_are_a_finding_of_their_own(swa, guard):
    request = swa.start(prompt(1, 40))
    swa.finish(request)
    assert swa.faults() == {}
    swa.miscount(request.last_node, 16)
    found = swa.audit()
    assert [(finding.fault.name, finding.pool) for finding in found.findings] == [("UNBALANCED", "full")]
    report(found, found.findings, "idle", Leak.DUMP, guard)
    (entry,) = DumpStore(guard.root).list()
    dump = read_dump(entry.path)
    assert (dump.manifest.verdict, dump.damage) == ("pool_unbalanced", ())
    (incident,) = group([dump])
    (cause,) = conclude(incident)
    assert cause.rule == "pool-count-wrong"
    assert "as evictable where nodes without a lock hold" in cause.cause
    scalars = dump.manifest.scalars
    assert scalars["full_listed"] == scalars["full_available"]
    assert scalars["full_cached"] == scalars["full_evictable"] - 16
    assert scalars["full_locked"] == scalars["full_protected"]


def test_readers_know_every_kind_of_event_that_a_dump_may_have():
    assert set(get_args(EventKind)) == {kind.name.lower() for kind in Kind if kind is not Kind.PAIRED}


def test_a_pending_group_is_a_place(world):
    request = world.start(prompt(1, 20))
    world.allocator.free_group_begin()
    world.finish(request)
    assert [key for key in world.faults() if key[0] == "NOWHERE" and key[1] == "full"] == []
    world.allocator.free_group_end()
    assert world.faults() == {}


def forget(world):
    """Forget a request that runs, and return the slot it had."""
    lost = world.start(prompt(1, 40))
    world.requests.remove(lost)
    return held(lost).req_pool_idx


def test_dump_mode_writes_one_dump_and_goes_on(swa, guard):
    slot = forget(swa)
    found = swa.audit()
    report(found, found.findings, "idle", Leak.DUMP, guard)
    (entry,) = DumpStore(guard.root).list()
    dump = read_dump(entry.path)
    assert (dump.manifest.rule, dump.manifest.verdict, dump.manifest.action) == ("leak-audit", "pool_leak", "logged")
    assert f"last owner request slot {slot}, generation 1, handed out by alloc_for_extend" in dump.manifest.summary
    assert dump.tensor("suspects").shape[1] == len(str(dump.manifest.scalars["columns"]).split(","))
    assert dump.manifest.scalars["full_total"] == 640
    assert [event["kind"] for event in dump.events()][:1] == ["handed_out"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("freed", "are on the list of free request slots while a request or a session has them"),
        ("twice", "are on the list of free request slots more than once"),
        ("lost", "belong to no request and are not on the list of free ones"),
        ("beyond", "are on the list of free request slots and no rows of req_to_token for requests"),
    ],
)
def test_of_request_slots_no_list_of_pages_is_spoken(swa, guard, change, said):
    running = held(swa.start(prompt(1, 40))).req_pool_idx
    free = swa.rows.free_slots
    if change == "lost":
        free.pop()
    else:
        free.append({"freed": running, "twice": free[-1], "beyond": 99}[change])
    found = swa.audit()
    report(found, [one for one in found.findings if one.pool == "requests"], "idle", Leak.DUMP, guard)
    summaries = [entry.manifest.summary for entry in DumpStore(guard.root).list()]
    assert any(said in summary for summary in summaries)
    assert not any("page" in summary.partition(".")[0] for summary in summaries)


@pytest.mark.parametrize("page", [0, 21, -3])
def test_a_stranger_on_the_free_list_leaves_its_evidence(swa, guard, page):
    """Page 0, or one that the pool does not have: no ledger has a history of it."""
    inner = swa.allocator.swa_attn_allocator
    inner.free_pages = torch.cat((inner.free_pages, torch.tensor([page])))
    found = swa.audit()
    report(found, found.findings, "idle", Leak.DUMP, guard)
    (entry,) = DumpStore(guard.root).list()
    dump = read_dump(entry.path)
    assert dump.manifest.verdict == "free_out_of_range"
    assert dump.manifest.summary.startswith(
        f"1 swa page, first {page}: are on the free list and no pages of this pool."
    )
    assert "16 too many" in dump.manifest.summary
    columns = str(dump.manifest.scalars["columns"]).split(",")
    (row,) = dump.tensor("suspects").tolist()
    said = dict(zip(columns, row, strict=True))
    assert said["page"] == page
    assert (said["owner_slot"], said["alloc_site"], said["free_site"], said["last_event"]) == (-1, 0, 0, 0)


def test_a_dump_says_who_holds_the_pages_in_question_and_which_requests_run(swa, guard):
    one, other = swa.start(prompt(1, 40)), swa.start(prompt(2, 40))
    rows = swa.rows.req_to_token
    slots = [held(request).req_pool_idx for request in (one, other)]
    right, wrong = (int(rows[slot, 32]) // 16 for slot in slots)
    rows[slots[0], 32:48] = rows[slots[1], 32:48]
    found = swa.audit()
    report(found, found.findings, "idle", Leak.DUMP, guard)
    dumps = [read_dump(entry.path) for entry in DumpStore(guard.root).list()]
    assert {dump.manifest.verdict for dump in dumps} >= {"pool_leak", "pool_alias"}
    for dump in dumps:
        holders = {(page, holder) for page, holder, _ in dump.tensor("holders").tolist()}
        assert {(wrong, slot) for slot in slots} <= holders
        assert not any(page == right for page, _ in holders)
        assert dump.manifest.scalars["running"] == ",".join(map(str, sorted(slots)))
        assert dump.manifest.scalars["evicted"] == ",".join(f"{slot}:0" for slot in sorted(slots))


def test_a_dump_says_where_windows_begin_and_when_pages_before_them_were_given_back(swa, guard):
    request = swa.start([80, 81, 82, 83] * 20)
    slot, page = held(request).req_pool_idx, swa.page
    row = swa.rows.req_to_token[slot]
    swa.left_the_window(request, 2 * page)
    # One page more than the request counts.
    swa.allocator.free_swa(row[: 3 * page])
    found = swa.audit()
    report(found, found.findings, "idle", Leak.DUMP, guard)
    dump = read_dump(DumpStore(guard.root).list()[0].path)
    told = {column: (number, step) for one, column, number, step in dump.tensor("edges").tolist() if one == slot}
    assert [told[column][0] for column in range(5)] == (row[: 5 * page : page] // page).tolist()
    assert [told[column][1] >= 0 for column in range(5)] == [True, True, True, False, False]


def test_raise_mode_traps_after_the_dump(swa, guard):
    forget(swa)
    found = swa.audit()
    with pytest.raises(TrappedViolation, match=r"leak-audit: .*belong to nobody.*missing") as caught:
        report(found, found.findings, "idle", Leak.RAISE, guard)
    assert read_dump(caught.value.dump).manifest.action == "trapped"


def test_raise_mode_writes_every_verdict_before_it_raises_the_first(swa, guard):
    inner = swa.allocator.swa_attn_allocator
    forget(swa)
    inner.free_pages = torch.cat((inner.free_pages, torch.tensor([0])))
    found = swa.audit()
    with pytest.raises(TrappedViolation, match="belong to nobody"):
        report(found, found.findings, "idle", Leak.RAISE, guard)
    actions = {dump.verdict: dump.action for dump in (read_dump(e.path).manifest for e in DumpStore(guard.root).list())}
    assert actions == {"pool_leak": "trapped", "free_out_of_range": "logged"}


def test_no_token_of_a_prompt_reaches_the_dump(swa, guard):
    lost = swa.start([90, 91, 92, 93] * 10)
    swa.requests.remove(lost)
    found = swa.audit()
    report(found, found.findings, "idle", Leak.DUMP, guard)
    (entry,) = DumpStore(guard.root).list()
    assert set(read_dump(entry.path).manifest.tensors) == {"shares", "suspects", "holders", "edges", "lives"}
    assert lost.rid not in (entry.path / "manifest.json").read_text()
