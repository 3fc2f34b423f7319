"""Experts with gelu on a CPU: SGLang refuses them there, the host leaf computes what transformers computes."""

from types import SimpleNamespace

import pytest
import torch

from gemma4_runtime.host import moe_gelu

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")

EXPERTS, TOP_K, HIDDEN, INTERMEDIATE, TOKENS = 5, 2, 16, 8, 7


@pytest.fixture
def experts():
    from transformers import Gemma4TextConfig
    from transformers.models.gemma4.modeling_gemma4 import Gemma4TextExperts

    torch.manual_seed(0)
    config = Gemma4TextConfig(hidden_size=HIDDEN, moe_intermediate_size=INTERMEDIATE, num_experts=EXPERTS)
    config._experts_implementation_internal = "eager"
    experts = Gemma4TextExperts(config)
    for parameter in experts.parameters():
        torch.nn.init.normal_(parameter)
    return experts


def method(activation):
    """Say what `forward_native` is called on; nothing else of it is read."""
    from sglang.srt.layers.moe.moe_runner import MoeRunnerConfig

    return SimpleNamespace(moe_runner_config=MoeRunnerConfig(activation=activation))


def layer_of(experts):
    return SimpleNamespace(w13_weight=experts.gate_up_proj, w2_weight=experts.down_proj, num_experts=EXPERTS)


@pytest.fixture
def dispatched():
    """Tokens for all experts but the last, two of each token's own, in no order."""
    from sglang.srt.layers.moe.token_dispatcher import StandardDispatchOutput
    from sglang.srt.layers.moe.topk import StandardTopKOutput

    scores = torch.rand(TOKENS, EXPERTS - 1)
    weights, ids = scores.topk(TOP_K)
    routed = StandardTopKOutput(weights, ids.to(torch.int32), scores)
    return StandardDispatchOutput(torch.randn(TOKENS, HIDDEN), None, routed)


def unpatched(method, layer, dispatch_output):
    from sglang.srt.layers.quantization.unquant import UnquantizedFusedMoEMethod

    return UnquantizedFusedMoEMethod.forward_native(method, layer, dispatch_output)


@torch.no_grad()
def test_gelu_equals_transformers(experts, dispatched):
    out = moe_gelu.forward_native(unpatched, method("gelu"), layer_of(experts), dispatched)
    weights, ids, _ = dispatched.topk_output
    expected = experts(dispatched.hidden_states, ids.long(), weights)
    torch.testing.assert_close(out.hidden_states, expected, rtol=1e-5, atol=1e-5)


# 0.5.23 refuses nothing here: it has a path of its own for a CPU.
@pytest.mark.releases("0.5.13.post1")
def test_without_the_leaf_sglang_refuses(experts, dispatched):
    """Once it does not, the leaf can go."""
    with pytest.raises(AssertionError, match="activation = gelu is not supported"):
        unpatched(method("gelu"), layer_of(experts), dispatched)


def test_silu_is_left_to_sglang(experts, dispatched):
    silu, layer = method("silu"), layer_of(experts)
    answer = moe_gelu.forward_native(lambda *arguments: ("SGLang's", *arguments), silu, layer, dispatched)
    assert answer == ("SGLang's", silu, layer, dispatched)
