"""Models and arms of `bench step`, without a GPU."""

import json
from pathlib import Path

import pytest

from gemma4_repro.step_bench.model_sizes import SIZES
from gemma4_repro.step_bench.plan import ARMS, NONE, OPS, LayersRefused, StepPlan, plan_from_dict
from gemma4_runtime.catalog import CATALOG
from gemma4_runtime.patch import Kind

CONFIGS = Path(__file__).parents[1] / "data" / "configs"
FILES = {"26b": "26b-a4b", "31b": "31b", "e2b": "e2b", "e4b": "e4b"}


def plan(**changes):
    fields = {"models": tuple(SIZES), "batches": (1, 16), "layers": None, "arms": tuple(ARMS), "rounds": 5}
    return StepPlan(**fields | {"limit_s": 60.0} | changes)


@pytest.mark.parametrize("model", SIZES)
def test_sizes_are_those_of_the_published_configurations(model):
    published = json.loads((CONFIGS / f"{FILES[model]}.json").read_text())["text_config"]
    mine = SIZES[model].text_config(SIZES[model].layers)
    same = ("num_hidden_layers", "layer_types", "num_key_value_heads", "head_dim", "global_head_dim", "sliding_window")
    for name in (*same, "num_kv_shared_layers"):
        assert mine[name] == published[name], name
    if published["num_global_key_value_heads"] is not None:
        assert mine["num_global_key_value_heads"] == published["num_global_key_value_heads"]


@pytest.mark.parametrize("model", SIZES)
def test_fewer_layers_are_whole_groups_and_kv_has_an_owner_of_each_kind(model):
    size = SIZES[model]
    for groups in range(1, size.groups + 1):
        text = size.text_config(groups * size.group)
        owners = text["layer_types"][: len(text["layer_types"]) - text["num_kv_shared_layers"]]
        assert set(owners) == {"sliding_attention", "full_attention"}
        assert len(text["layer_types"]) == plan(layers=groups * size.group).layers_of(model) == groups * size.group


@pytest.mark.parametrize("layers", [0, 7, 66])
def test_other_numbers_of_layers_are_refused_with_those_that_there_are(layers):
    with pytest.raises(LayersRefused, match=f"26b cannot have {layers} layers") as error:
        plan(layers=layers).layers_of("26b")
    assert "6, 12, 18, 24, 30" in error.value.hint


def test_a_model_has_the_arms_of_its_ops():
    ops = {model: plan().arms_of(model)[11:] for model in SIZES}
    everywhere = ("cross-layer-norm", "qk-norm-rope", "small-m-linear", "streamed-products")
    of_experts = ("routing", "triple-rmsnorm", "routed-experts", "dense-beside-experts")
    attention, front, ends = "decode-attention", "attention-front", ("token-embeddings", "capped-logits")
    assert ops["26b"] == (*of_experts[:2], *everywhere, *of_experts[2:], attention, front, *ends)
    assert ops["31b"] == ("post-attention-norms", "rmsnorm-residual-scalar", *everywhere, attention, front, *ends)
    assert ops["e4b"] == ops["e2b"] == tuple(op for op in OPS if op not in of_experts)
    assert "q-only-projection" in plan(layers=12).arms_of("e4b")
    assert "q-only-projection" not in plan(layers=6).ops_of("all", "e4b")  # none of whose keys are shared
    assert plan(arms=("all",)).arms_of("26b") == (NONE, "all")
    assert plan().ops_of("all", "26b") == ops["26b"]
    assert plan().ops_of("all-apart", "26b") == (*ops["26b"][:-3], *ends)
    assert plan().ops_of("all-front-apart", "26b") == ops["26b"][:-2]
    assert plan().ops_of("all-cublas", "26b") == tuple(op for op in ops["26b"] if op != "small-m-linear")
    assert "streamed-products" not in plan().ops_of("all-unstreamed", "26b")
    assert set(plan().ops_of("all", "e4b")) - set(plan().ops_of("all-separate", "e4b")) == {"layer-tail"}
    assert plan().ops_of("all-sglang-attention", "26b") == (*ops["26b"][:-4], front, *ends)
    assert set(ops["26b"]) - set(plan().ops_of("all-sglang-experts", "26b")) == {"routed-experts"}
    assert set(ops["26b"]) - set(plan().ops_of("all-dense-alone", "26b")) == {"dense-beside-experts"}
    assert plan().ops_of("shipped", "26b") == plan().ops_of(NONE, "26b") == ()
    assert plan().ops_of("routing", "26b") == ("routing",)


def test_every_op_is_an_optimisation_of_the_catalog():
    optimisations = {patch.id: patch.title for patch in CATALOG if patch.kind is Kind.OPTIMISATION}
    assert {op: ARMS[op] for op in OPS} == {op: optimisations[op] for op in OPS}


def test_a_plan_comes_through_json():
    assert plan_from_dict(json.loads(json.dumps(plan().as_dict()))) == plan()
