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


def free(kind, pool, page, step, **fields):
    return {"kind": kind, "pool": pool, "step": step, "pages": 1, "first_pages": [page], "site": "unknown"} | fields


@pytest.mark.parametrize(
    ("name", "page", "giver"),
    [
        ("window-freed-of-the-cache", 9, {"site": "evict_tree"}),
        ("window-freed-of-the-cache", 9, {"site": "evict_swa", "by_request_slot": 7}),
        ("window-freed-of-the-cache", 9, {"site": "release_kv_cache", "by_request_slot": 3}),
        ("freed-past-the-window", 22, {"site": "release_kv_cache", "by_request_slot": 3}),
        ("freed-past-the-window", 22, {"site": "evict_tree"}),
    ],
)
def test_a_window_is_not_blamed_for_a_page_that_another_gave_back(made, name, page, giver):
    (dump,) = dumps_of(name)
    events = [dict(one) for one in dump.events()]
    for one in events:
        if one["kind"] == "freed" and page in one["first_pages"]:
            one["first_pages"] = [other for other in one["first_pages"] if other != page]
            one["pages"] = len(one["first_pages"])
    events.append(free("free_asked", "swa", page, 2) | giver)
    first = named_of(made(dump, events=events))[0]
    assert (first.rule, first.structure, first.confidence) == ("evicted-page-counted", None, Confidence.POSSIBLE)


def test_a_free_that_was_lost_and_a_later_one_that_was_not_are_no_group(made):
    (dump,) = dumps_of("free-lost")
    events = [dict(one) for one in dump.events()]
    events.append(free("free_asked", "full", 154, 17, site="cache_finished_req"))
    events.append(free("freed", "full", 154, 17))
    assert named_of(made(dump, events=events, step=17))[0].structure is Structure.FREE_CALL


@pytest.mark.parametrize("host", [[121, 90, 53, 68, 37], [90, 121, 53, 68, 110]], ids=["another", "order"])
def test_a_copy_that_begins_as_it_did_is_right_where_the_last_request_left(made, host):
    (dump,) = dumps_of("device-lengths-not-filtered")
    device, events = [121, 90, 53, 68, 110], [dict(one) for one in dump.events()]
    events[-1] |= {"seq_lens": host, "last_loc": [487, 936, 563, 466, 556]}
    row = next(at for at, pair in enumerate(zip(host, device, strict=True)) if pair[0] != pair[1])
    fields = {"row": row, "value": host[row], "lower": device[row], "upper": device[row] + 1}
    offence = dump.manifest.offences[0].model_copy(update=fields)
    lengths = np.array([host, device]).T
    cause = named_of(made(dump, {"lengths": lengths}, events, offences=(offence,)))[0].cause
    assert "not filtered" not in cause
    assert "not filtered" in named_of(dump)[0].cause


def test_a_slot_that_two_prompts_go_on_from_tells_nothing_of_an_order(made):
    (dump,) = dumps_of("host-lengths-in-another-order")
    events = [
        call(0, "alloc_extend", [751], [[656, 5]], prefix_lens=[96], seq_lens=[101]),
        call(1, "alloc_extend", [751, -1, 911], None, prefix_lens=[96, 0, 32], seq_lens=[70, 104, 90], returned=False),
    ]
    lengths = np.array([[70, 104], [104, 70], [90, 90]])
    assert reordered(made(dump, {"lengths": lengths}, events)) == ""


@pytest.mark.parametrize(
    "wrong",
    [lambda right: right + 1, lambda right: right - 1, lambda right: right // 16, lambda right: right + 16],
    ids=["one more", "one less", "pages", "a page more"],
)
def test_lengths_that_are_made_of_the_right_ones_did_reach_the_step(made, wrong):
    (dump,) = dumps_of("prefill-lengths-not-published")
    listed = [one.model_copy(update={"value": wrong(one.lower)}) for one in dump.manifest.offences]
    scalars = dump.manifest.scalars | {"value": listed[0].value}
    changed = made(dump, offences=tuple(listed), scalars=scalars)
    assert "did not reach" not in named_of(changed)[0].cause
    assert "did not reach" in named_of(dump)[0].cause


def test_one_page_that_stands_elsewhere_in_the_list_is_no_count(made):
    (dump,) = dumps_of("pages-further-on-the-list")
    before = {pool: dump.tensor(f"free_before_{pool}") for pool in ("full", "swa")}
    slots = np.array([[17 * 16 + at, 6 * 16 + at] for at in range(10)])
    tensors = {f"free_pages_{pool}": listed[1:].copy() for pool, listed in before.items()} | {
        "slots": slots,
        "page_states": dump.tensor("page_states")[:10].copy(),
        "swa_before": np.array([0, *range(96, 105)], dump.tensor("swa_before").dtype),
        "swa_given": slots[:, 1].copy(),
    }
    events = [
        call(0, "alloc_extend", [-1], [[272, 10]], prefix_lens=[0], seq_lens=[10], swa=[[96, 10]])
        | {"free_before": [1024, 816], "free_after": [1008, 800], "site": "alloc_for_extend", "step": 0}
    ]
    offence = dump.manifest.offences[0].model_copy(update={"row": 0, "value": 272})
    changed = made(dump, tensors, events, offences=(offence,), offence_count=1)
    assert "places behind" not in named_of(changed)[0].cause
    assert "places behind" in named_of(dump)[0].cause


@pytest.mark.parametrize(("defect", "listed", "is_new"), [(None, 16, True), ("duplicate", 16, False), (None, 1, False)])
def test_a_page_of_ones_own_that_stands_twice_is_no_new_one(made, defect, listed, is_new):
    (dump,) = dumps_of("chunk-resumed-a-page-early")
    scalars = dump.manifest.scalars | {"page_owner": 8, "page_owner_generation": 2, "defect": defect}
    changed = made(dump, scalars=scalars, offences=dump.manifest.offences[:listed], offence_count=listed)
    assert ("once more" in named_of(changed)[0].cause) is is_new


def test_three_requests_in_another_order_are_no_two_parts(made):
    (dump,) = dumps_of("requests-in-another-order")
    listed = tuple(
        dump.manifest.offences[0].model_copy(
            update={"row": row, "value": value, "lower": own, "upper": own + 1, "request_slot": own}
        )
        for row, (value, own) in enumerate([(8, 5), (5, 6), (6, 8)])
    )
    scalars = dump.manifest.scalars | {"value": 8, "expected": 5, "request_slot": 5}
    assert "merge" not in named_of(made(dump, offences=listed, offence_count=3, scalars=scalars))[0].cause


@pytest.mark.parametrize("kind", ["gone and still a child", "not a child"])
def test_a_tree_that_is_broken_does_not_say_where_pages_went(made, kind):
    (dump,) = dumps_of("child-locked-once-more")
    cause = named_of(made(dump, scalars=dump.manifest.scalars | {"tree_broken": f"{kind}:1"}))[0].cause
    assert "its pages are lost" not in cause


def test_a_prompt_whose_answer_nobody_gave_back_was_not_lost_by_the_cache(made):
    dump, *_ = dumps_of("node-lost")
    assert "the cache that has lost them" in named_of(dump)[0].cause
    first = named_of(made(dump, events=[dict(one) for one in dump.events()][:9]))[0]
    assert "the cache that has lost them" not in first.cause


def test_a_last_slot_that_ends_no_full_page_is_no_page_that_was_not_counted(made):
    (dump,) = dumps_of("new-page-not-counted")
    assert "did not count the new page" in named_of(dump)[0].cause
    events = [dict(one) for one in dump.events()][:11]
    given = [662, 304, 274, 753, 59, 306]
    full, swa = [[slot, 1] for slot in given], [[slot, 1] for slot in (102, 448, 402, 225, 91, 66)]
    lengths = [103, 72, 35, 50, 92, 19]
    events.append(dict([*dump.events()][-1]) | {"number": 11, "seq_lens": lengths, "full": full, "swa": swa})
    events[-1]["last_loc"] = [slot - 1 for slot in given]
    slots = np.array([[one[0], other[0]] for one, other in zip(full, swa, strict=True)])
    tensors = {"slots": slots, "swa_given": slots[:, 1].copy(), "swa_before": slots[:, 1] - 1}
    assert "did not count the new page" not in named_of(made(dump, tensors, events))[0].cause


def test_a_prefix_that_another_prompt_goes_on_from_is_not_gone_on_from(made):
    """A first decode goes on from the end of a prompt that another one extends."""
    (dump,) = dumps_of("host-lengths-in-another-order")
    events = [
        call(0, "alloc_extend", [-1], [[32, 96]], prefix_lens=[0], seq_lens=[96]),
        call(1, "alloc_extend", [127], [[160, 10]], prefix_lens=[96], seq_lens=[106]),
        call(2, "alloc_extend", [-1], [[320, 20]], prefix_lens=[0], seq_lens=[20]),
        call(3, "alloc_decode", [127, 169, 339], None, seq_lens=[107, 97, 21], returned=False),
    ]
    lengths = np.array([[107, 97], [97, 107], [21, 21]])
    assert reordered(made(dump, {"lengths": lengths}, events)) == "host"


def test_of_a_group_a_call_may_have_lost_the_page(made):
    (dump,) = dumps_of("free-lost")
    events = [dict(one) for one in dump.events()]
    step = next(one["step"] for one in reversed(events) if one["kind"] == "free_asked")
    events.append(free("free_asked", "full", 154, step, site="cache_finished_req"))
    events.append(free("freed", "full", 154, step))
    assert named_of(made(dump, events=events))[0].confidence is Confidence.LIKELY


def test_a_free_that_names_who_asked_is_no_end_of_a_group(made):
    (dump,) = dumps_of("free-lost")
    events = [dict(one) for one in dump.events()]
    step = next(one["step"] for one in reversed(events) if one["kind"] == "free_asked")
    events.append(free("free_asked", "full", 154, step, site="cache_finished_req"))
    events.append(free("freed", "full", 154, step, site="cache_finished_req"))
    assert named_of(made(dump, events=events))[0].structure is Structure.FREE_CALL


@pytest.mark.parametrize("left", ["none", "cut"])
def test_a_window_is_not_blamed_where_no_event_names_who_gave_the_page_back(made, left):
    (dump,) = dumps_of("window-freed-of-the-cache")
    events = [dict(one) for one in dump.events()]
    if left == "none":
        events = []
    for one in events:
        if one["kind"] == "freed" and 9 in one["first_pages"]:
            # It names eight of its pages, and this one is not among them.
            one |= {"site": "evict_tree", "first_pages": [20, 21], "pages": 12}
    first = named_of(made(dump, events=events))[0]
    assert (first.structure, first.confidence) == (None, Confidence.POSSIBLE)


@pytest.mark.parametrize(
    "wrong",
    [lambda right: -right, lambda right: 3 * right, lambda right: 4096, lambda right: right - 32],
    ids=["negated", "tripled", "all alike", "two pages less"],
)
def test_lengths_that_nobody_can_have_had_are_not_left_over(made, wrong):
    (dump,) = dumps_of("prefill-lengths-not-published")
    listed = [one.model_copy(update={"value": wrong(one.lower)}) for one in dump.manifest.offences]
    scalars = dump.manifest.scalars | {"value": listed[0].value}
    assert "did not reach" not in named_of(made(dump, offences=tuple(listed), scalars=scalars))[0].cause


def test_without_events_nobody_knows_that_an_answer_was_freed(made):
    dump, *_ = dumps_of("node-lost")
    assert "the cache that has lost them" not in named_of(made(dump, events=[]))[0].cause
