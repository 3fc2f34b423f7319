"""Comparing dumps: a dump equals itself, one planted change is found at its place, and swapping the sides swaps it."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dump_examples import seed_bug_draft
from gemma4_dumps.draft import TensorPayload
from gemma4_dumps.errors import DumpUnreadable
from gemma4_dumps.schema import Provenance
from gemma4_dumps.writer import write_dump
from gemma4_triage.compare import tensors as tensors_module
from gemma4_triage.compare.compare_dumps import compare_dumps
from gemma4_triage.compare.difference import ABSENT, Comparison, FieldDifference
from gemma4_triage.compare.first_difference import first_difference, sentence
from gemma4_triage.compare.side import open_side

ROOT = Path(__file__).parents[2]
REAL = sorted(
    path.parent
    for folder in (ROOT / "dumps" / "samples", ROOT / "tests" / "data" / "corpus_dumps")
    for path in folder.rglob("manifest.json")
)
DTYPES = st.sampled_from(["int64", "int32", "uint8", "uint64", "float64", "float32", "float16", "bool"])


def compared(a: Path, b: Path, rows: int = 12) -> Comparison:
    return compare_dumps(open_side("A", a), open_side("B", b), rows)


def written(root: Path, **changes) -> Path:
    path = write_dump(root, seed_bug_draft(**changes)).path
    assert path is not None
    return path


def pair(root: Path, a: dict, b: dict) -> Comparison:
    """Return the seed bug twice, each with its own changes."""
    return compared(written(root, **a), written(root, **b))


def arrays_pair(root: Path, a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> Comparison:
    left, right = ({name: TensorPayload.from_array(array) for name, array in one.items()} for one in (a, b))
    return pair(root, {"tensors": left}, {"tensors": right})


def swapped(comparison: Comparison) -> Comparison:
    """Say what comparing B with A has to give."""
    letters = {"A": "B", "B": "A", None: None}

    def fields(differences):
        return tuple(FieldDifference(one.path, one.b, one.a) for one in differences)

    return Comparison(
        sections={name: fields(differences) for name, differences in comparison.sections.items()},
        tensors=tuple(
            dataclasses.replace(
                tensor,
                only_in=letters[tensor.only_in],
                layout=fields(tensor.layout),
                entries=tuple(dataclasses.replace(entry, a=entry.b, b=entry.a) for entry in tensor.entries),
            )
            for tensor in comparison.tensors
        ),
        tensor_count=comparison.tensor_count,
        events=comparison.events
        and dataclasses.replace(
            comparison.events,
            count_a=comparison.events.count_b,
            count_b=comparison.events.count_a,
            first=fields(comparison.events.first),
        ),
        volatile=fields(comparison.volatile),
    )


@pytest.mark.parametrize("path", REAL, ids=lambda path: f"{path.parent.name}-{path.name[-30:]}")
def test_a_real_dump_equals_itself(path):
    comparison = compared(path, path)
    assert comparison.equal
    assert comparison.volatile == ()
    assert first_difference(comparison) is None
    assert sentence(comparison) == "The two dumps are equal."


@pytest.mark.parametrize("first", range(len(REAL) - 1))
def test_two_real_dumps_differ_the_same_way_from_both_sides(first):
    a, b = REAL[first], REAL[first + 1]
    comparison = compared(a, b)
    assert not comparison.equal
    assert compared(b, a) == swapped(comparison)


def test_what_any_two_dumps_differ_in_does_not_count(tmp_path):
    comparison = pair(tmp_path, {}, {})
    assert comparison.equal
    assert {"dump_id", "created_utc"} <= {one.path for one in comparison.volatile}


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_one_planted_change_is_found_at_its_place(tmp_path_factory, data):
    dtype = data.draw(DTYPES)
    shape = data.draw(arrays.array_shapes(min_dims=0, max_dims=3, max_side=7))
    before = data.draw(arrays.arrays(dtype, shape))
    index = tuple(data.draw(st.integers(0, extent - 1)) for extent in shape)
    after = before.copy()
    after[index] = data.draw(arrays.from_dtype(np.dtype(dtype)))
    same = bool(before[index] == after[index]) or (before[index] != before[index] and after[index] != after[index])

    with pytest.MonkeyPatch.context() as patch:
        # Windows of any size find the same.
        patch.setattr(tensors_module, "WINDOW_ENTRIES", data.draw(st.integers(1, 400)))
        comparison = arrays_pair(tmp_path_factory.mktemp("dumps"), {"values": before}, {"values": after})
    if same:
        assert comparison.tensors == ()
        return
    (tensor,) = comparison.tensors
    assert (tensor.name, tensor.size, tensor.differing, tensor.hidden) == ("values", before.size, 1, 0)
    (entry,) = tensor.entries
    assert entry.index == index
    np.testing.assert_array_equal([entry.a, entry.b], [before[index].item(), after[index].item()])


def test_all_that_differ_are_counted_and_the_first_are_listed(tmp_path, monkeypatch):
    monkeypatch.setattr(tensors_module, "WINDOW_ENTRIES", 3)
    before, after = np.zeros((4, 5), np.int32), np.zeros((4, 5), np.int32)
    after[1, 2:], after[3, 4] = 7, 9
    a, b = (written(tmp_path, tensors={"page_table": TensorPayload.from_array(array)}) for array in (before, after))
    (tensor,) = compared(a, b, rows=2).tensors
    assert (tensor.differing, tensor.hidden) == (4, 2)
    assert [entry.index for entry in tensor.entries] == [(1, 2), (1, 3)]


def test_nan_equals_nan_of_other_bits_and_nothing_else(tmp_path):
    before = np.array([0x7FC00000, 0x7FC00001, 0x3F800000], np.uint32).view(np.float32)
    after = np.array([0xFFC00000, 0x3F800000, 0x3F800000], np.uint32).view(np.float32)
    (tensor,) = arrays_pair(tmp_path, {"values": before}, {"values": after}).tensors
    assert [entry.index for entry in tensor.entries] == [(1,)]


@pytest.mark.parametrize(("dtype", "bits", "value"), [("bfloat16", "uint16", 0x3FC0), ("float8_e5m2", "uint8", 0x3E)])
def test_small_floats_are_compared_by_their_values(tmp_path, dtype, bits, value):
    before, after = np.zeros(4, bits), np.zeros(4, bits)
    # -0.0 is 0.0.
    after[0], after[2] = 1 << (8 * after.itemsize - 1), value
    payloads = [TensorPayload(data=array, dtype=dtype, shape=(4,)) for array in (before, after)]
    (tensor,) = pair(tmp_path, {"tensors": {"kv": payloads[0]}}, {"tensors": {"kv": payloads[1]}}).tensors
    assert [(entry.index, entry.a, entry.b) for entry in tensor.entries] == [((2,), 0.0, 1.5)]


def test_any_byte_but_zero_is_true(tmp_path):
    payloads = [TensorPayload(data=bytes(values), dtype="bool", shape=(3,)) for values in ([0, 1, 1], [0, 2, 0])]
    (tensor,) = pair(tmp_path, {"tensors": {"live": payloads[0]}}, {"tensors": {"live": payloads[1]}}).tensors
    (entry,) = tensor.entries
    assert (entry.index, entry.a, entry.b) == ((2,), True, False)
    assert type(entry.a) is bool


def test_integers_of_other_types_are_compared_exactly(tmp_path):
    (tensor,) = arrays_pair(
        tmp_path,
        {"slots": np.array([-1, 2**62 + 1, 5], np.int64)},
        {"slots": np.array([2**64 - 1, 2**62, 5], np.uint64)},
    ).tensors
    assert [one.path for one in tensor.layout] == ["dtype"]
    assert [(entry.a, entry.b) for entry in tensor.entries] == [(-1, 2**64 - 1), (2**62 + 1, 2**62)]


def test_shapes_types_and_names_that_do_not_fit_are_said(tmp_path):
    comparison = arrays_pair(
        tmp_path,
        {"page_table": np.zeros((2, 3), np.int32), "x": np.zeros(2, np.int32), "cache_seqlens": np.zeros(2, np.int32)},
        {"page_table": np.zeros((2, 4), np.int32), "x": np.zeros(2, np.float32), "slots": np.zeros(2, np.int32)},
    )
    table, lengths, slots, other = comparison.tensors
    assert table.not_compared == "their shapes differ"
    assert table.layout[0] == FieldDifference("shape", [2, 3], [2, 4])
    assert (lengths.name, lengths.only_in) == ("cache_seqlens", "A")
    assert (slots.name, slots.only_in) == ("slots", "B")
    assert other.not_compared == "one holds whole numbers, the other floats"


def test_equal_values_in_another_layout_differ_in_it(tmp_path):
    table = np.arange(12, dtype=np.int32).reshape(3, 4)
    (tensor,) = arrays_pair(tmp_path, {"page_table": table}, {"page_table": np.asfortranarray(table)}).tensors
    assert (tensor.differing, tensor.layout) == (0, (FieldDifference("stride", [4, 1], [1, 3]),))


def test_guards_are_held_against_each_other_by_patch(tmp_path):
    def guards(**rows):
        patches = [{"id": name, "kind": "fix", "title": "t", "attached": attached} for name, attached in rows.items()]
        return {"guards": {"verified": True, "patches": patches, "settings": {"mode": "trap"}, "pid": len(rows)}}

    comparison = pair(tmp_path, guards(one=True, two=True), guards(two=False))
    found = {one.path: (one.a, one.b) for one in comparison.sections["guards"]}
    assert found.pop("guards.patches.one")[1] is ABSENT
    assert found == {"guards.patches.two.attached": (True, False)}
    assert "guards.pid" in {one.path for one in comparison.volatile}


def test_guards_of_an_unknown_form_are_compared_as_they_are(tmp_path):
    twice = [{"id": "x", "attached": True}, {"id": "x", "attached": False}]
    comparison = pair(tmp_path, {"guards": {"patches": twice}}, {"guards": {"patches": twice[::-1]}})
    assert [one.path for one in comparison.sections["guards"]] == [
        "guards.patches.0.attached",
        "guards.patches.1.attached",
    ]


def test_true_is_not_one(tmp_path):
    comparison = pair(tmp_path, {"scalars": {"seen": 1}}, {"scalars": {"seen": True}})
    assert comparison.sections["scalars"] == (FieldDifference("scalars.seen", 1, True),)


def test_events_differ_at_the_first_that_does(tmp_path):
    events = [{"kind": "alloc", "first_pages": [1, 2]}, {"kind": "free", "first_pages": [1]}]
    changed = [events[0], {"kind": "free", "first_pages": [2]}, {"kind": "idle"}]
    comparison = pair(tmp_path, {"events": events}, {"events": changed})
    assert comparison.events is not None
    assert (comparison.events.count_a, comparison.events.count_b) == (2, 3)
    assert comparison.events.first == (FieldDifference("events.1.first_pages.0", 1, 2),)
    assert pair(tmp_path, {"events": events}, {"events": events}).events is None


class TestWhatDiffersFirst:
    CHANGES = (
        ("provenance", {"provenance": Provenance(table_space="swa", buffer_space="swa")}),
        ("geometry", {"page_size": 32}),
        ("page tables", "page_table"),
        ("page tables", "swa_page_table"),
        ("sequence lengths", "cache_seqlens"),
        ("slots", "request_slots"),
        ("other tensors", "free_pages_swa"),
        ("scalars", {"scalars": {"window": 1}}),
        ("events", {"events": []}),
        ("finding", {"step": 89}),
        ("guards", {"guards": {}}),
        ("versions", {"versions": {}}),
        ("launch", {"launch_args": []}),
    )

    @pytest.mark.parametrize("begin", range(len(CHANGES)))
    def test_is_the_first_of_all_that_follow(self, tmp_path, begin):
        names = [what for _, what in self.CHANGES if isinstance(what, str)]
        before = {name: np.zeros((2, 2), np.int32) for name in names}
        after = {name: array.copy() for name, array in before.items()}
        changes = {}
        for _, what in self.CHANGES[begin:]:
            if isinstance(what, str):
                after[what][1, 0] = 5
            else:
                changes |= what
        left, right = (
            {"tensors": {name: TensorPayload.from_array(array) for name, array in one.items()}}
            for one in (before, after)
        )
        comparison = pair(tmp_path, left, right | changes)
        first = first_difference(comparison)
        stage, what = self.CHANGES[begin]
        assert first is not None
        assert first.stage == stage
        if isinstance(what, str):
            assert first.text == f"{what}[1, 0] is 0 in A, 5 in B, the first of 1 that differ, of 4"
        assert first.flows == (begin <= 6)

    def test_other_processes_are_pointed_at(self, tmp_path):
        comparison = pair(tmp_path, {}, {"page_size": 32, "versions": {"sglang": "0.5.14"}})
        assert sentence(comparison) == (
            "What differs first as data flows is in the geometry: page_size is 64 in A, 32 in B. "
            "The processes were not the same either: see versions."
        )


def test_what_is_damaged_is_said_with_its_letter(tmp_path):
    a, b = written(tmp_path), written(tmp_path)
    (b / "tensors.safetensors").write_bytes(b"x" * 50)
    with pytest.raises(DumpUnreadable, match=f"^B, {b.name}: "):
        compared(a, b)
    with pytest.raises(DumpUnreadable, match=f"^A, {b.name}: "):
        compared(b, a)


def test_a_damaged_event_is_said_with_its_letter(tmp_path):
    a = written(tmp_path)
    b = Path(shutil.copytree(a, tmp_path / "copy"))
    (b / "events.jsonl").write_bytes((a / "events.jsonl").read_bytes() + b"{\n")
    with pytest.raises(DumpUnreadable, match=r"^B, copy: events\.jsonl line 2"):
        compared(a, b)
