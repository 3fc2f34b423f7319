"""What the README and docs say of the probes' cost, our kernels and whole loads is what the committed rows hold."""

import json
import re
import statistics
from pathlib import Path

import pytest

from gemma4_repro.bench.arms import ARMS
from gemma4_repro.bench.targets import judge_targets
from gemma4_repro.serving_bench.needed import needed_rows
from gemma4_repro.serving_bench.plan import make_plan
from gemma4_repro.serving_bench.rows import judge_targets as judge_serving_targets
from gemma4_repro.step_bench.model_sizes import SIZES, gemm_ceiling
from gemma4_repro.step_bench.plan import StepPlan
from gemma4_repro.step_bench.rows import judge_targets as judge_step_targets
from gemma4_runtime.mtp_v2.draft_policy import MEASURED
from gemma4_triage.report.bench_plot import draw
from gemma4_triage.report.serving_bench_plot import draw_serving

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
MEASURE, PATCHES = (" ".join((ROOT / "docs" / name).read_text().split()) for name in ("measure.md", "patches.md"))


def documents(model):
    return [json.loads(path.read_text()) for path in sorted((ROOT / "docs" / "bench").glob(f"probes_h200_*_{model}_*"))]


E4B, SCALED = documents("e4b"), documents("scaled")
TODAY = [json.loads(path.read_text()) for path in sorted((ROOT / "docs" / "bench").glob("probes_today_h200_*"))]
STEPS = [json.loads(path.read_text()) for path in sorted((ROOT / "docs" / "bench").glob("step_h200_*.json"))]


SERVING = [json.loads(path.read_text()) for path in sorted((ROOT / "docs" / "bench").glob("serving_*_h200_*.json"))]


def rows(found, arm, mtp):
    return [row for document in found for row in document["rows"] if (row["arm"], row["mtp"]) == (arm, mtp)]


def shares(found, arm, mtp):
    """0.5% to 1.1%, of the cells of this arm."""
    values = sorted(row["probes_share"] for row in rows(found, arm, mtp))
    return f"{100 * values[0]:.1f}% to {100 * values[-1]:.1f}%"


def microseconds(found, arm, mtp):
    values = sorted(row["probes_us"]["median"] for row in rows(found, arm, mtp))
    return f"{values[0]:.0f} to {values[-1]:.0f}"


def steps(found, arm, mtp):
    values = sorted(row["step_ratio_to_none"]["median"] - 1 for row in rows(found, arm, mtp))
    return f"{100 * values[0]:+.1f}% to {100 * values[-1]:+.1f}%"


@pytest.mark.parametrize("mtp", [True, False])
def test_the_table_of_e4b(mtp):
    for arm in ("contain", "ledger"):
        line = f"| `{arm}`, MTP {'on' if mtp else 'off'} | {microseconds(E4B, arm, mtp)} us | {shares(E4B, arm, mtp)} |"
        assert line in MEASURE
    assert f"| `off`, MTP {'on' if mtp else 'off'} | | | {steps(E4B, 'off', mtp)} |" in MEASURE


def test_what_is_said_of_todays_probes_is_in_the_rows():
    for mtp in (False, True):
        for arm in ("contain", "ledger"):
            assert f"{microseconds(TODAY, arm, mtp)} us" in MEASURE
            assert f"({shares(TODAY, arm, mtp)}" in MEASURE
    both = [row for arm in ("contain", "ledger") for row in rows(TODAY, arm, False)]
    longer = sorted(row["step_ratio_to_none"]["median"] - 1 for row in both)
    assert f"{100 * longer[0]:+.1f}% to {100 * longer[-1]:+.1f}% longer" in MEASURE
    none = {row["batch"]: row["step_ms"]["median"] for row in rows(TODAY, "none", False)}
    times = [f"{row['step_ms']['median'] / none[row['batch']]:.1f}" for row in rows(TODAY, "trap", False)]
    assert f"{times[0]}, {times[1]} and {times[2]} times as long" in MEASURE


def test_the_steps_of_e4b_without_mtp():
    for arm in ("contain", "ledger"):
        assert f"{shares(E4B, arm, False)} | {steps(E4B, arm, False)} |" in MEASURE


def test_the_targets_hold_on_e4b_as_the_rows_are_judged_today():
    for document in E4B:
        arms = [arm for arm in ARMS if arm.id in document["arms"]]
        (proof,) = [target["proof"] for target in document["targets"] if target["target"] == "identity"]
        judged = judge_targets(arms, document["rows"], proof)
        statuses = {target["arm"]: target["status"] for target in judged}
        assert statuses == {"off": "met", "contain": "met", "ledger": "met"}


def test_the_smaller_model():
    assert (
        f"{shares(SCALED, 'contain', True)} of a step with MTP, {shares(SCALED, 'contain', False)} without" in MEASURE
    )
    assert f"{shares(SCALED, 'ledger', True)} and {shares(SCALED, 'ledger', False)}" in MEASURE


def test_the_steps_of_the_smaller_model_without_mtp():
    found = sorted(row["step_ms"]["median"] for row in rows(SCALED, "none", False))
    assert f"steps of {found[0]:.1f} to {found[-1]:.1f} ms without MTP" in MEASURE


def test_the_device_time_of_the_check():
    documents = [json.loads(path.read_text()) for path in (ROOT / "kernels" / "bench" / "rows").glob("page_guard_*")]
    on_the_device = [row for found in documents for row in found["rows"] if row["clock"] == "graph"]
    found = sorted(row["median_us"] for row in on_the_device if row["arm"] in ("step", "check"))
    assert {row["tables"] for row in on_the_device} == {2}
    assert f"takes {found[0]:.1f} to {found[-1]:.1f} us per build of two tables" in MEASURE


def test_off_is_identity():
    proofs = [t["proof"] for d in E4B + SCALED for t in d["targets"] if t["target"] == "identity"]
    assert len({proof["compared"] for proof in proofs}) == 1
    assert all(proof["changed"] == [] for proof in proofs)
    assert f"{proofs[0]['compared']} of SGLang's functions compared, none changed" in MEASURE


def test_the_picture_is_drawn_from_the_rows():
    # To draw it anew: gemma4-triage bench plot docs/bench/probes_h200_*_e4b_*.json --out docs/probes_h200.svg --force
    assert (ROOT / "docs" / "probes_h200.svg").read_text() == draw(E4B)


def step_line(none, together):
    ratio = together["speedup"]
    times = " | ".join(f"{row['step_us']['median'] / 1000:.2f} ms" for row in (none, together))
    interval = f"x{ratio['median']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})"
    kernels = f"{none['kernels']} to {together['kernels']}"
    return f"| {none['model']}, batch {none['batch']} | {times} | {interval} | {kernels} |"


def test_the_table_of_steps_is_that_of_the_rows():
    """Every cell of every committed document, in their order; no table where there are no rows."""
    lines = []
    for document in STEPS:
        arms = {(row["model"], row["batch"], row["arm"]): row for row in document["rows"]}
        lines += [
            step_line(row, arms[model, batch, "all"]) for (model, batch, arm), row in arms.items() if arm == "none"
        ]
    assert re.findall(r"\| \w+, batch \d+ \|(?:[^|]*\|){4}", MEASURE) == lines


def test_committed_steps_are_whole_and_judged_as_today():
    for document in STEPS:
        assert (document["wrong"], document["lost"], document["partial"]) == ([], [], "")
        assert document["project"]["commit"]
        rows = document["rows"]
        models, batches = tuple(document["models"]), tuple(sorted({row["batch"] for row in rows}))
        # The table speaks of whole models.
        assert all(row["layers"] == document["models"][row["model"]]["all_layers"] for row in rows)
        plan = StepPlan(models, batches, None, tuple(document["arms"]), document["method"]["rounds"], 0.0)
        assert judge_step_targets(plan, rows) == document["targets"]
        assert {target["target"]: target["status"] for target in document["targets"]}["as-shipped"] == "met"


def test_what_is_said_of_the_projection():
    (path,) = (ROOT / "docs" / "bench").glob("step_q_only_h200_*.json")
    document = json.loads(path.read_text())
    assert (document["wrong"], document["lost"], document["partial"]) == ([], [], "")
    found = {(row["batch"], row["arm"]): row for row in document["rows"]}
    ratio = {key: f"x{row['speedup']['median']:.3f}" for key, row in found.items()}
    ours = "q-only-projection"
    assert f"{ratio[16, ours]} faster at batch 16 and {ratio[64, ours]} at batch 64, with the same bits" in PATCHES
    assert f"at batch 1 it is {ratio[1, ours]}, where two equal graphs differ by {ratio[1, 'shipped']}" in PATCHES
    assert all(row["answers"]["bit_equal"] for (_, arm), row in found.items() if arm in (ours, "shipped"))
    assert all(found[batch, ours]["speedup"]["low"] > found[batch, "shipped"]["speedup"]["high"] for batch in (16, 64))


def of_ratio(ratio):
    return f"x{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"


@pytest.mark.parametrize("document", SERVING, ids=lambda document: f"{document['load']}-{'-'.join(document['models'])}")
class TestServing:
    def test_a_line_of_the_table_is_a_row(self, document):
        (model,) = document["models"]
        said = set()
        for row in document["rows"]:
            begin = f"| {model}, {row['shape']} | `{row['arm']}` | {row['wall_s']['median']:.3f} s |"
            ttft = f"{row['ttft_ms']['median']:.1f} ms |"
            if row["arm"] == "none":
                said.add(f"{begin} | {ttft} |")
            else:
                said.add(f"{begin} {of_ratio(row['speedup'])} | {ttft} {of_ratio(row['ttft_speedup'])} |")
        table = [
            line for line in (ROOT / "docs" / "measure.md").read_text().splitlines() if line.startswith(f"| {model}, ")
        ]
        mine = [line for line in table if any(f"| {model}, {shape['id']} |" in line for shape in document["shapes"])]
        assert len(mine) >= min(6, len(said))
        assert set(mine) <= said
        # A shape that is shown is shown with every arm that was measured.
        for shape in {line.split(" | ")[0] for line in mine}:
            arms = {line.split(" | ")[1] for line in mine if line.startswith(f"{shape} |")}
            assert arms == {f"`{arm}`" for arm in document["arms"]}, shape

    def test_it_is_whole_and_shows_what_it_is_to_show(self, document):
        assert (document["measurement"], document["wrong"], document["lost"], document["partial"]) == (True, [], {}, "")
        assert document["gpu"]["name"] == document["device"]
        assert document["versions"]["sglang"]
        assert document["project"]["commit"]
        assert "dirty" not in document["project"]["commit"]
        plan = make_plan(document["load"], tuple(document["models"]), 5, False, 60)
        judged = judge_serving_targets(plan, document["rows"], document["servers"])
        assert {target["target"]: target["status"] for target in judged} == {
            target["target"]: "met" for target in document["targets"]
        }


def test_what_is_said_of_prompts_above_the_captured_sizes():
    """Both arms serve them alike: no graph, and yoco in each. What parts their medians is not known, nor claimed."""
    (document,) = [found for found in SERVING if found["load"] == "graphs"]
    counts = {arm: found.get("gemma4_triage_paths", {}) for arm, found in document["servers"]["e2b"].items()}
    with_graphs, shapes = counts["default-graphs"], len(document["shapes"])
    assert with_graphs["piecewise-multimodal"]["a prefill that the graphs are not for"] == with_graphs["yoco"]["fused"]
    # One round more than are counted, and the comparison before them; without graphs yoco serves four of five shapes.
    each = document["method"]["rounds"] + 2
    assert (with_graphs["yoco"]["fused"], counts["default"]["yoco"]["fused"]) == (each, (shapes - 1) * each)
    assert f"`yoco` in {each} of {each} prefills" in MEASURE
    longest = {row["arm"]: row["speedup"] for row in document["rows"] if row["shape"] == document["shapes"][-1]["id"]}
    assert longest["default"]["low"] < longest["default-graphs"]["high"]
    assert longest["default-graphs"]["low"] < longest["default"]["high"]
    first = sorted(row["ttft_ms"]["median"] for row in document["rows"] if row["arm"] == "default")
    assert f"`default` takes {first[0]:.1f} to {first[-1]:.1f} ms to a first token" in MEASURE


def test_what_is_said_of_mtp():
    (document,) = [found for found in SERVING if found["load"] == "mtp"]
    rows = {(row["shape"], row["arm"]): row for row in document["rows"]}
    shapes = [shape["id"] for shape in document["shapes"]]

    def bursts_of(faster, slower):
        """Return per shape the ratios of times in the same round."""
        return [
            [rows[shape, slower]["walls_s"][number] / wall for number, wall in rows[shape, faster]["walls_s"].items()]
            for shape in shapes
        ]

    def times(faster, slower):
        return sorted(statistics.median(ratios) for ratios in bursts_of(faster, slower))

    beside = times("v2", "sglang-0.5.14")
    bursts = [ratio for ratios in bursts_of("v2", "sglang-0.5.14") for ratio in ratios]
    assert min(bursts) > 1
    assert f"faster than 0.5.14 in each of the {len(bursts)} bursts" in MEASURE
    assert f"in the median by x{beside[0]:.2f} to x{beside[-1]:.2f}" in MEASURE
    tokens = sorted(
        rows[shape, "sglang-0.5.14"]["tpot_ms"]["median"] / rows[shape, "v2"]["tpot_ms"]["median"] for shape in shapes
    )
    assert f"(TPOT) is x{tokens[0]:.2f} to x{tokens[-1]:.2f} that of `v2`" in MEASURE
    # A tie is neither.
    pays = [ratio for ratio in times("no-mtp-lists", "v2") if ratio > 1.005]
    assert len(pays) == 4
    assert f"faster than `v2` in four of six shapes, by x{pays[0]:.2f} to x{pays[-1]:.2f}" in MEASURE
    first = rows["16 x 2000/64", "v2"]["ttft_speedup"]
    assert f"later overlapped, at 16 x 2000/64 {of_ratio(first)} as fast as shipped" in MEASURE
    assert document["versions"]["sglang-kernel"] == "0.4.3"


def test_tables_of_drafts_are_those_of_their_rows():
    said = (ROOT / "docs" / "drafts.md").read_text()
    for (hidden, layers), table in MEASURED.items():
        (size,) = [size for size in SIZES.values() if size.layers == layers]
        assert size.text_config(layers)["hidden_size"] == hidden
        (path,) = re.findall(r"docs/bench/\S+\.json", table.source)
        document = json.loads((ROOT / path).read_text())
        (model,) = document["models"]
        assert table.source.startswith(f"{model.upper()} on an H200")
        assert table.rows == needed_rows(document, model)
        listed = ", ".join(f"{requests}: {needed:g}" for requests, needed in table.rows)
        assert f"| {model.upper()} | {listed} |" in said
        assert f"({path.removeprefix('docs/')})" in said


def document_of(model):
    return json.loads((ROOT / "docs" / "bench" / f"mtp_batches_h200_2026-11-25_{model}.json").read_text())


def with_requests(document):
    requests = {shape["id"]: shape["requests"] for shape in document["shapes"]}
    return [row | {"requests": requests[row["shape"]]} for row in document["rows"]]


def test_what_is_said_of_drafts():
    said = " ".join((ROOT / "docs" / "drafts.md").read_text().split())
    for model, rounds, met in (("e2b", 9, "met"), ("e4b", 5, "missed")):
        document = document_of(model)
        assert (document["measurement"], document["wrong"], document["lost"]) == (True, [], {})
        assert {one["target"]: one["status"] for one in document["targets"]}["never-slower"] == met
        assert max(row["better_speedup"]["rounds"] for row in document["rows"]) == rounds
        found = {(row["arm"], row["requests"]): row for row in with_requests(document)}
        sizes = sorted({requests for _, requests in found})
        few, many = sizes[:6], sizes[6:]
        assert (few[-1], many) == (32, [64, 128])

        def tpot(arm, size, found=found):
            return found[arm, size]["tpot_ms"]["median"]

        def span(values):
            return f"x{min(values):.2f} to x{max(values):.2f}"

        ratios = {size: tpot("default-v2", size) / tpot("default-no-mtp", size) for size in sizes}
        assert all(ratios[size] > 1.3 for size in many)
        reached = [found["default-policy", size]["better_speedup"]["median"] for size in sizes]
        shipped = [found["default-policy", size]["speedup"]["median"] for size in sizes]
        within = sum(one > 0.98 for one in reached)
        assert f"The policy is {span(reached)} of the better, within 2% at {within} of 8 batches" in said
        assert f"and {span(shipped)} as fast as MTP as shipped" in said
        assert all(found["default-policy", size]["accepted"] < 1.02 for size in many)
        if model == "e2b":
            assert all(1 / 1.12 < ratios[size] < 1.12 for size in few)
            graphs = document["servers"][model]["default-policy"]["gemma4_triage_drafts"]["graphs_of_steps_without"]
            assert f"eight sizes took {graphs['seconds']:.2f} s and {graphs['gib']:.3f} GiB" in said
        else:
            assert all(ratios[size] < 1 for size in few)
            assert found["default-policy", 1]["accepted"] > 2.4
            assert (
                f"E4B the policy drafts as the better course does at 1 request, and is x{reached[0]:.2f} of it" in said
            )
            theirs = [tpot("default-v2-sglang-attention", size) / tpot("default-v2", size) for size in sizes]
            assert f"drafts in every step take {span(theirs)} of the time per token" in said


def test_what_is_said_of_drafts_on_26b_and_with_the_present_table_of_e4b():
    said = " ".join((ROOT / "docs" / "drafts.md").read_text().split())
    folder = ROOT / "docs" / "bench"
    e4b, larger = (
        json.loads((folder / f"mtp_batches_h200_2026-11-26_{model}.json").read_text()) for model in ("e4b", "26b")
    )
    assert (e4b["wrong"], e4b["lost"], larger["wrong"], larger["lost"]) == ([], {}, [], {})
    assert {one["target"]: one["status"] for one in e4b["targets"]}["never-slower"] == "met"
    assert {one["status"] for document in (e4b, larger) for one in document["targets"]} == {"met"}
    for document, model in ((e4b, "e4b"), (larger, "26b")):
        mine = [row for row in document["rows"] if row["arm"] == "default-policy"]
        spans = [
            sorted(row[value]["median"] for row in mine if row["model"] == model)
            for value in ("better_speedup", "speedup")
        ]
        better, shipped = (f"x{found[0]:.2f} to x{found[-1]:.2f}" for found in spans)
        assert len(mine) == 8
        assert f"{better} of the better, within 2% at 8 of 8 batches, and {shipped} as fast as MTP as shipped" in said
        graphs = document["servers"][model]["default-policy"]["gemma4_triage_drafts"]["graphs_of_steps_without"]
        assert f"{model.upper()}'s {graphs['seconds']:.2f} s and {graphs['gib']:.3f} GiB" in said
    met = [row for document in (e4b, larger, document_of("e2b")) for row in document["rows"]]
    lowest = min(row["better_speedup"]["low"] for row in met if row["arm"] == "default-policy")
    assert f"where it is met, the lowest begins at x{lowest:.2f}." in said
    assert larger["models"]["26b"]["num_hidden_layers"] == SIZES["26b"].layers
    tpot = {(row["arm"], row["requests"]): row["tpot_ms"]["median"] for row in with_requests(larger)}
    sizes = sorted({requests for _, requests in tpot})
    ratios = [tpot["default-v2", size] / tpot["default-no-mtp", size] for size in sizes]
    assert sizes[-1] == 128
    assert f"x{min(ratios[:-1]):.2f} to x{max(ratios[:-1]):.2f} of the time per token without" in said
    assert f"at 128 they take x{ratios[-1]:.2f} of it" in said


def test_what_is_said_of_the_long_context():
    found = {tuple(document["models"]): document for document in SERVING if document["load"] == "long-context"}
    tokens = {}
    for (model,), document in found.items():
        memory = {arm: answer["memory_usage"] for arm, answer in document["servers"][model].items()}
        assert memory["none"]["token_capacity"] == 49152
        tokens[model] = {memory[arm]["token_capacity"] for arm in ("owner-only-kv", "default")}
        assert document["method"]["rounds"] == 3
    assert tokens == {"e2b": {114688}, "e4b": {86016}}
    assert "`owner-only-kv` makes 114688 of them on E2B and 86016 on E4B" in MEASURE


def test_what_is_said_of_pictures():
    (document,) = [found for found in SERVING if found["load"] == "pictures"]
    encoder = [row for row in document["rows"] if row["shape"].startswith("encoder")]

    def a_second(arm):
        found = sorted(row["pictures_per_s"] for row in encoder if row["arm"] == arm)
        return f"{found[0]:.0f} to {found[-1]:.0f}"

    assert all(row["difference"] == 0 for row in document["rows"] if row["arm"] == "vision-batching")
    assert "those of the `pictures` load did not" in PATCHES
    assert f"encodes {a_second('vision-batching')} of them a second, and SGLang {a_second('none')}" in MEASURE
    assert document["method"]["rounds"] == 3


def test_the_picture_of_mtp_is_drawn_from_the_rows():
    # To draw it anew: gemma4-triage bench plot docs/bench/serving_mtp_*.json --out docs/serving_mtp.svg --force
    drawn = draw_serving([document for document in SERVING if document["load"] == "mtp"])
    assert (ROOT / "docs" / "serving_mtp.svg").read_text() == drawn


def test_what_is_said_of_the_lists():
    (path,) = (ROOT / "kernels" / "bench" / "rows").glob("window_lists_h200_*.json")
    busy = [row for row in json.loads(path.read_text())["rows"] if row["clock"] == "busy"]
    sglang, ours = (sorted(row["median_us"] / 1000 for row in busy if row["arm"] == arm) for arm in ("sglang", "ours"))
    said = f"SGLang {sglang[0]:.2f} to {sglang[-1]:.2f} ms and the host here {ours[0]:.2f} to {ours[-1]:.2f} ms"
    assert said in PATCHES


def test_what_a_launch_costs_the_host():
    name = "kernels/bench/rows/host_launches_{}cpu_2026-11-25.json"
    now, before = (json.loads((ROOT / name.format(which)).read_text())["rows"] for which in ("", "before_"))
    lines, alone = [], []
    for row, other in zip(now, before, strict=True):
        ratio = row["sglang_over_ours"]
        if ratio is None:
            alone.append((other["ours_us"], row["ours_us"]))
            continue
        assert ratio["median"] >= 1
        times = f"{row['sglang_us']:.1f} us | {row['ours_us']:.1f} us | {of_ratio(ratio)}"
        was = f"x{other['sglang_over_ours']['median']:.2f}"
        lines.append(f"| `{row['op']}`, {row['model'].upper()} | {row['sglang_op']} | {times} | {was} |")
    assert len(lines) == 4
    assert "\n".join(lines) in (ROOT / "docs" / "measure.md").read_text()
    spans = [f"{min(one):.1f} to {max(one):.1f} us" for one in zip(*alone, strict=True)]
    assert f"took {spans[0]} before and take {spans[1]}" in MEASURE
    more = json.loads((ROOT / "kernels/bench/rows/host_launches_more_cpu_2026-11-26.json").read_text())["rows"]
    attention, products, lists = more
    for row, theirs in ((attention, "SGLang's two kernels"), (lists, "the kernel and torch's ops that it stands for")):
        times = f"takes the host {row['ours_us']:.1f} us, and {theirs} {row['sglang_us']:.1f} us"
        assert f"`{row['op']}` {times}, {of_ratio(row['sglang_over_ours'])}" in MEASURE
        assert row["sglang_over_ours"]["median"] >= 1
    assert f"`small-m-linear` takes {products['ours_us']:.1f} us in the place of cuBLAS" in MEASURE


def test_ceilings_are_those_of_the_sizes():
    for model in ("e2b", "e4b"):
        assert f"x{gemm_ceiling(SIZES[model]):.2f} ({model.upper()})" in MEASURE
    assert gemm_ceiling(SIZES["26b"]) == 1


def test_the_table_of_the_front_page():
    """Each row is one of a committed document, in the words of somebody who has not read what the loads are called."""

    def whole_load(words, model, load, shape, arm="default"):
        (document,) = [found for found in SERVING if (found["load"], found["models"].keys()) == (load, {model})]
        found = {row["arm"]: row for row in document["rows"] if row["shape"] == shape}
        times = [f"{found[name]['wall_s']['median']:.3f} s" for name in ("none", arm)]
        return f"| {words} | {times[0]} | {times[1]} | {of_ratio(found[arm]['speedup'])} |"

    def one_step(words, model, batch, rows_file):
        document = json.loads((ROOT / "docs" / "bench" / f"{rows_file}_{model}.json").read_text())
        cells = [row for row in document["rows"] if row["batch"] == batch]
        found = {row["arm"]: row for row in cells}
        times = [f"{found[name]['step_us']['median'] / 1000:.2f} ms" for name in ("none", "all")]
        ratio = found["all"]["speedup"]
        said = f"x{ratio['median']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})"
        return f"| {words} | {times[0]} | {times[1]} | {said} |"

    lines = [
        whole_load("E2B, 16 prompts of 7000 tokens, 10 out", "e2b", "prefill", "16 x 7000/10"),
        whole_load("E4B, 16 prompts of 7000 tokens, 10 out", "e4b", "prefill", "16 x 7000/10"),
        whole_load(
            "E2B, 16 prompts of 8000 tokens, 256 out, in equal KV memory", "e2b", "long-context", "16 x 8000/256"
        ),
        whole_load(
            "E4B, 16 prompts of 8000 tokens, 256 out, in equal KV memory", "e4b", "long-context", "16 x 8000/256"
        ),
        whole_load("E2B, 8 requests of 6 images", "e2b", "pictures", "8 x 6 pictures"),
        whole_load(
            "E2B with MTP, 16 prompts of 2000 tokens, 64 out (MTP V2)", "e2b", "mtp", "16 x 2000/64", "default-v2"
        ),
        one_step("E4B, one decode step of 8 requests (kernels only)", "e4b", 8, "step_begins_h200_2026-11-30"),
        one_step("26B-A4B, one decode step of 1 request (kernels only)", "26b", 1, "step_begins_h200_2026-11-30"),
    ]
    assert [line for line in README.splitlines() if re.search(r"\| x\d", line)] == lines


def test_the_cost_of_contain_on_the_front_page():
    values = sorted(row["probes_share"] for mtp in (True, False) for row in rows(E4B, "contain", mtp))
    shown = f"{100 * values[0]:.1f}% to {100 * values[-1]:.1f}%"
    assert f"the code of these probes took {shown} of a decode step of E4B's size" in " ".join(README.split())


def test_what_is_said_of_short_prompts_and_long_answers():
    prompts, answers = (
        json.loads((ROOT / "docs" / "bench" / f"{name}_h200_2026-11-23.json").read_text())
        for name in ("short_prompts", "long_answers")
    )

    def span(document, arm, model=""):
        found = sorted(
            row["speedup"]["median"] for row in document["rows"] if row["arm"] == arm and model in ("", row["model"])
        )
        return f"x{found[0]:.2f} to x{found[-1]:.2f}"

    said = " ".join(MEASURE.split())
    assert f"{span(prompts, 'default')} as fast as by SGLang as shipped with `default`" in said
    assert f"and {span(prompts, 'default-graphs')} with `piecewise-multimodal` beside it" in said
    assert f"{span(answers, 'products', 'e2b')} as fast on E2B and {span(answers, 'products', 'e4b')} on E4B" in said
    without = [span(answers, "without-products", model) for model in ("e2b", "e4b")]
    assert f"and {without[0]} and {without[1]} without it" in said
    for document in (prompts, answers):
        assert (document["measurement"], document["wrong"], document["lost"], document["partial"]) == (True, [], {}, "")
        assert "dirty" not in document["project"]["commit"]
