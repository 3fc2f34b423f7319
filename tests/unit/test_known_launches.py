"""Arguments of an op are checked once per shapes, strides, dtypes and devices; a launch like one before is the same.

No kernel runs here: what would be launched is written down.
"""

from types import SimpleNamespace

import pytest
import torch

from gemma4_kernels.capped_logits import launch as capped
from gemma4_kernels.cross_layer_norm import launch as cross
from gemma4_kernels.decode_attention import launch as attention
from gemma4_kernels.gelu_tanh_mul import launch as gelu
from gemma4_kernels.launcher import KnownLaunches, facts
from gemma4_kernels.ple_front_end import launch as front_end
from gemma4_kernels.post_attention_norms import launch as post_attention
from gemma4_kernels.qk_norm_rope import launch as norm_rope
from gemma4_kernels.rmsnorm_add import launch as add
from gemma4_kernels.rmsnorm_residual_scalar import launch as residual_scalar
from gemma4_kernels.routing import launch as router
from gemma4_kernels.small_m_linear import launch as small
from gemma4_kernels.token_embeddings import launch as embeddings
from gemma4_kernels.triple_rmsnorm import launch as triple
from gemma4_kernels.window_lists import launch as lists

WIDTH, HEAD = 64, 16


def rows(count, width=WIDTH):
    return torch.zeros(count, width, dtype=torch.bfloat16)


def weight(width=WIDTH):
    return torch.zeros(width, dtype=torch.bfloat16)


def positions(count):
    return torch.zeros(count, dtype=torch.int64)


def ids(count):
    return torch.zeros(count // 2, dtype=torch.int64)


def heads(count):
    return torch.zeros(count, 2, 256, dtype=torch.bfloat16)


def starts(count):
    return torch.zeros(count + 1, dtype=torch.int32)


# Op -> (module, name, arguments for so many rows).
OPS = {
    "rmsnorm-add": (add, "rmsnorm_add", lambda n: [rows(n), weight(), rows(n)]),
    "rmsnorm-residual-scalar": (
        residual_scalar,
        "rmsnorm_residual_scalar",
        lambda n: [rows(n), weight(), rows(n), weight(1)],
    ),
    "gelu-tanh-mul": (gelu, "gelu_tanh_mul", lambda n: [rows(n), rows(n)]),
    "post-attention-norms": (
        post_attention,
        "post_attention_norms",
        lambda n: [rows(n), weight(), rows(n), weight()],
    ),
    "triple-rmsnorm": (
        triple,
        "triple_rmsnorm",
        lambda n: [rows(n), weight(), rows(n), weight(), weight(), weight()],
    ),
    "ple-front-end": (
        front_end,
        "ple_front_end",
        lambda n: [torch.zeros(n, 3, HEAD), weight(HEAD), torch.zeros(n, 3, HEAD), 64],
    ),
    "ple-front-end, no ids": (front_end, "ple_front_end", lambda n: [torch.zeros(n, 3, HEAD), weight(HEAD), None, 64]),
    "routing": (router, "routing", lambda n: [rows(n, 32), weight(32), 4]),
    "qk-norm-rope": (
        norm_rope,
        "qk_norm_rope",
        lambda n: [
            *(rows(n), rows(n, 2 * HEAD), rows(n, 2 * HEAD), weight(HEAD), weight(HEAD)),
            *(torch.zeros(9, HEAD), positions(n)),
        ],
    ),
    "qk-norm-rope, q alone": (
        norm_rope,
        "qk_norm_rope",
        lambda n: [rows(n), None, None, weight(HEAD), None, torch.zeros(9, HEAD), positions(n)],
    ),
    "cross-layer-norm": (
        cross,
        "cross_layer_norm",
        lambda n: [rows(n), weight(), rows(n), weight(1), weight()],
    ),
    "cross-layer-norm, some rows": (
        cross,
        "cross_layer_norm",
        lambda n: [rows(n), weight(), rows(n), weight(1), weight()],
    ),
    "cross-layer-norm, the last": (
        cross,
        "cross_layer_norm",
        lambda n: [rows(n), weight(), rows(n), weight(1), None],
    ),
    "cross-layer-norm of experts": (
        cross,
        "moe_cross_layer_norm",
        lambda n: [rows(n), weight(), rows(n), weight(), weight(), rows(n), weight(1), weight()],
    ),
}
OPS |= {
    "small-m-linear": (small, "small_m_linear", lambda n: [rows(n), rows(48)]),
    "small-m-linear, its depth shared": (small, "small_m_linear", lambda n: [rows(n), rows(48), SHARED]),
    "small-m-linear with a gate": (small, "small_m_geglu", lambda n: [rows(n), rows(48)]),
    "small-m-linear with a factor": (small, "small_m_gelu_mul", lambda n: [rows(n), rows(48), rows(n, 48)]),
    "decode-attention": (
        attention,
        "decode_attention",
        lambda n: [
            *(torch.zeros(n, 8, 256, dtype=torch.bfloat16), heads(64), heads(64)),
            *(starts(n), positions(100), 1.0),
        ],
    ),
    "swa-window-lists": (
        lists,
        "window_lists",
        lambda n: [
            *(torch.zeros(9, 64, dtype=torch.int32), positions(n), positions(n), 16),
            *(positions(99), starts(n)),
        ],
    ),
    "capped-logits": (capped, "capped_logits", lambda n: [rows(n), 30.0]),
    "token-embeddings": (embeddings, "token_embeddings", lambda n: [positions(n), rows(9), 2.0, rows(7), 3.0]),
    "token-embeddings alone": (embeddings, "token_embeddings", lambda n: [positions(n), rows(9), 2.0]),
}
SHARED = small.any_plan(6, 48, WIDTH)._replace(block_k=16, splits=2)
NUMBERS = {
    "routing": [{}],
    "gelu-tanh-mul": [{}],
    "swa-window-lists": [{}],
    "capped-logits": [{}],
    "token-embeddings": [{}, {"pad": 1}, {"hidden_ids": (1, 2, 3)}],
    "token-embeddings alone": [{}],
    "decode-attention": [{}, {"plan": attention.Plan(2)}, {"early": False}],
    "small-m-linear": [{}, {"plan": SHARED}, {"early": False}],
    "small-m-linear, its depth shared": [{}, {"early": False}],
    "small-m-linear with a gate": [{}, {"plan": SHARED}],
    "small-m-linear with a factor": [{}, {"plan": SHARED}],
}
KEYWORDS = {"cross-layer-norm, some rows": lambda n: {"row_ids": ids(n)}}


@pytest.fixture(params=OPS)
def op(request, monkeypatch):
    """Returns an op to call: call(count, **changes); made and again are the pointers of launches, anew and again."""
    module, name, arguments = OPS[request.param]
    keywords = KEYWORDS.get(request.param, lambda n: {})
    state = SimpleNamespace(made=[], again=[], works=True, name=request.param, arguments=arguments)

    def again(pointers):
        state.again.append(list(pointers))
        return state.works

    def launch(programs, pointers, *_, **__):
        state.made.append(list(pointers))
        return SimpleNamespace(again=again)

    def call(count, given=None, **changes):
        given = arguments(count) if given is None else given
        words = keywords(count) | changes
        return given, words, getattr(module, name)(*given, **words)

    monkeypatch.setattr(module, "_KNOWN", KnownLaunches())
    monkeypatch.setattr(module, "takes_kernel", lambda *_: True)
    monkeypatch.setattr(module, "_launcher", lambda: SimpleNamespace(launch=launch))
    state.call = call
    return state


def tensors_of(result):
    found = [result] if isinstance(result, torch.Tensor) else list(result)
    return [one for one in found if one is not None]


def places(pointers, given, words, result):
    """Returns which argument or output each pointer is; what else a launch has is room for its programs."""
    named = {id(one): ("argument", place) for place, one in enumerate(given) if isinstance(one, torch.Tensor)}
    named |= {id(one): ("keyword", name) for name, one in words.items()}
    named |= {id(one): ("output", place) for place, one in enumerate(tensors_of(result))}
    return [named.get(id(pointer), ("room", pointer.shape)) for pointer in pointers]


def shorter(result):
    """Returns outputs like these, of which each is a row short."""
    if isinstance(result, torch.Tensor):
        return result[:-1]
    cut = [one if one is None else one[:-1] for one in result]
    return type(result)(*cut) if hasattr(result, "_fields") else tuple(cut)


def test_a_call_like_one_before_is_the_same_launch(op):
    given, words, first = op.call(4)
    others, words_again, second = op.call(4)
    assert (len(op.made), len(op.again)) == (1, 1)
    assert places(op.again[0], others, words_again, second) == places(op.made[0], given, words, first)
    assert [facts(one) for one in tensors_of(second)] == [facts(one) for one in tensors_of(first)]
    assert type(second) is type(first)


def test_another_number_of_rows_is_another_launch(op):
    for count in (4, 6, 4, 6):
        op.call(count)
    assert (len(op.made), len(op.again)) == (2, 2)


def test_what_cannot_be_made_again_is_launched_anew(op):
    given, words, first = op.call(4)
    op.works = False
    others, words_again, second = op.call(4)
    assert (len(op.made), len(op.again)) == (2, 1)
    assert places(op.made[1], others, words_again, second) == places(op.made[0], given, words, first)


def test_a_launch_that_depends_on_addresses_is_not_remembered(op):
    known = KnownLaunches()
    known.keep("key", None)
    assert known.get("key") is None


def test_a_good_call_does_not_excuse_a_bad_one(op):
    op.call(4)
    good = op.arguments(4)
    for place in [place for place, one in enumerate(good) if isinstance(one, torch.Tensor)]:
        given = list(good)
        given[place] = given[place].to(torch.complex64)
        with pytest.raises(ValueError, match=r"expected|beside"):
            op.call(4, given)
    assert op.again == []


def test_numbers_and_modes_are_told_apart(op):
    words = NUMBERS.get(op.name, [{}, {"eps": 1e-5}, {"eps": 0}, {"eps": 0.0}])
    for changes in words:
        op.call(4, **changes)
    assert (len(op.made), len(op.again)) == (len(words), 0)
    op.call(4, path="kernel")
    assert (len(op.made), len(op.again)) == (len(words) + 1, 0), "what is forced is checked as ever"


def test_outputs_that_are_given_are_checked(op):
    if op.name in ("routing", "swa-window-lists", "token-embeddings", "token-embeddings alone"):
        pytest.skip("it takes none, or under another name")
    _, _, made = op.call(4)
    op.call(4, out=made)
    assert (len(op.made), len(op.again)) == (2, 0)
    with pytest.raises(ValueError, match="expected"):
        op.call(4, out=shorter(made))


@pytest.mark.parametrize("op", ["decode-attention"], indirect=True)
def test_attention_over_another_number_of_slots_is_the_same_launch(op):
    op.call(4)
    given = op.arguments(4)
    given[4] = positions(700)
    op.call(4, given)
    assert (len(op.made), len(op.again)) == (1, 1)


def test_very_many_lengths_are_not_all_kept(monkeypatch):
    monkeypatch.setattr("gemma4_kernels.launcher._MOST_KNOWN", 3)
    known = KnownLaunches()
    for key in range(10):
        known.keep(key, SimpleNamespace())
    assert sum(known.get(key) is not None for key in range(10)) <= 3
    assert known.get(9) is not None
