"""The pure slot checks against brute-force forms in plain Python."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from gemma4_runtime.checks.lost_pages import check_dropped_group, check_failed_allocation, check_restored
from gemma4_runtime.checks.slot_codes import repeated
from gemma4_runtime.checks.slot_free import check_free, check_leftover_mappings, check_repeats, leftover_mappings
from gemma4_runtime.checks.slot_hand_out import check_hand_out, check_mapping_write, taken_off
from gemma4_runtime.checks.slot_ledger import UNKNOWN, SlotLedger, pages_in_use
from gemma4_runtime.checks.violation import MAX_LISTED

PAGES = 4


@st.composite
def scenes(draw):
    """Draw a page size, a ledger, and a call's full and SWA slots, some of them wild."""
    page = draw(st.sampled_from([1, 4]))
    upper = (PAGES + 1) * page
    live = [False, *draw(st.lists(st.booleans(), min_size=PAGES, max_size=PAGES))]
    owner = [0, *draw(st.lists(st.integers(UNKNOWN, PAGES), min_size=PAGES, max_size=PAGES))]
    wild = st.integers(-2, upper + 2)
    begin = draw(st.integers(0, upper))
    count = draw(st.integers(1, 10))
    full = draw(st.one_of(st.just(list(range(begin, begin + count))), st.lists(wild, min_size=1, max_size=10)))
    shift = draw(st.sampled_from([0, 0, page, -page, 1]))
    tame = [max(slot + shift, 0) for slot in full]
    swa = draw(st.one_of(st.just(tame), st.lists(wild, min_size=len(full), max_size=len(full))))
    dtype = draw(st.sampled_from([torch.int32, torch.int64]))
    ledger = SlotLedger(torch.tensor(live), torch.tensor(owner, dtype=torch.int32), page)
    return page, upper, ledger, torch.tensor(full, dtype=dtype), torch.tensor(swa)


def at(table, page):
    return table[min(max(page, 0), len(table) - 1)]


def worst(found):
    """found: (code, column, row, value) of every bad entry -> (verdict code, column, rows, values) or None."""
    if not found:
        return None
    code, column = min(found)[:2]
    rows = sorted((row, value) for c, col, row, value in found if (c, col) == (code, column))
    return code, column, rows


def seen(violation, verdicts):
    if violation is None:
        return None
    column = violation.first.column
    assert violation.count == len(violation.listed) <= MAX_LISTED
    return (
        verdicts.index(violation.verdict),
        column,
        sorted((bad.row, bad.value) for bad in violation.listed if bad.column == column),
    )


@given(scenes(), st.booleans())
def test_free_against_brute_force(scene, keeps_full):
    page, upper, ledger, full, swa = scene
    live, owner = ledger.full_live.tolist(), ledger.swa_owner.tolist()
    found = []
    for row, (f, m) in enumerate(zip(full.tolist(), swa.tolist(), strict=True)):
        twice = f in full.tolist()[:row]
        if not (0 if keeps_full else page) <= f < upper:
            found.append((0, 0, row, f))
        elif (twice and m > 0) if keeps_full else (twice or not at(live, f // page)):
            found.append((1, 0, row, f))
        if m <= 0:
            continue
        if not page <= m < upper:
            found.append((0, 1, row, m))
        elif at(owner, m // page) == 0:
            found.append((2, 1, row, m))
        elif at(owner, m // page) not in (f // page, UNKNOWN) or (m - f) % page:
            found.append((3, 1, row, m))
    violation = check_free(full, swa, ledger, upper, upper, keeps_full)
    verdicts = ("free_out_of_range", "double_free", "stale_mapping", "pool_alias")
    assert seen(violation, verdicts) == worst(found)


@given(scenes(), st.integers(0, 4))
def test_hand_out_against_brute_force(scene, unmapped):
    page, upper, ledger, full, swa = scene
    live, owner = ledger.full_live.tolist(), ledger.swa_owner.tolist()
    fs, ms = full.tolist(), swa.tolist()
    found = []
    for row, (f, m) in enumerate(zip(fs, ms, strict=True)):
        first = row - f % page
        opened = first >= 0 and fs[first] == f - f % page
        if not page <= f < upper:
            found.append((0, 0, row, f))
        elif f in fs[:row] or (at(live, f // page) if f % page == 0 else not (opened or at(live, f // page))):
            found.append((1, 0, row, f))
        if row < unmapped:
            if m != 0:
                found.append((2, 1, row, m))
        elif not page <= m < upper:
            found.append((0, 1, row, m))
        elif m in ms[:row] or (f % page == 0 and at(owner, m // page) != 0):
            found.append((1, 1, row, m))
        elif not opened and at(owner, m // page) == 0:
            found.append((2, 1, row, m))
        elif (m - f) % page or (
            m != ms[first] + f % page if opened else at(owner, m // page) not in (f // page, UNKNOWN)
        ):
            found.append((3, 1, row, m))
    violation = check_hand_out(full, swa, ledger, upper, upper, unmapped)
    verdicts = ("alloc_out_of_range", "alloc_overlap", "stale_mapping", "pool_alias")
    assert seen(violation, verdicts) == worst(found)


@given(scenes())
def test_mapping_write_against_brute_force(scene):
    page, upper, ledger, full, swa = scene
    owner, ms = ledger.swa_owner.tolist(), swa.tolist()
    found = []
    for row, (f, m) in enumerate(zip(full.tolist(), ms, strict=True)):
        if not page <= f < upper:
            found.append((0, 0, row, f))
        if not page <= m < upper:
            found.append((0, 1, row, m))
        elif at(owner, m // page) == 0:
            found.append((2, 1, row, m))
        elif m in ms[:row] or at(owner, m // page) not in (f // page, UNKNOWN) or (m - f) % page:
            found.append((3, 1, row, m))
    # Every full page still has entries for the SWA pages that are its own.
    left = torch.stack((swa.to(torch.int64), swa.to(torch.int64)), dim=1)
    violation = check_mapping_write(full, swa, ledger, left, upper, upper)
    verdicts = ("alloc_out_of_range", "-", "stale_mapping", "pool_alias")
    assert seen(violation, verdicts) == worst(found)


@given(st.lists(st.integers(0, 9), min_size=1))
def test_repeated_against_brute_force(values):
    assert repeated(torch.tensor(values)).tolist() == [value in values[:n] for n, value in enumerate(values)]
    violation = check_repeats(torch.tensor(values), 1, 10)
    again = [(n, value) for n, value in enumerate(values) if value in values[:n]]
    assert ([(bad.row, bad.value) for bad in violation.listed] if violation else []) == again[:MAX_LISTED]


@given(st.lists(st.integers(-3, 9)), st.integers(1, 8))
def test_pages_in_use_are_those_that_no_list_names(free, count):
    wanted = [page > 0 and page not in free for page in range(count)]
    assert pages_in_use(torch.tensor(free, dtype=torch.int64), count).tolist() == wanted


def test_the_ledger_follows_a_life():
    ledger = SlotLedger.create(4, 4, 16, "cpu")
    ledger.hand_out(torch.tensor([16, 17, 32]), torch.tensor([48, 49, 0]))
    assert ledger.full_live.tolist() == [False, True, True, False, False]
    assert ledger.swa_owner.tolist() == [0, 0, 0, 1, 0]
    ledger.release_swa(torch.tensor([48, 0]))
    assert ledger.swa_owner.tolist() == [0] * 5
    ledger.pair(torch.tensor([32]), torch.tensor([16]))
    ledger.release(torch.tensor([16, 17], dtype=torch.int32), torch.tensor([0, 0]))
    assert ledger.full_live.tolist() == [False, False, True, False, False]
    ledger.rebuild(torch.tensor([1]), torch.tensor([4]), keep_owners=True)
    assert ledger.full_live.tolist() == [False, False, True, True, True]
    assert ledger.swa_owner.tolist() == [0, 2, UNKNOWN, UNKNOWN, 0]
    ledger.rebuild(torch.tensor([1]), torch.tensor([4]))
    assert ledger.swa_owner.tolist() == [0, UNKNOWN, UNKNOWN, UNKNOWN, 0]


def test_leftovers_are_entries_into_the_released_page_only():
    mapping = torch.zeros(80, dtype=torch.int64)
    mapping[17], mapping[18], mapping[33] = 49, 66, 50  # released page 3; another page; a full page that was not named
    left = leftover_mappings(torch.tensor([16, 40]), torch.tensor([48, 0]), mapping, 16)
    assert left.tolist() == [[17, 49]]
    violation = check_leftover_mappings(left, 16, 80)
    assert violation is not None
    assert (violation.verdict, violation.count, violation.first.value, violation.first.column) == (
        "stale_mapping",
        1,
        49,
        1,
    )
    assert check_leftover_mappings(left[:0], 16, 80) is None


@given(st.permutations(range(1, 9)), st.integers(0, 8), st.integers(0, 8), st.booleans())
def test_a_failed_allocation_may_merge_lists_and_take_nothing(pages, taken, released, merged):
    before = torch.tensor(pages[released:]), torch.tensor(pages[:released], dtype=torch.int64)
    rest = torch.tensor(pages[min(taken, 8) :], dtype=torch.int64)
    after = (rest.sort().values, rest[:0]) if merged else (rest[:0], rest)
    violation = check_failed_allocation(before, after, 9)
    lost = sorted(bad.value for bad in violation.listed) if violation else []
    assert lost == sorted(pages[:taken])
    assert violation is None or (violation.verdict, violation.count) == ("pool_leak", taken)


def test_what_comes_back_at_restore_and_what_a_group_forgets():
    owner = torch.tensor([0, 0, 7, 0], dtype=torch.int32)
    assert check_restored(owner, torch.tensor([False, False, True, False])) is None
    lost = check_restored(owner, torch.tensor([False, True, True, False]))
    assert lost is not None
    assert [bad.value for bad in lost.listed] == [1]
    assert check_dropped_group([], 16, 80) is None
    dropped = check_dropped_group([torch.tensor([16, 17]), torch.tensor([40])], 16, 80)
    assert dropped is not None
    assert (dropped.verdict, [bad.value for bad in dropped.listed]) == ("pool_leak", [16, 17, 40])


def test_a_page_that_the_call_did_not_take_off_its_list_is_an_overlap():
    ledger = SlotLedger.create(8, 8, 16, "cpu")
    listed = torch.tensor([5, 3, 7, 1])
    taken = taken_off(listed, listed[2:])
    assert taken is not None
    assert taken.tolist() == [5, 3]
    given = torch.arange(3 * 16, 4 * 16)
    assert check_hand_out(given, given, ledger, 9 * 16, 9 * 16, 0, taken) is None
    other = torch.arange(7 * 16, 8 * 16)
    found = check_hand_out(other, other, ledger, 9 * 16, 9 * 16, 0, taken)
    assert found is not None
    assert (found.verdict, found.count, found.first.value) == ("alloc_overlap", 1, 7 * 16)


def test_of_a_list_that_is_another_afterwards_nothing_is_known_of_what_was_taken():
    listed = torch.tensor([5, 3, 7, 1])
    assert taken_off(listed, listed[2:].clone()) is None
    assert taken_off(listed, torch.tensor([], dtype=torch.int64)) is None
