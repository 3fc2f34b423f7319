"""What tells a kind of fault from its neighbours: without it, or with what a neighbour leaves, it is not named."""

import json
import shutil

import pytest

from diagnose_examples import altered, rewritten
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.finding import Confidence
from mutation_dumps import dumps_of, named_of


def with_events(tmp_path, dump, change):
    """Return the dump with other events: `change` gets and returns a list of records."""
    folder = tmp_path / dump.path.name
    shutil.copytree(dump.path, folder)
    path = folder / "events.jsonl"
    records = change([json.loads(line) for line in path.read_text().splitlines()])
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "manifest.json").unlink()
    return rewritten(folder, dump)


def with_scalars(dump, **scalars):
    return altered(dump, scalars=dump.manifest.scalars | scalars)


@pytest.mark.parametrize(
    ("case", "scalars"),
    [
        # It was right before, or stands exchanged with another's: then the writer of a step's slots is not accused.
        ("new-slots-of-the-batchs-first", {"why": "changed"}),
        ("new-slots-of-the-batchs-first", {"defect": "swapped"}),
        # One slot may stand where it does by chance.
        ("new-slots-of-the-batchs-first", {"new_slots": 1}),
        ("new-slots-at-the-rows-begin", {"new_slots": 1}),
    ],
)
def test_new_slots_at_another_place(case, scalars):
    (dump,) = dumps_of(case)
    assert "new slots" not in named_of(with_scalars(dump, **scalars))[0].cause


@pytest.mark.parametrize(
    "scalars", [{"nodes_are_gone": False}, {"page_free_site": "release_kv_cache"}, {"why": "owner"}]
)
def test_an_eviction_of_nodes_that_are_read(scalars):
    (dump,) = dumps_of("evicted-while-locked")
    assert named_of(with_scalars(dump, **scalars))[0].structure is not Structure.TREE_LOCK


@pytest.mark.parametrize(
    "counted",
    [
        # None was raised; one alone was not; all as they should be; one is of nobody's; no list of numbers.
        "101,70,33,48,90,17",
        "101,80,48,64,112,32",
        "112,80,48,64,112,32",
        "101,70,64,80,112,128",
        "101,many,64",
    ],
)
def test_counts_that_are_not_those_of_others(counted):
    (dump,) = dumps_of("lengths-taken-ahead-in-another-order")
    assert named_of(with_scalars(dump, counted=counted))[0].defect is not Defect.SWAPPED


@pytest.mark.parametrize("case", ["begin-of-a-free-rounded-down", "evicted-in-both-pools-and-again"])
def test_a_page_that_was_handed_out_since_is_not_given_back_once_more(tmp_path, case):
    (dump,) = dumps_of(case)

    def handed_out_since(records):
        given = {"call": "alloc_extend", "returned": True, "full": records[-2]["full"], "swa": records[-2]["swa"]}
        return [*records[:-1], given, records[-1]]

    first = named_of(with_events(tmp_path, dump, handed_out_since))[0]
    assert (first.structure is not Structure.FREE_CALL, first.defect) == (True, Defect.ZERO)


def test_a_free_of_full_pages_alone_is_not_said_to_be_of_both_pools(tmp_path):
    (dump,) = dumps_of("evicted-in-both-pools-and-again")

    def of_full_pages(records):
        records[-2]["call"] = "free_full_segment"
        return records

    first = named_of(with_events(tmp_path, dump, of_full_pages))[0]
    assert (first.structure, "in both pools" in first.cause) == (Structure.FREE_CALL, False)
    assert "had given its full page back" in first.cause


def test_duplicates_of_another_request_say_nothing(tmp_path):
    (dump,) = dumps_of("duplicates-left-at-an-insert")

    def of_another(records):
        return [one | ({"by_request_slot": 9} if "by_request_slot" in one else {}) for one in records]

    first = named_of(with_events(tmp_path, dump, of_another))[0]
    assert (first.structure, first.confidence) == (None, Confidence.POSSIBLE)


def test_without_the_evictions_free_another_page_may_have_been_freed_in_its_place(tmp_path):
    dump = dumps_of("eviction-leaves-a-page-of-the-window")[0]

    def without(records):
        return [one for one in records if one.get("site") != "evict_tree"]

    assert all(one.structure is not Structure.FREE_CALL for one in named_of(with_events(tmp_path, dump, without)))


@pytest.mark.parametrize(
    ("scalars", "words"),
    [
        ({"full_available": 1008, "swa_available": 816}, "The full allocator counts 16 tokens, a page, fewer"),
        ({"full_available": 1024, "swa_available": 816}, "A count of tokens is wrong"),
        ({"full_available": 1056, "swa_available": 816}, "counts 32 tokens, more than its lists have, 1024"),
        (
            {"full_available": 1024, "swa_available": 816, "swa_evictable": 16},
            "16 swa tokens as evictable or",
        ),
    ],
)
def test_which_count_is_wrong(scalars, words):
    (dump,) = dumps_of("free-count-a-page-short")
    first = named_of(with_scalars(dump, **scalars))[0]
    assert words in first.cause
    assert (first.defect is Defect.OFF_BY_ONE) is ("a page," in words)
