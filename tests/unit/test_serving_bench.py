"""`bench serving`: its plans, rows and aims from made-up bursts, and the command's refusals."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_examples import INSTALLATION, PROJECT
from bench_examples import serving_measured as measured_of
from gemma4_repro.bench.server_arguments import command_words
from gemma4_repro.errors import UnknownName
from gemma4_repro.serving_bench import needed
from gemma4_repro.serving_bench.agree import answer_record, difference, tolerance
from gemma4_repro.serving_bench.loads import HOST_LOADS, LOADS
from gemma4_repro.serving_bench.plan import ACCEPTED, OWNERS_ONLY, make_plan, other_release, schedule, server_arguments
from gemma4_repro.serving_bench.rows import build_rows, judge_targets
from gemma4_repro.step_bench.model_sizes import SIZES, assistant_text
from gemma4_repro.step_bench.plan import MARGIN, MOST_RELATIVE
from gemma4_runtime.catalog import CATALOG
from gemma4_runtime.selection import select
from gemma4_runtime.settings import read_settings
from gemma4_triage.cli import bench_serving
from gemma4_triage.report.serving_bench_document import serving_bench_document

ROOT = Path(__file__).parents[2]


def plan_of(load, models=(), rounds=5, host=False):
    return make_plan(load, tuple(models), rounds, host, 60)


class TestPlan:
    @pytest.mark.parametrize("load", LOADS.values(), ids=lambda load: load.id)
    def test_patch_sets_are_ones_that_can_be_selected(self, load, monkeypatch):
        for arm in load.arms:
            for name, value in arm.environment.items():
                monkeypatch.setenv(name, value)
            chosen = {patch.id for patch in select(read_settings())}
            for name in arm.environment:
                monkeypatch.delenv(name)
            assert (arm.id in ("none", "no-mtp")) is not bool(chosen)
            assert ("owner-only-kv" in chosen) is (arm.id in OWNERS_ONLY)
            if arm.id in {patch.id for patch in CATALOG}:
                assert chosen == {arm.id}

    @pytest.mark.parametrize("load", LOADS.values(), ids=lambda load: load.id)
    def test_aims_are_of_arms_and_shapes_that_there_are(self, load):
        assert load.arms[0].id == "none"
        for aim in load.aims:
            assert aim.arm in [arm.id for arm in load.arms]
            assert set(aim.shapes) <= {shape.id for shape in load.shapes}
        assert set(load.better_of) <= {arm.id for arm in load.arms}

    def test_graphs_are_captured_for_each_batch_of_the_load(self, tmp_path):
        plan = plan_of("mtp-batches")
        captured = server_arguments(plan, tmp_path)["cuda_graph_bs"]
        assert {shape.requests for shape in plan.shapes} <= set(captured)

    def test_pools_that_leave_layers_out_hold_more_tokens_in_the_same_bytes(self):
        plan = plan_of("long-context")
        tokens = {
            model: {arm.id: arm.arguments["max_total_tokens"] for arm in plan.arms_of(model)} for model in plan.models
        }
        assert tokens["e2b"] == {"none": 49152, "owner-only-kv": 49152 * 35 // 15 // 64 * 64, "default": 114688}
        assert tokens["e4b"]["default"] == 49152 * 42 // 24
        assert not any(arm.arguments for arm in plan_of("prefill").arms_of("e2b"))

    def test_each_server_meets_each_shape_once_a_round_in_another_order(self):
        plan = plan_of("prefill")
        names = tuple(arm.id for arm in plan.arms)
        orders = [list(schedule(plan, names, number)) for number in range(4)]
        assert all(set(order) == {(shape, name) for shape in plan.shapes for name in names} for order in orders)
        assert len({tuple((shape.id, name) for shape, name in order) for order in orders}) == 4

    def test_requests_fit(self, tmp_path):
        for load in LOADS:
            plan = plan_of(load)
            arguments = server_arguments(plan, tmp_path)
            for shape in plan.shapes:
                longest = shape.prompt_tokens + 300 * shape.pictures + shape.new_tokens
                assert longest < min(arguments["context_length"], plan.load.pool_tokens)
                assert shape.requests <= arguments["max_running_requests"]

    def test_arms_draft_or_not_and_overlap_or_not(self, tmp_path):
        plan = plan_of("mtp")
        common = server_arguments(plan, tmp_path / "e2b")
        words = {arm.id: command_words({**common, **arm.arguments}) for arm in plan.arms_of("e2b")}
        plain = [name for name, found in words.items() if "--speculative-algorithm" not in found]
        assert plain == ["no-mtp", "no-mtp-lists"]
        assert not any(word.startswith("--speculative") for name in plain for word in words[name])
        assert [name for name, found in words.items() if "--disable-overlap-schedule" in found] == ["v2-sync"]
        place = words["v2"].index("--speculative-draft-model-path")
        assert words["v2"][place + 1] == str(tmp_path / "e2b-assistant")
        settled = {arm.environment.get("SGLANG_SIMULATE_ACC_LEN") for arm in plan.arms_of("e2b")}
        assert settled == {str(ACCEPTED)}

    def test_arms_that_are_left_out_take_their_aims_along(self):
        def ids(*arms):
            plan = make_plan("mtp-batches", ("e2b",), 5, False, 60, arms=arms)
            return [arm.id for arm in plan.arms], [aim.id for aim in plan.load.aims]

        assert ids("default-policy") == (["none", "default-policy"], ["faster-than-v1"])
        three = ("default-v2", "default-no-mtp", "default-policy")
        assert ids(*reversed(three)) == (["none", *three], ["never-slower", "faster-than-v1"])
        assert ids() == ids("none", "no-mtp", "default-v2-sglang-attention", *three)

    def test_some_numbers_of_requests_are_measured_alone(self):
        plan = make_plan("mtp-batches", ("26b",), 5, False, 60, requests=(64, 1))
        assert [shape.requests for shape in plan.shapes] == [1, 64]
        assert {aim.shapes for aim in plan.load.aims} == {tuple(shape.id for shape in plan.shapes)}
        with pytest.raises(UnknownName, match="never has 3 requests at once"):
            make_plan("mtp-batches", (), 5, False, 60, requests=(1, 3))

    def test_the_largest_model_is_whole_where_servers_have_gpus_of_their_own(self):
        shared, spread = (make_plan("mtp-batches", ("26b",), 5, False, 60, gpus=gpus) for gpus in (1, 2))
        assert (shared.layers_of("26b"), spread.layers_of("26b")) == (12, 30)
        assert shared.layers_of("e4b") == spread.layers_of("e4b") == 42

    def test_on_the_host_engine_drafts_are_the_toys_own(self):
        plan = plan_of("mtp", host=True)
        assert [arm.id for arm in plan.arms_of("toy-e4b")] == ["none", "v2"]
        assert not any("SGLANG_SIMULATE_ACC_LEN" in arm.environment for arm in plan.arms_of("toy-e4b"))

    def test_another_release_is_an_arm_of_its_own(self, tmp_path):
        info = tmp_path / "sglang-9.8.7.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 9.8.7\n")
        arm = other_release(tmp_path, {"PYTHONPATH": "/else"})
        assert arm.id == "sglang-9.8.7"
        assert arm.environment["PYTHONPATH"] == f"{tmp_path}{os.pathsep}/else"
        assert other_release(tmp_path, {}).environment["PYTHONPATH"] == str(tmp_path)
        assert arm.environment["SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK"] == "1", "it pins another sglang-kernel"
        plan = make_plan("mtp", ("e2b",), 5, False, 60, (arm,))
        assert [one.id for one in plan.arms_of("e2b")][-1] == "sglang-9.8.7"
        assert plan.arms_of("e2b")[-1].environment["SGLANG_SIMULATE_ACC_LEN"] == str(ACCEPTED)
        words = command_words({**server_arguments(plan, tmp_path), **arm.arguments})
        assert "--speculative-algorithm" in words
        assert "--disable-overlap-schedule" not in words

    @pytest.mark.parametrize("size", ["e2b", "e4b"])
    def test_an_assistant_reads_the_targets_kv(self, size):
        target = SIZES[size].text_config(SIZES[size].layers)
        text = assistant_text(target)
        assert (text["head_dim"], text["global_head_dim"], text["vocab_size"]) == (256, 512, 262144)
        assert text["num_key_value_heads"] == target["num_key_value_heads"]
        assert text["hidden_size"] < target["hidden_size"]

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (("nothing", (), 5, False, 60), "there is no load 'nothing'"),
            (("pictures", ("e4b",), 5, False, 60), "has no model 'e4b'"),
            (("pictures", (), 5, False, 60, (), ("all",)), "the load 'pictures' has no arm 'all'"),
            (("pictures", (), 5, True, 60), "the host engine cannot serve the load 'pictures'"),
        ],
    )
    def test_refusals(self, words, said):
        with pytest.raises(UnknownName, match=said):
            make_plan(*words)


class TestAnswers:
    def test_a_difference_is_in_spreads_of_the_reference(self):
        assert difference([[1.0, 3.0]], [[0.0, 2.0]]) == pytest.approx(1.0)
        assert difference([[0.0, 2.0]], [[0.0, 2.0]]) == 0

    @pytest.mark.parametrize(
        ("found", "wanted"),
        [([[float("nan"), 1.0]], [[0.0, 1.0]]), ([[1.0, 1.0]], [[2.0, 2.0]]), ([[1.0]], [[1.0, 2.0]]), ([], [])],
    )
    def test_what_cannot_be_compared_is_wrong(self, found, wanted):
        assert difference(found, wanted) is None
        assert not answer_record("e2b", "x", "yoco", None, 0.1)["right"]
        assert not answer_record("e2b", "x", "yoco", 0.1, None)["right"]

    @given(st.floats(0, 1e6))
    def test_a_tolerance_is_never_above_what_means_nothing(self, moved):
        assert tolerance(moved) == min(MARGIN * moved, MOST_RELATIVE)


class TestRows:
    def test_ratios_pair_rounds(self):
        plan = plan_of("prefill", ["e2b"])
        rows = {(row["shape"], row["arm"]): row for row in build_rows(plan, measured_of(plan, {"yoco": 0.5}), "GPU")}
        assert len(rows) == 12
        row = rows["16 x 7000/10", "yoco"]
        assert row["speedup"] == {"median": 2, "low": 2, "high": 2, "rounds": 5}
        assert row["ttft_speedup"]["median"] == 2
        assert row["ttft_ms"]["median"] == pytest.approx(257.5)
        assert row["tokens_per_s"] == pytest.approx(1000 / 0.515, abs=0.1)
        assert row["pictures_per_s"] is None
        assert rows["16 x 7000/10", "none"]["speedup"]["median"] == 1

    def test_an_arm_is_held_against_the_better_of_two(self):
        plan = plan_of("mtp-batches", ["e2b"])
        measured = measured_of(plan, {"default-v2": 0.5, "default-no-mtp": 0.4})
        measured.bursts = [
            replace(burst, wall_s=0.2) if (burst.arm, burst.shape) == ("default-v2", "1 x 200/256") else burst
            for burst in measured.bursts
        ]
        rows = {(row["shape"], row["arm"]): row for row in build_rows(plan, measured, "GPU")}
        assert rows["64 x 200/256", "default-v2"]["better_speedup"]["median"] == pytest.approx(0.8)
        assert rows["64 x 200/256", "default-no-mtp"]["better_speedup"]["median"] == 1
        assert rows["1 x 200/256", "default-no-mtp"]["better_speedup"]["median"] < 0.5
        without = plan.load.better_of[0]
        measured.bursts = [burst for burst in measured.bursts if burst.arm != without]
        assert not any(row["better_speedup"] for row in build_rows(plan, measured, "GPU"))

    @pytest.mark.parametrize("load", HOST_LOADS)
    def test_a_trial_on_the_host_engine_has_rows(self, load):
        plan = plan_of(load, host=True, rounds=1)
        assert len(plan.arms) > 1, "it tries a server with patches"
        assert len(build_rows(plan, measured_of(plan, {}), "CPU")) == len(plan.arms) * len(plan.shapes)

    @pytest.mark.parametrize(
        ("rows", "said"),
        [
            ("nowhere.json", "nowhere.json holds no rows of the load mtp-batches: "),
            ("README.md", "README.md holds no rows of the load mtp-batches: "),
            ("docs/bench/lengths_alone_h200_2026-11-26_e2b.json", "its arms lack default-v2"),
            ("docs/bench/step_h200_2026-11-22.json", "holds no rows of the load mtp-batches"),
        ],
    )
    def test_tables_of_drafts_are_made_of_rows_with_and_without_drafts_alone(self, capsys, rows, said):
        with pytest.raises(SystemExit, match="2"):
            needed.main([str(ROOT / rows)])
        assert said in capsys.readouterr().err

    def test_drafts_are_counted_and_tokens_timed(self):
        plan = plan_of("mtp", ["e2b"])
        measured = measured_of(plan, {})
        measured.bursts = [
            replace(burst, tpot_s=(0.01, 0.02, 0.04), accepted=2.4 + burst.round / 10)
            if burst.arm == "v2"
            else replace(burst, tpot_s=())
            for burst in measured.bursts
        ]
        rows = {row["arm"]: row for row in build_rows(plan, measured, "GPU") if row["shape"] == "1 x 200/128"}
        assert (rows["v2"]["tpot_ms"]["median"], rows["v2"]["accepted"]) == (20, 2.7)
        assert (rows["no-mtp"]["tpot_ms"], rows["no-mtp"]["accepted"]) == (None, None)

    def test_pictures_are_counted(self):
        plan = plan_of("pictures")
        rows = build_rows(plan, measured_of(plan, {"vision-batching": 0.5}), "GPU")
        assert rows[-2]["pictures_per_s"] == pytest.approx(48 / 0.515, abs=0.01)

    @pytest.mark.parametrize(("seconds", "status"), [(0.6, "met"), (0.7, "missed")])
    def test_an_aim_is_judged_by_the_lower_end(self, seconds, status):
        plan = plan_of("prefill", ["e2b"])
        measured = measured_of(plan, {"yoco": seconds})
        published, first = judge_targets(plan, build_rows(plan, measured, "GPU"), measured.servers)
        assert (published["target"], published["status"]) == ("beats-published", status)
        assert first["status"] == "met"

    def test_an_arm_that_is_lost_is_not_measured(self):
        plan = plan_of("prefill")
        measured = measured_of(plan, {"yoco": 0.5})
        measured.bursts = [burst for burst in measured.bursts if (burst.model, burst.arm) != ("e4b", "yoco")]
        targets = judge_targets(plan, build_rows(plan, measured, "GPU"), measured.servers)
        assert {target["status"] for target in targets} == {"not measured"}

    @pytest.mark.parametrize(("kvcache", "status"), [(1.5, "met"), (1.49, "met"), (1.52, "missed")])
    def test_pools_of_more_bytes_prove_nothing(self, kvcache, status):
        plan = plan_of("long-context", ["e2b"])
        measured = measured_of(plan, {"owner-only-kv": 0.5}, kvcache)
        targets = judge_targets(plan, build_rows(plan, measured, "GPU"), measured.servers)
        assert {target["target"]: target["status"] for target in targets} == {
            "more-from-the-same-bytes": "met",
            "same-bytes": status,
        }


class TestCommand:
    @pytest.fixture
    def measured(self, monkeypatch, tmp_path):
        def make(times, right=True):
            def report(plan, folder):
                found = measured_of(plan, times, right=right)
                return serving_bench_document(plan, found, INSTALLATION, PROJECT, tmp_path), False

            monkeypatch.setattr(bench_serving, "need_cuda", lambda *words: None)
            monkeypatch.setattr(bench_serving, "_measure", report)

        return make

    def test_a_load_that_shows_what_it_is_to_show(self, cli, measured, tmp_path):
        measured({"yoco": 0.5})
        code, out, _ = cli("bench", "serving", "prefill", "--model", "e2b", "--out", tmp_path / "rows.json")
        assert code == 0
        assert "beats-published: met" in out
        assert "x2.000" in out
        document = json.loads((tmp_path / "rows.json").read_text())
        assert (document["kind"], document["load"], document["measurement"]) == ("bench-serving", "prefill", True)
        assert document["models"]["e2b"]["num_kv_shared_layers"] == 20
        assert document["arms"]["yoco"]["environment"] == {"GEMMA4_TRIAGE_PATCHES": "yoco"}

    def test_an_aim_that_is_missed(self, cli, measured):
        measured({"yoco": 0.9})
        code, out, _ = cli("bench", "serving", "prefill")
        assert code == 1
        assert "beats-published: missed" in out

    def test_a_wrong_answer(self, cli, measured):
        measured({"yoco": 0.5}, right=False)
        code, out, _ = cli("bench", "serving", "prefill", "--model", "e4b")
        assert code == 1
        assert "wrong answers: e4b, 16 x 7000/10, yoco: log probabilities differ by 0.9000, tolerance 0.0500" in out

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["nothing"], "there is no load 'nothing'"),
            (["prefill", "--model", "31b"], "the load 'prefill' has no model '31b'"),
            (["graphs", "--host-engine"], "the host engine cannot serve the load 'graphs'"),
            (["prefill", "--rounds", "2"], "greater than or equal to 3"),
            (["prefill", "--host-engine", "--rounds", "7"], "--host-engine leaves nothing to --rounds"),
            (["prefill", "--host-engine", "--model", "e2b"], "--host-engine leaves nothing to --model"),
            (["mtp", "--host-engine", "--also-sglang", "."], "--host-engine leaves nothing to --also-sglang"),
            (["mtp", "--also-sglang", "tests/nowhere"], "tests/nowhere holds no installed sglang"),
        ],
    )
    def test_usage(self, cli, words, said):
        code, out, err = cli("bench", "serving", *words)
        assert (code, out) == (2, "")
        assert said in err

    def test_the_rounds_are_seven_unless_given(self, cli, measured, tmp_path):
        measured({"yoco": 0.5})
        found = []
        for words in ([], ["--rounds", "4"]):
            code, out, _ = cli("bench", "serving", "prefill", *words, "--json")
            found.append((code, json.loads(out)["method"]["rounds"]))
        assert found == [(0, 7), (0, 4)]

    def test_without_cuda(self, cli, monkeypatch):
        monkeypatch.setattr("gemma4_triage.inspection.cuda_presence.cuda_is_present", lambda: False)
        code, _, err = cli("bench", "serving", "prefill")
        assert code == 3
        assert f"--host-engine tries {', '.join(HOST_LOADS)} on this CPU" in err
