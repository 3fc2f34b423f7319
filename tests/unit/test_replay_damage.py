"""What a replay says of the entries: kinds, rows, windows, what containment and clamping would have left."""

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from dump_examples import list_draft, offence, paged_draft, written
from gemma4_dumps.draft import TensorPayload
from gemma4_dumps.errors import DumpError, UserError
from gemma4_dumps.schema import Provenance
from gemma4_triage.errors import NothingChecked
from gemma4_triage.replay.damage import Kind, kinds, row_damages, worst_read
from gemma4_triage.replay.options import ReplayOptions
from gemma4_triage.replay.rebuild import rebuild
from gemma4_triage.replay.run import replay
from gemma4_triage.replay.tables import AS_DUMPED, CLAMP, CONTAIN, INTENDED, is_placeholder, tables

R, OTHER, NULL, MISSING, NEGATIVE, OUT = Kind


def call_of(tmp_path, draft, **options):
    return rebuild(written(tmp_path, draft), ReplayOptions(**options))


class TestKinds:
    def test_each_kind_in_its_place(self, tmp_path):
        table = [[3, 65, -1, 0, 99], [4, 5, 6, 7, 70]]
        right = [[3, 9, 8, 7, 0], [4, 5, 16, 7, 0]]
        call = call_of(tmp_path, paged_draft(table, [16, 15], translated=right))
        # The fifth column is stale in both rows: nobody asks what it holds.
        assert kinds(call).tolist() == [[R, OUT, NEGATIVE, NULL], [R, R, OTHER, R]]
        first, second = row_damages(call)
        assert (first.outside, first.counts, first.first) == (2, {OUT: 1, NEGATIVE: 1, NULL: 1}, (1, 65, OUT))
        assert (second.outside, second.counts, second.request_slot) == (0, {OTHER: 1}, 2)

    def test_a_row_that_needs_more_columns_than_there_are(self, tmp_path):
        call = call_of(tmp_path, paged_draft([[3, 4], [5, 6]], [13, 8], verdict="table_too_narrow"))
        assert kinds(call).tolist() == [[R, R, MISSING, MISSING], [R, R, R, R]]
        assert row_damages(call)[0].first == (2, None, MISSING)

    def test_the_null_page_is_legal_where_a_window_leaves_it_and_in_padded_rows(self, tmp_path):
        draft = paged_draft([[0, 4], [0, 0]], [8, 1], space="swa")
        assert worst_read(call_of(tmp_path, draft)) is R
        draft = paged_draft([[0, 4], [0, 0]], [8, 1])
        draft.tensors["request_slots"] = TensorPayload.from_array(np.array([2, 0]))
        assert kinds(call_of(tmp_path, draft)).tolist() == [[NULL, R], [R, R]]

    def test_a_null_page_that_the_probe_named(self, tmp_path):
        draft = paged_draft([[3, 0]], [8], space="swa", offences=[offence(0, 1, 0)], verdict="null_page_live")
        assert kinds(call_of(tmp_path, draft)).tolist() == [[R, NULL]]

    def test_ids_of_another_pool_without_a_translation(self, tmp_path):
        spaces = Provenance(table_space="swa", buffer_space="full", table_origin="a.page_table")
        call = call_of(tmp_path, paged_draft([[3, 4]], [8], provenance=spaces))
        assert kinds(call).tolist() == [[OTHER, OTHER]]
        assert is_placeholder(tables(call)[INTENDED]).all()
        # The null page is every pool's; the window leaves it behind in a translated table.
        call = call_of(tmp_path, paged_draft([[0, 4]], [8], provenance=spaces))
        assert kinds(call).tolist() == [[R, OTHER]]

    def test_swa_ids_on_the_full_buffer_are_held_against_the_full_table(self, tmp_path):
        spaces = Provenance(table_space="swa", buffer_space="full", table_origin="a.swa_page_table")
        draft = paged_draft([[3, 4, 5]], [12], provenance=spaces)
        draft.tensors["swa_page_table"] = TensorPayload.from_array(np.array([[3, 9, 0]], np.int32))
        call = call_of(tmp_path, draft)
        assert (call.table, kinds(call).tolist()) == ("swa_page_table", [[R, OTHER, OTHER]])
        assert tables(call)[INTENDED].tolist() == [[3, 4, 5]]

    def test_slots_of_a_list(self, tmp_path):
        call = call_of(tmp_path, list_draft([8, 260, -2, 3, 9, 10], [0, 4, 6]))
        assert kinds(call).tolist() == [[R, OUT, NEGATIVE, NULL], [R, R, R, R]]

    def test_a_list_that_is_shorter_than_its_indptr(self, tmp_path):
        call = call_of(tmp_path, list_draft([8, 9], [0, 4, 1]))
        assert kinds(call).tolist() == [[R, R, MISSING, MISSING], [R, R, R, R]]
        assert call.notes == ("rows of kv_indices that end before they begin have no keys",)


class TestWindow:
    def test_bad_entries_that_the_window_hides_are_not_read(self, tmp_path):
        draft = paged_draft([[70, 3, 4]], [12], scalars={"window_left": 3})
        call = call_of(tmp_path, draft)
        (damage,) = row_damages(call)
        assert (damage.columns, damage.outside, damage.hidden, worst_read(call)) == ((2, 2), 0, 1, R)
        assert replay(written(tmp_path, draft), ReplayOptions()).fine

    def test_one_key_more_reaches_the_page(self, tmp_path):
        draft = paged_draft([[3, 70, 4]], [12], scalars={"window_left": 4})
        assert worst_read(call_of(tmp_path, draft)) is OUT
        assert worst_read(call_of(tmp_path, draft, window_left=3)) is R

    def test_an_earlier_query_of_a_verify_sees_more(self, tmp_path):
        draft = paged_draft([[3, 70, 4]], [12], scalars={"window_left": 3, "max_seq_len_q": 2})
        assert worst_read(call_of(tmp_path, draft)) is OUT


class TestVariants:
    def test_contain_and_clamp(self, tmp_path):
        right = [[3, 9, 8]]
        made = tables(call_of(tmp_path, paged_draft([[3, 65, -1]], [12], translated=right)))
        assert made[AS_DUMPED].tolist() == [[3, 65, -1]]
        assert made[INTENDED].tolist() == right
        assert made[CONTAIN].tolist() == [[3, 0, 0]]
        assert made[CLAMP].tolist() == [[3, 64, 0]]

    def test_what_containment_replaced_is_put_back_where_the_dump_knows_it(self, tmp_path):
        draft = paged_draft(
            [[3, 0, 0]], [12], translated=[[3, 9, 0]], action="contained", offences=[offence(0, 1, 70)], offence_count=2
        )
        call = call_of(tmp_path, draft)
        assert kinds(call).tolist() == [[R, OUT, NULL]]
        made = tables(call)
        assert made[AS_DUMPED].tolist() == [[3, 70, 0]]
        assert made[INTENDED].tolist()[0][:2] == [3, 9]
        assert is_placeholder(made[INTENDED])[0].tolist() == [False, False, True]
        assert "1 entry holds the null page since containment" in call.notes[0]

    def test_outputs_are_off_by_as_much_as_the_table_and_no_more(self, tmp_path):
        draft = paged_draft([[3, 65], [4, 5], [6, 7]], [8, 8, 8], translated=[[3, 9], [4, 5], [6, 8]])
        found = replay(written(tmp_path, draft), ReplayOptions())
        assert {name: one.bad_rows for name, one in found.reference.items()} == dict.fromkeys(
            (AS_DUMPED, CONTAIN, CLAMP), (0, 2)
        )
        assert found.reference[AS_DUMPED].first_bad == (0, 0)
        assert not found.reads_right

    def test_a_clean_call_is_fine(self, tmp_path):
        found = replay(written(tmp_path, paged_draft([[3, 4], [5, 6]], [8, 7])), ReplayOptions())
        assert found.fine
        assert all(one.max_abs == 0 for one in found.reference.values())


class TestNotReplayable:
    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"page_size": None}, "does not say the page size"),
            ({"page_size": 1 << 31}, "a page size of 2147483648"),
            ({"extents": {"pages_in_buffer": 0}}, "gives 0 pages"),
            ({"extents": {}, "offences": []}, "says nothing"),
            ({"provenance": Provenance(table_origin="ForwardBatch.out_cache_loc"), "offences": []}, "are written"),
            ({"provenance": Provenance(), "offences": []}, "no table of an attention call"),
            ({"provenance": Provenance(table_origin="x.request_slots"), "offences": []}, "no page table"),
        ],
    )
    def test_it_says_what_is_missing(self, tmp_path, changes, said):
        draft = paged_draft([[3, 4]], [8])
        draft.tensors["out_cache_loc"] = TensorPayload.from_array(np.array([[3]]))
        with pytest.raises(NothingChecked, match=said):
            call_of(tmp_path, dataclasses.replace(draft, **changes))

    @pytest.mark.parametrize(
        "table", [np.zeros((2, 2), np.float32), np.zeros(3, np.int32), np.zeros((2, 2, 2), np.int32)]
    )
    def test_a_table_that_is_none(self, tmp_path, table):
        draft = paged_draft([[3, 4]], [8])
        draft.tensors["page_table"] = TensorPayload.from_array(table)
        with pytest.raises(NothingChecked, match="no indices"):
            call_of(tmp_path, draft)

    @pytest.mark.slow
    @settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(data=st.data())
    def test_whatever_a_dump_says_it_is_replayed_or_refused(self, tmp_path_factory, data):
        """Any integers and shapes: never another exception than those that the command line knows."""
        integers = st.integers(-(2**63), 2**63 - 1) | st.integers(-5, 300)
        small = st.integers(0, 4)

        def array(dimensions):
            shape = tuple(data.draw(small) for _ in range(dimensions))
            values = data.draw(st.lists(integers, min_size=int(np.prod(shape)), max_size=int(np.prod(shape))))
            return np.array(values, np.int64).reshape(shape)

        name = data.draw(st.sampled_from(["page_table", "kv_indices"]))
        tensors = {name: array(2 if name == "page_table" else 1), "cache_seqlens": array(1)}
        if data.draw(st.booleans()) or name == "kv_indices":
            tensors[f"{name}_indptr"] = array(1)
        for extra, dimensions in (("translated_page_table", 2), ("request_slots", 1), ("out_cache_loc_indptr", 1)):
            if data.draw(st.booleans()):
                tensors[extra] = array(dimensions)
        sizes = st.sampled_from([1, 2, 4, 16, 64])
        scalars = {key: data.draw(integers | sizes) for key in ("window_left", "max_seq_len_q", "q_heads", "kv_heads")}
        draft = paged_draft(
            [[1]],
            [1],
            page_size=data.draw(st.one_of(sizes, sizes, sizes, st.integers(-(2**31), 2**31))),
            bound=data.draw(st.one_of(sizes, sizes, sizes, integers)),
            scalars=scalars | {"head_dim": 4},
            provenance=Provenance(table_space="full", buffer_space="swa", table_origin=f"a.{name}"),
            offences=[offence(*(data.draw(st.integers(-3, 9)) for _ in range(3)), table=name)],
            action=data.draw(st.sampled_from(["contained", "logged"])),
            tensors={key: TensorPayload.from_array(value) for key, value in tensors.items()},
        )
        dump = written(tmp_path_factory.mktemp("dump"), draft)
        try:
            found = replay(dump, ReplayOptions(cap_bytes=2**20))
        except (UserError, DumpError) as error:
            event(type(error).__name__)
            return
        event("replayed")
        assert found.worst in Kind
