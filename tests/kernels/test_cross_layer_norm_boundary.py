"""What each layer's tail has to leave: every boundary, against a plain walk through the layers."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma4_kernels.cross_layer_norm.launch import Boundary, NextNorm, boundary_after, needs_own_input_norm


def test_the_boundaries_of_a_small_model():
    LAYER, FINAL, NONE = NextNorm.LAYER, NextNorm.FINAL, NextNorm.NONE
    assert [boundary_after(layer, layers=3) for layer in range(3)] == [
        Boundary(LAYER, True, False),
        Boundary(LAYER, True, False),
        Boundary(FINAL, False, False),
    ]
    # The first of two pipeline ranks sends hidden on; the second begins with a norm of its own.
    assert boundary_after(1, layers=4, end_layer=2) == Boundary(NONE, True, False)
    assert [needs_own_input_norm(layer, start_layer=2) for layer in (2, 3)] == [True, False]
    # Captured: the last layer's output has to be stored after all.
    assert boundary_after(2, layers=3, captured={3}) == Boundary(FINAL, True, False)
    # Fast prefill: layer 1 hands the last rows to the cross-decoder, and layer 2 works on those.
    last = [boundary_after(layer, layers=4, cross_decoder_from=2).last_rows_only for layer in range(4)]
    assert last == [False, True, False, False]


@given(
    layers=st.integers(1, 60),
    cuts=st.lists(st.integers(1, 59), max_size=3),
    captured=st.frozensets(st.integers(0, 60), max_size=4),
)
def test_on_any_pipeline_each_norm_is_applied_once_and_what_is_read_is_stored(layers, cuts, captured):
    edges = sorted({0, layers, *(cut for cut in cuts if cut < layers)})
    input_norms, final_norms, stored = [], 0, set()
    for start, end in pairwise(edges):
        for layer in range(start, end):
            if needs_own_input_norm(layer, start_layer=start):
                input_norms.append(layer)
            boundary = boundary_after(layer, layers=layers, end_layer=end, captured=captured)
            if boundary.next_norm is NextNorm.LAYER:
                input_norms.append(layer + 1)
            final_norms += boundary.next_norm is NextNorm.FINAL
            if boundary.hidden:
                stored.add(layer + 1)
    assert input_norms == list(range(layers))
    assert final_norms == 1
    # The residual of every later layer, and every captured input but the embeddings.
    assert stored >= set(range(1, layers)) | {layer for layer in captured if 0 < layer <= layers}


@pytest.mark.parametrize(
    ("layer", "options", "message"),
    [
        (3, {"layers": 3}, "layer is 3, expected 0..2"),
        (-1, {"layers": 3}, "layer is -1"),
        (2, {"layers": 3, "end_layer": 2}, "expected 0..1 of 3"),
        (0, {"layers": 3, "end_layer": 4}, "of 3"),
        (0, {"layers": 3, "cross_decoder_from": 1, "captured": {2}}, "leaves no rows"),
        (0, {"layers": 3, "cross_decoder_from": 1, "end_layer": 2}, "leaves no rows"),
    ],
)
def test_what_it_refuses(layer, options, message):
    with pytest.raises(ValueError, match=message):
        boundary_after(layer, **options)
