"""`weights-ahead`: which bytes the products of a layer have read ahead, and when none."""

from types import SimpleNamespace

import pytest
import torch

from gemma4_runtime.fusion import weights_ahead
from gemma4_runtime.fusion.weights_ahead import pieces_behind, planned
from gemma4_runtime.optimisations.weights_ahead import Most, after_text_model_init

KB = 1 << 10


def linear(rows, columns=64):
    return SimpleNamespace(weight=torch.empty(rows, columns, dtype=torch.bfloat16))


def layer(shares_keys=False, has_ple=True, experts=False):
    attention = SimpleNamespace(
        qkv_proj=linear(96),
        o_proj=linear(64),
        q_size=32,
        is_kv_shared_layer=shares_keys,
        kv_shared_layer_index=0 if shares_keys else None,
    )
    return SimpleNamespace(
        self_attn=attention,
        mlp=SimpleNamespace(gate_up_proj=linear(256), down_proj=linear(64, 128)),
        per_layer_input_gate=linear(16),
        per_layer_projection=linear(64, 16),
        router=SimpleNamespace(proj=linear(8)),
        has_ple=has_ple,
        enable_moe_block=experts,
    )


def plan(monkeypatch, most, *layers):
    monkeypatch.setattr(weights_ahead, "_BEHIND", {})
    monkeypatch.setattr(weights_ahead, "switched_on", lambda op: True)
    monkeypatch.setattr("gemma4_runtime.optimisations.weights_ahead.Most", lambda: most)
    after_text_model_init(None, SimpleNamespace(layers=layers, start_layer=0, end_layer=len(layers)))


def told(linear):
    return [(piece.weight, piece.first, piece.size) for piece in planned(linear.weight)]


def test_each_product_has_what_follows_read_ahead(monkeypatch):
    first, second = layer(), layer()
    plan(monkeypatch, Most(16 * KB, 4 * KB, 2 * KB, 10 * KB), first, second)
    mlp = first.mlp.gate_up_proj.weight
    # 8 kB are the output projection's; a gate and its partner lie 16 kB apart.
    out = first.self_attn.o_proj.weight
    assert told(first.self_attn.qkv_proj) == [(out, 0, 8 * KB), (mlp, 0, 4 * KB), (mlp, 16 * KB, 4 * KB)]
    assert told(first.self_attn.o_proj) == [(mlp, 4 * KB, 2 * KB), (mlp, 20 * KB, 2 * KB)]
    assert told(first.mlp.gate_up_proj) == [(first.mlp.down_proj.weight, 0, 2 * KB)]
    gate, projection = first.per_layer_input_gate.weight, first.per_layer_projection.weight
    assert told(first.mlp.down_proj) == [
        (gate, 0, 2 * KB),
        (projection, 0, 2 * KB),
        (second.self_attn.qkv_proj.weight, 0, 6 * KB),
    ]
    assert told(first.per_layer_input_gate) == told(first.per_layer_projection) == []
    assert told(second.mlp.down_proj)[2:] == []


def test_of_a_layer_that_reads_anothers_keys_the_queries_are_read_ahead(monkeypatch):
    first, second = layer(), layer(shares_keys=True)
    plan(monkeypatch, Most(layer_end=64 * KB), first, second)
    assert told(first.mlp.down_proj)[-1] == (second.self_attn.qkv_proj.weight, 0, 4 * KB)


def test_behind_an_mlp_beside_experts_stands_the_router_alone(monkeypatch):
    first, second = layer(has_ple=False, experts=True), layer(has_ple=False, experts=True)
    plan(monkeypatch, Most(), first, second)
    assert told(first.mlp.down_proj) == [(first.router.proj.weight, 0, KB)]


def test_nothing_is_read_beyond_a_weight(monkeypatch):
    first = layer()
    plan(monkeypatch, Most(*[1 << 30] * 4), first)
    assert told(first.self_attn.o_proj) == []
    for ahead in (first.self_attn.qkv_proj, first.mlp.gate_up_proj, first.mlp.down_proj):
        assert all(begin + size <= weight.nbytes for weight, begin, size in told(ahead))


@pytest.mark.parametrize("change", ["moved", "replaced", "off"])
def test_weights_that_are_no_longer_where_they_were_are_not_asked_for(monkeypatch, change):
    first = layer()
    plan(monkeypatch, Most(), first)
    ahead = first.mlp.gate_up_proj.weight
    assert len(pieces_behind(ahead)) == 1
    if change == "off":
        monkeypatch.setattr(weights_ahead, "switched_on", lambda op: False)
    elif change == "moved":
        first.mlp.down_proj.weight = first.mlp.down_proj.weight.to("meta")
    else:
        first.mlp.down_proj.weight = torch.empty(2, 2)
    assert pieces_behind(ahead) == ()


def test_a_product_that_nobody_planned_reads_nothing_ahead(monkeypatch):
    plan(monkeypatch, Most(), layer())
    assert pieces_behind(torch.empty(4, 4)) == ()
