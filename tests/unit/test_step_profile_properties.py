"""Whatever a trace holds and in whatever order: nothing of it is lost, and nothing counted twice."""

import random
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trace_examples as ex
from gemma4_triage.step_profile.analyse import DeviceProfile, analyse
from gemma4_triage.step_profile.trace_tables import TraceTables, read_tables
from trace_examples import TraceMaker, decode, e4b, moe


def profiles(document) -> list[DeviceProfile]:
    return analyse(read_tables(document["traceEvents"]))


def shuffled(document, seed):
    return document | {"traceEvents": random.Random(seed).sample(document["traceEvents"], len(document["traceEvents"]))}


NAMES = st.lists(
    st.sampled_from([ex.GEMM, ex.NORM, ex.ADD, ex.MUL, ex.XQA, ex.ARG_MAX, "zzz"]), min_size=1, max_size=12
)


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(st.tuples(NAMES, st.booleans(), st.floats(0, 20)), min_size=1, max_size=8), st.integers())
def test_the_order_of_events_changes_nothing_and_nothing_is_lost(calls, seed):
    maker = TraceMaker()
    for names, graph, idle in calls:
        maker.graph(names, "step[DECODE bs=1]") if graph else maker.eager(names, late_us=idle)
    document = maker.document()
    (found,) = profiles(document)
    (again,) = profiles(shuffled(document, seed))
    assert without_rows(again) == without_rows(found)
    launches = sum(len(names) for names, _, _ in calls)
    steps = found.cut.chosen
    assert sum(family.launches for family in found.families) * len(steps) == pytest.approx(found.launches * len(steps))
    assert sum(family.gpu_us for family in found.families) == pytest.approx(3 * found.launches)
    if found.method == "whole":
        assert found.launches == launches
    elif not found.cut.left_out:
        assert found.cut.before + found.cut.after + found.launches * len(steps) == pytest.approx(launches)
    walls, busy = found.wall_us, found.busy_us
    assert busy.p90 <= walls.p90 + 1e-6
    assert found.idle.idle_us + found.kernel_us == pytest.approx(sum(step.wall_us for step in steps) / len(steps))


def without_rows(found: DeviceProfile) -> dict:
    """Say which row a step begins at is not told of launches of one instant."""
    return {name: value for name, value in asdict(found).items() if name != "cut"} | {"cut": found.cut.left_out}


@given(st.integers())
def test_launches_of_one_instant_have_an_order(seed):
    maker = TraceMaker()
    for _ in range(3):
        began = maker.now_us
        for stream, name in ((7, ex.GEMM), (9, ex.NORM), (9, ex.XQA), (8, ex.GEMM)):
            maker.now_us = began
            maker.eager([name], "step[DECODE bs=1]" if stream == 7 else "", stream=stream)
        maker.idle(20)
    document = maker.document()
    assert asdict(profiles(shuffled(document, seed))[0].idle) == asdict(profiles(document)[0].idle)


@settings(max_examples=15, deadline=None)
@given(st.integers(2, 4), st.integers(2, 4), st.integers())
def test_ranks_in_one_file_are_as_each_alone(first, second, seed):
    makers = [decode(e4b(first), rank="[TP00]"), decode(moe(second), rank="[TP01]", device=1)]
    alone = [profiles(maker.document())[0] for maker in makers]
    events = [event for maker in makers for event in maker.document()["traceEvents"]]
    together = profiles(shuffled({"traceEvents": events}, seed))
    assert [without_rows(one) for one in together] == [without_rows(one) for one in alone]
    assert [one.device for one in together] == ["[TP00] GPU 0", "[TP01] GPU 1"]


KEYS = st.sampled_from(["cat", "ts", "dur", "name", "args", "pid", "tid", "ph"])
WORDS = ["kernel", "cuda_runtime", "X", "user_annotation", "gpu_user_annotation", "step[", "ProfilerStep#1"]
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from([*WORDS, "cudaGraphLaunch", "7"])
ARGUMENTS = st.dictionaries(st.sampled_from(["correlation", "device", "stream"]), SCALARS)
KERNEL = st.fixed_dictionaries(
    {"cat": st.just("kernel"), "name": st.just("k"), "ts": st.floats(0, 1e6), "dur": SCALARS, "args": ARGUMENTS}
)


@pytest.mark.slow
@given(st.lists(st.dictionaries(KEYS, SCALARS | ARGUMENTS) | KERNEL | st.integers(), max_size=12))
def test_events_of_any_shape_are_counted(events):
    tables: TraceTables = read_tables(events)
    counts = tables.counts
    kinds = (counts.gpu, counts.host_calls, counts.step_spans, counts.ignored, counts.malformed)
    assert (sum(kinds), counts.total) == (len(events), len(events))
    assert sum(len(launches) for launches in tables.devices.values()) == counts.gpu
    for found in analyse(tables):
        assert found.launches > 0


def test_a_launch_whose_call_is_missing_is_no_graphs():
    maker = TraceMaker()
    maker.graph([ex.GEMM] * 3)
    maker.eager([ex.NORM])
    events = [event for event in maker.events if event["name"] != "cudaLaunchKernel"]
    (launches,) = read_tables(events).devices.values()
    assert launches.graph.tolist() == [True, True, True, False]


def test_the_unit_of_the_display_changes_no_time():
    document = decode(e4b(3)).document()
    assert profiles(document) is not None
    nanoseconds = document | {"displayTimeUnit": "ns"}
    assert [without_rows(one) for one in profiles(nanoseconds)] == [without_rows(one) for one in profiles(document)]
