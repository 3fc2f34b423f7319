"""`host_launches`, as a user runs it: both sides' launches, without a GPU."""

import json
import os
import subprocess
import sys

import pytest

from gemma4_repro.kernel_bench.host_launches import OPS

# It holds our kernels beside SGLang's own of that release, gemma4_fused_ops.
pytestmark = pytest.mark.releases("0.5.13.post1")
COMMAND = [sys.executable, "-m", "gemma4_repro.kernel_bench.host_launches"]


def run(*words):
    # Kernels are compiled here, which Triton's interpreter would run instead.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [*COMMAND, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.slow
def test_a_short_run(tmp_path):
    done = run(
        "--ops", "rmsnorm-residual-scalar,rmsnorm-add", "--rounds", 5, "--calls", 200, "--out", tmp_path / "rows"
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "rows").read_text())["rows"]
    assert [(row["op"], row["sglang_over_ours"] is None) for row in rows] == [
        ("rmsnorm-residual-scalar", False),
        ("rmsnorm-add", True),
    ]
    assert rows[0]["sglang_over_ours"]["median"] > 1
    assert "no kernel runs" in done.stderr
    assert done.stdout.count("ours") == 2


@pytest.mark.slow
def test_every_op_has_a_case():
    code = (
        "from gemma4_repro.kernel_bench import host_launches as it\n"
        "it.pretend_cuda()\nprint(*{case.op for case in it.cases()})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == set(OPS)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--ops", "nothing"), "there is no op 'nothing'; ops: rmsnorm-residual-scalar"),
        (("--rounds", "0"), "--calls and --rounds are 1 or more"),
        (("--out", "nowhere/rows.json"), "there is no folder nowhere for --out"),
    ],
)
def test_what_is_refused_before_anything_is_measured(words, said):
    done = run(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


@pytest.mark.slow
# Only 0.5.23 is without these ops.
@pytest.mark.releases("0.5.23")
def test_a_release_without_these_ops_is_said_in_one_sentence():
    done = run("--rounds", 1, "--calls", 1)
    assert done.returncode == 3
    assert done.stderr.splitlines() == ["SGLang 0.5.23 has no gemma4_fused_ops to compare with; 0.5.13.post1 has"]
