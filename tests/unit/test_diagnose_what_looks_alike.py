"""What is said where another cause leaves nearly the same as one that is told as certain.

Each dump is a kept one in which that other cause's numbers are put.
"""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from diagnose_examples import altered, rewritten
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose.copied_lengths import reordered
from gemma4_triage.diagnose.stray_entries import leave_no_other
from gemma4_triage.finding import Confidence
from mutation_dumps import dumps_of, named_of


@pytest.fixture
def made(tmp_path):
    """Return a function of a kept dump to one with other tensors, events and fields."""

    def made(dump, tensors=None, events=None, **fields):
        folder = tmp_path / dump.path.name
        shutil.copytree(dump.path, folder)
        if tensors is not None:
            values = load_file(folder / "tensors.safetensors") | tensors
            save_file(values, folder / "tensors.safetensors")
            known = dump.manifest.tensors
            fields["tensors"] = {
                name: known[name].model_copy(update={"shape": list(one.shape)}) for name, one in values.items()
            }
        if events is not None:
            (folder / "events.jsonl").write_text("".join(json.dumps(one) + "\n" for one in events))
        (folder / "manifest.json").unlink()
        return rewritten(folder, dump, **fields)

    return made


def call(number, name, last_loc, full, **fields):
    return {"number": number, "call": name, "returned": True, "last_loc": last_loc, "full": full} | fields


def test_lengths_in_another_order_on_the_device_lead_back_to_slots_that_were_gone_on_from(made):
    """SGLang asks for a request's last slot by the device's copy, which so agrees with itself."""
    (dump,) = dumps_of("host-lengths-in-another-order")
    bases, lengths = (32, 160, 320), [20, 23, 26]
    events = [
        call(row, "alloc_extend", [-1], [[base, count]], prefix_lens=[0], seq_lens=[count])
        for row, (base, count) in enumerate(zip(bases, lengths, strict=True))
    ]
    for step in range(8):
        full = [[base + count, 1] for base, count in zip(bases, lengths, strict=True)]
        last = [slot - 1 for slot, _ in full]
        lengths = [count + 1 for count in lengths]
        events.append(call(3 + step, "alloc_decode", last, full, seq_lens=lengths))
    device = [lengths[2], lengths[0], lengths[1]]
    asked = [base + count - 1 if count <= own else 0 for base, count, own in zip(bases, device, lengths, strict=True)]
    grown = [[own + 1, count + 1] for own, count in zip(lengths, device, strict=True)]
    events.append(call(11, "alloc_decode", asked, None, returned=False, seq_lens=[own for own, _ in grown]))
    assert reordered(made(dump, {"lengths": np.array(grown)}, events)) == "device"
    assert reordered(dump) == "host"


def test_results_are_not_exchanged_where_the_map_has_what_they_go_on_from(made):
    (dump,) = dumps_of("results-of-a-decode-exchanged")
    assert (named_of(dump)[0].structure, named_of(dump)[0].defect) == (Structure.ALLOCATION, Defect.SWAPPED)
    slots, before = dump.tensor("slots").copy(), dump.tensor("swa_before").copy()
    slots[:, 1], before[1], before[2] = [656, 524, 225, 251, 565, 828], 523, 224
    events = [dict(one) for one in dump.events()]
    events[-1]["swa"] = [[int(slot), 1] for slot in slots[:, 1]]
    offence = dump.manifest.offences[0].model_copy(update={"row": 1, "column": 1, "value": 524})
    given = {"slots": slots, "swa_before": before, "swa_given": slots[:, 1].copy()}
    first = named_of(made(dump, given, events, offences=(offence,)))[0]
    assert (first.structure, first.defect) != (Structure.ALLOCATION, Defect.SWAPPED)


def test_a_hand_out_that_does_not_name_all_of_its_pages_may_stand_between_two_frees(made):
    dump, *_ = dumps_of("evicted-twice-and-handed-out")
    events = [dict(one) for one in dump.events()]
    first = next(n for n, one in enumerate(events) if one.get("kind") == "freed" and 21 in one["first_pages"])
    between = {"kind": "handed_out", "pool": "full", "site": "alloc_for_extend", "step": 40, "pages": 40}
    events.insert(first + 1, between | {"first_pages": [1, 2, 3, 4, 5, 6, 7, 8]})
    told = named_of(made(dump, events=events))
    assert all("given back twice" not in one.cause for one in told)
    assert "given back twice" in named_of(dump)[0].cause


@pytest.mark.parametrize(
    ("entries", "alone"),
    [
        # The rest of a page that the request has, whose slots were given and not written; more than that.
        ((124, 4, 0), False),
        ((124, 5, 0), True),
        ((128, 2, 0), True),
        # Before others: the rest of page 0, from which a hand-out went on; less than that.
        ((115, 13, 20), False),
        ((115, 1, 12), True),
        ((128, 1, 12), False),
    ],
)
def test_entries_without_a_page_have_one_cause_where_they_are_no_rest_of_a_page(made, entries, alone):
    (dump,) = dumps_of("entry-of-a-row-zero-within-a-page")[:1]
    told = ":".join(map(str, (7, *entries)))
    other = made(dump, scalars=dump.manifest.scalars | {"stray_entries": told})
    assert other.manifest.page_size == 16
    assert leave_no_other(other, entries) is alone
    found = next(one for one in named_of(other) if one.rule == "held-outside-pool")
    assert (found.confidence is Confidence.CERTAIN) is alone


def test_a_page_that_the_row_has_elsewhere_is_no_new_one():
    (dump,) = dumps_of("page-allocated-again")
    new = "got slots once more"
    assert new in named_of(dump)[0].cause
    for changed in ({"defect": "duplicate"}, {"had_page_owner": 5}, {"had_page_owner": None}, {"page_owner": 5}):
        assert new not in named_of(altered(dump, scalars=dump.manifest.scalars | changed))[0].cause


@pytest.mark.parametrize(
    ("table", "words", "structure"),
    [
        ("page_table", "what chooses a layer's table took the other one", Structure.SWA_TABLE),
        ("swa_page_table", "the full-to-SWA translation is missing", Structure.SWA_TABLE),
        ("out_cache_loc", "The slots to which this forward writes", Structure.WRITE_LOCATIONS),
    ],
)
def test_a_layer_has_the_other_table_only_where_that_is_what_it_follows(made, table, words, structure):
    (dump,) = dumps_of("table-of-the-next-layer")
    offence = dump.manifest.offences[0].model_copy(update={"table": table})
    first = named_of(made(dump, offences=(offence,)))[0]
    assert words in first.cause
    assert first.structure is structure


@pytest.mark.parametrize(("lengths", "told"), [((41, 57, 73), False), ((41, 57, 74), False), ((49, 57, 73), True)])
def test_last_slots_are_apart_by_as_many_tokens_in_each_request_and_by_less_than_half_a_page(made, lengths, told):
    """Two that were exchanged may be half a page apart, and two of a few may agree by chance."""
    (dump,) = dumps_of("last-slots-a-token-early")
    events = [dict(one) for one in dump.events()]
    asked = [16 * 20 * (at + 1) + (length - 2 + (7 if told else 8)) % 16 for at, length in enumerate(lengths)]
    events[-1] |= {"seq_lens": list(lengths), "last_loc": asked}
    assert ("behind the last slot of each" in named_of(made(dump, events=events))[0].cause) is told


def test_locks_at_a_standstill_are_what_is_waited_for_only_where_there_is_little_room(made):
    (dump,) = dumps_of("locks-kept-at-a-retraction")
    assert "little room beside it" in named_of(dump)[0].cause
    free = {"full_available": 608, "full_evictable": 16, "swa_available": 352, "swa_evictable": 16}
    first = named_of(made(dump, scalars=dump.manifest.scalars | free))[0]
    assert "whether that is what they wait for is not known" in first.cause


def test_pages_that_are_mapped_and_free_are_not_missing_because_others_leaked(made):
    (dump,) = dumps_of("evicted-count-too-high")
    scalars, suspects = dump.manifest.scalars, dump.tensor("suspects").copy()
    suspects[:, scalars["columns"].split(",").index("last_event")] = scalars["last_events"].split(",").index("freed")
    suspects[:, scalars["columns"].split(",").index("pool")] = scalars["pools"].split(",").index("full")
    assert "are missing from that pool" not in named_of(made(dump, {"suspects": suspects}))[0].cause


def test_lengths_that_came_through_the_relay_may_have_been_mixed_there(made):
    (dump,) = dumps_of("lengths-merged-in-another-order")
    assert "FutureMap" not in named_of(dump)[0].cause
    assert "FutureMap" in named_of(made(dump, scalars=dump.manifest.scalars | {"relayed": True}))[0].cause


def test_the_last_page_of_a_shuffled_list_is_not_its_end(made):
    (dump,) = dumps_of("free-list-cut-while-running")
    guards = dump.manifest.guards.model_dump() if hasattr(dump.manifest.guards, "model_dump") else dump.manifest.guards
    aged = json.loads(json.dumps(guards))
    aged["settings"]["pool_seed"] = 24
    assert "the end of the list was cut off" in named_of(dump)[0].cause
    assert "the end of the list was cut off" not in named_of(made(dump, guards=aged))[0].cause


@pytest.mark.parametrize(("after", "told"), [(1904, True), (1888, False), (1920, True), (None, False)])
def test_new_pages_are_uncounted_only_where_fewer_were_taken_than_lengths_need(made, after, told):
    (dump,) = dumps_of("pages-counted-by-old-lengths")
    events = [dict(one) for one in dump.events()]
    events[-1]["free_after"] = [after, 624]
    assert ("new pages that its requests need" in named_of(made(dump, events=events))[0].cause) is told
