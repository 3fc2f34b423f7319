"""Probe process-end on SGLang's own scheduler loop, and what `diagnose` makes of the marks that it leaves."""

import json
import os
import subprocess
import sys
from array import array
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.managers import scheduler as scheduler_module
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.managers.tokenizer_manager import SignalHandler
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.sampling.sampling_params import SamplingParams

from diagnose_examples import altered, corpus_dump, guards_only, of
from gemma4_dumps.reader import read_dump
from gemma4_dumps.store import DumpStore
from gemma4_runtime.errors import TrappedViolation
from gemma4_runtime.manifest import process_identity
from gemma4_runtime.probes import process_end
from gemma4_runtime.release.requests import held
from gemma4_triage.diagnose.conclude import conclude
from gemma4_triage.diagnose.guards import Guards
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.diagnose.process_state import State, state_of, state_of_incident
from gemma4_triage.readers.reading import Identity, Reading

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")

LENGTH = 20


def scheduler_with(batch):
    """Return a scheduler that has nothing but what its loop and the probe read."""
    scheduler = Scheduler.__new__(Scheduler)
    scheduler.device, scheduler.forward_ct = "cpu", 7
    scheduler.device_module = torch.cpu
    # A scheduler of 0.5.23 has these by the time that its loop begins.
    scheduler.schedule_stream = torch.cpu.Stream()
    scheduler.metrics_reporter = SimpleNamespace(start_scheduler_time_accounting=lambda: None)
    scheduler.cur_batch = scheduler.running_batch = scheduler.last_batch = batch
    scheduler.req_to_token_pool = batch.req_to_token_pool
    return scheduler


def decode_batch():
    pool = ReqToTokenPool(4, 64, "cpu", enable_memory_saver=False)
    request = Req("1", "", array("q", range(LENGTH)), SamplingParams())
    record = held(request)
    record.req_pool_idx, record.kv_committed_len, record.kv_allocated_len = 2, LENGTH, LENGTH
    pool.req_to_token[2, :LENGTH] = torch.arange(100, 100 + LENGTH, dtype=torch.int32)
    return ScheduleBatch(
        reqs=[request],
        req_to_token_pool=pool,
        forward_mode=ForwardMode.DECODE,
        req_pool_indices=torch.tensor([2]),
        seq_lens=torch.tensor([LENGTH]),
    )


@pytest.fixture
def loop(monkeypatch):
    """Return what runs `run_event_loop` of a scheduler whose loop is the function that it is given."""

    def run(raise_it):
        monkeypatch.setattr(scheduler_module, "dispatch_event_loop", raise_it)
        batch = decode_batch()
        scheduler_with(batch).run_event_loop()

    return run


def manifest(dumps):
    (path,) = (dumps / "guards").glob("*.json")
    return json.loads(path.read_text())


class TestExceptions:
    def test_one_in_the_preparation_of_a_batch_is_a_dump_with_batch_and_rows(self, attach, loop):
        dumps = attach("contain", "process-end")
        # SGLang's own code raises: the batch has no allocator, as a corrupted one may have none that works.
        with pytest.raises(AttributeError):
            loop(lambda scheduler: scheduler.cur_batch.prepare_for_decode())
        (entry,) = DumpStore(dumps).list()
        dump = read_dump(entry.path)
        said = dump.manifest
        assert (said.rule, said.verdict, said.step) == ("process-end", "exception", 7)
        assert said.site.startswith("sglang.srt.managers.schedule_batch.ScheduleBatch.")
        assert said.scalars["exception"] == "AttributeError"
        assert "ScheduleBatch.prepare_for_decode:" in str(said.scalars["traceback"])
        assert dump.tensor("requests")[0].tolist() == [2, LENGTH, LENGTH, LENGTH, 0, 0]
        assert dump.tensor("req_to_token")[0].tolist() == list(range(100, 100 + LENGTH))
        assert manifest(dumps)["ended"]["how"] == "exception"

    def test_what_a_probe_trapped_has_its_dump_already(self, attach, loop):
        dumps = attach("trap", "process-end")

        def trapped(scheduler):
            try:
                raise TrappedViolation("found", None, "planted")
            except TrappedViolation as error:
                raise RuntimeError("wrapped by SGLang") from error

        with pytest.raises(RuntimeError, match="wrapped"):
            loop(trapped)
        assert list(DumpStore(dumps).list()) == []
        assert manifest(dumps)["ended"]["how"] == "exception"

    def test_a_loop_that_ends_is_silent(self, attach, loop):
        dumps = attach("trap", "process-end")
        loop(lambda scheduler: None)
        assert list(DumpStore(dumps).list()) == []
        assert manifest(dumps)["ended"] is None

    def test_a_batch_that_cannot_be_read_is_a_note_and_the_exception_is_sglangs(self, attach, loop):
        dumps = attach("contain", "process-end")

        def broken(scheduler):
            scheduler.cur_batch.seq_lens = SimpleNamespace()
            raise KeyError("SGLang's own\nof two lines")

        with pytest.raises(KeyError):
            loop(broken)
        (entry,) = DumpStore(dumps).list()
        said = read_dump(entry.path).manifest
        assert said.notes[0].startswith("seq_lens could not be read: AttributeError")
        assert "\n" not in str(said.scalars["message"])


class TestMarks:
    def test_sigterm_is_a_stop_and_the_first_mark_stays(self, attach):
        dumps = attach("trap", "process-end")
        manager: Any = SimpleNamespace(gracefully_exit=False)
        handler = SignalHandler(manager)
        handler.sigterm_handler()
        assert handler.tokenizer_manager.gracefully_exit
        ended = manifest(dumps)["ended"]
        assert (ended["how"], ended["why"]) == ("stopped", "SIGTERM")
        handler.sigterm_handler()
        assert manifest(dumps)["ended"] == ended

    def test_a_failed_worker_is_no_stop(self, attach, monkeypatch):
        dumps = attach("trap", "process-end")
        monkeypatch.setattr("sglang.srt.managers.tokenizer_manager.kill_process_tree", lambda *args: None)
        manager: Any = SimpleNamespace(_subprocess_watchdog=None, dump_requests_before_crash=lambda: None)
        SignalHandler(manager).running_phase_sigquit_handler()
        assert manifest(dumps)["ended"]["how"] == "child failed"

    @pytest.mark.parametrize("end", [process_end.note_exit, process_end.before_shutdown])
    def test_a_launcher_that_raises_before_it_serves_has_failed(self, attach, monkeypatch, end):
        dumps = attach("trap", "process-end")
        with pytest.raises(AttributeError) as raised:
            Scheduler.run_event_loop(None)  # pyright: ignore[reportArgumentType]
        # Where Python keeps what nobody took.
        monkeypatch.setattr(sys, "last_value", raised.value, raising=False)
        end()
        ended = manifest(dumps)["ended"]
        assert ended["how"] == "exception"
        assert ended["why"].startswith("AttributeError: ")
        (finding,) = conclude(Incident(guards=(guards(ended, start_ticks=1),)))
        assert finding.rule == "ended-without-saying-why"

    def test_what_a_users_own_script_raised_is_no_failure_of_the_server(self, attach, monkeypatch):
        dumps = attach("trap", "process-end")
        with pytest.raises(ValueError, match="own") as raised:
            raise ValueError("of a script's own")
        monkeypatch.setattr(sys, "last_value", raised.value, raising=False)
        process_end.note_exit()
        assert manifest(dumps)["ended"]["how"] == "exit"

    def test_without_the_probe_a_manifest_does_not_speak_of_its_end(self, attach):
        assert "ended" not in manifest(attach("trap", "batch-shapes"))


def guards(ended=None, **process):
    fields = {
        "verified": True,
        "patches": [],
        "settings": {},
        "pid": os.getpid(),
        "hostname": os.uname().nodename,
        "process": process_identity() | process,
        "ended": ended,
    }
    return Guards("1.json", "", fields)


def mark(how):
    return {"utc": "2026-01-01T00:00:00+00:00", "how": how, "why": "SIGTERM"}


class TestStates:
    def test_this_process_runs(self):
        assert state_of([guards()]) is State.RUNNING

    def test_a_later_process_of_the_same_number_is_another(self):
        assert state_of([guards(start_ticks=1)]) is State.GONE

    def test_a_process_that_has_ended_is_gone_and_one_that_nobody_asked_for_too(self):
        line = "print(open('/proc/self/stat').read())"
        child = subprocess.Popen([sys.executable, "-c", line], stdout=subprocess.PIPE)
        assert child.stdout is not None
        start = int(child.stdout.read().rpartition(b")")[2].split()[19])
        one = guards(start_ticks=start)
        one = Guards(one.source, "", {**one.fields, "pid": child.pid})
        while os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT) is None:
            pass
        assert state_of([one]) is State.GONE
        child.wait()
        assert state_of([one]) is State.GONE

    @pytest.mark.parametrize("other", ["boot_id", "pid_namespace"])
    def test_of_another_boot_or_container_nothing_is_said(self, other):
        assert state_of([guards(**{other: "another"})]) is State.UNKNOWN

    def test_one_mark_of_a_launch_is_enough_and_a_failure_weighs_more(self):
        gone = guards(start_ticks=1)
        assert state_of([gone, guards(mark("stopped"))]) is State.STOPPED
        assert state_of([gone, guards(mark("exit"))]) is State.STOPPED
        assert state_of([guards(mark("stopped")), guards(mark("child failed"))]) is State.FAILED

    def test_manifests_of_before_say_nothing(self):
        assert state_of(guards_only().guards) is State.UNMARKED


class TestDiagnosis:
    def test_a_killed_server_is_not_nothing_wrong(self):
        (finding,) = conclude(Incident(guards=(guards(start_ticks=1),)))
        assert finding.rule == "ended-without-saying-why"
        assert "none left a mark" in finding.cause

    def test_an_exception_after_a_finding_is_what_that_led_to_and_no_cause_of_its_own(self):
        bad = corpus_dump("page-past-the-end", "out_of_range")
        later = bad.manifest.created_utc + timedelta(seconds=1)
        death = altered(bad, rule="process-end", verdict="exception", created_utc=later, dump_id="death", offences=())
        found = conclude(of(bad, death))
        assert "scheduler-exception" not in [finding.rule for finding in found]
        assert "death" in [piece.source for piece in found[0].evidence]

    def test_what_a_bundle_saw_running_has_not_ended_for_all_that_the_bundle_says(self):
        gone = guards(start_ticks=1)
        (finding,) = conclude(Incident(guards=(gone,)))
        assert finding.next_commands[0] == "gemma4-triage diagnose --log SERVER_LOG"
        bundle = Reading("collect.json", "collection", "a bundle", Identity(pids=(gone.pid,), running=(gone.pid,)))
        incident = Incident(guards=(gone,), readings=(bundle,))
        assert state_of_incident(incident) is State.SEEN
        assert conclude(incident) == ()
        other = replace(bundle, identity=Identity(pids=(gone.pid,)))
        assert state_of_incident(replace(incident, readings=(other,))) is State.GONE

    @pytest.mark.parametrize("one", [guards(), guards(mark("stopped"), start_ticks=1), guards(boot_id="another")])
    def test_one_that_serves_was_stopped_or_is_elsewhere_is_no_incident(self, one):
        assert conclude(Incident(guards=(one,))) == ()

    @pytest.mark.parametrize(
        ("one", "headline"),
        [
            (guards(), "nothing wrong here: 1 guarded process, 1 verified, no dump; still running"),
            (guards(mark("stopped")), "nothing wrong here: 1 guarded process, 1 verified, no dump; stopped"),
            (guards(boot_id="another"), "nothing was found, which may not be all"),
        ],
        ids=["running", "stopped", "elsewhere"],
    )
    def test_the_headline(self, cli, tmp_path, one, headline):
        (tmp_path / "guards").mkdir()
        fields = dict(one.fields) | {"created_utc": "2026-01-01T00:00:00+00:00", "command": []}
        (tmp_path / "guards" / "1.json").write_text(json.dumps(fields))
        code, out, _ = cli("diagnose", "--dir", tmp_path)
        assert code == 0
        assert headline in " ".join(out.split())
