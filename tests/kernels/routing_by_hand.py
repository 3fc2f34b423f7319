"""One token's routing in plain Python, and what an op returned for many tokens held against it."""

from __future__ import annotations

import math

import torch
from kernel_paths import DEVICE

from gemma4_kernels.rounding import Rounding
from gemma4_kernels.routing import spec
from gemma4_kernels.routing.launch import routing

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def order(values: list[float], top_k: int) -> list[int]:
    """Return the ids of the k largest: NaN first, ties to the lowest id, -0.0 == 0.0."""
    # sorted() keeps the order of what is equal.
    ranks = [(0, 0.0) if math.isnan(value) else (1, -value) for value in values]
    return sorted(range(len(values)), key=ranks.__getitem__)[:top_k]


def softmax(values: list[float]) -> list[float]:
    top = max(values)
    if math.isnan(sum(values)) or math.isinf(top):
        return [math.nan] * len(values)
    terms = [math.exp(value - top) for value in values]
    return [term / math.fsum(terms) for term in terms]


def assert_routes(logits: torch.Tensor, scale: torch.Tensor, top_k: int, path: str) -> None:
    """Compare in FP32 mode with the reading by hand; logits and scale are on any device and stay as they are."""
    logits, scale = logits.to(DEVICE), scale.to(DEVICE)
    before = logits.clone(), scale.clone()
    weights, ids = routing(logits, scale, top_k, path=path)
    assert (weights.dtype, ids.dtype) == (torch.float32, torch.int32)
    assert weights.shape == ids.shape == (logits.shape[0], top_k)
    assert torch.equal(logits.nan_to_num(9.0), before[0].nan_to_num(9.0))
    assert torch.equal(scale, before[1])
    factors = scale.double().tolist()
    for row, found_weights, found_ids in zip(logits.double().tolist(), weights.tolist(), ids.tolist(), strict=True):
        wanted = order(row, top_k)
        assert found_ids == wanted
        # A NaN is among the chosen if there is one, and then it is the first.
        exact = softmax([row[id] for id in wanted])
        for place, id in enumerate(wanted):
            # exp(x) is 2 ** (x * log2 e), and the product's rounding counts more the larger it is.
            behind = row[wanted[0]] - row[id]
            allowed = spec.TOLERANCES["weights"].relative * max(1.0, behind / 16)
            assert_close(found_weights[place], exact[place] * factors[id], allowed)


def assert_close(found: float, exact: float, relative: float) -> None:
    if math.isnan(exact):
        assert math.isnan(found)
    else:
        # Below the smallest normal fp32 a weight may be 0.
        assert abs(found - exact) <= (relative * abs(exact) if exact else 0.0) + 2**-126


def assert_like_eager(logits: torch.Tensor, scale: torch.Tensor, top_k: int, path: str) -> None:
    """EAGER mode against the lines of Gemma4TextRouter, with a stable sort for its torch.topk."""
    logits, scale = logits.to(DEVICE), scale.to(DEVICE)
    weights, ids = routing(logits, scale, top_k, rounding=Rounding.EAGER, path=path)
    probabilities = torch.nn.functional.softmax(logits, dim=-1)
    index = torch.sort(probabilities, dim=-1, descending=True, stable=True).indices[:, :top_k]
    eager = probabilities.gather(1, index)
    eager /= eager.sum(dim=-1, keepdim=True)
    eager = (eager * scale[index]).float()
    # A probability at a rounding boundary may go the other way and swap two near-ties. Rare, and then by one unit.
    same = ids == index
    assert same.float().mean() > 0.99
    assert torch.equal(weights.isnan(), eager.isnan())
    unit = {torch.bfloat16: 2**-7, torch.float16: 2**-9, torch.float32: 1e-5}[logits.dtype]
    assert ((weights - eager).abs() <= 2 * unit * eager.abs() + 1e-7)[same & ~eager.isnan()].all()
    assert ((weights == eager) | eager.isnan())[same].float().mean() > (0.0 if logits.dtype == torch.float32 else 0.98)
