"""triple_rmsnorm against fp64 and against Hugging Face's modules."""

import pytest
import torch
from eager_gemma4 import hf_norm
from exact_rows import exact
from kernel_paths import DEVICE, PATHS
from row_op_tests import ManyWeightsTests

from gemma4_kernels.rounding import Rounding
from gemma4_kernels.triple_rmsnorm.launch import RouterScale, fold_router_scale, triple_rmsnorm


class TestTripleRmsnorm(ManyWeightsTests):
    op = "triple_rmsnorm"
    rows = ("attention", "residual")
    weights = ("weight", "router_scale", "dense_weight", "experts_weight")

    def run(self, inputs, rounding, path, out=None):
        scale = fold_router_scale(inputs["router_scale"], rounding)
        return tuple(triple_rmsnorm(**inputs | {"router_scale": scale}, path=path, out=out))

    def exact(self, inputs):
        total = exact(inputs["attention"]).normed(inputs["weight"]).plus(exact(inputs["residual"]))
        scale = inputs["router_scale"].double() * total.value.shape[1] ** -0.5
        return total, *(total.normed(w) for w in (scale, inputs["dense_weight"], inputs["experts_weight"]))

    def eager(self, inputs):
        total = inputs["residual"] + hf_norm(inputs["attention"], inputs["weight"])
        router = hf_norm(total, None) * inputs["router_scale"] * total.shape[1] ** -0.5
        others = (hf_norm(total, inputs[name]) for name in ("dense_weight", "experts_weight"))
        return total, router.to(total.dtype), *others

    def refusals(self):
        # The scale goes through fold_router_scale first, which takes any floating dtype.
        return [
            *super().refusals(),
            ({"router_scale": torch.ones(15, device=DEVICE)}, r"router_scale is \[15\]"),
            ({"router_scale": torch.ones(2, 8, device=DEVICE)}, r"scale is \[2, 8\]"),
            ({"router_scale": torch.ones(16, dtype=torch.int32, device=DEVICE)}, "int32"),
        ]

    @pytest.mark.parametrize("path", PATHS)
    def test_weights_of_another_dtype(self, path):
        inputs = self.make(2, 272, torch.bfloat16)
        # Eager promotes after an fp32 router scale, which no checkpoint has; the norms' weights alone.
        others = (name for name in self.weights if name != "router_scale")
        self.check(inputs | {name: inputs[name].float() * 1.01 for name in others}, path)


def test_the_scale_is_folded_in_fp32():
    """SGLang 0.5.13.post1 folds a bf16 H^-0.5: at H = 2816 every logit is 0.24% low."""
    scale = torch.full((2816,), 1.5, dtype=torch.bfloat16)
    folded = fold_router_scale(scale)
    assert folded.values.dtype == torch.float32
    assert torch.allclose(folded.values.double(), torch.full((2816,), 1.5 * 2816**-0.5, dtype=torch.float64), rtol=1e-7)
    as_released = (scale * torch.tensor(2816**-0.5).bfloat16()).double()
    assert (as_released / folded.values.double() - 1).mean().item() == pytest.approx(-0.0024, abs=1e-4)


def test_a_scale_that_was_not_folded_is_refused():
    rows, weight = torch.zeros(2, 16), torch.ones(16)
    with pytest.raises(ValueError, match=r"router_scale is .*bfloat16, expected float32"):
        triple_rmsnorm(rows, weight, rows, RouterScale(weight.bfloat16(), Rounding.FP32), weight, weight)


def test_outputs_that_are_one_tensor_are_refused():
    rows, weight = torch.zeros(2, 16), torch.ones(16)
    with pytest.raises(ValueError, match="share memory"):
        triple_rmsnorm(rows, weight, rows, fold_router_scale(weight), weight, weight, out=(rows,) * 4)


@pytest.mark.parametrize("path", PATHS)
def test_the_layers_input_is_left_as_it_was(path):
    """What the released in-place sum overwrites: a captured hidden state is this very tensor."""
    residual = torch.randn(2, 64, device=DEVICE)
    captured, before = residual, residual.clone()
    weight = torch.ones(64, device=DEVICE)
    found = triple_rmsnorm(residual.clone(), weight, residual, fold_router_scale(weight), weight, weight, path=path)
    assert torch.equal(captured, before)
    assert not torch.equal(found.residual, before)
