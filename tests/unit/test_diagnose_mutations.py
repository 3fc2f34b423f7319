"""Causes that were put into the live engine, one entry at a time: what was wrong is named first."""

import json
import shutil

import numpy as np
import pytest

from diagnose_examples import altered, changed, rewritten
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.finding import Confidence
from mutation_cases import CASES
from mutation_dumps import COLUMNS, KEPT, dumps_of, named_of

S, D, C = Structure, Defect, Confidence
"""By folder: the rule, what was corrupted, how, and how sure the dumps allow to be."""


@pytest.mark.parametrize("name", CASES)
def test_the_structure_that_was_corrupted_is_named_first(name):
    first = named_of(*dumps_of(name))[0]
    assert (first.rule, first.structure, first.defect, first.confidence) == CASES[name]


def test_every_kept_case_is_told():
    assert {path.name for path in KEPT.iterdir() if path.is_dir()} == set(CASES)


@pytest.mark.parametrize("name", [name for name, told in CASES.items() if told[3] is C.CERTAIN])
def test_no_other_rule_is_certain_of_the_same_dumps(name):
    sure = [finding for finding in named_of(*dumps_of(name)) if finding.confidence is C.CERTAIN]
    assert [finding.rule for finding in sure] == [CASES[name][0]]


@pytest.mark.parametrize("name", ["mapping-not-written"])
def test_without_what_the_pool_gave_the_hand_out_may_be_right(tmp_path, name):
    first = named_of(*(changed(tmp_path, dump, swa_given=None) for dump in dumps_of(name)))[0]
    assert first.confidence is not C.CERTAIN


@pytest.mark.parametrize("name", ["mapping-zero", "tree-node-negative", "protected-zero"])
def test_without_the_holders_nothing_is_said_of_them(tmp_path, name):
    dumps = [changed(tmp_path, dump, holders=None) for dump in dumps_of(name)]
    assert CASES[name][0] not in [finding.rule for finding in named_of(*dumps)]


def test_a_table_of_another_order_is_told_where_the_server_stopped_on_the_spot():
    """Elsewhere the batch that goes on may have other request slots when the dump is written."""
    first = named_of(*(altered(dump, action="logged") for dump in dumps_of("table-rows-in-another-order")))[0]
    assert (first.structure, first.confidence) == (None, C.POSSIBLE)


def test_pages_that_came_into_the_cache_with_an_insert_may_be_none_of_its_own():
    (dump,) = dumps_of("insert-frees-its-own-prefix")
    for scalars, structure, confidence in (
        ({"was_cached": False}, S.FREE_CALL, C.LIKELY),
        ({"pages_missing": 1}, None, C.POSSIBLE),
    ):
        first = named_of(altered(dump, scalars=dump.manifest.scalars | scalars))[0]
        assert (first.structure, first.confidence) == (structure, confidence)


def test_an_entry_that_was_not_written_sends_to_the_mapping_and_not_to_the_lists():
    advice = named_of(*dumps_of("last-slot-not-mapped"))[0].advice
    assert "mapping" in advice[0]
    assert not any("free list" in line for line in advice)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("page-of-a-row-a-slot-too-high", "each entry is 1 too high, within the page that belongs there"),
        ("part-left-out-by-a-receipt", "has SWA among the parts that were not locked (skipped_lock_components)"),
        ("part-of-a-page-counted-as-gone", "counts 117 tokens as gone from its sliding window (swa_evicted_seqlen)"),
        ("window-of-the-cache-narrowed", "SWAComponent.sliding_window_size is 8, and was 31"),
        (
            "pair-counts-its-full-pool-alone",
            "counts 640 tokens as free (available_size) where the pool with fewer, swa",
        ),
        ("lock-names-another-node", "the lock's receipt was made for another (node_id)"),
        ("free-list-cut-before-its-pages-are-named", "counted the new page that the request needs: it took page 21"),
        ("free-list-cut-before-its-pages-are-named", "in both pools: the list was cut before its pages were named"),
        ("mapping-of-two-slots-exchanged", "Slot 749 leads to 350 where 349 belongs"),
        ("mapping-of-two-written-slots-exchanged", "those of tokens of one page have changed places"),
        ("window-of-a-node-came-back", "Its value came back, or was not taken away"),
        ("node-without-its-slots", "is in the tree and has no slots of the full pool for its tokens"),
        ("namespace-of-a-request-changed", "its next insert makes a second node of the same slots"),
        ("back-links-of-a-list-left", "where the links of its neighbours do not lead to it and back again"),
        (
            "nothing-stored-by-a-verification",
            "has not stored keys and values of all 24 tokens: what its slots had",
        ),
        (
            "first-tokens-behind-the-last",
            "The first tokens of 4 requests of a prefill got the slot behind the last one",
        ),
        ("adopted-slots-freed-again", "a call before had given its full page back, when its SWA page had gone already"),
        ("path-in-another-order", "has the very slots of the cache's nodes that it holds, in another order"),
        ("whole-prompt-taken-for-a-chunk", "it decodes, and its answer has no token yet"),
        ("node-under-two-parents", "is among the children of two nodes"),
        ("rows-of-ended-requests-in-a-batch", "2 of a decode's 3 requests go on behind slots that were given back as"),
        ("window-count-not-moved", "has a sliding window that is counted as locked and has no lock, or the other way"),
        ("window-unlocked-too-early", "has 13 tokens behind them where the window has 31: it still reads there"),
        ("removed-node-still-listed", "it was removed, and stayed on that list"),
        ("new-tokens-of-two-exchanged", "A prefill's list of how many tokens are new (extend_lens) has 101"),
        ("node-of-another-text", "not even their first pages agree, so that the request has another node"),
        ("retracted-mark-left", "it runs, and is marked as retracted all the same (is_retracted)"),
        ("cut-prompt-taken-for-whole", "it answers after 16 of the 101 tokens of its prompt"),
        ("mixed-batch-merged-again", "is still the running one as that is merged into it"),
        ("insert-counted-beyond-its-chunk", "it reaches 48 tokens beyond the last slot that the request was given"),
        ("window-gave-back-full-pages", "gives back its SWA side alone (free_swa_segment)"),
        ("receipt-of-a-lock-changed", "has another stamp than as the nodes were locked"),
        ("mapping-written-with-sides-exchanged", "was written with full and SWA slots exchanged"),
        ("chunk-beyond-its-text", "up to token 144, and its prompt and answer have 101"),
        ("every-page-listed-twice-by-its-free", "was given back once since it was handed out"),
        ("page-in-use-put-on-its-free-list", "had it when it was handed out again"),
        ("allocated-tokens-counted-a-page-too-many", "the count of tokens for which the request has slots"),
        ("window-never-asked-of-the-cache", "did not give up any of the 336 that it counts as evictable (sliding"),
        ("last-chunk-read-again", "It had been read whole before"),
        ("prefix-of-all-its-tokens", "a prefix was taken for it that has all of its tokens"),
        ("accepted-one-too-few", "or the request lacks what was accepted"),
        ("protected-a-page-short", "request counters (cache_protected_len): 16 where 32 belongs"),
        ("group-never-ended", "the one before was never ended"),
        ("last-pages-read-at-their-end", "its columns were counted by whole pages, or read at a page's last token"),
        ("lengths-cut-to-8-bits", "as a number is that was cut to 8 bits"),
        ("positions-without-the-prefix", "too low by 96"),
        ("slots-given-once-more", "these tokens got slots once more, or another request's slots went into this row"),
        ("host-lengths-not-filtered", "The copy on the host has those of the step before"),
        ("device-lengths-not-filtered", "The copy on the device has those of the step before"),
        ("host-lengths-not-counted", "the copy on the host is wrong, it was not counted up"),
        ("released-again-with-overlap", "that step's result was processed as if the request went on"),
        ("requests-in-another-order", "the two parts of a merge are put together in one order there, and in the other"),
        ("slots-ahead-a-place-early", "what is written ahead began 1 place too early, at the last token"),
        ("answer-of-another-row", "they stand in its result from place 3 on, and its own from 4 on"),
        ("middle-chunk-kept", "What was sampled behind a chunk in the middle was taken for a token of the answer"),
        ("draft-by-an-earlier-ones-tables", "made for an earlier one, in step 6: its own were not made"),
        ("node-of-untranslated-slots", "its slots of the full pool as those of the sliding window too"),
        ("mapping-cleared-to-minus-one", "what clears an entry writes another number"),
        ("window-never-evicted-in-decode", "while it decodes nothing is given back of what its window leaves"),
        ("page-tables-exchanged", "that of the sliding layers has the full-pool page ids of every request"),
        ("query-bounds-turned", "the 0 that belongs before them stands behind them"),
        ("pool-has-another-map", "the pool has another map than the one that the allocator writes"),
        ("list-of-tokens-short-after-a-retraction", "has 116, and lacks 1 of its own"),
        ("pages-cut-to-8-bits", "the slots of these, cut to 8 bits, are theirs (2 for 34 and 3 for 35)"),
        ("new-page-not-counted", "the call did not count the new page that the request needs"),
        ("window-freed-of-the-cache", "They were the cache's before: the eviction of a request's window"),
        ("allocators-emptied-alone", "The allocators were emptied (clear, as in a flush), and who held pages was not"),
        ("new-slots-at-the-rows-begin", "from its begin on, and they belong from token 96 on"),
        ("new-slots-of-the-batchs-first", "5 entries before them, beginning with those of the request in slot 8"),
        ("swa-side-continues-untranslated", "continues with the slot numbers that the full pool has there"),
        ("begin-of-a-free-rounded-down", "its begin is rounded down to a page, and not up"),
        ("evicted-in-both-pools-and-again", "The eviction of the prefix cache's nodes makes both calls"),
        ("free-count-a-page-short", "The full allocator counts 16 tokens, a page, fewer than its lists have, 1024"),
        ("new-leaves-not-counted", "as evictable where nodes without a lock hold 0, as where what is put in is not"),
        ("pages-further-on-the-list", "its free list still has, 6 places behind those that it took off"),
        ("eviction-leaves-a-page-of-the-window", "gave back fewer pages than the node has, or none"),
        ("duplicates-left-at-an-insert", "gave back other pages of that owner (duplicates), and left these out"),
        ("window-lost-at-a-split", "a node lost its window where it was split (_split_node, "),
        ("lengths-taken-ahead-in-another-order", "were noted at other requests of the batch than it took them for"),
        ("evicted-while-locked", "what chooses the leaves to evict does not heed the request's lock"),
        ("asked-with-an-untranslated-slot", "goes on with the full pool's slots, which were not translated"),
        ("one-tokens-swa-write-untranslated", "which was not translated: the sliding-window pool is shorter"),
        (
            "retraction-leaves-full-pages",
            "released without giving anything to the prefix cache, as where it is retracted",
        ),
        ("duplicates-freed-on-the-full-side", "as their request was put into the prefix cache, which has those tokens"),
        ("hand-out-left-on-the-list", "it took fewer pages off its lists than it gave"),
        ("last-slots-read-at-the-new-end", "as at the new length in place of the one before"),
        ("prefix-not-written", "its row was not written with the cached prefix, and has there what an earlier request"),
        ("window-rounded-up-with-overlap", "it is the page in which the window begins, and no other"),
        ("slots-of-other-rows", "as their numbers go up and not in the batch's order"),
        ("released-another", "the one that left it unfinished, in slot 8, has its own still"),
        ("table-of-copied-rows", "the backend reads a copy of req_to_token"),
        ("table-of-other-places", "at other places than theirs, as with a wrong stride"),
        (
            "accepted-not-counted",
            "of each of 5 requests one token is counted, whatever that was, 4 of the one in slot 8",
        ),
        ("prefill-lengths-not-published", "with which their prefill was launched, did not reach the step behind it"),
        ("tokens-not-filtered", "they were not filtered with these (filter_batch, bonus_tokens)"),
        ("query-bounds-of-prefixes", "(cu_seqlens_q) are sums of the requests' prefixes, 96, 0"),
        ("hosts-lengths-behind", "The host's copy of a batch's lengths (seq_lens_cpu) has"),
        ("node-names-its-old-parent", "names another node as its parent than the one that has it as a child"),
        ("inner-node-counts-as-a-leaf", "is on the list of leaves that may be evicted, and has children"),
        ("evicted-node-stays-a-child", "and a match finds it: it was evicted or removed"),
        ("hand-out-rolled-by-one", "in a wrong order, each at its neighbour's place"),
        ("freed-behind-its-clearing", "in place of the SWA pages that it named, which are lost"),
        ("mapping-arguments-exchanged", "was written with full and SWA slots exchanged"),
        ("mapping-a-page-too-high", "is a page too high, 607 where the sliding-window pool gave 591"),
        ("leaf-not-among-children", "is not among the children of its parent, which is in the tree"),
        ("split-at-another-length", "as where a split cuts slots at another length than the key"),
        ("emptied-without-its-last-page", "its free list was made anew without its last page: it counts fewer pages"),
        ("row-left-on-the-free-list", "the call that gave it to the request left it there (ReqToTokenPool.alloc)"),
        ("eviction-by-numbers-of-the-window", "It hands over SWA slots where full slots belong"),
        ("evicted-of-the-other-pool", "The other pool lacked nothing: what the cache was asked to evict of each"),
        ("freed-once-and-listed-twice", "was given back once since it was handed out"),
        ("cache-emptied-alone", "it was emptied (flush_cache, a reset of its tree)"),
        ("entry-of-a-row-zero-within-a-page", "at token 115, 1 of its entries in all, and slots of pages at 12 tokens"),
        ("insert-a-token-too-long", "is 1 token too long: it has 144 tokens, and the request keys of 143"),
        ("window-of-a-node-a-page-on", "handed out with the full one, 15, the node page 16, the one beside it"),
        (
            "results-of-a-decode-exchanged",
            "have changed places: each of its slots is right, and went to another request",
        ),
        ("host-lengths-in-another-order", "It is the host's"),
        ("evicted-twice-and-handed-out", "(21, 25) were given back twice, both times by evict_tree"),
        ("pages-taken-beyond-need", "2 of 8 of the full pool and 2 of 8 of the swa pool went to nobody"),
        ("pool-shrunk-by-a-page", "its size (size_full, size) has become a page too small since"),
        ("window-lock-left-at-its-boundary", "and no node is: locks of windows were left over"),
        ("prefix-longer-than-its-nodes", "gave a request a prefix of 64 tokens, and the nodes up to the one"),
        ("lengths-merged-in-another-order", "has the lengths of 6 requests in another order than the requests"),
        ("table-of-the-next-layer", "although this forward has a table for sliding layers"),
        ("mapping-entry-erased", "the SWA page of this place was handed out and never given back"),
        ("stop-token-inside-an-accepted-run", "grew by 4 in that step, and this is not the last of them"),
        ("fewer-slots-than-the-rows-are-to-get", "to get 11 of those that had been allocated for all of them"),
        ("window-freed-beyond-what-was-read", "the window is given back by another length than that"),
        ("window-of-a-node-begins-too-late", "splits a node at another place than that token"),
        ("mode-of-a-verification-left", "was run as DECODE, and its forward left TARGET_VERIFY at it"),
        ("window-evicted-behind-a-decode", "where its result is looked at as a prefill's"),
        ("running-request-waits-too", "runs and is in the waiting queue all the same"),
        ("chunk-begins-before-its-end", "prefix_len) fell back to whole pages"),
        ("two-requests-of-one-record", "one object for two requests"),
        ("queue-popped-from-the-front", "by a place in a list of Python's that the list does not have"),
        ("page-allocated-again", "nobody gave back the one that these tokens had: they got slots once more"),
        ("evicted-count-too-high", "and as many are missing from that pool"),
        ("locks-kept-at-a-retraction", "Requests wait and none runs: the prefix cache counts locks that nobody holds"),
        ("last-slots-a-token-early", "to go on a token before the last slot of each of its requests"),
        ("free-list-cut-while-running", "lost its last page since the audit before, and the allocator was not emptied"),
        ("child-locked-once-more", "or a child has one too many"),
        ("bonus-token-not-committed", "in the request counters (kv_committed_len): 42 where 43 belongs"),
        ("pages-counted-by-old-lengths", "took 1 of the 2 new pages that its requests need by their lengths"),
        ("swa-writes-cached-untranslated", "is the full pool's (out_cache_loc), which was not translated"),
    ],
)
def test_what_the_sentence_says_of_its_dump(case, words):
    assert words in named_of(*dumps_of(case))[0].cause


@pytest.mark.parametrize(
    ("left", "kept", "confidence", "words"),
    [
        (16, 0, Confidence.LIKELY, "so that the count is true"),
        (16, 16, Confidence.CERTAIN, "request counters (swa_evicted_seqlen): 32 where 0 belongs"),
        (16, 8, Confidence.LIKELY, "behind which nothing leaves it. The window"),
        (0, 0, Confidence.LIKELY, "or the count alone has changed"),
    ],
)
def test_a_count_of_evicted_tokens_is_wrong_for_certain_where_their_slots_are_there(left, kept, confidence, words):
    (dump,) = dumps_of("window-evicted-behind-a-decode")
    first = named_of(altered(dump, scalars=dump.manifest.scalars | {"own_left": left, "own_kept": kept}))[0]
    assert first.confidence is confidence
    assert words in first.cause


def test_an_exception_of_a_list_of_python_s_leads_to_its_line():
    advice = named_of(*dumps_of("queue-popped-from-the-front"))[0].advice
    assert "Scheduler.abort_request:5697" in advice[0]


def test_a_page_of_its_own_where_the_cache_has_one_was_given_once_more():
    (dump,) = dumps_of("chunk-resumed-a-page-early")
    words = "these tokens, which the prefix cache has, got slots once more"
    for owner, told in ((8, True), (6, False), (None, False)):
        first = named_of(altered(dump, scalars=dump.manifest.scalars | {"page_owner": owner}))[0]
        assert (words in first.cause) is told


@pytest.mark.parametrize(
    ("shift", "words", "defect"),
    [
        ((0, -1), "the copy on the device is wrong, it was not counted up", D.STALE),
        ((1, 0), "the copy on the host is wrong, it was counted up twice", D.OFF_BY_ONE),
        ((1, 2), None, D.OFF_BY_ONE),
    ],
)
def test_the_copy_of_lengths_that_the_decode_before_contradicts_is_wrong(tmp_path, shift, words, defect):
    (dump,) = dumps_of("host-lengths-not-counted")
    lengths = dump.tensor("lengths")[:, 1:] + np.array([shift])
    first = named_of(changed(tmp_path, dump, lengths=lengths))[0]
    assert first.defect is defect
    assert words in first.cause if words else "the copy on the" not in first.cause


def test_a_request_without_a_row_that_has_had_no_keys_was_not_released_twice(tmp_path):
    (dump,) = dumps_of("released-again-with-overlap")
    requests = dump.tensor("requests").copy()
    requests[4, 2] = 0
    assert named_of(changed(tmp_path, dump, requests=requests))[0].rule == "scheduler-exception"


def test_a_row_that_is_wrong_by_whole_pages_was_not_written_at_another_place():
    (dump,) = dumps_of("slots-ahead-a-place-early")
    page = dump.manifest.page_size
    for moved, told in ((lambda bad: bad.lower + page, None), (lambda bad: bad.lower + bad.row, None)):
        listed = tuple(bad.model_copy(update={"value": moved(bad)}) for bad in dump.manifest.offences)
        first = named_of(altered(dump, offences=listed))[0]
        assert first.defect is told
        assert "place" not in first.cause


def test_which_of_lengths_and_requests_goes_with_the_rows_is_said_only_where_it_is_known():
    (dump,) = dumps_of("requests-in-another-order")
    for known in ("requests", None):
        first = named_of(altered(dump, scalars=dump.manifest.scalars | {"lengths_of": known}))[0]
        assert first.confidence is C.LIKELY
        assert "in another order than" not in first.cause


def test_a_step_that_reads_what_no_verification_gave_leaves_open_which_is_wrong():
    (dump,) = dumps_of("answer-of-another-row")
    scalars = dump.manifest.scalars
    more = {"by_sample": None, "answer_at": None}
    assert named_of(altered(dump, scalars=scalars | more))[0].confidence is C.LIKELY
    first = named_of(altered(dump, scalars=scalars | more | {"by_sample": "answer"}))[0]
    assert (first.confidence, first.defect) == (C.CERTAIN, None)
    assert "reads another token" in first.cause


def test_of_a_window_that_was_not_evicted_the_map_says_whether_it_was_given_back():
    (dump,) = dumps_of("window-never-evicted-in-decode")
    for kept, structure, confidence in (
        (0, S.REQUEST_COUNTERS, C.CERTAIN),
        (16, S.WINDOW_EVICTION, C.LIKELY),
        (None, S.WINDOW_EVICTION, C.LIKELY),
    ):
        first = named_of(altered(dump, scalars=dump.manifest.scalars | {"own_kept": kept}))[0]
        assert (first.structure, first.confidence) == (structure, confidence)


def test_tables_are_not_exchanged_where_the_full_layers_have_what_is_not_the_sliding_layers(tmp_path):
    (dump,) = dumps_of("page-tables-exchanged")
    right, other = dump.tensor("request_rows"), dump.tensor("page_table").copy()
    other[0, 2] += 1
    for number, table in enumerate((right, other)):
        rules = [one.rule for one in named_of(changed(tmp_path / str(number), dump, page_table=table))]
        assert rules
        assert "tables-exchanged" not in rules


def test_bounds_that_are_other_sums_leave_open_what_is_wrong(tmp_path):
    (dump,) = dumps_of("query-bounds-turned")
    bounds = dump.tensor("out_cache_loc_indptr").copy()
    bounds[0] -= 1
    assert named_of(changed(tmp_path, dump, out_cache_loc_indptr=bounds))[0].confidence is C.POSSIBLE


def test_a_map_that_has_something_for_a_page_is_no_other_map(tmp_path):
    (dump,) = dumps_of("pool-has-another-map")
    table = dump.tensor("swa_page_table").copy()
    table[0, -1] = 6
    assert "another map" not in named_of(changed(tmp_path, dump, swa_page_table=table))[0].cause


def test_a_list_of_tokens_is_blamed_only_where_a_retracted_request_was_read_by_it():
    (dump,) = dumps_of("list-of-tokens-short-after-a-retraction")
    for known in ({"again": 0}, {"listed": 117}, {"listed": None}):
        first = named_of(altered(dump, scalars=dump.manifest.scalars | known))[0]
        assert "some were lost, or came from no forward" in first.cause


def test_one_pair_of_pages_may_be_a_number_that_was_cut_by_chance():
    assert "bits" not in named_of(*dumps_of("pages-cut-to-8-bits")[:2])[0].cause


def test_a_mapping_whose_arguments_were_exchanged_has_the_full_slots_at_every_swa_slot(tmp_path):
    (dump,) = dumps_of("mapping-arguments-exchanged")
    there = dump.tensor("full_at_given").copy()
    there[-1] = 0
    for number, known in enumerate((there, None)):
        first = named_of(changed(tmp_path / str(number), dump, full_at_given=known))[0]
        assert (first.structure, first.defect) == (S.SWA_MAPPING, D.ZERO)
        assert "exchanged" not in first.cause


def test_entries_that_are_not_all_as_many_pages_too_high_are_not_told_so(tmp_path):
    (dump,) = dumps_of("mapping-a-page-too-high")
    slots = dump.tensor("slots").copy()
    slots[-2, 1] += 32
    assert "too high" not in named_of(changed(tmp_path, dump, slots=slots))[0].cause


def test_page_0_came_with_the_free_before_only_if_what_that_named_is_on_no_list(tmp_path):
    (dump,) = dumps_of("freed-behind-its-clearing")
    lists = {name: np.append(dump.tensor(name), 416 // 16) for name in ("free_before_swa", "free_pages_swa")}
    first = named_of(changed(tmp_path, dump, **lists))[0]
    assert (first.structure, first.defect) == (S.SWA_FREE_LIST, D.ZERO)


@pytest.mark.parametrize("left", ["", "7", None])
def test_a_request_slot_that_its_hand_out_took_off_the_list_was_put_there_since(left):
    (dump,) = dumps_of("row-left-on-the-free-list")
    first = named_of(altered(dump, scalars=dump.manifest.scalars | {"slots_left_listed": left}))[0]
    assert first.confidence is C.LIKELY
    assert "given back too early or twice" in first.cause


def test_a_page_in_the_middle_is_not_the_last_that_a_list_was_made_without(tmp_path):
    (dump,) = dumps_of("emptied-without-its-last-page")
    suspects = dump.tensor("suspects").copy()
    suspects[0, 0] -= 1
    assert "without its last page" not in named_of(changed(tmp_path, dump, suspects=suspects))[0].cause


def test_an_eviction_that_freed_others_windows_goes_by_numbers_only_where_the_numbers_are_alike(tmp_path):
    robbed, lost = dumps_of("eviction-by-numbers-of-the-window")
    for number, (column, value) in enumerate(((0, 6), (10, 28))):
        suspects = robbed.tensor("suspects").copy()
        suspects[0, column] = value
        other = changed(tmp_path / str(number), robbed, suspects=suspects)
        assert D.OTHER_SPACE not in [one.defect for one in named_of(other, lost)]


def test_a_release_that_went_past_its_windows_edge_is_told_by_the_stamp_that_is_gone():
    (dump,) = dumps_of("window-released-past-its-edge")
    first = named_of(altered(dump, scalars=dump.manifest.scalars | {"tree_broken": "stamp gone:1"}))[0]
    assert (first.rule, first.structure, first.defect) == ("tree-broken", S.TREE_LOCK, D.STALE)
    assert first.confidence is C.LIKELY
    assert "another lock stamped it anew" in first.cause


def test_a_page_that_stands_twice_may_have_been_freed_twice_where_no_probe_saw_the_calls():
    dumps = dumps_of("freed-once-and-listed-twice")
    guards = dumps[0].manifest.guards | {"patches": {}}
    first = named_of(*(altered(dump, guards=guards) for dump in dumps))[0]
    assert first.structure is not S.FULL_FREE_LIST


@pytest.mark.parametrize(
    ("change", "is_told"),
    [
        ({}, True),
        ({"message": "CUDA error: an illegal memory access was encountered"}, False),
        ({"traceback": "sglang.srt.a.Cache.insert:5 > sglang.srt.a.Tree._split_node:9 > torch.clone:3"}, False),
    ],
)
def test_an_exception_out_of_a_half_done_change_is_not_a_broken_trees(change, is_told):
    (dump,) = dumps_of("node-names-its-old-parent")
    rules = [one.rule for one in named_of(altered(dump, scalars=dump.manifest.scalars | change))]
    assert ("tree-broken" in rules, "scheduler-exception" in rules) == (is_told, not is_told)


def test_a_list_that_has_another_page_twice_was_not_made_too_short(tmp_path):
    (dump,) = dumps_of("emptied-without-its-last-page")
    table = np.repeat(dump.tensor("suspects"), 2, axis=0)
    faults = str(dump.manifest.scalars["faults"]).split(",")
    table[1, COLUMNS.index("page")], table[1, COLUMNS.index("fault")] = 20, faults.index("free_twice")
    assert "made anew" not in named_of(changed(tmp_path, dump, suspects=table))[0].cause


class TestWhatNobodyWatched:
    """Dumps of a server that serves on tell of impossible lengths, one entry of the mapping, and a hand-out."""

    def test_fewer_keys_than_the_forward_computes_is_a_wrong_length(self, tmp_path):
        (dump,) = dumps_of("fewer-keys-than-queries-and-no-account")
        assert "told of 64 keys of a request of which this forward alone computes 116" in named_of(dump)[0].cause
        right = np.array([500, 64], np.int32)
        assert "A length is wrong" not in named_of(changed(tmp_path, dump, cache_seqlens=right))[0].cause

    def test_more_keys_than_the_table_has_columns_is_a_wrong_length(self):
        kept = dumps_of("more-keys-than-the-table-has-columns")
        dump = next(one for one in kept if one.manifest.verdict == "null_page_live")
        assert "told of 4122 keys of a request, and the table has columns for 4096" in named_of(dump)[0].cause
        # A table that is wider than what the dump shows of it has room for them.
        wider = altered(dump, extents=dump.manifest.extents | {"table_columns": 512})
        assert "A length is wrong" not in named_of(wider)[0].cause

    def test_one_entry_among_those_of_its_page_is_the_mapping_s_or_the_list_s(self, tmp_path):
        (dump,) = dumps_of("mapping-of-one-slot-past-its-pool")
        assert "full slot 191 is wrong" in named_of(dump)[0].cause
        lists = dump.tensor("swa_out_cache_loc").copy()
        # Where the others of that page lead to two pages, no one of them is right.
        lists[70] += 16
        assert "full slot 191" not in named_of(changed(tmp_path, dump, swa_out_cache_loc=lists))[0].cause

    def test_of_a_prefill_s_slot_nobody_says_that_its_row_has_another(self):
        (dump,) = dumps_of("slot-of-a-hand-out-that-nobody-watched")
        told = named_of(dump)[0]
        assert "Nobody looked at that hand-out" in told.cause
        assert told.structure is None


def test_a_row_that_left_the_batch_may_be_what_an_insert_was_given():
    (dump,) = dumps_of("inserted-slot-past-the-pools")
    first = named_of(dump)[0]
    assert "or the row of a request that has left the batch" in first.cause
    assert first.confidence is C.LIKELY
    # Without the insert in the traceback nobody knows whose index it was.
    trace = str(dump.manifest.scalars["traceback"]).replace(".insert:", ".match:")
    elsewhere = named_of(altered(dump, scalars=dump.manifest.scalars | {"traceback": trace}))[0]
    assert elsewhere.rule == "scheduler-exception"


def test_a_last_slot_is_the_row_s_fault_where_all_others_go_on(tmp_path):
    (dump,) = dumps_of("last-slot-of-a-row-a-token-too-far")
    assert named_of(dump)[0].structure is S.REQUEST_ROW
    folder = tmp_path / dump.path.name
    shutil.copytree(dump.path, folder)
    lines = (folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
    call = json.loads(lines[-1])
    call["last_loc"] = [slot + 32 for slot in call["last_loc"]]
    (folder / "events.jsonl").write_text("\n".join([*lines[:-1], json.dumps(call)]) + "\n", encoding="utf-8")
    # Another batch of as many requests has other last slots throughout.
    assert named_of(rewritten(folder, dump))[0].structure is not S.REQUEST_ROW
