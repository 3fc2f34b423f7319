"""vLLM's router out of a file that the user names: the two functions alone, since the module needs all of vLLM."""

import pytest
import torch
from triton.runtime import KernelInterface

from gemma4_repro.kernel_bench.cell import Cell
from gemma4_repro.kernel_bench.function_sources import function_sources
from gemma4_repro.kernel_bench.plan import OPS, ModelShape, has_arm
from gemma4_repro.kernel_bench.vllm_router import KERNEL, LAUNCHER, vllm_router

FILE = f"""
from a_package_that_is_not_installed import GateLinear
from .utils import maybe_prefix


@triton.jit
def {KERNEL}(logits, scale, E: tl.constexpr):
    row = tl.program_id(0)


def {LAUNCHER}(
    gating_output: torch.Tensor,
    topk: int,
    per_expert_scale: torch.Tensor,
    num_warps: int = 1,
):
    weights, ids = torch.topk(gating_output.float(), topk)
    return weights.softmax(-1) * per_expert_scale[ids], ids.int()


class Gemma4MoE(GateLinear):
    pass
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "gemma4.py"
    path.write_text(FILE)
    return path


def test_the_two_functions_are_taken_and_nothing_else_is_run(file):
    router = vllm_router(file)
    weights, ids = router(torch.tensor([[0.0, 3.0, 1.0]]), 2, torch.tensor([1.0, 2.0, 4.0]))
    assert ids.tolist() == [[1, 2]]
    assert torch.allclose(weights, torch.tensor([[2 * 0.880797, 4 * 0.119203]]))
    assert isinstance(router.__globals__[KERNEL], KernelInterface)


def test_a_file_without_them_is_refused(tmp_path):
    path = tmp_path / "other.py"
    path.write_text(f"def {KERNEL}():\n    pass\n")
    with pytest.raises(ImportError, match=f"other.py holds no {KERNEL} and {LAUNCHER}"):
        vllm_router(path)


def test_it_is_an_arm_of_routing_alone(file):
    assert [op for op in OPS if has_arm(op, "vllm")] == ["routing"]
    cell = Cell("routing", ModelShape("moe", 64, 3, 16, 4, 0, 4, 2, 16, 0), 5, "cpu", file)
    assert [tuple(one.shape) for one in cell.call_of("vllm")(0)] == [(5, 4), (5, 4)]
    with pytest.raises(ValueError, match="no file of vLLM's is named"):
        Cell("routing", ModelShape("moe", 64, 3, 16, 4, 0, 4, 2, 16, 0), 5, "cpu").call_of("vllm")


def test_a_function_s_source_has_its_decorators_and_its_end():
    text = (
        "import os\n\n@first\n@second(\n    1\n)\ndef wanted(a):\n    return a\n\ndef other():\n    def wanted(): ...\n"
    )
    assert function_sources(text, ["wanted"]) == {"wanted": "@first\n@second(\n    1\n)\ndef wanted(a):\n    return a"}
