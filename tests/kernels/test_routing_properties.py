"""routing on arbitrary bit patterns, against a sort in plain Python."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kernel_paths import PATHS
from routing_by_hand import DTYPES, assert_routes

PATTERNS = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}


@st.composite
def tokens(draw):
    """(logits, k). Few different values, so that there are ties; any bits, so that there are NaN and denormals."""
    dtype = draw(st.sampled_from(DTYPES))
    experts = draw(st.integers(1, 256))
    half = 2 ** (8 * dtype.itemsize - 1)
    values = draw(st.lists(st.integers(-half, half - 1), min_size=1, max_size=12))
    rows = draw(st.integers(1, 3))
    picks = draw(st.lists(st.sampled_from(values), min_size=rows * experts, max_size=rows * experts))
    logits = torch.tensor(picks, dtype=PATTERNS[dtype]).view(dtype).view(rows, experts)
    return logits, draw(st.integers(1, min(16, experts)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered:RuntimeWarning")
@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=60, deadline=None)
@given(case=tokens())
@example(case=(torch.tensor([[-0.0, 0.0, -1e-40, 1e-40]]), 4))
@example(case=(torch.full((2, 256), -torch.inf), 16))
def test_any_bits(path, case):
    logits, top_k = case
    assert_routes(logits, torch.linspace(0.5, 1.5, logits.shape[1]), top_k, path)
