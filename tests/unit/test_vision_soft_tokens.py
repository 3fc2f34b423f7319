"""Which soft tokens are real: worked out on the host, and by SGLang's pooler."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.srt.models.gemma4_vision import Gemma4VisionPooler
from transformers import Gemma4VisionConfig

from gemma4_runtime.vision.soft_tokens import rows_of_real

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")

POOLER = Gemma4VisionPooler(Gemma4VisionConfig(hidden_size=4))


@st.composite
def frames(draw):
    """Positions of 1 to 3 frames with as many patches each: whole grids, and grids with patches missing."""
    side = draw(st.sampled_from([2, 3]))
    cells = [(draw(st.integers(1, 4)), draw(st.integers(1, 4))) for _ in range(draw(st.integers(1, 3)))]
    length = max(columns * rows for columns, rows in cells) + draw(st.integers(0, 3))
    found = torch.full((len(cells), length * side**2, 2), -1)
    for positions, (columns, rows) in zip(found, cells, strict=True):
        grid = torch.cartesian_prod(torch.arange(rows * side), torch.arange(columns * side)).flip(-1)
        positions[: len(grid)] = grid
        missing = draw(st.lists(st.integers(0, len(grid) - 1), max_size=4))
        positions[missing] = -1
    return found, length


@pytest.mark.slow
@given(frames())
@settings(max_examples=200, deadline=None)
def test_they_are_those_of_sglangs_pooler(drawn):
    positions, length = drawn
    hidden = torch.zeros(*positions.shape[:2], 4)
    _, mask = POOLER(hidden, positions, (positions == -1).all(-1), length)
    rows, counts = rows_of_real(positions, length)
    assert rows.tolist() == mask.flatten().nonzero().squeeze(1).tolist()
    assert counts == mask.sum(1).tolist()
