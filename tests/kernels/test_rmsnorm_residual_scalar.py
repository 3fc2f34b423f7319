"""rmsnorm_residual_scalar against fp64 and against Hugging Face's modules."""

import pytest
import torch
from eager_gemma4 import hf_norm
from exact_rows import exact
from kernel_paths import DEVICE
from row_op_tests import RowOpTests

from gemma4_kernels.rmsnorm_residual_scalar.launch import rmsnorm_residual_scalar


class TestRmsnormResidualScalar(RowOpTests):
    op = "rmsnorm_residual_scalar"
    rows = ("x", "residual")
    weights = ("weight",)
    has_scalar = True

    def run(self, inputs, rounding, path, out=None):
        return (rmsnorm_residual_scalar(**inputs, rounding=rounding, path=path, out=out and out[0]),)

    def exact(self, inputs):
        total = exact(inputs["x"]).normed(inputs["weight"]).plus(exact(inputs["residual"]))
        return (total.times(inputs["scalar"]),)

    def eager(self, inputs):
        hidden = inputs["residual"] + hf_norm(inputs["x"], inputs["weight"])
        hidden *= inputs["scalar"]
        return (hidden,)

    def refusals(self):
        return [
            *super().refusals(),
            ({"scalar": torch.ones(2, device=DEVICE)}, r"scalar is \[2\]"),
            ({"scalar": torch.ones(1, dtype=torch.int32, device=DEVICE)}, "int32"),
        ]


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_scalar_of_any_shape(shape):
    x, weight = torch.randn(2, 64, device=DEVICE), torch.ones(64, device=DEVICE)
    scalar = torch.full(shape, -2.0, device=DEVICE)
    for path in ("auto", "torch"):
        found = rmsnorm_residual_scalar(x, weight, x, scalar, path=path)
        assert torch.allclose(found, -2 * (torch.nn.functional.rms_norm(x, (64,), weight, 1e-6) + x), atol=1e-5)
