"""Classes of public incidents: words that a driver, a compiler or a loop has for any failure tell of no cause."""

import pytest

from gemma4_triage.logs.catalog import with_those_alike
from gemma4_triage.logs.read import read_log
from made_logs import prefill, stamp

LIKE = "like-incidents"
FAULT = "Memory access fault by GPU node-6 on address 0x77aed92f5000. Reason: Unknown.\nGPU core dump failed\n"
HSA = (
    ":0:rocdevice.cpp:3020: Callback: Queue 0x7f0d2c000000 aborting with error : HSA_STATUS_ERROR_EXCEPTION: An HSAIL "
    "operation resulted in a hardware exception. code: 0x1016\nFatal Python error: Aborted\n"
)
CRASHED = f"{stamp(3)} Subprocess scheduler_0 (pid=933) crashed with exit code -6\n"
NINJA = "1 error detected in the compilation of cuda.cu.\nninja: build stopped: subcommand failed.\n"
LOOP = """
  File "/srv/sglang/srt/managers/scheduler.py", line 3972, in run_scheduler_process
    scheduler.run_event_loop()
  File "/srv/sglang/srt/managers/scheduler.py", line 2518, in get_next_batch_to_run
    new_batch = self.get_new_batch_prefill()
  File "/srv/sglang/srt/managers/scheduler.py", line 2572, in get_new_batch_prefill
    ret = self._get_new_batch_prefill_raw(
"""
BEGUN = f"{stamp(2, 'TP0')} Scheduler hit an exception: Traceback (most recent call last):"


def told(text):
    return with_those_alike(read_log("server.log", [text.encode()]))


@pytest.mark.parametrize(
    "text",
    [
        FAULT + CRASHED,
        HSA + CRASHED,
        f'{BEGUN}\n  File "/srv/sglang/own.py", line 2, in plan\n{NINJA}RuntimeError: ninja exited with status 1\n',
        f"{BEGUN}\ntriton.runtime.errors.OutOfResources: shared memory, Required: 147456, Hardware limit: 101376\n",
        "kernel: NVRM: Xid (PCI:0000:01:00): 31, pid=4410, name=sglang, Ch 8, MMU Fault: ENGINE GRAPHICS\n",
    ],
    ids=["fault", "hsa", "ninja", "shared memory", "xid"],
)
def test_words_of_a_driver_or_a_compiler_alone_make_no_incident_alike(text):
    found = told(prefill(1) + text)
    assert found
    assert LIKE not in [one.rule for one in found]


def test_the_way_of_every_step_to_an_exception_of_python_makes_no_incident_alike():
    inner = '  File "/srv/sglang/srt/mem_cache/own_cache.py", line 8, in find\n    key = keys[0]\n'
    found = told(prefill(1) + BEGUN + LOOP + inner + "IndexError: list index out of range\n")
    assert [one.rule for one in found] == ["other-crash"]


def test_the_frame_where_it_was_raised_makes_one_alike():
    found = told(prefill(1) + BEGUN + LOOP + "IndexError: list index out of range\n")
    assert LIKE in [one.rule for one in found]
