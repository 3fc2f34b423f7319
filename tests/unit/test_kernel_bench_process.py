"""The run of `bench kernels` over processes that end: what is lost is named, the rest is measured."""

import json
import sys
from dataclasses import replace

import pytest

from gemma4_repro import measuring_process
from gemma4_repro.errors import EnvironmentLacks
from gemma4_repro.kernel_bench.compile_ahead import Ahead
from gemma4_repro.kernel_bench.plan import KernelPlan
from gemma4_repro.kernel_bench.run_process import run_plan
from gemma4_repro.marked_lines import MARK

PLAN = KernelPlan(("routing",), ("26b",), (1, 8, 64), ("ours", "sglang", "copy"), 5, 60.0)
# Speaks as process.py does, and ends as it can: {cell's tokens: what happens there}.
PROCESS = f"""
import json, os, signal, sys, time
ends = json.loads(sys.argv[1])
task = json.load(sys.stdin)
def tell(kind, **fields):
    print({MARK!r} + json.dumps({{"kind": kind}} | fields), flush=True)
tell("about", versions={{}})
if "start" in ends:
    sys.exit("RuntimeError: no driver")
cells = [1, 64, 8]
assert sorted(cells) == task["plan"]["tokens"]
left_out = [tuple(one) for one in task["left_out"]]
for number, tokens in list(enumerate(cells))[task["first"]:]:
    where = dict(op="routing", model="26b", tokens=tokens)
    tell("cell", number=number, **where)
    how = ends.get(str(tokens))
    if how == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "raise":
        raise ValueError("a shape that no library takes")
    if how == "hang":
        time.sleep(60)
    if how in task["plan"]["arms"] and ("routing", "26b", how) not in left_out:
        tell("device-lost", arm=how, why="replay: an illegal memory access", **where)
        os._exit(4)
    for arm in task["plan"]["arms"]:
        if ("routing", "26b", arm) not in left_out:
            tell("samples", arm=arm, us=[1.0], **where)
    if ["routing", "26b", tokens] in task["not_compiled"]:
        tell("samples", arm="compile", us=[0.0], **where)
    if ["routing", "26b"] not in task["counted"]:
        tell("launches", arm="ours", launches_per_step=30, **where)
"""


def run(ends, say=lambda line: None, plan=PLAN):
    return run_plan(plan, say, (sys.executable, "-c", PROCESS, json.dumps(ends)))


def compiler(missing):
    def compile_all(cells, folder, limit_s, say):
        assert folder.is_dir()
        assert limit_s == 0.4 * PLAN.limit_s
        return Ahead({("routing", "26b", 8)}, missing, workers=2, took_s=7.0)

    return compile_all


def test_what_was_not_compiled_ahead_is_lost_and_the_process_knows(tmp_path):
    plan = replace(PLAN, arms=("ours", "compile"))
    command = (sys.executable, "-c", PROCESS, "{}")
    missing = {("routing", "26b", 64): "no lowering"}
    folder = tmp_path / "new" / "cache"
    measured = run_plan(plan, print, command, compile_cache=folder, compiler=compiler(missing))
    where = {"op": "routing", "model": "26b", "tokens": 64}
    assert measured.lost == [where | {"arm": "compile", "why": "no lowering"}]
    assert measured.compiling == {"compiled": 1, "of": 2, "cached": 0, "workers": 2, "took_s": 7.0}
    # The process that is made up measures the arm where the task says that it cannot.
    assert [sample["tokens"] for sample in measured.samples if sample["us"] == [0.0]] == [64]
    assert measured.took_s > 0
    assert folder.is_dir()


def test_nothing_is_compiled_without_the_arm():
    def refuse(*arguments):
        raise AssertionError("compiled")

    command = (sys.executable, "-c", PROCESS, "{}")
    assert run_plan(PLAN, print, command, compiler=refuse).compiling is None


def measured_arms(measured):
    found = {}
    for sample in measured.samples:
        found.setdefault(sample["tokens"], []).append(sample["arm"])
    return found


def test_nothing_ends():
    measured = run({})
    assert measured_arms(measured) == {tokens: ["ours", "sglang", "copy"] for tokens in (1, 64, 8)}
    assert (measured.lost, measured.partial) == ([], "")


def test_an_arm_that_loses_the_device_is_left_out_and_its_cell_measured_again():
    said = []
    measured = run({"64": "sglang"}, said.append)
    assert measured_arms(measured) == {1: ["ours", "sglang", "copy"], 64: ["ours", "copy"], 8: ["ours", "copy"]}
    (lost,) = measured.lost
    assert {name: lost[name] for name in ("op", "model", "tokens", "arm")} == {
        "op": "routing",
        "model": "26b",
        "tokens": 64,
        "arm": "sglang",
    }
    assert lost["why"].startswith("replay: an illegal memory access; left out")
    assert measured.partial == ""
    assert any(line.startswith("lost: sglang") for line in said)
    # The second process knows which launches are counted.
    assert len(measured.launches) == 1


@pytest.mark.parametrize(
    ("how", "why"), [("segfault", "ended with -11"), ("raise", "ValueError: a shape that no library takes")]
)
def test_a_cell_that_ends_the_process_is_lost_alone(how, why):
    measured = run({"1": how, "8": how})
    assert measured_arms(measured) == {64: ["ours", "sglang", "copy"]}
    assert [(lost["tokens"], lost["arm"]) for lost in measured.lost] == [(1, "all"), (8, "all")]
    assert all(why in lost["why"] for lost in measured.lost)


def test_a_cell_that_hangs_is_lost_alone(monkeypatch):
    monkeypatch.setattr(measuring_process, "_SILENCE_S", 2.0)
    measured = run({"64": "hang"})
    assert measured_arms(measured).keys() == {1, 8}
    assert "no result for 2 s" in measured.lost[0]["why"]


def test_a_process_that_cannot_start_is_not_started_again():
    with pytest.raises(EnvironmentLacks, match="no driver"):
        run({"start": True})


def test_every_cell_lost_is_an_error_with_the_last_words():
    with pytest.raises(EnvironmentLacks, match="a shape that no library takes"):
        run(dict.fromkeys(("1", "64", "8"), "raise"))


@pytest.mark.slow
def test_no_time_is_left_for_another_process(monkeypatch):
    monkeypatch.setattr(measuring_process, "_GRACE_S", 1.0)
    measured = run({"64": "hang"}, plan=replace(PLAN, limit_s=2.0))
    assert measured_arms(measured).keys() == {1}
    assert "out of time in a cell" in measured.lost[0]["why"]
    assert measured.partial == "out of time after 2 of 3 cells"
