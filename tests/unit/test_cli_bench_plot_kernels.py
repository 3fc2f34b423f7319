"""`bench plot` of rows of `bench kernels`, as a user runs it; what was measured is made up."""

import json
from xml.etree import ElementTree

import pytest

from gemma4_repro.kernel_bench.plan import ARMS, KernelPlan
from gemma4_repro.kernel_bench.rows import build_rows
from gemma4_triage.report.kernel_bench_plot import draw_kernels
from gemma4_triage.report.kernel_rows import gather

SVG = "{http://www.w3.org/2000/svg}"
TIME = {"op": "routing", "model": "26b", "tokens": 1, "arm": "ours"}


def document(models=("26b", "e4b"), tokens=(1, 64, 4096), arms=tuple(ARMS), **changes):
    plan = KernelPlan(("routing", "cross_layer_norm"), models, tokens, arms, 5, 60.0)
    samples = [
        {"op": op, "model": model.id, "tokens": count, "arm": arm, "us": [1.0 + number + count / 100, 2.0 + count]}
        for op, model, count in plan.cells()
        for number, arm in enumerate(arms)
    ]
    head = {"kind": "bench-kernels", "device": "NVIDIA H200", "versions": {"sglang": "0.5.13.post1"}, "partial": ""}
    return head | {"date": "2026-11-21T22:00:00+00:00", "rows": build_rows(samples, "NVIDIA H200")} | changes


def write(path, **changes):
    path.write_text(json.dumps(document(**changes)))
    return path


def test_a_panel_per_op_and_model_and_a_legend_without_outside_references(cli, tmp_path):
    code, _, err = cli("bench", "plot", write(tmp_path / "rows.json"), "--out", tmp_path / "x.svg")
    assert code == 0
    assert "Wrote" in err
    text = (tmp_path / "x.svg").read_text()
    picture = ElementTree.fromstring(text)
    said = [element.text for element in picture.iter(f"{SVG}text")]
    panels = ["routing, 26b", "cross_layer_norm, 26b", "cross_layer_norm, e4b"]
    assert [one for one in said if one in panels] == panels
    assert all(arm in " ".join(said) for arm in ("ours-eager", "compile", "vllm", "copy of as many bytes", "(a part)"))
    assert said.count("4096") == 3
    # Frame and a line per arm in each panel.
    assert len(list(picture.iter(f"{SVG}path"))) == 3 * (1 + len(ARMS))
    assert len(list(picture.iter(f"{SVG}circle"))) == 3 * 3
    assert picture.find(f"{SVG}title") is not None
    assert "href" not in text
    assert "url(" not in text


def test_everything_lies_within_the_picture():
    picture = ElementTree.fromstring(draw_kernels([document()]))
    _, _, width, height = map(float, picture.get("viewBox").split())
    for element in picture.iter():
        for name, most in (("x1", width), ("x2", width), ("cx", width), ("y1", height), ("y2", height), ("cy", height)):
            assert 0 <= float(element.get(name, 0)) <= most


def test_one_size_alone_is_drawn():
    assert draw_kernels([document(tokens=(8,))]).count("<circle") == 3


def test_models_of_several_runs_are_one_picture(cli, tmp_path):
    one, other = write(tmp_path / "a.json", models=("26b",)), write(tmp_path / "b.json", models=("e4b",))
    assert cli("bench", "plot", one, other, "--out", tmp_path / "x.svg")[0] == 0
    assert "cross_layer_norm, e4b" in (tmp_path / "x.svg").read_text()


def test_cells_are_in_the_order_of_ops_and_models():
    found = gather([document(models=("e4b",)), document(models=("26b",))])
    assert [op for op, _ in found.panels] == ["routing", "cross_layer_norm", "cross_layer_norm"]
    assert [model for _, model in found.panels] == ["26b", "26b", "e4b"]
    assert found.arms == tuple(ARMS)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rows": [{"op": "routing"}]}, "it lacks 'model'"),
        ({"rows": [1]}, "rows are not as bench kernels writes them"),
        ({"date": None, "rows": []}, "holds no rows"),
        ({"partial": None, "versions": []}, "rows are not as bench kernels writes them"),
        ({"device": []}, "its device is no text"),
        ({"rows": [TIME | {"us": {"median": 1.0, "q10": 1.0, "q90": 1e999}}]}, "rows are not as bench kernels"),
        ({"rows": [TIME | {"us": {"median": 1.0, "q10": 1.0, "q90": 10**400}}]}, "rows are not as bench kernels"),
    ],
)
def test_what_is_not_as_the_bench_writes_it(cli, tmp_path, changes, said):
    code, _, err = cli("bench", "plot", write(tmp_path / "rows.json", **changes), "--out", tmp_path / "x.svg")
    assert code == 2
    assert said in err
    assert not (tmp_path / "x.svg").exists()


def test_brackets_without_end(cli, tmp_path):
    (tmp_path / "rows.json").write_text("[" * 100_000)
    code, _, err = cli("bench", "plot", tmp_path / "rows.json", "--out", tmp_path / "x.svg")
    assert code == 2
    assert "cannot be read as rows" in err


def test_a_row_that_stands_twice_is_refused(cli, tmp_path):
    rows = document()["rows"]
    code, _, err = cli("bench", "plot", write(tmp_path / "a.json", rows=[*rows, rows[0]]), "--out", tmp_path / "x.svg")
    assert code == 2
    assert "is measured twice" in err


def test_a_cell_that_was_measured_again_is_the_later_runs():
    first, again = document(), document()
    again["date"] = "2999-01-01T00:00:00+00:00"
    row = again["rows"][0]
    row["us"] = row["us"] | {"median": 12345.0}
    again["rows"] = [row]
    for order in ([first, again], [again, first]):
        cells = gather(order).cells
        where = row["op"], row["model"], row["tokens"]
        # With all its arms: those of the first run met other clocks.
        assert {arm: one["us"]["median"] for arm, one in cells[where].items()} == {row["arm"]: 12345.0}
        assert len(cells) == len(gather([first]).cells)


def test_benches_are_not_mixed(cli, tmp_path):
    probes = tmp_path / "probes.json"
    probes.write_text(
        json.dumps({"kind": "bench-probes", "measurement": True, "rows": [1], "device": "", "versions": {}})
    )
    code, _, err = cli("bench", "plot", write(tmp_path / "a.json"), probes, "--out", tmp_path / "x.svg")
    assert code == 2
    assert "of different benches" in err


def test_rows_of_another_bench_are_not_drawn(cli, tmp_path, repository):
    rows = min((repository / "docs" / "bench").glob("step_h200_*.json"))
    code, _, err = cli("bench", "plot", rows, "--out", tmp_path / "x.svg")
    assert code == 2
    assert "holds no rows of bench probes, kernels or serving" in err
    assert not (tmp_path / "x.svg").exists()


def test_rows_of_one_op_by_itself_are_named_as_such(cli, tmp_path, repository):
    rows = min((repository / "kernels" / "bench" / "rows").glob("page_guard_*.json"))
    code, _, err = cli("bench", "plot", rows, "--out", tmp_path / "x.svg")
    assert code == 2
    assert "holds rows of the op 'page_guard' by itself, as a script of kernels/bench writes them" in err
    assert "bench probes --output writes what is drawn" in err
    assert not (tmp_path / "x.svg").exists()


@pytest.mark.parametrize("text", ["[]", "7", '"op"', "null", '{"op": "page_guard", "kind": "bench-kernels"}'])
def test_what_is_no_document_of_rows(cli, tmp_path, text):
    (tmp_path / "rows.json").write_text(text)
    code, _, err = cli("bench", "plot", tmp_path / "rows.json", "--out", tmp_path / "x.svg")
    assert code == 2
    assert "cannot be read as rows" in err
