"""Ends that are not a server's, what others hold of its GPU, limits of its host, and words that a log does not have."""

import pytest

from gemma4_triage.diagnose.conclude import conclude
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.finding import Confidence
from gemma4_triage.logs.catalog import findings
from gemma4_triage.logs.read import read_log
from made_logs import death, decode, found_in, only, prefill, stamp, told

START = f"{stamp(0)} server_args=ServerArgs(model_path='m', tp_size=1, mem_fraction_static=0.85)\n"
WORK = [prefill(3), decode(4), decode(5)]
FRAMES = '  File "/usr/lib/python3.12/a.py", line 77, in __del__\n    self._stop()\n'
TRACEBACK = "Traceback (most recent call last):\n"
IGNORED = ["Exception ignored in: <function Tracker.__del__ at 0x7f>\n", TRACEBACK, FRAMES]
RAISED = "ChildProcessError: [Errno 10] No child processes\n"
ABOVE = "\nDuring handling of the above exception, another exception occurred:\n\n"


def composed(lines, name: str = "sglang-1") -> list[str]:
    return [f"{name}  | {line}\n" for text in lines for line in text.removesuffix("\n").split("\n")]


class TestWhatPythonIgnores:
    @pytest.mark.parametrize("more", [[], [ABOVE, TRACEBACK, FRAMES, "TypeError: 'NoneType' object is not callable\n"]])
    def test_it_ends_nothing(self, more):
        log = [START, *WORK, *IGNORED, RAISED, *more]
        assert found_in(log) == ()
        assert found_in(log[:-1]) == (), "nor where it is cut off"

    def test_what_a_process_dies_of_behind_it_is_told(self):
        dies = death(6, "ValueError: what nobody has met")
        assert "ValueError" in only([START, *WORK, *IGNORED, RAISED, dies]).cause
        main = f'{TRACEBACK}  File "/usr/bin/sglang", line 8, in <module>\n    main()\nOSError: no model\n'
        assert "OSError" in told(only([START, *WORK, *IGNORED, RAISED, main]))

    def test_an_exception_that_ended_a_thread_is_told(self):
        log = [START, *WORK, "Exception ignored in thread started by: <bound method a>\n", TRACEBACK, FRAMES, RAISED]
        assert "ChildProcessError" in told(only(log))


class TestEndsOfOthers:
    @pytest.mark.parametrize("code", [1, 137, 139])
    def test_another_service_while_this_one_goes_on(self, code):
        log = [*composed([START, *WORK]), f"loadgen-1 exited with code {code}\n", *composed([prefill(7), decode(8)])]
        assert found_in(log) == ()
        assert len(found_in(log[:-2])) == 1, "nothing shows that the server went on"
        assert len(found_in([line.replace("loadgen-1", "sglang-1") for line in log])) == 1
        assert len(found_in([line.replace("loadgen-1", "project_sglang-1") for line in log])) == 1

    def test_another_node_of_this_server_is_no_other_service(self):
        log = [*composed([START, *WORK]), *composed([START], "node-2"), "node-2 exited with code 1\n"]
        assert len(found_in([*log, *composed([prefill(7), decode(8)])])) == 1

    @pytest.mark.parametrize(
        "end", ["[1]+  Killed                  python3 -m sglang.launch_server\n", "sglang-1 exited with code 137\n"]
    )
    def test_an_older_server_before_a_start_and_work(self, end):
        assert found_in([end, START, *WORK]) == ()
        assert only([START, *WORK, end]).rule == "killed-from-outside"
        assert only([end, START]).rule == "killed-from-outside", "it did no work"
        assert only([START, end, START, *WORK]).rule == "killed-from-outside", "its start is there"

    def test_a_kernel_that_says_whom_it_killed_is_believed(self):
        assert only(["Out of memory: Killed process 7 (python3)\n", START, *WORK]).rule == "killed-from-outside"

    @pytest.mark.parametrize("line", ["+ trap 'kill -TERM $PID; exit 137' TERM\n", "+ echo 'exit code 137'\n"])
    def test_what_a_shell_shows_of_its_commands(self, line):
        assert found_in([line, START, *WORK]) == ()
        assert found_in([START, *WORK, line]) == ()
        assert only([START, *WORK, "+ exit 137\n"]).rule == "killed-from-outside"


class TestPromptsOverLines:
    TOLD = "Killed\nSegmentation fault (core dumped)\n"

    @pytest.mark.parametrize(
        ("begin", "end"),
        [
            ("ChatCompletionRequest(messages=[{'role': 'user', 'content': 'one", "'}])"),
            ("GenerateReqInput(text='one", "', rid='a', stream=False)"),
        ],
    )
    def test_a_prompt_that_tells_of_an_end(self, begin, end):
        record = f"{stamp(6)} Receive: obj={begin}\n{self.TOLD}{end}\n"
        assert found_in([START, *WORK, record, prefill(7), decode(8)]) == ()
        assert found_in(composed([START, *WORK, record, prefill(7), decode(8)])) == ()

    def test_a_record_that_was_cut_off_hides_nothing(self):
        record = f"{stamp(6)} Receive: obj=GenerateReqInput(text='one\n"
        assert len(found_in([START, *WORK, record, self.TOLD])) >= 1
        assert len(found_in([START, *WORK, record, decode(7), self.TOLD, decode(8)])) >= 1


OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB "
OOM += "of which 1.00 GiB is free. Process 4411 has {} GiB memory in use. {}"
OWN = "Including non-PyTorch memory, this process has 38.00 GiB memory in use."


class TestOthersOnTheGpu:
    def test_another_process_leads(self):
        finding = only([START, *WORK, death(6, OOM.format("40.00", OWN))])
        assert "process 4411 holds 40.0 of the GPU's 79.1 GiB, this one 38.0" in finding.cause
        assert "process 4411" in finding.advice[0]
        assert "nvidia-smi" in finding.advice[0]
        assert not any("would have left" in one for one in finding.advice)
        assert not finding.ruled_out_if

    def test_a_container_that_does_not_know_its_own_number(self):
        finding = only([START, *WORK, death(6, OOM.format("40.00", "Process 331 has 38.00 GiB memory in use."))])
        assert "process 4411 holds 40.0 and process 331 holds 38.0" in finding.cause
        assert "one of them is not this one" in finding.cause

    @pytest.mark.parametrize(("used", "own"), [("0.60", OWN.replace("38", "77")), ("77.00", "")])
    def test_none_that_holds_much(self, used, own):
        finding = only([START, *WORK, death(6, OOM.format(used, own))])
        assert "beside another" not in finding.cause
        assert "--mem-fraction-static" in finding.advice[0]


def test_no_guarded_run_is_advised_where_the_host_is_at_fault():
    full, unknown = (
        read_log("server.log", [text.encode()])
        for text in (
            "".join([START, *WORK, death(6, "OSError: [Errno 28] No space left on device")]),
            "".join([START, *WORK, death(6, "ValueError: what nobody has met")]),
        )
    )
    assert [finding.rule for finding in conclude(Incident(logs=(full,)), findings(full))] == ["disk-full"]
    assert "crash-without-dump" in [finding.rule for finding in conclude(Incident(logs=(unknown,)), findings(unknown))]


class TestThreads:
    GONE = "Exception in thread Thread-7 (prefetch_thread_func):\n"
    GONE += f'{TRACEBACK}  File "/x/sglang/srt/managers/cache_controller.py", line 800, in prefetch_thread_func\n'
    GONE += "    self._page_get()\nRuntimeError: storage backend gone\n"

    def test_a_thread_whose_process_goes_on(self):
        finding = only([START, *WORK, self.GONE, prefill(7), decode(8)])
        assert "ended a thread of a process that goes on" in finding.cause
        assert finding.advice[0].startswith("restart this server: the thread is gone")

    def test_a_process_that_ended(self):
        finding = only([START, *WORK, self.GONE.replace("Exception in thread Thread-7", "Process a")])
        assert "ended a process" in finding.cause


class TestLimitsOfTheHost:
    @pytest.mark.parametrize("what", ["JOB 1234", "STEP 1234.0"])
    def test_the_time_of_a_job(self, what):
        line = f"slurmstepd: error: *** {what} ON node1 CANCELLED AT 2026-05-10T10:11:12 DUE TO TIME LIMIT ***\n"
        finding = only([START, *WORK, line])
        assert "time limit was over" in finding.cause
        assert finding.confidence is Confidence.LIKELY
        assert "--time" in finding.advice[0]

    @pytest.mark.parametrize(("resource", "advice"), [("memory", "memory request"), ("ephemeral-storage", "HF_HOME")])
    def test_an_eviction(self, resource, advice):
        finding = only([START, *WORK, f"The node was low on resource: {resource}. Threshold quantity: 100Mi.\n"])
        assert f"evicted the pod, whose node was short of {resource}:" in finding.cause
        assert advice in finding.advice[0]

    def test_a_child_of_which_nothing_is_said(self):
        finding = only([START, *WORK, "worker exited with code 3\n"])
        assert finding.cause.startswith("Unknown cause: a child process ended")

    def test_request_slots(self):
        leak = "/x/scheduler.py:570: UserWarning: Warning: available req slots=4095, total slots=4096\n"
        leak += "Memory pool leak detected!\n"
        finding = only([START, *WORK, leak, prefill(7), decode(8)])
        assert "4095 of 4096 request slots free: 1 was not given back" in finding.cause
        other = only([START, *WORK, "Memory pool leak detected!\n", prefill(7), decode(8)])
        assert "request slots" not in other.cause


def test_an_assertion_without_its_words_is_only_possibly_an_index():
    bare = death(6, "RuntimeError: CUDA error: device-side assert triggered")
    finding = only([START, *WORK, bare])
    assert (finding.rule, finding.confidence) == ("index-outside-tensor", "possible")
    assert "the log has not its words" in finding.cause
    words = "../aten/Indexing.cu:1553: indexSelect: block: [1,0,0], thread: [0,0,0] Assertion "
    words += "`srcIndex < srcSelectDimSize` failed.\n"
    assert any(one.cause.startswith("An index was outside its tensor") for one in found_in([START, *WORK, words, bare]))
