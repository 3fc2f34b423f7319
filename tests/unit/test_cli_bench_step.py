"""`bench step` as a user runs it; what was measured is made up, but for the process that finds no CUDA."""

import json

import pytest

from bench_examples import PROJECT
from bench_examples import step_measured as measured_of
from gemma4_repro.errors import EnvironmentLacks
from gemma4_repro.step_bench.plan import ARMS, StepPlan
from gemma4_repro.step_bench.run_process import run_plan
from gemma4_triage.cli import bench_step
from gemma4_triage.report.step_bench_document import step_bench_document


@pytest.fixture
def measured(monkeypatch):
    """Makes the command report this instead of measuring."""

    def make(us=80.0, interrupted=False, **changes):
        def report(plan):
            return step_bench_document(plan, measured_of(plan, us, **changes), PROJECT), interrupted

        monkeypatch.setattr(bench_step, "_need_cuda", lambda: None)
        monkeypatch.setattr(bench_step, "_measure", report)

    return make


def test_targets_met(cli, measured, tmp_path):
    measured()
    code, out, err = cli("bench", "step", "--out", tmp_path / "rows.json")
    assert code == 0
    assert "faster: met" in out
    assert "as-shipped: met" in out
    assert "x1.2500" in out
    assert f"Wrote {tmp_path / 'rows.json'}" in err
    document = json.loads((tmp_path / "rows.json").read_text())
    assert (document["kind"], document["schema_version"], document["device"]) == ("bench-step", "1.0", "NVIDIA H200")
    assert (document["project"], document["gpu"]["multiprocessors"]) == (PROJECT, 132)
    assert document["models"]["26b"]["parameters"] == 7
    assert document["models"]["26b"]["full_attention_layers"] == 5
    assert {row["model"] for row in document["rows"]} == {"26b", "e4b"}
    assert document["arms"] == ARMS


def test_json_is_the_only_thing_on_stdout(cli, measured):
    measured()
    code, out, _ = cli("bench", "step", "--json", "--model", "e2b", "--batch", "4,1", "--layers", "5", "--arm", "all")
    document = json.loads(out)
    assert code == 0
    assert [(row["batch"], row["arm"], row["layers"]) for row in document["rows"]] == [
        (1, "none", 5),
        (1, "all", 5),
        (4, "none", 5),
        (4, "all", 5),
    ]
    assert set(document["arms"]) == {"none", "all"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"us": 101.0}, "faster: missed"),
        ({"right": False}, "wrong answers: 26b, batch 1, all: logits differ by 0.0100, tolerance 0.0500"),
    ],
)
def test_what_is_not_as_it_should_be_exits_1(cli, measured, changes, said):
    measured(**changes)
    code, out, _ = cli("bench", "step")
    assert code == 1
    assert said in out


def test_what_was_lost_or_interrupted_is_said(cli, measured):
    lost = [{"model": "26b", "arm": "every arm", "why": "no memory"}]
    measured(interrupted=True, lost=lost, partial="interrupted")
    code, out, _ = cli("bench", "step")
    assert code == 130
    assert "lost: 26b, every arm: no memory" in out
    assert "partial: interrupted" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--model", "12b"), "there is no model '12b'"),
        (("--model", ","), "--model ',' names nothing"),
        (("--arm", "cuda"), "there is no arm 'cuda'"),
        (("--model", "31b", "--arm", "routing"), "31b has none of routing"),
        (("--batch", "0"), "--batch '0' cannot be read"),
        (("--batch", "999"), "cannot be read"),
        (("--layers", "7"), "26b cannot have 7 layers"),
        (("--rounds", "1"), "--rounds"),
        (("--out", "no/such/folder/rows.json"), "cannot be a file here"),
    ],
)
def test_usage(cli, words, said):
    code, _, err = cli("bench", "step", *words)
    assert code == 2
    assert said in err


def test_without_cuda_it_says_what_is_missing(cli, monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    code, _, err = cli("bench", "step", "--out", tmp_path / "rows.json")
    assert code == 3
    assert "the CUDA driver shows no device here" in err
    assert not (tmp_path / "rows.json").exists()


@pytest.mark.slow
def test_the_process_that_finds_no_cuda_is_an_error_with_its_words(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(EnvironmentLacks, match="torch finds no CUDA device"):
        run_plan(StepPlan(("e4b",), (1,), 6, ("none",), 5, 60.0), print)


@pytest.mark.parametrize("minutes", ["inf", "nan", "0.5", "-1", "soon"])
@pytest.mark.parametrize("verb", ["step", "kernels", "probes"])
def test_a_time_that_is_none_is_refused(cli, verb, minutes):
    code, out, err = cli("bench", verb, "--max-minutes", minutes)
    assert (code, out) == (2, "")
    assert minutes in err
    assert "from 1m to 7d" in err
