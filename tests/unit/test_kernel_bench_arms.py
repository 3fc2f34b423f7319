"""The arms of `bench kernels` on this CPU: what is timed side by side computes the same thing."""

import pytest
import torch

from gemma4_kernels.rounding import Rounding
from gemma4_repro.kernel_bench.arms_catalog import arms_of
from gemma4_repro.kernel_bench.cell import Cell, WrongAnswer
from gemma4_repro.kernel_bench.launch_count import kernels_of
from gemma4_repro.kernel_bench.op_arms import Norms
from gemma4_repro.kernel_bench.plan import MODELS, OPS, TOKENS, KernelPlan, ModelShape, applies, choose, plan_from_dict
from gemma4_repro.kernel_bench.replay_clock import ROTATED_BYTES, sets_for

# On a GPU host the release's Triton kernels are not interpreted.
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SMALL = {
    "moe": ModelShape("moe", 64, 3, 16, 4, 0, 4, 2, 16, 0),
    "ple": ModelShape("ple", 64, 3, 0, 0, 32, 3, 1, 32, 1),
    "dense": ModelShape("dense", 64, 3, 0, 0, 0, 2, 2, 16, 0),
}
CELLS = [(op, name) for op in OPS for name, model in SMALL.items() if applies(op, model)]


def rmsnorm(x, weight, eps):
    return torch.nn.functional.rms_norm(x.float(), x.shape[-1:], weight.float(), eps).to(x.dtype)


def fused_add_rmsnorm(x, residual, weight, eps):
    """Do as sgl_kernel documents it: both in place."""
    residual.copy_(x + residual)
    x.copy_(rmsnorm(residual, weight, eps))


def qkv_rmsnorm(q, k, v, q_weight, k_weight, num_q_heads, num_kv_heads, head_dim, eps):
    """Do as SGLang documents it: in place, V without a weight."""
    heads = {"q": (q, q_weight, num_q_heads), "k": (k, k_weight, num_kv_heads), "v": (v, None, num_kv_heads)}
    for rows, weight, count in heads.values():
        if rows is not None:
            one = torch.ones(head_dim, device=rows.device) if weight is None else weight
            rows.copy_(rmsnorm(rows.unflatten(-1, (count, head_dim)), one, eps).flatten(-2))


def rope(q, k, cos_sin_cache, positions, *, is_neox):
    """Do as SGLang documents it: [T, heads, D] each, in place."""
    assert is_neox
    cos, sin = cos_sin_cache[positions][:, None].chunk(2, dim=-1)
    for rows in (q, k):
        x, y = rows.float().chunk(2, dim=-1)
        rows.copy_(torch.cat((x * cos - y * sin, y * cos + x * sin), dim=-1))


# The libraries' own need CUDA; what is tested is the order in which they are called, and with what.
NORMS = Norms(rmsnorm, fused_add_rmsnorm, qkv_rmsnorm, rope)


def flat(result):
    return (result,) if isinstance(result, torch.Tensor) else tuple(result)


# The release's own op is imported from where 0.5.13.post1 has it; no layer op is ported.
@pytest.mark.releases("0.5.13.post1")
@pytest.mark.parametrize("layer", [1, 2])
@pytest.mark.parametrize(("op", "model"), CELLS)
def test_ours_eager_and_the_releases_agree(op, model, layer):
    arms = arms_of(op, SMALL[model], 5, DEVICE)
    activations, weights = arms.activations(), arms.weights()
    if op == "routing":
        # Eager's topk breaks ties as it likes: no ties.
        activations = (torch.rand(5, 16).argsort(dim=1).to(torch.bfloat16).to(DEVICE) / 4,)
    # Of the model that has some, the second layer is without keys of its own.
    arguments = arms.arguments(activations, weights, layer)
    wanted = flat(arms.eager(*arguments))
    found = {rounding.value: flat(arms.ours(*arguments, rounding=rounding)) for rounding in Rounding}
    # Last, because the release adds into its input.
    found["released"] = flat(arms.released(NORMS, *arguments))
    for name, results in found.items():
        assert len(results) == len(wanted), name
        for one, other in zip(results, wanted, strict=True):
            assert one.shape == other.shape, name
            scale = other.float().abs().max().item()
            assert torch.allclose(one.float(), other.float(), rtol=2**-5, atol=2**-6 * scale), name


@pytest.mark.parametrize(("op", "model"), CELLS)
def test_moved_bytes_are_those_of_the_activations_in_and_out(op, model):
    arms = arms_of(op, SMALL[model], 7, "cpu")
    activations = arms.activations()
    moved = []
    for layer in range(3):
        arguments = arms.arguments(activations, arms.weights(), layer)
        tensors = *arguments[: len(activations)], *flat(arms.ours(*arguments, rounding=Rounding.FP32))
        moved.append(sum(tensor.numel() * tensor.itemsize for tensor in tensors if tensor is not None))
    assert arms.moved_bytes == round(sum(moved) / 3)
    # Layers differ where some have no keys of their own.
    assert (len(set(moved)) > 1) == (op == "qk_norm_rope" and SMALL[model].shared_layers > 0)


@pytest.mark.parametrize(("op", "model"), CELLS)
def test_a_cell_has_a_call_per_layer_on_buffers_in_turn(op, model):
    cell = Cell(op, SMALL[model], 2, "cpu")
    assert cell.calls_per_step == (1 if op == "ple_front_end" else 3)
    ours, eager = cell.call_of("ours"), cell.call_of("eager")
    for call in range(cell.calls):
        assert [t.shape for t in flat(ours(call))] == [t.shape for t in flat(eager(call))]
    cell.refuse_wrong_answers()


def test_a_wrong_answer_is_refused(monkeypatch):
    cell = Cell("rmsnorm_add", SMALL["ple"], 2, "cpu")
    right = cell.arms.ours

    def wrong_on_the_kernel_path(*arguments, path="auto", **options):
        found = right(*arguments, path=path, **options)
        return found if path == "torch" else found + 1

    monkeypatch.setattr(cell.arms, "ours", wrong_on_the_kernel_path)
    with pytest.raises(WrongAnswer, match="rmsnorm_add, ple, 2 tokens, eager"):
        cell.refuse_wrong_answers()


@pytest.mark.parametrize(
    ("rounding", "swapped", "refused"),
    [(Rounding.EAGER, 1, False), (Rounding.EAGER, 9, True), (Rounding.FP32, 1, True)],
    ids=str,
)
def test_a_few_near_ties_of_eagers_probabilities_are_no_wrong_answer(monkeypatch, rounding, swapped, refused):
    cell = Cell("routing", SMALL["moe"], 1024, "cpu")
    right = cell.arms.ours

    def swapped_on_the_kernel_path(*arguments, path="auto", **options):
        weights, ids = right(*arguments, path=path, **options)
        if path != "torch" and options["rounding"] is rounding:
            ids[:swapped, 3] = (ids[:swapped, 3] + 1) % 16
            weights[:swapped, 3] += 1
        return weights, ids

    monkeypatch.setattr(cell.arms, "ours", swapped_on_the_kernel_path)
    if refused:
        with pytest.raises(WrongAnswer, match=f"routing, moe, 1024 tokens, {rounding.value}"):
            cell.refuse_wrong_answers()
    else:
        cell.refuse_wrong_answers()


def test_every_op_is_measured_on_some_model_and_every_model_with_some_ops():
    plan = KernelPlan(OPS, tuple(model.id for model in MODELS), TOKENS, ("ours",), 5, 60.0)
    cells = plan.cells()
    assert {op for op, _, _ in cells} == set(OPS)
    ops = {model.id: [op for op, one, tokens in cells if one == model and tokens == 1] for model in MODELS}
    assert ops["26b"] == ["routing", "triple_rmsnorm", "cross_layer_norm", "qk_norm_rope"]
    assert ops["e2b"] == ops["e4b"]
    assert ops["31b"] == ["rmsnorm_residual_scalar", "post_attention_norms", "cross_layer_norm", "qk_norm_rope"]
    assert plan_from_dict(plan.as_dict()) == plan
    assert choose("op", ["triple_rmsnorm", "routing"], OPS) == ("routing", "triple_rmsnorm")


def test_buffers_go_round_until_they_leave_the_cache():
    assert sets_for(1024, 30) == 30
    assert sets_for(ROTATED_BYTES, 30) == 1
    assert sets_for(ROTATED_BYTES // 3, 30) * (ROTATED_BYTES // 3) >= ROTATED_BYTES


def test_launches_are_the_kernels_of_a_trace():
    categories = ["kernel", "gpu_memcpy", "kernel", "cpu_op", "cuda_runtime", "gpu_memset"]
    events = [{"cat": category, "name": "x"} for category in categories]
    assert kernels_of({"traceEvents": [*events, {"ph": "M", "name": "process_name"}]}) == {"x": 2}
