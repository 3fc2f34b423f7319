"""The floor under "no findings": what says that something failed is told; what a healthy server writes is not."""

from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs import read
from gemma4_triage.logs.catalog import findings
from gemma4_triage.logs.read import read_log
from gemma4_triage.logs.unwrap import Unwrapper
from made_logs import death, decode, only, prefill, stamp

SIGQUIT = f"{stamp(9)} SIGQUIT received. signum=None, frame=None. It usually means one child failed.\n"
ALARMS = {
    "killed": "Killed\n",
    "killed, by its code": "scheduler exited with exit code -9\n",
    "killed, by its container": "State: Terminated, Reason: OOMKilled, Exit Code: 137\n",
    "signalled": "Fatal Python error: Segmentation fault\n",
    "signalled, by bash": "run.sh: line 3:   812 Aborted                 (core dumped) python -m sglang\n",
    "nccl": "[rank3]:[E1124 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective operation timeout: Work\n",
    "nan": f"{stamp(3)} Detected errors during sampling! NaN in the logits.\n",
    "device": "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n",
    "no-memory": "OSError: [Errno 28] No space left on device\n",
    "watchdog": f"{stamp(3)} Watchdog timeout (self.watchdog_timeout=300)\n",
    "health": f"{stamp(3)} Health check failed. Server couldn't get a response from detokenizer.\n",
    "no-start": "launch_server.py: error: unrecognized arguments: --gemma\n",
    "child": f"{stamp(3)} Subprocess scheduler_0 (pid=1) crashed with exit code 1. Triggering SIGQUIT for cleanup...\n",
    "sigquit": SIGQUIT,
    "leak": f"{stamp(3)} token_to_kv_pool_allocator memory leak detected! available_size=1\n",
    "stopped-answering": f"{stamp(3)} the detokenizer is not responding\n",
    "answered-500": 'INFO:     10.0.0.1:5 - "POST /generate HTTP/1.1" 500 Internal Server Error\n',
    "transfer": f"{stamp(3)} Decode transfer failed for request with exception KVTransferError(bootstrap_room=1)\n",
}
SURVIVED = {
    "an import that is optional": f"{stamp(3)} Ignore import error when loading sglang.srt.models.x: No module\n",
    "a retry": "(ReadTimeoutError: Read timed out.) thrown while requesting HEAD https://host/x\nRetrying in 1s\n",
    "a fallback": "Failed to import deep_gemm, falling back to triton\n",
    "an exception": 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nValueError: no\n',
    "a failure": f"{stamp(3)} Failed to update metrics: no\n",
}
CLEAN = {
    "settings": f"{stamp(1)} server_args=ServerArgs(model_path='x', watchdog_timeout=300, crash_dump_folder=None)\n",
    "a refusal": f"{stamp(1)} Input length (9) exceeds the maximum allowed length (8).\n"
    'INFO:     10.0.0.1:5 - "POST /generate HTTP/1.1" 400 Bad Request\n',
    "a prompt that is too long": f"{stamp(1)} Error in request: The input (12345 tokens) is longer than the model's "
    "context length (8192 tokens).\n"
    'INFO:     10.0.0.1:5 - "POST /v1/completions HTTP/1.1" 400 Bad Request\n',
    "a picture that is not there": f"{stamp(1)} Error in request: Failed to load image: HTTP Error 404 for url http://a\n"
    'INFO:     10.0.0.1:5 - "POST /v1/chat/completions HTTP/1.1" 400 Bad Request\n',
    "a client that goes during a transfer": f"{stamp(1)} Decode transfer failed for request rank=0 with exception "
    "KVTransferError(bootstrap_room=1): Aborted by AbortReq.\n",
    "a client that goes": f"{stamp(1)} Req a is disconnected from the client side (type 1). Abort request rid='a'\n",
    "a prompt": f"{stamp(1)} Receive: obj=GenerateReqInput(rid='a', text='Segmentation fault, out of memory')\n",
    "a stop": f"{stamp(1)} SIGTERM received. signum=None frame=None. Draining requests and shutting down...\n"
    f"{stamp(2)} Gracefully exiting... Remaining number of requests 0.\nINFO:     Shutting down\n"
    "INFO:     Application shutdown complete.\nINFO:     Finished server process [1]\n",
    "a stop with errors": "INFO:     Shutting down\nTraceback (most recent call last):\n"
    '  File "a.py", line 1, in f\nConnectionResetError: gone\nKilled\n',
    "a key": '^CTraceback (most recent call last):\n  File "a.py", line 1, in f\nKeyboardInterrupt\n',
    "a container that was stopped": "sglang-1 exited with code 143\n",
    "a container that a key stopped": 'level=info msg="container stopped" exitCode=130\n',
    "a container that ended": '{"message": "container stopped", "exitCode": 0}\n',
    "a tracker": "UserWarning: resource_tracker: There appear to be 1 leaked semaphore objects to clean up\n",
    "a hint": "[rank0]:[W1124 ProcessGroupNCCL.cpp:5023] This can potentially cause a hang if this mapping is wrong.\n",
}


def found_in(*lines: str) -> tuple[Finding, ...]:
    return findings(read_log("made.log", ["".join(lines).encode()]))


@pytest.mark.parametrize("name", ALARMS)
def test_a_failure_is_a_finding_whatever_follows(name):
    """Some rule may explain the line; without one it is told as it stands."""
    (finding,) = found_in(prefill(1), ALARMS[name], decode(20))
    assert ALARMS[name].strip().endswith(finding.evidence[0].value)
    assert finding.evidence[0].field == "line 2"
    assert finding.advice


def test_what_no_rule_explains_is_of_an_unknown_cause():
    (finding,) = found_in(prefill(1), ALARMS["signalled"])
    assert (finding.rule, finding.confidence) == ("unexplained-line", Confidence.POSSIBLE)
    assert finding.cause.startswith("Unknown cause")


@pytest.mark.parametrize("name", SURVIVED)
def test_what_was_survived_is_none(name):
    assert found_in(prefill(1), SURVIVED[name], decode(20)) == ()
    assert found_in(SURVIVED[name], f"{stamp(4)} The server is fired up and ready to roll!\n") == ()


@pytest.mark.parametrize("name", CLEAN)
def test_a_healthy_line_is_none(name):
    assert found_in(prefill(1), CLEAN[name]) == ()


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("NotImplementedError()\n", "NotImplementedError"),
        ("NotImplementedError\n", "NotImplementedError"),
        (f"{stamp(3)} Unsupported head dimension: 256\n", "head dimension"),
        (f"{stamp(3)} Unsupported attention backend: fa4\n", "another --attention-backend"),
    ],
)
def test_a_bare_refusal_at_the_end_is_a_finding(line, word):
    finding = only([line])
    assert word in " ".join((finding.cause, *finding.advice))


def test_a_refusal_that_work_follows_is_none():
    assert found_in(f"{stamp(1)} Unsupported attention backend: fa4\n", decode(2)) == ()


def test_what_is_tried_again_has_not_failed():
    assert found_in(prefill(1), SURVIVED["a retry"]) == ()


def test_a_failure_that_nothing_follows_is_a_finding():
    (finding,) = found_in(prefill(1), SURVIVED["a failure"])
    assert "no work follows" in finding.cause


def test_refused_health_checks_count_once_the_server_has_served():
    refused = 'INFO:     10.0.0.2:80 - "GET /health HTTP/1.1" 503 Service Unavailable\n'
    assert found_in(refused, refused) == ()
    (finding,) = found_in(prefill(1), refused)
    assert finding.rule == "unexplained-line"
    assert "py-spy" in finding.advice[0]


def test_a_failed_health_check_at_a_stop_is_one():
    (finding,) = found_in(prefill(1), f"{stamp(2)} Signal SIGTERM received while health check failed. Force exiting.\n")
    assert "health check" in finding.cause


def test_what_follows_an_exception_is_no_finding_of_its_own():
    rules = [finding.rule for finding in found_in(decode(1), death(2, "KeyError: 'x'"), ALARMS["child"], SIGQUIT)]
    assert rules == ["other-crash"]


def test_a_consequence_leads_only_where_nothing_else_does():
    (finding,) = found_in(decode(1), SIGQUIT, ALARMS["signalled"])
    assert "ended in native code" in finding.cause
    assert [piece.field for piece in finding.evidence] == ["line 3", "line 1", "line 2"]


@pytest.mark.parametrize(
    "line",
    [
        'time="2026-11-20T10:00:00Z" level=info msg="container died" name=sglang exitCode=139\n',
        '{"message": "container died", "exitCode": 139}\n',
        '{"message": "container died, exit code 139", "exitCode": 139}\n',
    ],
)
def test_the_exit_code_in_a_field_of_its_own_is_read(line):
    (finding,) = found_in(decode(1), line, decode(20))
    assert "ended in native code" in finding.cause
    assert finding.evidence[0].value.count("139") == 1


def test_a_log_that_ends_inside_a_traceback_is_of_a_dead_server():
    torn = death(2, "KeyError: 'x'", rank="TP1").split("KeyError", maxsplit=1)[0]
    (finding,) = found_in(decode(1), torn)
    assert "on TP1, in scheduler.py:12 step" in finding.cause
    assert finding.evidence[0].value == "the log ends inside its traceback"


def test_probes_are_advised_only_where_they_could_see_something():
    serve = "gemma4-triage serve --debug 1 -- --model-path MODEL"
    seen = found_in(decode(1), death(2, "KeyError: 'x'", frame="memory_pool.py"))[0]
    before_any_batch = found_in(death(2, "KeyError: 'x'", frame="memory_pool.py"))[0]
    elsewhere = found_in(decode(1), death(2, "KeyError: 'x'", frame="tokenizer.py"))[0]
    assert serve in seen.next_commands
    assert serve not in (*before_any_batch.next_commands, *elsewhere.next_commands)


KILLED = "SIGKILL ended a process"
NATIVE = "ended in native code"
ENDED = "a child process ended"
NO_START = "the server did not start"
OUTSIDE = {
    "Rank 0 scheduler is dead. Please check if there are relevant logs.": ENDED,
    "E1124 10:00:00.000 12 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: -9) pid: 42": KILLED,
    "  exitcode  : -6 (pid: 4242)": NATIVE,
    "  traceback : Signal 6 (SIGABRT) received by PID 4242": NATIVE,
    "    Reason:       OOMKilled": KILLED,
    "    Reason:       CrashLoopBackOff": ENDED,
    "  Warning  BackOff  2m (x9 over 5m)  kubelet  Back-off restarting failed container sglang": ENDED,
    "    Exit Code:    137": KILLED,
    "    Exit Code:    139": NATIVE,
    "    Exit Code:    1": ENDED,
    "sglang-1 exited with code 137": KILLED,
    "sglang-1 exited with code 139": NATIVE,
    "command terminated with exit code 137": KILLED,
    "systemd[1]: a.service: Main process exited, code=killed, status=9/KILL": KILLED,
    "systemd[1]: a.service: Main process exited, code=dumped, status=6/ABRT": NATIVE,
    "systemd[1]: a.service: A process of this unit has been killed by the OOM killer.": KILLED,
    "systemd[1]: a.service: Failed with result 'exit-code'.": ENDED,
    "Out of memory: Killed process 4242 (sglang::schedul) total-vm:1kB": KILLED,
    "python[4242]: segfault at 10 ip 00007f sp 00007f error 4 in libcuda.so": NATIVE,
    "traps: python[4242] general protection fault ip:7f sp:7f error:0": NATIVE,
    "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.": "GPU",
    "2026-11-24 10:00:00,123 WARN exited: sglang (terminated by SIGKILL; not expected)": KILLED,
    "2026-11-24 10:00:00,123 WARN exited: sglang (exit status 1; not expected)": ENDED,
    "PM2        | App [sglang:0] exited with code [0] via signal [SIGKILL]": KILLED,
    "[1]+  Killed                  nohup python x": KILLED,
    "zsh: segmentation fault  python": NATIVE,
    "mpirun noticed that process rank 0 with PID 4242 on node a exited on signal 9 (Killed).": KILLED,
    "    Reason:       Evicted": "evicted the pod",
    "    Reason:       StartError": NO_START,
    "Error: ImagePullBackOff": NO_START,
    "Scheduler process 4242 is not alive": ENDED,
    "INFO: task python:4242 blocked for more than 120 seconds.": "stopped answering",
}
WATCHED = {
    "a service that was stopped": "systemd[1]: a.service: Main process exited, code=killed, status=15/TERM\n",
    "a service that ended": "systemd[1]: a.service: Deactivated successfully.\n",
    "a program that a key stopped": "PM2  | App [sglang:0] exited with code [0] via signal [SIGINT]\n",
    "a pod that waits": "  Warning  Unhealthy  3m  kubelet  Readiness probe failed: connection refused\n",
    "a volume that came late": "  Warning  FailedMount  3m  kubelet  MountVolume.SetUp failed for volume\n",
    "pages": f"{stamp(1)} Evicted 3 pages; 0 requests are dead weight\n",
}


@pytest.mark.parametrize("then", ["", decode(20)])
@pytest.mark.parametrize("line", OUTSIDE)
def test_whoever_watches_a_server_is_believed_that_it_ended(line, then):
    (finding,) = found_in(prefill(1), line + "\n", then)
    assert OUTSIDE[line] in finding.cause
    assert finding.evidence[0].value in line


@pytest.mark.parametrize("name", WATCHED)
def test_what_a_watcher_says_of_a_server_that_goes_on_is_none(name):
    assert found_in(prefill(1), WATCHED[name], decode(20)) == ()


@pytest.mark.parametrize(
    "passed_on",
    [
        "Rank 0 scheduler is dead. Please check if there are relevant logs.\n",
        "systemd[1]: a.service: Failed with result 'signal'.\n",
        "Scheduler process 4242 is not alive\n",
        SIGQUIT,
    ],
)
def test_who_only_passes_on_an_end_stands_behind_the_rule_that_knows_it(passed_on):
    for order in ((passed_on, "Exit code: -9\n"), ("Exit code: -9\n", passed_on)):
        (finding,) = found_in(prefill(1), *order)
        assert finding.rule == "killed-from-outside"


def test_a_group_of_exceptions_is_told_by_those_within_it():
    traceback = "Traceback (most recent call last):\n"
    group = (
        f"{stamp(2)} Scheduler hit an exception:   + Exception Group {traceback}"
        '  |   File "/srv/sglang/scheduler.py", line 198, in run_scheduler_process\n'
        "  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)\n"
        "  +-+---------------- 1 ----------------\n"
        f'    | {traceback}    |   File "/srv/sglang/scheduler.py", line 4, in step\n    |     a\n'
        "    | KeyError: 'layer_9'\n    +------------------------------------\n"
    )
    (finding,) = found_in(decode(1), group)
    assert "died of KeyError" in finding.cause
    torn = group.split("  +-+", maxsplit=1)[0]
    (finding,) = found_in(decode(1), torn)
    assert "ExceptionGroup" in finding.cause


LINES = [line for text in (*ALARMS.values(), *SURVIVED.values(), *CLEAN.values()) for line in text.splitlines()]
COUNTED = (
    "worker # exited with exit code 137",
    "a worker exited with exit code #",
    "Worker Process # exited with exit code 1",
    "CUDA error: an illegal memory access was encountered (request #)",
    "NVRM: Xid (PCI:0000:#): 79, pid=#",
    "run.sh: line #: 10# Killed  python3 -m sglang",
    'INFO:     10.0.0.#:50# - "POST /generate HTTP/1.1" 500 Internal Server Error',
)
PREFIXES = (
    "",
    "{} ",
    "[2026-01-01 00:{:02d}:07 TP{}] ",
    "2026-01-01T00:{:02d}:07.123456789Z ",
    "[pod/sglang-{1}/server] ",
    "[pod/sglang-{1}/server] 2026-01-01T00:00:07Z [2026-01-01 00:{0:02d}:07 TP0] ",
    "Jan  1 00:{:02d}:07 host python3[10{}]: ",
)


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(
            st.sampled_from([*LINES, *COUNTED, decode(5).strip(), death(4, "KeyError: 'x'").strip()]),
            st.integers(1, 40),
        ),
        max_size=40,
    ),
    st.sampled_from(PREFIXES),
)
def test_a_flood_of_the_same_lines_says_what_it_says_line_by_line(runs, prefix):
    """Most lines of many that say the same are only counted, and what stands before them is known of the first."""
    rows = [prefix.format(at % 50, at % 3) + line.replace("#", f"{at}") for line, times in runs for at in range(times)]
    text = "\n".join(rows).encode() + b"\n"
    quick = read_log("x", [text])
    with patch.object(read, "MANY", 10**9), patch.object(Unwrapper, "_before_alike", return_value=None):
        slow = read_log("x", [text])
    assert quick == slow
    assert findings(quick) == findings(slow)


@pytest.mark.parametrize("line", COUNTED)
@pytest.mark.parametrize("prefix", ["", "2026-01-01T00:00:07.123456789Z "])
def test_a_flood_with_numbers_that_count_is_no_prefix(line, prefix):
    """What all lines begin with is what they say, where only numbers follow that differ from line to line."""
    facts = read_log("x", ["".join(f"{prefix}{line.replace('#', f'{at}')}\n" for at in range(300)).encode()])
    assert facts.death_count + sum(alarm.count for alarm in facts.alarms) >= 290


def test_a_line_that_a_web_page_broke_stays_one_line():
    facts = read_log("x", ["".join(f"page&#10;{at} &quot;x&quot; exit code 137\n" for at in range(100)).encode()])
    assert [(alarm.kind, alarm.count, alarm.text) for alarm in facts.alarms] == [
        ("killed", 100, 'page 0 "x" exit code 137')
    ]


def test_of_lines_that_are_only_counted_the_last_one_has_the_last_time():
    """Clocks of several containers are not alike, so a later line may have an earlier time."""
    refused = "[2026-01-01 00:00:01] Input length (9) exceeds the maximum allowed length (8)."
    hangs = "[2026-01-01 00:00:03] Watchdog timeout (self.watchdog_timeout=300)"
    facts = read_log("x", ["\n".join([refused, *[hangs] * 22, *[refused] * 40, ""]).encode()])
    assert facts.last_time == "2026-01-01T00:00:01"
