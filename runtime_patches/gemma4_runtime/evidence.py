"""Turns live tensors into what a dump stores. Copies to the host at once: the device may be gone a moment later."""

from __future__ import annotations

import torch

from gemma4_dumps.draft import TensorPayload


def payload(tensor: torch.Tensor) -> TensorPayload:
    """Copy a tensor's values, with the dtype, stride and storage offset that it had on the device."""
    values = tensor.detach().to("cpu").contiguous()
    return TensorPayload(
        data=values.reshape(-1).view(torch.uint8).numpy().tobytes(),
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=tuple(tensor.shape),
        stride=tuple(tensor.stride()),
        storage_offset=int(tensor.storage_offset()),
    )
