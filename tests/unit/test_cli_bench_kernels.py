"""`bench kernels` as a user runs it; what was measured is made up, but for the process that finds no CUDA."""

import hashlib
import json

import pytest

from bench_examples import KERNEL_US as US
from bench_examples import PROJECT
from bench_examples import kernels_measured as measured_of
from gemma4_repro.errors import EnvironmentLacks
from gemma4_repro.kernel_bench import run_process
from gemma4_repro.kernel_bench.plan import ARMS, KernelPlan, plan_from_dict
from gemma4_repro.kernel_bench.run_process import run_plan
from gemma4_triage.cli import bench_kernels
from gemma4_triage.report.kernel_bench_document import kernel_bench_document


@pytest.fixture
def measured(monkeypatch):
    """Makes the command report this instead of measuring."""

    def make(interrupted=False, **changes):
        def report(plan, compile_cache):
            return kernel_bench_document(plan, measured_of(plan, **changes), PROJECT, None), interrupted

        monkeypatch.setattr(bench_kernels, "_need_cuda", lambda: None)
        monkeypatch.setattr(bench_kernels, "_measure", report)

    return make


def test_targets_met(cli, measured, tmp_path):
    measured()
    code, out, err = cli("bench", "kernels", "--out", tmp_path / "rows.json")
    assert code == 0
    assert "copy-bandwidth: met" in out
    assert "routing: met: faster than the release's kernel" in out
    assert "launches per step, routing, 26b: ours 30" in out
    assert f"Wrote {tmp_path / 'rows.json'}" in err
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert (rows["kind"], rows["schema_version"], rows["device"]) == ("bench-kernels", "1.0", "NVIDIA H200")
    assert rows["command"].startswith("gemma4-triage")
    assert rows["project"] == PROJECT
    assert rows["cells"] == {"planned": 132, "measured": 132}
    assert "132 of 132 cells in 61 s, of which 20 s to compile 131 of 132 cells" in out
    assert rows["versions"]["triton"] == "3.6.0"
    assert rows["gpu"]["l2_bytes"] == 52428800
    assert rows["date"]
    assert {row["model"] for row in rows["rows"]} == {"26b", "e2b", "e4b", "31b"}


def test_json_is_the_only_thing_on_stdout(cli, measured):
    measured()
    code, out, _ = cli("bench", "kernels", "--json", "--ops", "routing", "--tokens", "8,1", "--arm", "copy,ours")
    document = json.loads(out)
    assert code == 0
    assert {(row["op"], row["tokens"]) for row in document["rows"]} == {("routing", 1), ("routing", 8)}
    assert document["arms"] == {arm: ARMS[arm] for arm in ("ours", "copy")}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"us": US | {"ours": 1.2}}, "copy-bandwidth: missed"),
        ({"us": {"ours": 1.0}}, "copy-bandwidth: not measured"),
        ({"wrong": [{"op": "routing", "model": "26b", "tokens": 1, "what": "ids"}]}, "wrong answer: ids"),
    ],
)
def test_what_is_not_as_it_should_be_exits_1(cli, measured, changes, said):
    measured(**changes)
    code, out, _ = cli("bench", "kernels")
    assert code == 1
    assert said in out


def test_what_was_lost_or_interrupted_is_said(cli, measured):
    lost = [{"op": "routing", "model": "26b", "tokens": 1, "arm": "flashinfer", "why": "ImportError: no"}]
    measured(interrupted=True, lost=lost, partial="interrupted")
    code, out, _ = cli("bench", "kernels")
    assert code == 130
    assert "lost: routing, 26b, 1 token, flashinfer: ImportError: no" in out
    assert "partial: interrupted" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--ops", "routin"), "there is no op 'routin'"),
        (("--ops", ","), "--ops ',' names nothing"),
        (("--model", "12b"), "there is no model '12b'"),
        (("--arm", "cuda"), "there is no arm 'cuda'"),
        (("--tokens", "1,x"), "--tokens '1,x' cannot be read"),
        (("--tokens", "0"), "--tokens '0' cannot be read"),
        (("--tokens", "999999"), "cannot be read"),
        (("--ops", "routing", "--model", "e2b"), "none of e2b has routing"),
        (("--rounds", "1"), "--rounds"),
        (("--out", "no/such/folder/rows.json"), "cannot be a file here"),
        (("--arm", "vllm"), "the arm vllm needs a file of vLLM's"),
        (("--vllm-router", "no/such/gemma4.py"), "no/such/gemma4.py is no file"),
        (("--compile-cache", "/dev/null"), "/dev/null is no folder"),
    ],
)
def test_usage(cli, words, said):
    code, _, err = cli("bench", "kernels", *words)
    assert code == 2
    assert said in err


def test_vllm_s_file_makes_an_arm_and_is_named_by_its_sum(monkeypatch, tmp_path):
    file = tmp_path / "gemma4.py"
    file.write_text("x = 1\n")
    plan = bench_kernels._plan(None, None, None, None, 5, 1.0, file)
    assert plan.arms == tuple(ARMS)
    assert plan_from_dict(json.loads(json.dumps(plan.as_dict()))).vllm_router == str(file)
    assert bench_kernels._plan(None, None, None, None, 5, 1.0, None).arms == tuple(arm for arm in ARMS if arm != "vllm")
    monkeypatch.setattr(run_process, "run_plan", lambda plan, say, compile_cache: measured_of(plan))
    document, _ = bench_kernels._measure(plan, None)
    assert document["vllm_router"] == {"name": "gemma4.py", "sha256": hashlib.sha256(b"x = 1\n").hexdigest()}


def test_without_cuda_it_says_what_is_missing(cli, monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    code, _, err = cli("bench", "kernels", "--out", tmp_path / "rows.json")
    assert code == 3
    assert "the CUDA driver shows no device here" in err
    assert not (tmp_path / "rows.json").exists()


@pytest.mark.slow
def test_the_process_that_finds_no_cuda_is_an_error_with_its_words(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(EnvironmentLacks, match="torch finds no CUDA device"):
        run_plan(KernelPlan(("routing",), ("26b",), (1,), ("ours",), 5, 60.0), print)
