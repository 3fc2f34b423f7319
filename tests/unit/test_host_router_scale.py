"""The router of Gemma-4's experts on a CPU: SGLang leaves its learned scale out there, the host leaf does not."""

from types import SimpleNamespace

import pytest
import torch

from gemma4_runtime.host import torch_forms

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")

HIDDEN, EXPERTS, TOKENS = 16, 5, 7


@pytest.fixture
def routers():
    """Return the same weights in SGLang's router and in transformers'."""
    from sglang.srt.models.gemma4_causal import Gemma4Router
    from transformers import Gemma4TextConfig
    from transformers.models.gemma4.modeling_gemma4 import Gemma4TextRouter

    torch.manual_seed(0)
    config = Gemma4TextConfig(hidden_size=HIDDEN, num_experts=EXPERTS, top_k_experts=2)
    theirs = Gemma4TextRouter(config)
    ours = Gemma4Router(SimpleNamespace(hidden_size=HIDDEN, num_experts=EXPERTS, rms_norm_eps=config.rms_norm_eps))
    with torch.no_grad():
        theirs.scale.uniform_(0.5, 1.5)
        theirs.proj.weight.normal_(0, 3)
        ours.scale.copy_(theirs.scale)
        ours.proj.weight.copy_(theirs.proj.weight)
    return ours, theirs


@torch.no_grad()
def test_probabilities_equal_transformers(routers):
    ours, theirs = routers
    x = torch.randn(TOKENS, HIDDEN)
    for _ in range(2):
        # The scale is folded into the norm's weight the first time.
        torch.testing.assert_close(torch_forms.route(ours, x).softmax(-1), theirs(x)[0], rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_without_the_leaf_the_scale_is_left_out(routers):
    """Once it is not, the leaf can go."""
    ours, theirs = routers
    x = torch.randn(TOKENS, HIDDEN)
    assert not torch.allclose(ours(x).softmax(-1), theirs(x)[0], atol=1e-2)
    without_scale = theirs.norm(x) @ theirs.proj.weight.T
    torch.testing.assert_close(ours(x), without_scale, rtol=1e-5, atol=1e-5)
