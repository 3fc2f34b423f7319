"""What a log of a reproduction raised is found in it."""

from gemma4_repro.engine.log_exceptions import exceptions_in, exceptions_in_file, last_lines

SCHEDULER_DIES = """\
[2026-01-01 00:00:00] Decode batch, #running-req: 5
[2026-01-01 00:00:00] Scheduler hit an exception: Traceback (most recent call last):
  File "scheduler.py", line 4058, in run_scheduler_process
    scheduler.run_event_loop()
gemma4_runtime.host.paged_attention.IllegalAddress: an illegal memory access was encountered: page 65 of 65

[2026-01-01 00:00:00] SIGQUIT received. signum=None, frame=None. It usually means one child failed.
"""

CAUGHT = """\
Ignore import error when loading a processor: Could not load libtorchcodec
Traceback (most recent call last):
  File "_ops.py", line 1503, in load_library
OSError: libavutil.so.60: cannot open shared object file

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "utils.py", line 93
OSError: Could not load this library
"""


def names(text: str) -> list[str]:
    return [raised.type_name for raised in exceptions_in(text.splitlines(keepends=True))]


def test_only_what_ended_a_process_counts():
    assert names(CAUGHT) == []
    assert names(CAUGHT + SCHEDULER_DIES) == ["IllegalAddress"]
    (raised,) = exceptions_in(SCHEDULER_DIES.splitlines())
    assert raised.message == "an illegal memory access was encountered: page 65 of 65"


def test_a_chain_is_reported_from_its_cause_on():
    chain = """\
Process sglang::detokenizer:
Traceback (most recent call last):
  File "a.py", line 1
KeyError: 'x'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 2
ValueError
"""
    assert names(chain) == ["KeyError", "ValueError"]


def test_a_chain_ends_where_the_log_goes_on():
    text = SCHEDULER_DIES + "[2026] warning\nTraceback (most recent call last):\n  File\nOSError: caught\n"
    assert names(text) == ["IllegalAddress"]


def test_the_runtime_stopping_a_server_counts_and_its_notices_do_not():
    text = "gemma4-triage: FAULT INJECTED: x\ngemma4-triage: HostEngineRefused: this machine has CUDA\n"
    (raised,) = exceptions_in(text.splitlines())
    assert (raised.type_name, raised.message) == ("HostEngineRefused", "this machine has CUDA")


def test_the_end_of_a_log(tmp_path):
    log = tmp_path / "log.txt"
    assert last_lines(log) == []
    assert exceptions_in_file(log) == ()
    log.write_bytes(b"\n".join(b"line %d" % i for i in range(100)) + b"\n10%\r100% \xff\n")
    lines = last_lines(log)
    assert len(lines) == 40
    assert lines[-1].startswith("100%")
