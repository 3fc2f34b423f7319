"""The set of kernels is complete: per op one folder with the same four files, tests and a bench of the same stem."""

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "kernels" / "gemma4_kernels"
OPS = sorted(path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__")


def test_there_are_ops():
    assert "page_guard" in OPS


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("part", ["__init__", "kernel", "launch", "reference", "spec"])
def test_an_op_has_its_four_files(op, part):
    assert (PACKAGE / op / f"{part}.py").is_file()


@pytest.mark.parametrize("op", OPS)
def test_an_op_has_a_test_and_a_bench(op):
    assert (ROOT / "tests" / "kernels" / f"test_{op}.py").is_file()
    assert (ROOT / "kernels" / "bench" / f"bench_{op}.py").is_file()


@pytest.mark.parametrize(("folder", "prefix"), [("tests/kernels", "test_"), ("kernels/bench", "bench_")])
def test_no_test_or_bench_stands_without_an_op(folder, prefix):
    found = {path.stem.removeprefix(prefix) for path in (ROOT / folder).glob(f"{prefix}*.py")}
    if prefix == "test_":
        # An op's tests are split by subject: test_<op>_<subject>.py beside test_<op>.py.
        # What holds for every op alike is in test_every_op_<subject>.py.
        found = {next((op for op in OPS if stem.startswith(f"{op}_")), stem) for stem in found}
        found = {stem for stem in found if not stem.startswith("every_op_")}
    assert found == set(OPS)


@pytest.mark.parametrize("op", OPS)
def test_a_spec_names_axes_cases_and_tolerances_with_reasons(op):
    spec = importlib.import_module(f"gemma4_kernels.{op}.spec")
    assert spec.AXES
    assert spec.CASES
    assert spec.TOLERANCES
    assert all(tolerance.reason for tolerance in spec.TOLERANCES.values())


@pytest.mark.parametrize("op", OPS)
def test_a_launcher_says_what_is_public_and_describes_it(op):
    launch = importlib.import_module(f"gemma4_kernels.{op}.launch")
    assert launch.__all__
    assert all(getattr(launch, name).__doc__ for name in launch.__all__)


WAIT = "inputs_are_there(EARLY_LAUNCH)"
# No kernel of a step writes them, so they may be read while the kernel ahead still runs; lists of slots and
# positions are made before a step's first kernel.
OF_THE_MODEL = {
    *("weight", "next_weight", "first_weight", "second_weight", "dense_weight", "experts_weight"),
    *("q_weight", "k_weight", "router_scale", "scale", "scalar", "starts"),
    *("angles", "positions"),
}
EARLY = [op for op in OPS if "EARLY_LAUNCH" in (PACKAGE / op / "kernel.py").read_text()]


def test_the_fused_ops_start_early():
    # What is in CUDA C++ says so in its own source.
    assert set(EARLY) == set(OPS) - {"page_guard", "layer_tail"}


@pytest.mark.parametrize("op", EARLY)
def test_ahead_of_the_wait_a_kernel_reads_weights_only(op):
    tree = ast.parse((PACKAGE / op / "kernel.py").read_text())
    (kernel,) = [
        node for node in tree.body if isinstance(node, ast.FunctionDef) and "EARLY_LAUNCH" in ast.unparse(node.args)
    ]
    # At the function's own level, so that every program waits.
    (place,) = [number for number, line in enumerate(kernel.body) if ast.unparse(line) == WAIT]
    calls = [node for line in kernel.body[:place] for node in ast.walk(line) if isinstance(node, ast.Call)]
    memory = [call for call in calls if re.fullmatch(r"(?!.*[()]).*(load|store|atomic).*", ast.unparse(call.func))]
    pointers = {argument.arg for argument in kernel.args.args if argument.annotation is None}
    read = [{n.id for n in ast.walk(call.args[0]) if isinstance(n, ast.Name)} & pointers for call in memory]
    assert all(names and names <= OF_THE_MODEL for names in read), read
    assert not any("store" in ast.unparse(call.func) or "atomic" in ast.unparse(call.func) for call in memory)
