"""Checks that a CUDA graph holds: launched by a replay, read at the step's synchronisation, shared by two replays.

Without CUDA nothing can be captured: here `record` launches at once, and the test launches again for each replay.
"""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.managers.schedule_batch import FINISH_ABORT, Req
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.sampling.sampling_params import SamplingParams

from gemma4_dumps.store import DumpStore
from gemma4_runtime import steps
from gemma4_runtime.degraded import KEY, Degraded
from gemma4_runtime.indices import report, watch
from gemma4_runtime.indices.build import Build, IndexArray, Use
from gemma4_runtime.indices.check import Checker, check_build
from gemma4_runtime.probes import page_table_steps
from gemma4_runtime.steps import Running, Step

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")

PAGES = 5


def request(name):
    parameters = SamplingParams(max_new_tokens=8)
    parameters.normalize(None)
    return Req(name, "", [5, 6, 7], parameters, vocab_size=512)


@pytest.fixture
def table():
    return torch.tensor([[1, 2], [3, 4]], dtype=torch.int32)


@pytest.fixture
def checker(table):
    backend = SimpleNamespace(page_size=16)
    build = Build(
        backend=backend,
        backend_name="trtllm_mha",
        role="draft",
        site="here",
        forward_mode="DECODE",
        bucket=2,
        page_size=16,
        arrays=(IndexArray("page_table", table, "full", "metadata.page_table"),),
        uses=(Use("page_table", "full", PAGES, 5),),
        pool=SimpleNamespace(),
        cache_seqlens=torch.tensor([32, 32], dtype=torch.int32),
        request_slots=torch.tensor([1, 2]),
        query_tokens=1,
    )
    return Checker(build)


class Server:
    """Two steps of a scheduler, one after the other or, with overlap, the second launched before the first is read."""

    def __init__(self):
        self.forward_ct = 0
        self.server_args = SimpleNamespace(tp_size=1, pp_size=1, disaggregation_mode="null")

    def run(self, requests, replay):
        batch = SimpleNamespace(reqs=requests, chunked_req=None, forward_mode=ForwardMode.DECODE)

        def original(scheduler, batch):
            self.forward_ct += 1
            replay()
            return SimpleNamespace()

        return batch, page_table_steps.around_run_batch(original, self, batch)

    def read(self, batch, result):
        def original(scheduler, batch, result):
            for one in batch.reqs:
                page_table_steps.before_update_finish_state(one)
                one.output_ids.append(9)
                one.update_finish_state()

        page_table_steps.around_process_batch_result(original, self, batch, result)


def aborted(*requests):
    return [one.rid for one in requests if isinstance(one.finished_reason, FINISH_ABORT)]


def replay_of(checker, recorded, table, page=None):
    """Say what a replay does: SGLang fills the static arrays, the graph checks them, the hook leaves a read."""

    def replay():
        table.copy_(torch.tensor([[1, 2], [3, 4]]))
        if page is not None:
            table[1, 0] = page
        recorded._prepared.launch()
        check_build(checker)

    return replay


@pytest.fixture
def store(attach):
    return DumpStore(attach("contain", "page-table"))


@pytest.fixture
def recorded(store, checker):
    made = checker.prepare_recording()
    assert made is not None
    assert checker.recorded is None, "not before it is in the graph"
    made.record()
    return made


class TestOneStepAtATime:
    def test_a_clean_replay_is_silent(self, checker, recorded, table, store):
        server, (a, b) = Server(), map(request, "ab")
        server.read(*server.run([a, b], replay_of(checker, recorded, table)))
        assert aborted(a, b) == []
        assert store.list() == []
        assert table.tolist() == [[1, 2], [3, 4]]

    def test_a_bad_page_is_neutralised_dumped_and_ends_its_request(self, checker, recorded, table, store):
        server, (a, b) = Server(), map(request, "ab")
        server.read(*server.run([a, b], replay_of(checker, recorded, table, page=PAGES)))
        assert aborted(a, b) == ["b"]
        assert table.tolist() == [[1, 2], [0, 4]]
        (entry,) = store.list()
        assert (entry.manifest.verdict, entry.manifest.action) == ("out_of_range", "contained")
        assert entry.manifest.offences[0].value == PAGES

    def test_what_was_found_once_is_not_found_again(self, checker, recorded, table, store):
        server, (a, b, c, d) = Server(), map(request, "abcd")
        server.read(*server.run([a, b], replay_of(checker, recorded, table, page=PAGES)))
        server.read(*server.run([c, d], replay_of(checker, recorded, table)))
        assert aborted(c, d) == []
        assert len(store.list()) == 1

    def test_the_host_launches_nothing(self, checker, recorded, table):
        checker.launch = pytest.fail
        server, (a, b) = Server(), map(request, "ab")
        server.read(*server.run([a, b], replay_of(checker, recorded, table)))


class TestOverlap:
    def test_the_next_steps_finding_ends_the_requests_of_both(self, checker, recorded, table, store):
        server, (a, b, c, d) = Server(), map(request, "abcd")
        first = server.run([a, b], replay_of(checker, recorded, table))
        second = server.run([c, d], replay_of(checker, recorded, table, page=PAGES))
        server.read(*first)
        server.read(*second)
        # Row 1 of either step: nothing in the result says which.
        assert aborted(a, b, c, d) == ["b", "d"]
        assert len(store.list()) == 1

    def test_a_next_step_that_has_not_launched_this_check_is_left_alone(self, checker, recorded, table):
        server, (a, b, c, d) = Server(), map(request, "abcd")
        first = server.run([a, b], replay_of(checker, recorded, table, page=PAGES))
        prefill = server.run([c, d], lambda: None)
        server.read(*first)
        server.read(*prefill)
        assert aborted(a, b, c, d) == ["b"]

    def test_no_request_that_may_be_wrong_goes_on(self, checker, recorded, table):
        server, (a, b, c, d) = Server(), map(request, "abcd")
        first = server.run([a, b], replay_of(checker, recorded, table, page=PAGES))
        second = server.run([c, d], replay_of(checker, recorded, table))
        server.read(*first)
        server.read(*second)
        assert "b" in aborted(a, b, c, d)


class TestClamp:
    """In place of an end, a mark."""

    @pytest.fixture
    def marks(self, attach, monkeypatch):
        """Return the process's marks, fresh."""
        attach("off", "clamp")
        monkeypatch.setattr(report, "DEGRADED", fresh := Degraded())
        return fresh

    @pytest.fixture
    def recorded(self, marks, checker):
        (made := checker.prepare_recording()).record()
        return made

    def entries(self, marks, *requests):
        """Return the entries of each marked request."""
        rids = [one.rid for one in requests]
        sent = SimpleNamespace(rids=rids, cached_tokens=[0] * len(rids), customized_info={})
        marks.outputs(sent)
        found = zip(rids, sent.customized_info.get(KEY, [[]] * len(rids)), strict=True)
        return {rid: mark[-1]["clamped_entries"] for rid, mark in found if mark}

    def test_the_next_steps_finding_marks_the_requests_of_both(self, checker, recorded, table, marks):
        server, (a, b, c, d) = Server(), map(request, "abcd")
        first = server.run([a, b], replay_of(checker, recorded, table))
        second = server.run([c, d], replay_of(checker, recorded, table, page=PAGES))
        server.read(*first)
        server.read(*second)
        assert self.entries(marks, a, b, c, d) == {"b": 1, "d": 1}
        assert aborted(a, b, c, d) == []

    def test_a_next_step_that_has_not_launched_this_check_is_left_alone(self, checker, recorded, table, marks):
        server, (a, b, c, d) = Server(), map(request, "abcd")
        first = server.run([a, b], replay_of(checker, recorded, table, page=PAGES))
        prefill = server.run([c, d], lambda: None)
        server.read(*first)
        server.read(*prefill)
        assert self.entries(marks, a, b, c, d) == {"b": 1}

    def test_a_request_of_both_steps_is_marked_once(self, checker, recorded, table, marks):
        server, (a, b) = Server(), map(request, "ab")
        first = server.run([a, b], replay_of(checker, recorded, table, page=PAGES))
        second = server.run([a, b], replay_of(checker, recorded, table))
        server.read(*first)
        server.read(*second)
        assert self.entries(marks, a, b) == {"b": 1}


def die():
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


class TestCrashes:
    """A step that the device died of comes to light later with overlap; what it left is read then."""

    def test_while_its_result_is_processed(self, checker, recorded, table, store):
        server = Server()
        batch, result = server.run([request("a"), request("b")], replay_of(checker, recorded, table, page=PAGES))
        with pytest.raises(RuntimeError, match="illegal memory access"):
            page_table_steps.around_process_batch_result(lambda *_: die(), server, batch, result)
        assert len(store.list()) == 1

    def test_while_the_step_before_is_processed(self, checker, recorded, table, store):
        server = Server()
        first = server.run([request("a"), request("b")], replay_of(checker, recorded, table))
        server.run([request("c"), request("d")], replay_of(checker, recorded, table, page=PAGES))
        with pytest.raises(RuntimeError, match="illegal memory access"):
            page_table_steps.around_process_batch_result(lambda *_: die(), server, *first)
        assert len(store.list()) == 1

    def test_while_the_next_step_is_launched(self, checker, recorded, table, store):
        server = Server()
        server.run([request("a"), request("b")], replay_of(checker, recorded, table, page=PAGES))
        with pytest.raises(RuntimeError, match="illegal memory access"):
            server.run([request("c"), request("d")], die)
        assert len(store.list()) == 1


class TestWhoChecksAReplay:
    """The graph does, if the pools are those of its capture; else the host has to look."""

    BATCH = SimpleNamespace(batch_size=2, forward_mode=ForwardMode.DECODE)

    @pytest.fixture
    def backend(self, checker):
        pool, swa = SimpleNamespace(), SimpleNamespace()
        kept = watch._Kept((pool, swa), (0,), checker)
        key = (2, int(ForwardMode.DECODE))
        return SimpleNamespace(token_to_kv_pool=pool, _swa_kv_pool=swa, **{watch._CAPTURED: {key: kept}})

    @pytest.fixture(autouse=True)
    def in_a_step(self):
        with Running(Step(1, ())):
            yield

    def test_the_graph(self, backend, recorded):
        assert watch.leave_to_graph(backend, self.BATCH, backend._swa_kv_pool)

    def test_the_host_before_the_check_is_in_the_graph(self, backend):
        assert not watch.leave_to_graph(backend, self.BATCH, backend._swa_kv_pool)

    def test_the_host_if_the_pool_in_force_is_another(self, backend, recorded):
        backend.token_to_kv_pool = SimpleNamespace()
        assert not watch.leave_to_graph(backend, self.BATCH, backend._swa_kv_pool)

    def test_the_host_outside_a_step_where_nobody_reads_later(self, backend, recorded, monkeypatch):
        monkeypatch.setattr(steps, "running", None)
        assert not watch.leave_to_graph(backend, self.BATCH, backend._swa_kv_pool)

    def test_both_if_the_pool_is_another_and_what_the_graph_did_is_told(self, backend, checker, recorded, table, store):
        """The graph goes by its capture: it neutralises what the pool in force would allow."""
        backend.token_to_kv_pool = SimpleNamespace()
        larger = Build(**{**vars(checker.build), "uses": (Use("page_table", "full", 99, 5),)})
        batch = SimpleNamespace(**vars(self.BATCH), req_pool_indices=larger.request_slots, out_cache_loc=None)
        server, (a, b) = Server(), map(request, "ab")

        def replay():
            table[1, 0] = PAGES
            watch.watch_graph(backend, batch, lambda new: larger, False, backend._swa_kv_pool)
            recorded._prepared.launch()

        server.read(*server.run([a, b], replay))
        assert table[1, 0] == 0
        assert len(store.list()) == 1
        assert aborted(a, b) == ["b"]

    def test_the_host_if_the_translating_pool_is_another(self, backend, recorded):
        assert not watch.leave_to_graph(backend, self.BATCH, None)

    def test_the_host_in_another_bucket(self, backend, recorded):
        other = SimpleNamespace(batch_size=4, forward_mode=ForwardMode.DECODE)
        assert not watch.leave_to_graph(backend, other, backend._swa_kv_pool)

    def test_the_host_where_ids_of_another_pool_have_to_be_reported_each_time(self, backend, checker, store):
        checker.wrong_uses = checker.build.uses
        checker.prepare_recording().record()
        assert not watch.leave_to_graph(backend, self.BATCH, backend._swa_kv_pool)


def test_a_check_of_nothing_is_not_recorded(store, checker):
    build = checker.build
    nobody = Checker(Build(**{**vars(build), "uses": ()}))
    assert nobody.prepare_recording() is None
