"""How `bench kernels` times graphs and goes through a cell's arms, on a device that is a clock."""

import io
import json
import weakref

import pytest
import torch

from clocked_device import ClockedDevice, Graph, device
from gemma4_repro.kernel_bench import cell as cell_module
from gemma4_repro.kernel_bench import process, replay_clock
from gemma4_repro.kernel_bench.cell import Cell, WrongAnswer, measure
from gemma4_repro.kernel_bench.plan import KernelPlan, ModelShape
from gemma4_repro.kernel_bench.replay_clock import MIN_ROUNDS, WARM_UP_ROUNDS, DeviceLost, capture, interleaved
from gemma4_repro.marked_lines import MARK

__all__ = ["device"]
MODEL = ModelShape("ple", 64, 3, 0, 0, 32, 3, 1, 32, 1)


def graphs_of(device: ClockedDevice, **takes_us) -> tuple[dict[str, Graph], list[str]]:
    replayed: list[str] = []
    made = {}
    for name, took in takes_us.items():
        made[name] = Graph(device, name, took if callable(took) else lambda took=took: took, replayed)
    return made, replayed


class TestTimes:
    def test_each_arm_has_its_time_of_every_round_but_the_first_ones(self, device):
        graphs, replayed = graphs_of(device, ours=10.0, eager=25.0)
        assert interleaved(graphs, 7, 60.0) == {"ours": pytest.approx([10.0] * 7), "eager": pytest.approx([25.0] * 7)}
        assert len(replayed) == 2 * (7 + WARM_UP_ROUNDS)

    def test_arms_take_turns_at_going_first(self, device):
        graphs, replayed = graphs_of(device, a=1.0, b=1.0, c=1.0)
        interleaved(graphs, 3, 60.0)
        rounds = [replayed[place : place + 3] for place in range(0, len(replayed), 3)]
        assert all(sorted(names) == ["a", "b", "c"] for names in rounds)
        assert {names[0] for names in rounds[-3:]} == {"a", "b", "c"}

    def test_of_several_replays_the_one_that_goes_before_them_is_not_counted(self, device):
        takes = iter([1000.0, 10.0, 20.0, 30.0])
        graphs, _ = graphs_of(device, ours=lambda: next(takes))
        assert replay_clock.replay_us(graphs["ours"], 3) == pytest.approx(20.0)

    def test_out_of_time_it_keeps_the_fewest_rounds(self, device):
        graphs, _ = graphs_of(device, ours=10.0)
        assert len(interleaved(graphs, 1000, 0.0)["ours"]) == MIN_ROUNDS

    def test_a_replay_that_fails_is_its_arms(self, device):
        def fail() -> float:
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with ...")

        graphs, _ = graphs_of(device, ours=10.0, vllm=fail)
        with pytest.raises(
            DeviceLost, match=r"^replay: RuntimeError: CUDA error: an illegal memory access.*d$"
        ) as lost:
            interleaved(graphs, 5, 60.0)
        assert lost.value.arm == "vllm"

    def test_the_device_answers_until_it_is_lost(self, device):
        assert replay_clock.device_answers()
        device.lost = True
        assert not replay_clock.device_answers()


def test_a_graph_has_every_call_and_results_live_until_their_buffers_turn_comes(device):
    class Result:
        pass

    captured, alive = [], []

    def call(number):
        if device.capturing is None:
            return None
        captured.append(number)
        alive.append([place for place, result in enumerate(results) if result() is not None])
        made = Result()
        results.append(weakref.ref(made))
        return made

    results: list[weakref.ref] = []
    recorded = capture(call, 6, 2)
    assert captured == list(range(6))
    assert alive == [[], [0], [0, 1], [1, 2], [2, 3], [3, 4]]
    assert recorded.call is call


class TestCell:
    @pytest.fixture
    def cell(self):
        # Interpreted on this CPU; of the kernels themselves see test_kernel_bench_arms.py.
        return Cell("rmsnorm_add", MODEL, 2, "cpu")

    def test_arms_are_timed_per_call_and_counted(self, device, cell, monkeypatch):
        monkeypatch.setattr(cell_module, "count_launches", lambda call, calls: 3 * calls)
        found = list(measure(cell, ("ours", "eager", "vllm"), 5, 60.0, count=True))
        where = {"op": "rmsnorm_add", "model": "ple", "tokens": 2}
        counted = [fields for kind, fields in found if kind == "launches"]
        assert counted == [where | {"arm": arm, "launches_per_step": 9} for arm in ("ours", "eager")]
        timed = [fields for kind, fields in found if kind == "samples"]
        assert [fields["arm"] for fields in timed] == ["ours", "eager"], "vLLM has a router alone"
        assert all(fields["us"] == pytest.approx([80.0 / cell.calls] * 5) for fields in timed)
        assert timed[0]["moved_bytes"] == cell.arms.moved_bytes

    def test_an_arm_that_does_not_take_the_cell_is_lost_alone(self, device, cell, monkeypatch):
        def refuse():
            raise ValueError("no such size\nand more")

        monkeypatch.setattr(cell_module, "library_norms", refuse)
        found = list(measure(cell, ("sglang", "eager"), 5, 60.0, count=False))
        where = {"op": "rmsnorm_add", "model": "ple", "tokens": 2}
        assert found[0] == ("lost", where | {"arm": "sglang", "why": "ValueError: no such size"})
        assert [(kind, fields["arm"]) for kind, fields in found[1:]] == [("samples", "eager")]

    def test_an_arm_after_which_the_device_does_not_answer_is_named(self, device, cell, monkeypatch):
        def lose_it():
            device.lost = True
            raise RuntimeError("CUDA error: misaligned address")

        monkeypatch.setattr(cell_module, "library_norms", lose_it)
        with pytest.raises(DeviceLost, match="misaligned address") as lost:
            list(measure(cell, ("eager", "sglang"), 5, 60.0, count=False))
        assert lost.value.arm == "sglang"

    @pytest.mark.parametrize("answers", [True, False])
    def test_our_first_launch_can_lose_it(self, device, cell, monkeypatch, answers):
        def fail(*arguments, **options):
            device.lost = not answers
            raise RuntimeError("out of resources")

        monkeypatch.setattr(cell.arms, "ours", fail)
        with pytest.raises(RuntimeError if answers else DeviceLost, match="out of resources"):
            list(measure(cell, ("ours",), 5, 60.0, count=False))

    def test_a_cell_of_which_every_arm_is_lost_says_so_alone(self, device):
        cell = Cell("routing", ModelShape("moe", 64, 3, 16, 4, 0, 4, 2, 16, 0), 2, "cpu")
        (lost,) = measure(cell, ("vllm",), 5, 60.0, count=False)
        assert (lost[0], lost[1]["why"]) == ("lost", "ValueError: no file of vLLM's is named")


class TestProcess:
    """The loop over cells: what it tells, and the exit codes that run_process.py goes by."""

    @pytest.fixture
    def run(self, monkeypatch, capsys):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
        properties = type("Properties", (), {"multi_processor_count": 132, "L2_cache_size": 1 << 20})
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
        monkeypatch.setattr(process, "gpu", lambda: None)
        monkeypatch.setattr(process, "Cell", lambda op, model, tokens, vllm_file: (op, model.id, tokens))

        def run_process(ends, limit_s=60.0, **changes):
            """ends: by tokens, what the measuring of that cell raises."""
            asked = []

            def measure(cell, arms, rounds, limit_s, count):
                asked.append((cell[2], arms, count))
                if cell[2] in ends:
                    raise ends[cell[2]]
                yield "samples", {"arms": arms, "tokens": cell[2]}

            monkeypatch.setattr(process, "measure", measure)
            plan = KernelPlan(("routing",), ("26b",), (1, 8, 64), ("ours", "compile"), 5, limit_s)
            task = {"plan": plan.as_dict(), "first": 0, "left_out": [], "not_compiled": [], "counted": []} | changes
            monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(task)))
            code = process.main()
            out = capsys.readouterr().out.splitlines()
            lines = [json.loads(line.removeprefix(MARK)) for line in out if line.startswith(MARK)]
            assert lines.pop(0)["multiprocessors"] == 132
            return code, [line for line in lines if line["kind"] != "cell"], asked

        return run_process

    @pytest.mark.slow
    def test_all_cells(self, run):
        code, told, asked = run({})
        assert (code, [line["tokens"] for line in told]) == (0, [1, 64, 8])
        assert [count for _, _, count in asked] == [True, False, False], "an op's launches are counted once"

    @pytest.mark.slow
    def test_what_is_left_out_is_not_measured(self, run):
        _, _, asked = run({}, first=1, left_out=[["routing", "26b", "ours"]], not_compiled=[["routing", "26b", 8]])
        assert [(tokens, arms) for tokens, arms, _ in asked] == [(64, ("compile",)), (8, ())]

    @pytest.mark.slow
    def test_a_wrong_cell_and_one_too_large_are_told_and_the_rest_is_measured(self, run):
        code, told, _ = run({1: WrongAnswer("place 0"), 64: torch.cuda.OutOfMemoryError("no room")})
        assert code == 0
        assert [(line["kind"], line["tokens"]) for line in told] == [("wrong", 1), ("lost", 64), ("samples", 8)]
        assert (told[0]["what"], told[1]["arm"], told[1]["why"]) == ("place 0", "all", "no room")

    def test_a_lost_device_ends_it(self, run):
        code, told, _ = run({64: DeviceLost("compile", "replay: misaligned")})
        assert (code, told[-1]["kind"], told[-1]["arm"], told[-1]["tokens"]) == (4, "device-lost", "compile", 64)

    def test_out_of_time(self, run):
        code, told, asked = run({}, limit_s=-1.0)
        assert (code, asked) == (0, [])
        assert told == [{"kind": "partial", "why": "out of time after 0 of 3 cells"}]

    def test_without_cuda(self, run, monkeypatch, capsys):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        plan = KernelPlan(("routing",), ("26b",), (1,), ("ours",), 5, 60.0)
        task = {"plan": plan.as_dict(), "first": 0, "left_out": [], "not_compiled": [], "counted": []}
        monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(task)))
        assert process.main() == 3
        assert capsys.readouterr().err == "torch finds no CUDA device\n"
