"""The call on a CUDA device, as kernels take it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch

from gemma4_triage.replay.backends.contract import Refused
from gemma4_triage.replay.exchange import BackendCall

HALVES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class DeviceCall:
    """A call whose tensors are on the device.

    Attributes:
        keys, values: the buffer inside its arena, [pages, page_size, kv_heads, head_dim].
        queries: [rows, heads, dim].
        dtype: the KV buffer's own if kernels take it, else bfloat16.
    """

    keys: torch.Tensor
    values: torch.Tensor
    queries: torch.Tensor
    dtype: str

    def lists(self, slots: list[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return indptr [rows + 1] and indices [any], both int32: slots that leave int32 go as far as it reaches."""
        indptr = [0, *accumulate(len(row) for row in slots)]
        limits = np.iinfo(np.int32)
        indices = np.clip(np.concatenate(slots), limits.min, limits.max).astype(np.int32)
        device = self.keys.device
        return torch.tensor(indptr, dtype=torch.int32, device=device), torch.from_numpy(indices).to(device)


def require_cuda() -> tuple[int, int]:
    """Return the compute capability. Raises Refused."""
    if not torch.cuda.is_available():
        raise Refused("needs a CUDA device", missing=True)
    return torch.cuda.get_device_capability()


def to_device(call: BackendCall, device: str, dtype: str | None = None) -> DeviceCall:
    """dtype: to compute in; None: see `DeviceCall`."""
    dtype = dtype or (call.dtype if call.dtype in HALVES else "bfloat16")
    kind = HALVES.get(dtype, torch.float32)
    # Slices of the arena: what lies before and after the buffer is its neighbour in memory, as in a server.
    inside = slice(call.before, call.before + call.inside)
    keys, values = (torch.from_numpy(part).to(device, kind)[inside] for part in (call.keys, call.values))
    return DeviceCall(keys, values, torch.from_numpy(call.queries).to(device, kind), dtype)


def to_host(out: torch.Tensor) -> np.ndarray:
    """Waits for the kernel; a fault in it is raised here."""
    return out.float().cpu().numpy()
