"""How often the host waits for the GPU, and for how long, from a trace."""

import pytest

from gemma4_triage.step_profile.analyse import analyse
from gemma4_triage.step_profile.trace_tables import read_tables
from trace_examples import TraceMaker, decode, e4b


def test_are_counted_by_call_where_the_steps_are():
    maker = TraceMaker(rank="[TP00]")
    for number in range(6):
        maker.graph(e4b(), "step[DECODE bs=8]")
        maker.host("cudaEventSynchronize", "cuda_runtime", maker.now_us - 20, 12.0)
        if number % 2:
            maker.host("aten::_local_scalar_dense", "cpu_op", maker.now_us - 5, 3.0)
            maker.host("cudaStreamSynchronize", "cuda_runtime", maker.now_us - 4, 2.0)
        maker.host("aten::mm", "cpu_op", maker.now_us - 4, 2.0)
        # Of a tensor on the host: nothing is waited for.
        maker.host("aten::_local_scalar_dense", "cpu_op", maker.now_us - 1.5, 0.5)
        maker.host("cudaStreamSynchronize", "cuda_runtime", maker.now_us - 0.5, 0.25)
        maker.idle(10.0)
    maker.host("cudaEventSynchronize", "cuda_runtime", maker.now_us + 1e6, 12.0)
    # Another rank's process waits for another GPU.
    maker.rank = "[TP01]"
    maker.host("cudaEventSynchronize", "cuda_runtime", 1100.0, 12.0)
    (found,) = analyse(read_tables(maker.document(noise=False)["traceEvents"]))
    assert found.method == "graph"
    assert len(found.cut.chosen) == 5
    assert [(wait.name, wait.count, wait.us) for wait in found.waits] == [
        ("cudaEventSynchronize", 1.0, 12.0),
        ("cudaStreamSynchronize", 1.0, pytest.approx(0.25)),
        ("aten::_local_scalar_dense", 0.4, pytest.approx(0.8)),
    ]


def test_a_wait_of_another_thread_is_no_read():
    maker = TraceMaker()
    for _ in range(6):
        maker.graph(e4b(), "step[DECODE bs=8]")
        maker.host("aten::_local_scalar_dense", "cpu_op", maker.now_us - 5, 4.0)
        maker.host("cudaStreamSynchronize", "cuda_runtime", maker.now_us - 4, 2.0)
        maker.events[-1]["tid"] = 99
        maker.idle(10.0)
    (found,) = analyse(read_tables(maker.document(noise=False)["traceEvents"]))
    assert [wait.name for wait in found.waits] == ["cudaStreamSynchronize"]


@pytest.mark.parametrize(
    ("copied", "synchronised_us", "said"),
    [
        ("Memcpy DtoH (Device -> Pageable)", 1.0, [("cudaStreamSynchronize", 1.0, pytest.approx(8.5))]),
        ("Memcpy DtoH (Device -> Pageable)", None, [("copy to pageable memory", 1.0, pytest.approx(7.0))]),
        (
            "Memcpy DtoH (Device -> Pageable)",
            60.0,
            [("copy to pageable memory", 1.0, pytest.approx(7.0)), ("cudaStreamSynchronize", 1.0, 0.5)],
        ),
        ("Memcpy DtoH (Device -> Pinned)", 1.0, [("cudaStreamSynchronize", 1.0, 0.5)]),
        ("Memcpy HtoD (Pageable -> Device)", 1.0, [("cudaStreamSynchronize", 1.0, 0.5)]),
    ],
)
def test_a_copy_to_pageable_memory_is_one_with_what_waits_after_it(copied, synchronised_us, said):
    """synchronised_us: after the copy's call has returned."""
    maker = TraceMaker()
    for number in range(6):
        maker.graph(e4b(), "step[DECODE bs=8]")
        begin_us = maker.now_us + 1
        copy = {"External id": 7, "correlation": 10**6 + number}
        maker.host("cudaMemcpyAsync", "cuda_runtime", begin_us, 7.0, copy)
        device = {
            "ph": "X",
            "cat": "gpu_memcpy",
            "name": copied,
            "pid": 0,
            "tid": 7,
            "ts": begin_us + 1,
            "dur": 5.0,
        }
        maker.events.append(device | {"args": {"device": 0, "stream": 7, "correlation": 10**6 + number}})
        if synchronised_us is not None:
            maker.host("cudaStreamSynchronize", "cuda_runtime", begin_us + 7 + synchronised_us, 0.5)
        maker.idle(100.0)
    (found,) = analyse(read_tables(maker.document(noise=False)["traceEvents"]))
    assert [(wait.name, wait.count, wait.us) for wait in found.waits] == said


def test_none_is_said_to_be_none():
    (found,) = analyse(read_tables(decode(e4b()).document(noise=False)["traceEvents"]))
    assert found.waits == ()
