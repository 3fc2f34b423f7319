"""Real backends in their subprocesses, as far as a CPU goes: what runs, what raises, what dies, what is refused."""

import numpy as np
import pytest

from dump_examples import list_draft, paged_draft, written
from gemma4_triage.replay.backend_run import backend_call
from gemma4_triage.replay.exchange import read_call, read_output, write_call, write_output
from gemma4_triage.replay.options import ReplayOptions
from gemma4_triage.replay.outcome import Status
from gemma4_triage.replay.prepare import prepare
from gemma4_triage.replay.rebuild import rebuild
from gemma4_triage.replay.run import replay
from gemma4_triage.replay.tables import AS_DUMPED, CLAMP, CONTAIN, INTENDED

OPTIONS = ReplayOptions()
# Row 0 is right; row 1 steps one page outside; the window hides a bad entry of row 2.
NEAR = paged_draft([[3, 4, 5], [6, 65, 8], [70, 9, 10]], [12, 11, 12], translated=[[3, 4, 5], [6, 7, 8], [2, 9, 10]])
FAR = 2**30


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    """Have no GPU: what one does is in tests/gpu."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def outcome_of(tmp_path, draft, backend, **options):
    (found,) = replay(written(tmp_path, draft), ReplayOptions(**options), ["reference", backend]).backends
    return found, {variant.variant: variant for variant in found.variants}


class TestTorch:
    def test_it_agrees_with_fp64_and_its_gather_checks_bounds(self, tmp_path):
        found, by_name = outcome_of(tmp_path, NEAR, "torch", window_left=6)
        assert (found.refusal, found.device, found.dtype) == (None, "cpu", "float32")
        for name in (INTENDED, CONTAIN, CLAMP):
            assert by_name[name].status is Status.RAN
            assert by_name[name].from_table.fine
        assert by_name[INTENDED].from_intended.fine
        assert by_name[CONTAIN].from_intended.bad_rows == (1,)
        assert (by_name[AS_DUMPED].status, by_name[AS_DUMPED].from_table) == (Status.RAISED, None)
        assert "index out of range" in by_name[AS_DUMPED].detail
        assert found.wrong

    @pytest.mark.slow
    def test_a_list_of_slots(self, tmp_path):
        found, by_name = outcome_of(tmp_path, list_draft([9, 4, 17, 30, 31], [0, 3, 5]), "torch")
        assert all(variant.status is Status.RAN and variant.from_table.fine for variant in by_name.values())
        assert not found.wrong


@pytest.mark.slow
@pytest.mark.releases("0.5.13.post1", "0.5.23")
class TestTriton:
    def test_a_far_page_ends_the_process_and_is_a_result(self, tmp_path):
        """SGLang's own kernel under the interpreter, which follows page ids by address: a real fault."""
        draft = paged_draft([[3, 4], [6, FAR]], [8, 5], translated=[[3, 4], [6, 7]])
        found, by_name = outcome_of(tmp_path, draft, "triton")
        assert (found.refusal, found.dtype) == (None, "float32")
        for name in (INTENDED, CONTAIN, CLAMP):
            assert by_name[name].status is Status.RAN
            assert by_name[name].from_table.fine
        assert by_name[CONTAIN].from_intended.bad_rows == (1,)
        assert not by_name[CONTAIN].wrong
        assert (by_name[AS_DUMPED].status, by_name[AS_DUMPED].detail) == (Status.ILLEGAL_ACCESS, "ended by SIGSEGV")
        assert found.wrong


class TestRefusals:
    @pytest.mark.parametrize("backend", ["flashinfer", "trtllm_mha"])
    def test_a_backend_that_needs_cuda(self, tmp_path, backend):
        found, _ = outcome_of(tmp_path, NEAR, backend)
        assert (found.missing, found.refusal, found.wrong) == (True, "needs a CUDA device", False)

    def test_a_time_limit(self, tmp_path):
        (found,) = replay(written(tmp_path, NEAR), OPTIONS, ["torch"], timeout_s=0.05).backends
        assert (found.missing, found.refusal) == (True, "did not start: no result within the time limit")


class TestExchange:
    def test_a_call_goes_through_files_unchanged(self, tmp_path):
        dump = written(tmp_path / "dumps", NEAR)
        call = rebuild(dump, ReplayOptions(window_left=6))
        sent = backend_call(prepare(dump, call, OPTIONS))
        write_call(tmp_path, sent)
        got = read_call(tmp_path)
        assert (got.variants, got.scale, got.window_left, got.paged) == (sent.variants, sent.scale, 6, True)
        for name in ("keys", "values", "queries", "lengths"):
            assert np.array_equal(getattr(got, name), getattr(sent, name))
        for name in sent.variants:
            assert np.array_equal(got.tables[name], sent.tables[name])

    def test_places_keep_the_distance_and_the_window_hides_what_is_inside(self, tmp_path):
        dump = written(tmp_path, NEAR)
        call = rebuild(dump, ReplayOptions(window_left=4))
        sent = backend_call(prepare(dump, call, OPTIONS))
        table = sent.tables[AS_DUMPED]
        # Pages 0, 4, 5, 7 to 10 and 64, and one behind the buffer: the rest of the pool is not there.
        assert (sent.inside, sent.before, sent.keys.shape[0]) == (8, 0, 9)
        # Column 0 is hidden: page 70 of 65 stays outside, pages inside are the null page.
        assert table[:, 0].tolist() == [0, 0, 8 + 5]
        assert table[:, 1:].tolist() == [[1, 2], [8, 4], [5, 6]]
        assert sent.slots(AS_DUMPED)[2].tolist() == [5 * 4 + 3, 24, 25, 26, 27]

    def test_an_output_is_whole_or_not_there(self, tmp_path):
        assert read_output(tmp_path, 3) is None
        write_output(tmp_path, 3, np.ones((2, 3), np.float32))
        assert np.array_equal(read_output(tmp_path, 3), np.ones((2, 3)))
