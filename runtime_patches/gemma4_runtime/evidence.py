"""Turns what a probe found into what a dump stores: live tensors, and the bad indices of a check.

Tensors are copied to the host at once: the device may be gone a moment later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from gemma4_dumps.draft import TensorPayload
from gemma4_dumps.schema import Offence
from gemma4_runtime.checks.violation import BadIndex


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


def offences(listed: Iterable[BadIndex], table: str, request_slots: Sequence[int | None] = ()) -> tuple[Offence, ...]:
    """Return the bad indices as entries of the dump's tensor `table`.

    Args:
        listed: what the check found.
        table: the name of the tensor that the check read.
        request_slots: by row; None where it is not known whose the row is.
    """
    return tuple(
        Offence(
            table=table,
            row=bad.row,
            column=bad.column,
            value=bad.value,
            lower=bad.lower,
            upper=bad.upper,
            request_slot=request_slots[bad.row] if bad.row < len(request_slots) else None,
        )
        for bad in listed
    )
