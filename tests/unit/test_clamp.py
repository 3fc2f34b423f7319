"""`clamp`: what becomes of bad entries, which requests are marked, which servers and settings it is refused beside."""

import logging
from types import SimpleNamespace

import pytest
import torch
from sglang.srt.disaggregation.utils import FAKE_BOOTSTRAP_HOST
from sglang.srt.managers.schedule_batch import FINISH_LENGTH, Req
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import ServerArgs

import slot_list_backends
from gemma4_dumps.reader import read_dump
from gemma4_dumps.store import DumpStore
from gemma4_repro.toys.locate import toy_path
from gemma4_runtime import degraded
from gemma4_runtime.catalog import CATALOG
from gemma4_runtime.degraded import KEY, LINES_PER_MINUTE, Degraded
from gemma4_runtime.errors import SettingsError
from gemma4_runtime.fixes import clamp
from gemma4_runtime.indices import report
from gemma4_runtime.selection import select
from gemma4_runtime.settings import read_settings
from gemma4_runtime.steps import Concerned, Running, Step
from slot_list_backends import triton_backends
from trtllm_world import PAGE, STAND_INS, batch, build, fill, trtllm_backend

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")


def request(name, **more):
    parameters = SamplingParams(max_new_tokens=8)
    parameters.normalize(None)
    return Req(name, "", [5, 6, 7], parameters, vocab_size=512, **more)


def payload(**cached):
    rids = list(cached)
    return SimpleNamespace(
        rids=rids, cached_tokens=list(cached.values()), finished_reasons=[None] * len(rids), customized_info={}
    )


def marks_of(sent):
    return dict(zip(sent.rids, (mark[-1] if mark else None for mark in sent.customized_info[KEY]), strict=True))


@pytest.fixture
def marks(monkeypatch):
    """Return the process's marks, fresh."""
    fresh = Degraded()
    for module in (degraded, report, clamp):
        monkeypatch.setattr(module, "DEGRADED", fresh)
    return fresh


@pytest.fixture
def backend(swa_allocator):
    return trtllm_backend(swa_allocator)


class TestEntries:
    """SGLang's own backend on real pools: request b of three has two entries past the end, the others are right."""

    LENGTHS = (33, 100, 64)

    @pytest.fixture
    def step(self, backend, swa_allocator):
        requests = tuple(request(name) for name in "abc")
        fill(backend, swa_allocator, list(self.LENGTHS))
        for position in (64, 80):
            swa_allocator.full_to_swa_index_mapping[backend.req_to_token[2, position].long()] = 70 * PAGE
        return Step(7, requests)

    def settle(self, backend, step, attach, *modes):
        attach(*modes, "clamp", *STAND_INS)
        with Running(step):
            build(backend, batch(list(self.LENGTHS)))
            step.settle()

    def test_only_the_request_concerned_is_marked(self, attach, backend, step, marks):
        self.settle(backend, step, attach, "off")
        assert backend.forward_metadata.swa_page_table[1, 4:6].tolist() == [0, 0]
        assert (backend.forward_metadata.swa_page_table[[0, 2], :2] != 0).all()
        marks.outputs(sent := payload(a=0, b=0, c=0))
        assert marks_of(sent) == {
            "a": None,
            "b": {
                "clamped_entries": 2,
                "first_step": 7,
                "last_step": 7,
                "roles": ["target"],
                "from_prefix_cache": False,
            },
            "c": None,
        }
        assert [one.to_finish for one in step.requests] == [None] * 3
        assert [one.skip_radix_cache_insert for one in step.requests] == [False, True, False]

    @pytest.mark.parametrize(
        "state", [{"finished_reason": FINISH_LENGTH(8)}, {"is_retracted": True}], ids=["finished", "retracted"]
    )
    def test_a_request_that_does_not_go_on_is_not_marked(self, attach, backend, step, marks, state):
        """Mark none whose step is read after its last reply, or that are computed anew from its prompt."""
        for name, value in state.items():
            setattr(step.requests[1], name, value)
        self.settle(backend, step, attach, "off")
        marks.outputs(sent := payload(a=0, b=0, c=0))
        assert sent.customized_info == {}
        assert not step.requests[1].skip_radix_cache_insert
        assert (marks.document()["requests"], marks.document()["clamped_entries"]) == (0, 2)

    def test_alone_it_writes_no_dump(self, attach, backend, step, marks, tmp_path):
        self.settle(backend, step, attach, "off")
        assert not (tmp_path / "dumps").exists() or DumpStore(tmp_path / "dumps").list() == []

    def test_beside_log_it_does(self, attach, backend, step, marks, tmp_path):
        self.settle(backend, step, attach, "log", "page-table")
        (entry,) = DumpStore(tmp_path / "dumps").list()
        manifest = read_dump(entry.path).manifest
        assert (manifest.mode, manifest.action, manifest.offence_count) == ("log", "contained", 2)
        # Both patches share the hooks: a build is checked once.
        assert marks.document()["clamped_entries"] == 2

    def test_without_it_the_entries_stay(self, attach, backend, step, marks):
        attach("off", *STAND_INS)
        build(backend, batch(list(self.LENGTHS)))
        assert backend.forward_metadata.swa_page_table[1, 4:6].tolist() == [70, 70]

    def test_the_allocators_list_is_left_alone(self, attach, backend, swa_allocator, marks):
        attach("off", "clamp", *STAND_INS)
        fill(backend, swa_allocator, [33])
        forward_batch = batch([33])
        forward_batch.out_cache_loc = locations = torch.tensor([170 * PAGE])
        backend.use_sliding_window_kv_pool = False
        build(backend, forward_batch)
        assert forward_batch.out_cache_loc.tolist() == [0]
        assert locations.tolist() == [170 * PAGE]


def test_a_drafts_candidates_are_rows_of_one_request(attach, swa_allocator, marks, monkeypatch):
    """Count each read: with top-k 2, rows 0 and 1 are of request a, and both read the same entries."""
    attach("off", "clamp", "host-alloc-kernels")
    with triton_backends(swa_allocator, monkeypatch) as make, Running(step := Step(7, (request("a"), request("b")))):
        backend = make(is_draft_worker=True, topk=2)
        slot_list_backends.fill(backend, [100, 100])
        table = slot_list_backends.rows_of(backend)
        # Before the window: one read per row, by a full layer.
        table[1, 3] = table[2, 3] = table[2, 5] = -1
        backend.init_forward_metadata(slot_list_backends.batch([100] * 4, rows=[1, 1, 2, 2]))
        step.settle()
    marks.outputs(sent := payload(a=0, b=0))
    assert {name: mark["clamped_entries"] for name, mark in marks_of(sent).items()} == {"a": 2, "b": 4}


class TestMarks:
    def test_steps_add_up(self, marks):
        one = request("a")
        for step, count in ((3, 2), (4, 0), (9, 5)):
            marks.mark(Concerned(step, ((0, one),), ()), {0: count}, "draft", "said")
        marks.mark(Concerned(9, ((0, one),), ()), {0: 1}, "target", "said")
        marks.outputs(sent := payload(a=0))
        mark = marks_of(sent)["a"]
        assert (mark["clamped_entries"], mark["first_step"], mark["last_step"]) == (8, 3, 9)
        assert mark["roles"] == ["draft", "target"]
        assert marks.document() == {
            "requests": 1,
            "clamped_entries": 8,
            "findings": 4,
            "prefix_cache_is_suspect": False,
        }

    def test_what_a_draft_read_spoils_no_cache(self, marks):
        one = request("a")
        marks.mark(Concerned(3, ((0, one),), ()), {0: 1}, "draft", "said")
        assert not one.skip_radix_cache_insert

    def test_a_retracted_request_is_computed_anew_and_stays_marked(self, marks):
        one = request("a")
        marks.mark(Concerned(3, ((0, one),), ()), {0: 1}, "target", "said")
        clamp.after_retract(None, one)
        assert not one.skip_radix_cache_insert
        marks.outputs(sent := payload(a=0))
        assert marks_of(sent)["a"]["clamped_entries"] == 1

    def test_what_sglang_keeps_out_of_the_cache_stays_out_after_a_retraction(self, marks):
        fake = request("a", bootstrap_host=FAKE_BOOTSTRAP_HOST)
        clamp.after_retract(None, fake)
        assert fake.skip_radix_cache_insert
        marks.mark(Concerned(3, ((0, fake),), ()), {0: 1}, "target", "said")
        clamp.after_retract(None, fake)
        assert fake.skip_radix_cache_insert

    def test_a_later_retraction_undoes_only_what_was_done_since(self, marks):
        one = request("a")
        marks.mark(Concerned(3, ((0, one),), ()), {0: 1}, "target", "said")
        clamp.after_retract(None, one)
        one.skip_radix_cache_insert = True
        clamp.after_retract(None, one)
        assert one.skip_radix_cache_insert

    def test_a_chunk_in_the_prefix_cache_marks_whoever_finds_it(self, marks):
        one = request("a")
        marks.mark(Concerned(3, ((0, one),), (one,)), {0: 1}, "target", "said")
        # SGLang goes on to the next chunk through the cache.
        assert not one.skip_radix_cache_insert
        marks.outputs(sent := payload(a=0, b=16, c=0))
        assert marks_of(sent)["b"]["from_prefix_cache"]
        assert marks_of(sent)["c"] is None
        clamp.after_flush(False, None)
        assert marks.document()["prefix_cache_is_suspect"]
        clamp.after_flush(True, None)
        marks.outputs(sent := payload(b=16))
        assert sent.customized_info == {}

    def test_an_id_that_is_used_again_is_another_request(self, marks):
        one = request("a")
        marks.mark(Concerned(3, ((0, one),), ()), {0: 1}, "target", "said")
        del one
        again = request("a")
        marks.outputs(sent := payload(a=0))
        assert sent.customized_info == {}
        assert again.rid == "a"

    def test_the_log_is_rate_limited_and_says_how_much_it_left_out(self, marks, caplog):
        one = request("a")
        with caplog.at_level(logging.ERROR):
            for step in range(100):
                marks.mark(Concerned(step, ((0, one),), ()), {0: 1}, "target", "said")
        assert len(caplog.messages) == LINES_PER_MINUTE
        assert "DEGRADED: a" in caplog.messages[0]
        assert marks.document()["findings"] == 100


class TestRanks:
    MODEL = str(toy_path("toy-e4b"))

    @pytest.mark.parametrize(
        ("sizes", "said"),
        [
            ({"tp_size": 2}, "--tp-size 2"),
            ({"pp_size": 2}, "--pp-size 2"),
            ({"tp_size": 4, "pp_size": 2}, "--tp-size 4 and --pp-size 2"),
        ],
        ids=str,
    )
    def test_several_are_refused(self, attach, sizes, said):
        attach("off", "clamp")
        with pytest.raises(SettingsError, match=rf"clamp, which does not serve {said}: .*; leave clamp out of GEMMA4_"):
            self.started(sizes)

    def started(self, sizes: dict) -> None:
        """Make arguments and check them: 0.5.23 keeps what it is given, and looks at it when a server starts."""
        made = ServerArgs(model_path=self.MODEL, device="cpu", attention_backend="triton", **sizes)
        made.check_server_args()

    def test_data_parallel_ranks_have_requests_of_their_own(self, attach):
        attach("off", "clamp")
        made = ServerArgs(model_path=self.MODEL, device="cpu", attention_backend="triton", dp_size=2)
        assert (made.tp_size, made.pp_size, made.dp_size) == (1, 1, 2)


class TestSettings:
    def chosen(self, monkeypatch, **variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        return {patch.id for patch in select(read_settings())}

    def test_it_is_no_default(self):
        (patch,) = [patch for patch in CATALOG if patch.id == "clamp"]
        assert not patch.default

    @pytest.mark.parametrize("mode", ["trap", "contain", "1"])
    def test_what_stops_a_request_is_refused_beside_it(self, monkeypatch, mode):
        with pytest.raises(SettingsError, match=rf"SGLANG_TRTLLM_MHA_DEBUG='{mode}'.*set SGLANG_TRTLLM_MHA_DEBUG=log"):
            self.chosen(monkeypatch, GEMMA4_TRIAGE_PATCHES="default,+clamp", SGLANG_TRTLLM_MHA_DEBUG=mode)

    def test_other_probes_may_trap(self, monkeypatch):
        found = self.chosen(
            monkeypatch,
            GEMMA4_TRIAGE_PATCHES="clamp",
            SGLANG_TRTLLM_MHA_DEBUG="trap",
            GEMMA4_TRIAGE_PROBES="swa-allocator",
        )
        assert found == {"clamp", "swa-allocator"}

    def test_log_goes_with_it(self, monkeypatch):
        found = self.chosen(monkeypatch, GEMMA4_TRIAGE_PATCHES="clamp", SGLANG_TRTLLM_MHA_DEBUG="log")
        assert {"clamp", "page-table"} <= found

    def test_no_word_of_the_mode_asks_for_it(self, monkeypatch):
        with pytest.raises(SettingsError, match="cannot be read"):
            self.chosen(monkeypatch, SGLANG_TRTLLM_MHA_DEBUG="clamp")
