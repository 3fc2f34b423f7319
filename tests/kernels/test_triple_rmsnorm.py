"""triple_rmsnorm against fp64 and against Hugging Face's modules."""

import pytest
import torch
from eager_gemma4 import hf_norm
from exact_rows import exact
from kernel_paths import DEVICE, PATHS
from row_op_tests import ManyWeightsTests

from gemma4_kernels.triple_rmsnorm.launch import triple_rmsnorm


class TestTripleRmsnorm(ManyWeightsTests):
    op = "triple_rmsnorm"
    rows = ("attention", "residual")
    weights = ("weight", "router_scale", "dense_weight", "experts_weight")

    def run(self, inputs, rounding, path, out=None):
        return tuple(triple_rmsnorm(**inputs, rounding=rounding, path=path, out=out))

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
        return [
            *super().refusals(),
            ({"router_scale": torch.ones(15, device=DEVICE)}, r"router_scale is \[15\]"),
            ({"router_scale": torch.ones(2, 8, device=DEVICE)}, r"router_scale is \[2, 8\]"),
            ({"router_scale": torch.ones(16, dtype=torch.int32, device=DEVICE)}, "router_scale is .*int32"),
        ]

    @pytest.mark.parametrize("path", PATHS)
    def test_weights_of_another_dtype(self, path):
        inputs = self.make(2, 272, torch.bfloat16)
        # Eager promotes after an fp32 router scale, which no checkpoint has; the norms' weights alone.
        others = (name for name in self.weights if name != "router_scale")
        self.check(inputs | {name: inputs[name].float() * 1.01 for name in others}, path)


@pytest.mark.parametrize("path", PATHS)
def test_the_scale_meets_the_root_in_fp32(path):
    """SGLang 0.5.13.post1 folds a bf16 H^-0.5: at H = 2816 every logit is 0.24% low."""
    rows = torch.ones(1, 2816, device=DEVICE)
    weight, scale = torch.ones(2816, device=DEVICE), torch.full((2816,), 1.5, dtype=torch.bfloat16, device=DEVICE)
    found = triple_rmsnorm(rows, weight, rows, scale, weight, weight, eps=0.0, path=path)
    assert torch.allclose(found.router.double(), torch.tensor(1.5 * 2816**-0.5, dtype=torch.float64), rtol=1e-6)
    as_released = (scale.cpu() * torch.tensor(2816**-0.5).bfloat16()).double()
    assert (as_released / found.router.double().cpu() - 1).mean().item() == pytest.approx(-0.0024, abs=1e-4)


@pytest.mark.parametrize("path", PATHS)
def test_a_scale_that_is_updated_in_place_counts_at_once(path):
    rows, weight, scale = (
        torch.randn(2, 64, device=DEVICE),
        torch.ones(64, device=DEVICE),
        torch.ones(64, device=DEVICE),
    )
    before = triple_rmsnorm(rows, weight, rows, scale, weight, weight, path=path).router
    scale.mul_(2)
    after = triple_rmsnorm(rows, weight, rows, scale, weight, weight, path=path).router
    assert torch.equal(after, 2 * before)


def test_outputs_that_are_one_tensor_are_refused():
    rows, weight = torch.zeros(2, 16), torch.ones(16)
    with pytest.raises(ValueError, match="share memory"):
        triple_rmsnorm(rows, weight, rows, weight, weight, weight, out=(rows,) * 4)


@pytest.mark.parametrize("path", PATHS)
def test_the_layers_input_is_left_as_it_was(path):
    """What the released in-place sum overwrites: a captured hidden state is this very tensor."""
    residual = torch.randn(2, 64, device=DEVICE)
    captured, before = residual, residual.clone()
    weight = torch.ones(64, device=DEVICE)
    found = triple_rmsnorm(residual.clone(), weight, residual, weight, weight, weight, path=path)
    assert torch.equal(captured, before)
    assert not torch.equal(found.residual, before)
