"""Plain torch, on CUDA if there is any: gathers visible keys, softmax in fp32. Its gather checks bounds."""

from __future__ import annotations

import numpy as np
import torch

from gemma4_triage.replay.backends.contract import Attention
from gemma4_triage.replay.exchange import BackendCall


def prepare(call: BackendCall) -> Attention:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    # The buffer alone, without what lies around it: an index outside it is an error, not a read.
    inside = slice(call.before, call.before + call.inside)
    keys, values = (torch.from_numpy(part[inside]).to(device).flatten(0, 1) for part in (call.keys, call.values))
    queries = torch.from_numpy(call.queries).to(device)
    if device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = False

    def run(variant: str) -> np.ndarray:
        found = [
            _row(query, keys, values, torch.from_numpy(slots).to(device), call.scale)
            for query, slots in zip(queries, call.slots(variant), strict=True)
        ]
        return torch.stack(found).cpu().numpy()

    return Attention(run, torch.cuda.get_device_name() if device == "cuda" else "cpu", "float32")


def _row(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor, scale: float
) -> torch.Tensor:
    """Attend with query [q_heads, d] over keys, values [slots, kv_heads, d] at slots [n], to [q_heads, d]."""
    seen, held = keys.index_select(0, slots), values.index_select(0, slots)
    grouped = query.unflatten(0, (keys.shape[1], -1))
    weights = torch.softmax(torch.einsum("hgd,nhd->hgn", grouped, seen) * scale, dim=-1)
    return torch.einsum("hgn,nhd->hgd", weights, held).flatten(0, 1)
