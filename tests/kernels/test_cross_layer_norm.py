"""cross_layer_norm against fp64 and Hugging Face's modules: with and without experts, gathered rows, one output."""

import pytest
import torch
from eager_gemma4 import hf_norm
from exact_rows import exact
from kernel_paths import DEVICE, PATHS
from row_op_tests import ManyWeightsTests

from gemma4_kernels.cross_layer_norm.launch import CrossLayer, cross_layer_norm, moe_cross_layer_norm
from gemma4_kernels.cross_layer_norm.spec import MOE_EAGER_ROUNDINGS
from gemma4_kernels.rounding import Rounding


class TestCrossLayerNorm(ManyWeightsTests):
    op = "cross_layer_norm"
    rows = ("x", "residual")
    weights = ("weight", "next_weight")
    has_scalar = True

    def run(self, inputs, rounding, path, out=None):
        return tuple(cross_layer_norm(**inputs, rounding=rounding, path=path, out=out and CrossLayer(*out)))

    def exact(self, inputs):
        total = exact(inputs["x"]).normed(inputs["weight"]).plus(exact(inputs["residual"]))
        hidden = total.times(inputs["scalar"])
        return hidden, hidden.normed(inputs["next_weight"])

    def eager(self, inputs):
        hidden = inputs["residual"] + hf_norm(inputs["x"], inputs["weight"])
        hidden *= inputs["scalar"]
        return hidden, hf_norm(hidden, inputs["next_weight"])

    def shown(self, name):
        return "a branch" if name == "x" else name

    def refusals(self):
        # The residual is what the others are compared with.
        rows = torch.zeros(2, 16, dtype=torch.bfloat16, device=DEVICE)
        ids = torch.zeros(4, dtype=torch.int64, device=DEVICE)
        return [
            ({"residual": rows[0]}, r"residual is \[16\]"),
            ({"x": rows[:1]}, r"a branch is \[1, 16\]"),
            ({"x": rows.float()}, "a branch is .*float32"),
            ({"weight": torch.ones(15, device=DEVICE)}, r"is \[15\]"),
            ({"next_weight": torch.ones(32, device=DEVICE)[::2]}, "next_weight has stride 2"),
            ({"scalar": torch.ones(2, device=DEVICE)}, r"scalar is \[2\]"),
            ({"next_weight": None, "with_hidden": False}, "nothing to compute"),
            ({"row_ids": ids.int()}, "row_ids is .*int32"),
            ({"row_ids": ids[::2]}, "row_ids has stride 2"),
            (
                {"x": rows[:0], "residual": rows[:0], "row_ids": torch.zeros(1, dtype=torch.int64, device=DEVICE)},
                "none",
            ),
        ]


class TestMoeCrossLayerNorm(ManyWeightsTests):
    op = "cross_layer_norm"
    rows = ("dense", "experts", "residual")
    weights = ("dense_weight", "experts_weight", "weight", "next_weight")
    has_scalar = True

    def run(self, inputs, rounding, path, out=None):
        return tuple(moe_cross_layer_norm(**inputs, rounding=rounding, path=path, out=out and CrossLayer(*out)))

    def exact(self, inputs):
        branch = exact(inputs["dense"]).normed(inputs["dense_weight"])
        branch = branch.plus(exact(inputs["experts"]).normed(inputs["experts_weight"]))
        hidden = branch.normed(inputs["weight"]).plus(exact(inputs["residual"])).times(inputs["scalar"])
        return hidden, hidden.normed(inputs["next_weight"])

    def eager(self, inputs):
        branch = hf_norm(inputs["dense"], inputs["dense_weight"]) + hf_norm(inputs["experts"], inputs["experts_weight"])
        hidden = inputs["residual"] + hf_norm(branch, inputs["weight"])
        hidden *= inputs["scalar"]
        return hidden, hf_norm(hidden, inputs["next_weight"])

    def roundings(self):
        return MOE_EAGER_ROUNDINGS

    def shown(self, name):
        return name if name == "residual" else "a branch"

    def refusals(self):
        return [
            ({"experts": torch.zeros(1, 16, dtype=torch.bfloat16, device=DEVICE)}, r"a branch is \[1, 16\]"),
            ({"experts_weight": torch.ones(15, device=DEVICE)}, "a branch's weight"),
        ]


CASES = [TestCrossLayerNorm(), TestMoeCrossLayerNorm()]


@pytest.mark.parametrize("tests", CASES, ids=["dense", "moe"])
@pytest.mark.parametrize("path", PATHS)
def test_one_output_alone_has_the_same_bits(path, tests):
    inputs = tests.make(3, 272, torch.bfloat16)
    for rounding in Rounding:
        both = tests.run(inputs, rounding, path)
        hidden, none = tests.run(inputs | {"next_weight": None}, rounding, path)
        assert none is None
        assert torch.equal(hidden, both[0])
        none, normed = tests.run(inputs | {"with_hidden": False}, rounding, path)
        assert none is None
        assert torch.equal(normed, both[1])


@pytest.mark.parametrize("tests", CASES, ids=["dense", "moe"])
@pytest.mark.parametrize("path", PATHS)
def test_gathered_rows_are_those_rows(path, tests):
    inputs = tests.make(6, 272, torch.bfloat16)
    whole = tests.run(inputs, Rounding.FP32, path)
    for ids in ([1, 5], [5, 0, 0, 3], []):
        row_ids = torch.tensor(ids, dtype=torch.int64, device=DEVICE)
        found = tests.run(inputs | {"row_ids": row_ids}, Rounding.FP32, path)
        assert all(torch.equal(part, all_rows[row_ids]) for part, all_rows in zip(found, whole, strict=True))


@pytest.mark.parametrize("path", PATHS)
def test_without_a_next_norm_it_is_the_layers_tail(path):
    from gemma4_kernels.rmsnorm_residual_scalar.launch import rmsnorm_residual_scalar

    inputs = CASES[0].make(3, 272, torch.bfloat16)
    del inputs["next_weight"]
    for rounding in Rounding:
        hidden = cross_layer_norm(**inputs, next_weight=None, rounding=rounding, path=path).hidden
        assert torch.equal(hidden, rmsnorm_residual_scalar(**inputs, rounding=rounding, path=path))
