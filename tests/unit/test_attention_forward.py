"""Our forward of an attention block against SGLang's own, with norms' weights that are not 1, shared keys and not."""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt import server_args
from sglang.srt.layers.layernorm import Gemma4RMSNorm
from sglang.srt.layers.rotary_embedding.base import LinearScalingRotaryEmbedding, RotaryEmbedding
from sglang.srt.layers.rotary_embedding.rope_variant import Gemma4RotaryEmbedding
from sglang.srt.models.gemma4_causal import Gemma4Attention

from gemma4_runtime.catalog import CATALOG
from gemma4_runtime.fusion import eligible
from gemma4_runtime.fusion.paths import PATHS, REFERENCE
from gemma4_runtime.optimisations.qk_norm_rope import OP, around_attention_forward
from gemma4_runtime.session import Session
from gemma4_runtime.settings import read_settings

# qk-norm-rope and q-only-projection are not ported.
pytestmark = pytest.mark.releases("0.5.13.post1")

# Before any session hooks it; taken off again, a session gives this name back too.
SGLANGS = Gemma4Attention.forward
WIDTH, HEADS, KV_HEADS, SIZE, TOKENS, PLACES = 24, 4, 2, 16, 5, 40


@pytest.fixture(autouse=True)
def session(monkeypatch, tmp_path):
    """Yield one with this op, on what counts as the host engine."""
    monkeypatch.setenv("SGLANG_TRTLLM_MHA_DEBUG_DIR", str(tmp_path))
    monkeypatch.setattr(eligible, "on_host_engine", lambda: True)
    asked = SimpleNamespace(enable_deterministic_inference=False, rl_on_policy_target=None)
    monkeypatch.setattr(server_args, "_global_server_args", asked)
    made = Session(read_settings(), tuple(patch for patch in CATALOG if patch.id == OP))
    made.start()
    PATHS.__init__()
    torch.manual_seed(0)
    yield SimpleNamespace(asked=asked, made=made)
    made.stop()
    PATHS.__init__()


def norm(**more):
    made = Gemma4RMSNorm(SIZE, **{"eps": 1e-6} | more)
    if made.with_scale:
        made.weight.data = torch.randn(SIZE)
    # Where there is a GPU, SGLang's norms are for that.
    made._forward_method = made.forward_native
    return made


def rope(kind=RotaryEmbedding, rotary_dim=SIZE, neox=True, **more):
    made = kind(SIZE, rotary_dim, PLACES, 100.0, neox, **more, dtype=torch.float32)
    made._forward_method = made.forward_native
    return made


def attention_of(shared=False, rotary=None):
    """Return what Gemma4Attention.forward reads of a block; `seen` is what its attention layer was called with."""
    projection = torch.randn(WIDTH, (HEADS + 2 * KV_HEADS) * SIZE)
    back, seen = torch.randn(HEADS * SIZE, WIDTH), []

    def attend(q, k, v, forward_batch, save_kv_cache):
        seen.append((q, k, v, forward_batch, save_kv_cache))
        return q.flatten(-2)

    return SimpleNamespace(
        qkv_proj=lambda rows: (rows @ projection.to(rows.dtype), None),
        o_proj=lambda rows: (rows @ back, None),
        q_norm=norm(),
        k_norm=norm(),
        v_norm=norm(with_scale=False),
        rotary_emb=rotary or rope(),
        attn=attend,
        seen=seen,
        head_dim=SIZE,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        q_size=HEADS * SIZE,
        kv_size=KV_HEADS * SIZE,
        is_kv_shared_layer=shared,
        kv_shared_layer_index=3 if shared else None,
    )


def inputs(dtype=torch.float32):
    return torch.tensor([PLACES - 1, 0, 7, 8, 9]), torch.randn(TOKENS, WIDTH, dtype=dtype), object()


def paths():
    return PATHS.document().get(OP, {})


@pytest.mark.parametrize("positions_dtype", [torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kind", [RotaryEmbedding, Gemma4RotaryEmbedding])
def test_attention_gets_what_it_gets_of_sglang(kind, shared, positions_dtype):
    attention = attention_of(shared, rope(kind, SIZE if kind is RotaryEmbedding else SIZE // 4))
    positions, hidden, batch = inputs()
    wanted = SGLANGS(attention, positions, hidden, batch)
    found = around_attention_forward(SGLANGS, attention, positions.to(positions_dtype), hidden, batch)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    theirs, ours = attention.seen
    assert ours[3:] == theirs[3:] == (batch, not shared)
    for mine, other in zip(ours[:3], theirs[:3], strict=True):
        assert (mine is None) == (other is None)
        if mine is not None:
            assert mine.is_contiguous()
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)
    assert (ours[1] is None) == shared
    assert paths() == {REFERENCE: 1}


def test_a_draft_model_that_learns_later_that_it_reads_the_targets_keys():
    attention, given = attention_of(), inputs()
    around_attention_forward(SGLANGS, attention, *given)
    attention.is_kv_shared_layer, attention.kv_shared_layer_index = True, 0
    around_attention_forward(SGLANGS, attention, *given)
    assert [(seen[1] is None, seen[4]) for seen in attention.seen] == [(False, True), (True, False)]


def test_a_table_that_sglang_made_longer_is_read():
    attention, (_, hidden, batch) = attention_of(), inputs()
    around_attention_forward(SGLANGS, attention, torch.arange(TOKENS), hidden, batch)
    attention.rotary_emb._ensure_cos_sin_cache_length(1000)
    far = torch.arange(TOKENS) + 900
    found = around_attention_forward(SGLANGS, attention, far, hidden, batch)
    torch.testing.assert_close(found, SGLANGS(attention, far, hidden, batch), rtol=1e-4, atol=1e-4)
    assert paths() == {REFERENCE: 2}


def test_a_table_that_sglang_would_convert_is_converted_once():
    attention, given = attention_of(), inputs()
    rotary = attention.rotary_emb
    rotary.cos_sin_cache, rotary.use_fallback_kernel = rotary.cos_sin_cache.bfloat16(), True
    around_attention_forward(SGLANGS, attention, *given)
    table = rotary.cos_sin_cache
    assert table.dtype == torch.float32
    around_attention_forward(SGLANGS, attention, *given)
    assert rotary.cos_sin_cache is table
    # Where SGLang's usual kernel runs, the table stays as it is.
    rotary.cos_sin_cache, rotary.use_fallback_kernel = table.bfloat16(), False
    around_attention_forward(SGLANGS, attention, *given)
    assert rotary.cos_sin_cache.dtype == torch.bfloat16


def test_switched_off_it_is_sglangs_own_and_not_recorded(session):
    session.made.in_force.ids = frozenset()
    attention, given = attention_of(), inputs()
    assert torch.equal(around_attention_forward(SGLANGS, attention, *given), SGLANGS(attention, *given))
    assert paths() == {}


def of_dtype(made, dtype):
    made.weight.data = made.weight.data.to(dtype)
    return made


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda a: {"q_norm": norm(scale_shift=1.0)}, "a Gemma4RMSNorm that is not"),
        (lambda a: {"k_norm": norm(eps=1e-5)}, "norms with different eps"),
        (lambda a: {"k_norm": of_dtype(norm(), torch.bfloat16)}, "norms of Q and K of different dtypes"),
        (lambda a: {"v_norm": norm()}, "a norm of V with a learned weight"),
        (
            lambda a: {"rotary_emb": rope(LinearScalingRotaryEmbedding, scaling_factors=[2.0])},
            "a LinearScalingRotaryEmbedding",
        ),
        (lambda a: {"rotary_emb": rope(neox=False)}, "a RotaryEmbedding that is not Gemma-4's"),
        (lambda a: {"rotary_emb": rope(rotary_dim=SIZE // 2)}, "a rotation of 8 of 16 elements"),
    ],
)
def test_what_a_layer_has_that_the_kernel_does_not_compute(change, reason):
    attention, given = attention_of(), inputs()
    vars(attention).update(change(attention))
    for _ in range(2):
        found = around_attention_forward(SGLANGS, attention, *given)
    assert torch.equal(found, SGLANGS(attention, *given))
    ((why, count),) = paths().items()
    assert reason in why
    assert count == 2


def test_heads_that_are_no_power_of_two():
    assert eligible.rope_reason(RotaryEmbedding(24, 24, 8, 100.0, True, torch.float32), 24) == "heads of 24 elements"


def test_on_a_deterministic_server_sglangs_own(session):
    session.asked.enable_deterministic_inference = True
    around_attention_forward(SGLANGS, attention_of(), *inputs())
    assert list(paths()) == ["deterministic inference: SGLang's batch-invariant norms"]


@pytest.mark.parametrize(
    ("positions", "reason"),
    [
        (torch.zeros(TOKENS, dtype=torch.int16), "positions of 1 dimensions, torch.int16"),
        (torch.zeros(3, TOKENS, dtype=torch.int64), "positions of 2 dimensions"),
        (torch.zeros(2 * TOKENS, dtype=torch.int64)[::2], "positions that are apart"),
    ],
)
def test_positions_that_are_not_taken(positions, reason):
    called = []
    around_attention_forward(lambda *given: called.append(given), attention_of(), positions, *inputs()[1:])
    assert len(called) == 1
    assert [why for why in paths() if reason in why]


def test_a_table_and_a_projection_of_other_dtypes():
    attention, given = attention_of(), inputs()
    attention.rotary_emb.cos_sin_cache = attention.rotary_emb.cos_sin_cache.double()
    around_attention_forward(lambda *given: None, attention, *given)
    attention = attention_of()
    projected = attention.qkv_proj
    attention.qkv_proj = lambda rows: (projected(rows)[0].double(), None)
    around_attention_forward(lambda *given: None, attention, *given)
    assert list(paths()) == [
        "a table of angles of torch.float64 on cpu",
        "hidden states of 2 dimensions, torch.float64",
    ]
    assert attention.seen == []
