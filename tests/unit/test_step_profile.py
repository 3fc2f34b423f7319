"""Steps, families, gaps, layers and replaceable launches of traces whose every number is known."""

import random

import pytest

import trace_examples as ex
from gemma4_triage.step_profile.analyse import DeviceProfile, analyse
from gemma4_triage.step_profile.trace_tables import read_tables
from trace_examples import TraceMaker, decode, e4b, fused, moe


def profiles(document, **options) -> list[DeviceProfile]:
    return analyse(read_tables(document["traceEvents"]), **options)


def profile(maker: TraceMaker, **options) -> DeviceProfile:
    (found,) = profiles(maker.document(), **options)
    return found


def families(found: DeviceProfile) -> dict[str, float]:
    return {family.id: family.launches for family in found.families}


def uses(found: DeviceProfile) -> dict[str, tuple[float, float]]:
    return {use.op: (use.matches, use.launches) for use in found.replaceable if use.matches}


class TestSteps:
    def test_graph_launches_begin_steps(self):
        found = profile(decode(e4b(6), steps=5))
        assert (found.method, len(found.cut.chosen), found.labels) == ("graph", 5, ("step[DECODE bs=8]",))
        assert found.launches == len(e4b(6)) + 3
        assert found.cut.before == 2
        assert found.cut.after == len(e4b(6)) + 1
        # The graph, sampling that waits 10 us for the host, a copy and a metadata kernel; 1 us before each launch.
        assert found.wall_us.median == pytest.approx(4 * len(e4b(6)) - 1 + 14 + 4 + 4)
        assert found.busy_us.median == pytest.approx(3 * found.launches)

    def test_a_draft_between_two_of_the_targets_begins_none(self):
        maker = TraceMaker()
        for _ in range(5):
            maker.graph(ex.DRAFT, "step[DECODE bs=2]")
            maker.eager([ex.ARG_MAX])
            maker.graph(e4b(8), "step[TARGET_VERIFY bs=2]")
            maker.eager([ex.ARG_MAX])
        found = profile(maker)
        assert (len(found.cut.chosen), found.labels) == (4, ("step[TARGET_VERIFY bs=2]",))
        assert found.launches == len(ex.DRAFT) + len(e4b(8)) + 2
        assert found.layers.count == 8

    def test_two_drafts_in_a_row_begin_none(self):
        maker = TraceMaker()
        for _ in range(5):
            maker.graph(ex.DRAFT)
            maker.graph(ex.DRAFT)
            maker.graph(e4b(8))
        found = profile(maker)
        assert (len(found.cut.chosen), found.launches) == (4, 2 * len(ex.DRAFT) + len(e4b(8)))

    def test_another_batch_size_is_another_kind(self):
        maker = decode(e4b(8), steps=5)
        other = [name.replace("64x8", "64x16") for name in e4b(8)]
        for _ in range(3):
            maker.graph(other, "step[DECODE bs=16]")
            maker.eager([ex.ARG_MAX])
        found = profile(maker)
        assert (len(found.cut.chosen), found.labels) == (6, ("step[DECODE bs=8]",))
        assert found.cut.left_out == {"of another kind": 2}

    def test_a_prefill_in_between_is_left_out(self):
        maker = decode(e4b(4), steps=3)
        maker.eager([*e4b(4), "prefill"] * 3)
        for _ in range(3):
            maker.graph(e4b(4), "step[DECODE bs=8]")
        found = profile(maker)
        assert len(found.cut.chosen) == 5
        assert list(found.cut.left_out.values()) == [1]
        assert found.wall_us.p90 < 1.5 * found.wall_us.p10

    def test_a_graph_that_the_profiler_met_in_its_midst_is_no_step(self):
        maker = TraceMaker()
        maker.graph(e4b(6)[50:])
        for _ in range(4):
            maker.graph(e4b(6), "step[DECODE bs=8]")
        found = profile(maker)
        assert len(found.cut.chosen) == 3
        assert found.launches == len(e4b(6))

    def test_branches_of_a_graph_may_come_in_any_order(self):
        maker, order = TraceMaker(), random.Random(0)
        for _ in range(6):
            maker.graph(order.sample(e4b(4), len(e4b(4))), "step[DECODE bs=8]")
        found = profile(maker)
        assert (found.method, len(found.cut.chosen), found.launches) == ("graph", 5, len(e4b(4)))

    def test_profiler_steps_come_first(self):
        maker = TraceMaker()
        for number in range(4):
            maker.eager(e4b(3), f"ProfilerStep#{number}")
        found = profile(maker)
        assert (found.method, len(found.cut.chosen), found.launches) == ("annotation", 3, len(e4b(3)))

    def test_sglangs_spans_without_graphs(self):
        maker = TraceMaker()
        for _ in range(4):
            maker.eager(e4b(3), "step[DECODE bs=1]")
            maker.eager([ex.ARG_MAX])
        found = profile(maker)
        assert (found.method, found.labels) == ("span", ("step[DECODE bs=1]",))
        assert found.launches == len(e4b(3)) + 1

    def test_repetition_alone(self):
        maker = TraceMaker()
        for _ in range(4):
            maker.eager([*e4b(3), ex.ARG_MAX])
        found = profile(maker)
        assert (found.method, len(found.cut.chosen), found.launches) == ("pattern", 3, len(e4b(3)) + 1)

    def test_the_layers_of_one_step_are_no_steps(self):
        maker = TraceMaker()
        maker.eager([*e4b(30), ex.ARG_MAX])
        found = profile(maker)
        assert (found.method, found.launches) == ("whole", len(e4b(30)) + 1)

    def test_what_only_ends_alike_does_not_repeat(self):
        maker, order = TraceMaker(), random.Random(0)
        for _ in range(4):
            maker.eager([*order.choices(e4b(3), k=60), ex.ARG_MAX])
        assert profile(maker).method == "whole"

    def test_a_method_can_be_asked_for(self):
        maker = decode(e4b(3))
        whole = profile(maker, method="whole")
        assert (whole.launches, len(whole.cut.chosen)) == (whole.launches_in_trace, 1)
        assert profile(maker, method="annotation").method == "whole"

    def test_two_graphs_at_one_instant_are_no_empty_step(self):
        maker = TraceMaker()
        for _ in range(3):
            began = maker.now_us
            maker.graph(e4b(3))
            ended, maker.now_us = maker.now_us, began
            maker.graph(e4b(3), stream=9)
            maker.now_us = ended
        found = profile(maker)
        assert [step.launches for step in found.cut.chosen] == [2 * len(e4b(3))] * 2
        assert found.busy_us.median == pytest.approx(found.kernel_us / 2)


class TestFamilies:
    def test_every_launch_is_in_one(self):
        found = profile(decode(moe(5), steps=3))
        counts = families(found)
        assert sum(counts.values()) == found.launches
        assert sum(family.share for family in found.families) == pytest.approx(1)
        assert (counts["attention"], counts["routing"], counts["moe"]) == (5, 5, 20)
        assert (counts["sampling"], counts["memory"]) == (1, 1)

    def test_names_that_nobody_knows_are_listed(self):
        found = profile(decode([*e4b(3), "zzz_1", "zzz_1", "zzz_2"], steps=2))
        (other,) = [family for family in found.families if family.id == "other"]
        assert [(kernel.name, kernel.launches) for kernel in other.kernels] == [("zzz_1", 2), ("zzz_2", 1)]
        assert other.further == 0

    def test_names_that_are_not_listed_are_counted(self):
        found = profile(decode([*e4b(3), *(f"zzz_{number}" for number in range(11))], steps=2))
        (other,) = [family for family in found.families if family.id == "other"]
        assert (len(other.kernels), other.further, other.launches) == (8, 3, 11)


class TestIdle:
    def test_a_late_host_is_the_hosts(self):
        early, late = profile(decode(e4b(3))), TraceMaker()
        for _ in range(3):
            late.graph(e4b(3))
            late.eager([ex.ARG_MAX], late_us=40.0)
        assert profile(late).idle.host_us == pytest.approx(40)
        assert early.idle.host_us == pytest.approx(10)
        gap = profile(late).idle.largest[0]
        assert (gap.largest_us, gap.before, gap.after) == (pytest.approx(41), ex.GEMM, ex.ARG_MAX)

    def test_gaps_inside_a_graph_are_not_the_hosts(self):
        maker = TraceMaker(gap_us=2.5)
        for _ in range(3):
            maker.graph(e4b(3))
        found = profile(maker)
        assert found.idle.in_graph_us == pytest.approx(2.5 * (len(e4b(3)) - 1))
        assert found.idle.host_us == 0

    def test_nor_are_they_if_the_call_returns_late(self):
        maker = TraceMaker()
        for _ in range(3):
            maker.graph(e4b(3))
        for event in maker.events:
            event["dur"] += 200 if event["name"] == "cudaGraphLaunch" else 0
        found = profile(maker)
        assert found.idle.in_graph_us == pytest.approx(len(e4b(3)) - 1)
        assert found.idle.host_us == 0

    def test_without_graphs_the_host_is_what_one_waits_for(self):
        maker = TraceMaker()
        for _ in range(3):
            maker.eager(e4b(3), "step[DECODE bs=1]", late_us=9.0)
        found = profile(maker)
        assert found.idle.host_us == pytest.approx(9 * len(e4b(3)))
        assert found.idle.host_share == pytest.approx(9 / 13)
        assert found.idle.idle_us == pytest.approx(10 * len(e4b(3)))
        assert found.idle.known == 1

    def test_without_the_calls_nobody_is_blamed(self):
        maker = TraceMaker()
        for _ in range(3):
            maker.eager([*e4b(3), ex.ARG_MAX], late_us=9.0)
        document = maker.document()
        document["traceEvents"] = [event for event in document["traceEvents"] if event.get("cat") == "kernel"]
        (found,) = profiles(document)
        assert (found.idle.host_us, found.idle.known) == (0, 0)
        assert found.idle.idle_us > 0

    def test_streams_that_overlap_are_busy_once(self):
        maker = TraceMaker(gap_us=0)
        for _ in range(3):
            maker.graph([ex.GEMM] * 10)
            maker.idle(-30)
            maker.graph([ex.COPY] * 5, stream=9)
            maker.idle(15 + 20)
        found = profile(maker)
        assert found.kernel_us == 45
        assert found.busy_us.median == pytest.approx(30)
        assert found.idle.idle_us == pytest.approx(20)

    def test_a_launch_that_runs_on_into_the_next_step_is_busy_there(self):
        maker = TraceMaker(gap_us=0)
        for _ in range(4):
            maker.graph([ex.GEMM] * 4)
            maker.idle(8)
        document = maker.document(noise=False)
        long = {"ph": "X", "cat": "kernel", "name": "long", "pid": 0, "tid": 9, "ts": 1010.0, "dur": 500.0}
        document["traceEvents"].append(long | {"args": {"device": 0, "stream": 9}})
        (found,) = profiles(document)
        assert found.idle.idle_us == 0


class TestLayers:
    def test_counted_by_what_each_layer_has_one_of(self):
        found = profile(decode(e4b(7)))
        assert (found.layers.count, found.layers.launches) == (7, len(e4b(7)))
        assert "_gemma_qkv_rmsnorm_kernel" in found.layers.source

    def test_counted_by_repetition(self):
        model = [name for name in e4b(7) if name != ex.QK_NORM]
        found = profile(decode(model))
        assert found.layers.count == 7
        assert "kernels are launched 7 times" in found.layers.source

    def test_given(self):
        assert profile(decode(e4b(7)), layers=3).layers.count == 3

    def test_nothing_repeats(self):
        maker = TraceMaker()
        maker.eager(["a", "b"])
        assert profile(maker).layers.count is None


class TestReplaceable:
    def test_of_e4b(self):
        assert uses(profile(decode(e4b(6)))) == {
            "ple_front_end": (1, 4),
            "rmsnorm_residual_scalar": (6, 18),
            "post_attention_norms": (6, 12),
            "gelu_tanh_mul": (6, 12),
            "rmsnorm_add": (6, 12),
            "qk_norm_rope": (6, 12),
            "cross_layer_norm": (6, 24),
        }

    def test_layers_that_read_another_layers_keys_fill_some_with_zeros(self):
        model = [*ex.FRONT, *ex.E_LAYER * 4, *ex.SHARED_LAYER * 2, *ex.TAIL]
        assert uses(profile(decode(model)))["qk_norm_rope"] == (6, 4 * 2 + 2 * 3)

    def test_of_a_mixture_of_experts(self):
        expected = {"triple_rmsnorm": (5, 20), "routing": (5, 5), "qk_norm_rope": (5, 10), "cross_layer_norm": (5, 10)}
        assert uses(profile(decode(moe(5)))) == expected

    def test_of_a_dense_model_without_per_layer_embeddings(self):
        layer = [ex.NORM, ex.GEMM, ex.QK_NORM, ex.XQA, ex.GEMM, ex.NORM, ex.ADD_NORM, ex.GEMM, ex.ACT, ex.GEMM]
        model = [ex.GATHER, ex.MUL, *[*layer, "_gemma_rmsnorm_residual_kernel"] * 4, *ex.TAIL]
        expected = {"rmsnorm_residual_scalar": (4, 4), "post_attention_norms": (4, 8), "cross_layer_norm": (4, 8)}
        assert uses(profile(decode(model))) == expected

    def test_no_launch_is_counted_twice_in_the_total(self):
        found = profile(decode(e4b(6)))
        assert found.replaceable_launches == 4 + 6 * (2 + 2 + 2 + 2 + 4)
        assert found.replaceable_us == pytest.approx(3 * found.replaceable_launches)

    def test_what_is_ours_already(self):
        found = profile(decode(fused(6)))
        assert uses(found) == {"cross_layer_norm": (6, 12)}
        present = {use.op: use.present for use in found.replaceable if use.present}
        ops = ("rmsnorm_residual_scalar", "post_attention_norms", "gelu_tanh_mul", "rmsnorm_add", "qk_norm_rope")
        assert present == {"ple_front_end": 1} | dict.fromkeys(ops, 6)
        assert families(found)["gemma4-triage"] == 31
        assert found.layers.count == 6
        assert "qk_norm_rope_kernel" in found.layers.source

    @pytest.mark.parametrize("between", [ex.COPY, ex.GEMM, "zzz"])
    def test_a_launch_in_between_breaks_a_sequence(self, between):
        model = [name for launch in e4b(3) for name in ([launch, between] if launch == ex.GELU else [launch])]
        assert "gelu_tanh_mul" not in uses(profile(decode(model)))

    def test_another_stream_breaks_a_sequence(self):
        maker = TraceMaker()
        for _ in range(3):
            maker.graph([ex.XQA, ex.XQA])
            maker.eager([ex.GELU])
            maker.eager([ex.MUL], stream=9)
        assert uses(profile(maker)) == {}

    def test_every_stream_is_searched(self):
        maker = TraceMaker()
        for _ in range(3):
            maker.graph([ex.XQA, ex.XQA])
            maker.eager([ex.GELU, ex.MUL], stream=9)
        assert uses(profile(maker)) == {"gelu_tanh_mul": (1, 2)}

    def test_a_sequence_does_not_reach_into_the_next_step(self):
        maker = TraceMaker()
        for _ in range(4):
            maker.graph([ex.MUL, ex.XQA, ex.GELU])
        assert uses(profile(maker)) == {}
