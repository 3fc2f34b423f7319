"""One call of a legal history changed: the replay finds it, at the right call; and what a dump may hold instead."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from allocator_dumps import draft_of, lived, with_calls, write
from gemma4_dumps.allocator_calls import runs_of
from gemma4_dumps.errors import DumpError, DumpUnreadable
from gemma4_runtime import allocator_history
from gemma4_triage.cli import app
from gemma4_triage.errors import EnvironmentCannot, NothingChecked
from gemma4_triage.replay.allocator_replay import replay_allocator
from gemma4_triage.replay.reference_allocator import expand
from gemma4_triage.replay.reference_pool import CHANGED_BETWEEN
from swa_pools import PROBE, extend, make_allocator

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")

FIELDS = ("full", "swa", "need", "last_loc", "left", "lists", "free_after")
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=8,
)
HAND_OUTS = ("alloc", "alloc_extend", "alloc_decode")
# Each example writes a store of its own.
SHARED = [HealthCheck.function_scoped_fixture]
few = settings(max_examples=15, deadline=None, suppress_health_check=SHARED)
cases = given(
    seed=st.integers(0, 10**6), pick=st.integers(0, 10**6), page=st.sampled_from([16, 1]), need_sort=st.booleans()
)


@pytest.fixture
def probe(attach):
    return attach("trap", *PROBE)


@pytest.fixture
def root(tmp_path):
    return tmp_path


def chosen(calls, pick, *names):
    """Return the number of one of the calls `names`, not the last."""
    numbers = [at for at, call in enumerate(calls[:-1]) if call["call"] in names and call.get("full")]
    assume(numbers)
    return numbers[pick % len(numbers)]


def verdicts(result):
    return {broken.invariant for broken in result.first_broken}


@pytest.mark.usefixtures("probe")
class TestMutatedHistories:
    @pytest.mark.slow
    @few
    @cases
    def test_a_free_that_is_left_out(self, root, seed, pick, page, need_sort):
        draft = draft_of(lived(seed, page, need_sort))
        calls = list(draft.events)
        at = chosen(calls, pick, "free")
        result = replay_allocator(write(root, with_calls(draft, calls[:at] + calls[at + 1 :])))
        assert (result.first, verdicts(result) >= {CHANGED_BETWEEN}) == (at, True)

    @few
    @cases
    def test_a_free_that_comes_twice(self, root, seed, pick, page, need_sort):
        draft = draft_of(lived(seed, page, need_sort))
        calls = list(draft.events)
        at = chosen(calls, pick, "free")
        result = replay_allocator(write(root, with_calls(draft, calls[: at + 1] + calls[at:])))
        assert (result.first, "double_free" in verdicts(result)) == (at + 1, True)

    @pytest.mark.slow
    @few
    @cases
    def test_slots_that_are_shifted_by_a_page(self, root, seed, pick, page, need_sort):
        draft = draft_of(lived(seed, page, need_sort))
        calls = list(draft.events)
        at = chosen(calls, pick, *HAND_OUTS)
        assume(calls[at]["call"] != "alloc_decode" or page == 1)
        shifted = [[run[0] - 20000 * page, *run[1:]] for run in calls[at]["full"]]
        calls[at] = calls[at] | {"full": shifted}
        result = replay_allocator(write(root, with_calls(draft, calls)))
        assert (result.first, "alloc_out_of_range" in verdicts(result)) == (at, True)

    @pytest.mark.slow
    @few
    @cases
    def test_an_swa_slot_that_is_another_requests(self, root, seed, pick, page, need_sort):
        draft = draft_of(lived(seed, page, need_sort))
        calls = list(draft.events)
        at = chosen(calls, pick, *HAND_OUTS)
        held = [list(expand(call["swa"])) for call in calls[:at] if call["call"] in HAND_OUTS and call.get("full")]
        given_back = {slot for call in calls[:at] if call["call"] == "free" for slot in expand(call["swa"])}
        others = [slots for slots in held if slots and not given_back & set(slots)]
        assume(others)
        count = sum(run[1] for run in calls[at]["swa"])
        calls[at] = calls[at] | {"swa": runs_of(np.resize(others[0], count))}
        result = replay_allocator(write(root, with_calls(draft, calls)))
        assert result.first == at
        assert verdicts(result) & {"alloc_overlap", "pool_alias"}

    @few
    @cases
    def test_a_mapping_that_somebody_else_wrote(self, root, seed, pick, page, need_sort):
        draft = draft_of(lived(seed, page, need_sort))
        calls = list(draft.events)
        at = chosen(calls, pick, "free")
        calls[at] = calls[at] | {"swa": [[0, sum(run[1] for run in calls[at]["swa"]), 0]]}
        result = replay_allocator(write(root, with_calls(draft, calls)))
        assert (result.first, "mapping_changed" in verdicts(result)) == (at, True)


@pytest.mark.usefixtures("probe")
class TestTheRecord:
    @pytest.mark.parametrize("page", [16, 1])
    def test_a_long_history_begins_in_a_later_state(self, root, page, monkeypatch):
        monkeypatch.setattr(allocator_history, "MAX_CALLS", 7)
        result = replay_allocator(write(root, draft_of(lived(3, page))))
        assert result.fine
        assert result.start_known
        assert result.calls_before > 0
        assert 7 <= len(result.calls) <= 14
        assert result.in_use_at_start != (0, 0)
        assert result.exact == result.compared > 0

    def test_the_command_line_exits_1_where_all_hold_and_the_dump_says_otherwise(self, root, capsys):
        assert app.main(["replay", str(write(root, draft_of(lived(3))).path)]) == 1
        out = capsys.readouterr().out
        assert out.startswith("EVERY INVARIANT HOLDS  ")
        assert "the dump's own verdict: disagrees: the dump says double_free of its last call" in out

    def test_slots_bound_it_as_well(self, root, monkeypatch):
        monkeypatch.setattr(allocator_history, "MAX_SLOTS", 50)
        result = replay_allocator(write(root, draft_of(lived(3))))
        assert result.fine
        assert result.calls_before > 0

    def test_a_clear_begins_it_anew(self, root):
        allocator = lived(3)
        allocator.clear()
        extend(allocator, 5)
        result = replay_allocator(write(root, draft_of(allocator)))
        assert (len(result.calls), result.in_use_at_start, result.fine) == (1, (0, 0), True)

    def test_without_its_beginning_it_is_judged_by_the_calls_alone(self, root):
        draft = draft_of(lived(3))
        calls = with_calls(draft, list(draft.events)).events[5:]
        result = replay_allocator(write(root, replace(draft, events=calls, dropped_events=5)))
        assert (result.start_known, result.fine, result.agreement) == (False, True, "cannot be judged")
        assert "the first calls were cut" in result.notes[0]

    def test_a_start_that_was_cut_is_not_believed(self, root):
        draft = draft_of(lived(3))
        tensors = {name: value for name, value in draft.tensors.items() if name != "start_mapping"}
        result = replay_allocator(write(root, replace(draft, tensors=tensors)))
        assert (result.start_known, result.agreement) == (False, "cannot be judged")

    def test_a_dump_without_calls(self, root):
        draft = draft_of(make_allocator(16))
        with pytest.raises(NothingChecked, match="holds no calls to replay"):
            replay_allocator(write(root, draft))


@pytest.mark.usefixtures("probe")
class TestWhatComesFromAnywhere:
    @pytest.mark.sampled(3)
    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"number": 7}, "line 2 is call 7, after call 0"),
            ({"full": [[16, 3]]}, "lists belong together and differ in length"),
            ({"full": [[16]]}, "is no allocator call: full: Value error, .16. is no run"),
            ({"full": [[16, -1]]}, "is no run"),
            ({"full": [[1.0, 2]]}, "has a full of another type"),
            ({"call": "realloc"}, "is no allocator call: call"),
            ({"free_before": [1]}, "is no allocator call: free_before"),
            ({"seq_lens": [1, 2, 3]}, "differ in length"),
            ({"swa_tail": 10**18}, "of its"),
        ],
    )
    def test_a_call_that_contradicts_itself(self, root, change, said):
        draft = draft_of(lived(3))
        calls = list(draft.events)
        calls[1] = calls[1] | change
        changed = replace(draft, events=calls)
        with pytest.raises(DumpUnreadable, match=said):
            replay_allocator(write(root, changed))

    def test_more_slots_than_are_replayed(self, root):
        draft = draft_of(lived(3))
        calls = list(draft.events)
        calls[1] = calls[1] | {"full": [[16, 10**18]], "swa": [[16, 10**18]]}
        with pytest.raises(EnvironmentCannot, match="too large to replay: call 1 names 1000000000000000000 slots"):
            replay_allocator(write(root, with_calls(draft, calls)))

    def test_any_value_anywhere_is_judged_or_refused(self, root):
        draft = draft_of(lived(3))

        @given(at=st.integers(0, len(draft.events) - 1), name=st.sampled_from(FIELDS), value=ANYTHING)
        @settings(max_examples=60, deadline=None)
        def check(at, name, value):
            calls = list(draft.events)
            calls[at] = calls[at] | {name: value}
            try:
                result = replay_allocator(write(root, with_calls(draft, calls)))
            except (DumpError, EnvironmentCannot):
                return
            json.dumps(result.model_dump(mode="json"), allow_nan=False)

        check()


@given(st.lists(st.integers(0, 6) | st.integers(-5, 10**9), max_size=60))
def test_runs_stand_for_their_values(values):
    runs = runs_of(np.array(values, np.int64))
    assert list(expand(runs)) == values


def test_runs_are_few():
    values = np.concatenate([np.zeros(300), np.arange(16, 400), [7]]).astype(np.int64)
    assert runs_of(values) == [[0, 300, 0], [16, 384], [7, 1]]
