"""Launch window_lists: on CUDA one kernel without synchronisation, elsewhere torch."""

from __future__ import annotations

import functools

import torch

from gemma4_kernels.launcher import KnownLaunches, Launcher, facts
from gemma4_kernels.row_arguments import Path, takes_kernel
from gemma4_kernels.window_lists import reference

__all__ = ["window_lists"]

_BLOCK, _BATCH = 256, 256
_INDEX = (torch.int32, torch.int64)
_KNOWN = KnownLaunches()


def window_lists(
    req_to_token: torch.Tensor,
    rows: torch.Tensor,
    lengths: torch.Tensor,
    window: int,
    mapping: torch.Tensor | None,
    starts: torch.Tensor,
    slots: torch.Tensor | None = None,
    *,
    path: Path = "auto",
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the slots of each request's last `window` tokens. What becomes of slots without a mapping: see spec.py.

    Args:
        req_to_token: [R, C] int32, rows any distance apart, unit stride inside a row.
        rows: [N] int32 or int64, N >= 0: each request's row.
        lengths: [N] int32 or int64, 0..C: tokens that a request's row holds.
        window: tokens, >= 1.
        mapping: [M] int64, or None: slots stay those of `req_to_token`.
        starts: [N + 1 or more] int32; [0] must be 0, [1:N + 1] is written.
        slots: [N * window or more] int64; new if None. Behind starts[N] nothing is written.
        path: which implementation to run; "auto" for the one that this device takes.

    Returns:
        (slots, kept [N], first [N]): how many tokens of each request are listed, from which on; as `lengths`.

    Raises:
        ValueError: a shape, dtype, device or stride that is not as above, or a path that this device cannot run.
    """
    key = None
    if path == "auto":
        optional = [one is None or facts(one) for one in (mapping, slots)]
        key = (*facts(req_to_token, rows, lengths, starts), *optional, window)
        if (known := _KNOWN.get(key)) is not None:
            made = _outputs(lengths, window, slots)
            if known.again(_pointers(req_to_token, rows, lengths, mapping, starts, made)):
                return made
    _refuse(req_to_token, rows, lengths, window, mapping, starts)
    requests = lengths.shape[0]
    if slots is not None:
        _refuse_list("slots", slots, lengths, (torch.int64,), requests * window)
    found = _outputs(lengths, window, slots)
    if not takes_kernel(lengths, path):
        return (found[0], *reference.window_lists(req_to_token, rows, lengths, window, mapping, starts, found[0]))
    if requests:
        pieces = -(-window // _BLOCK)
        launch = _launcher().launch(
            requests * pieces,
            _pointers(req_to_token, rows, lengths, mapping, starts, found),
            (),
            # A row's length is no multiple of 16 in a server, and its reads are scattered anyhow.
            (req_to_token.stride(0), 0 if mapping is None else mapping.shape[0]),
            (window, pieces, _BLOCK, _BATCH, mapping is not None),
            num_warps=4,
            fuse=False,
            early=False,
        )
        if key is not None:
            _KNOWN.keep(key, launch)
    return found


def _outputs(
    lengths: torch.Tensor, window: int, slots: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    if slots is None:
        slots = torch.empty(lengths.shape[0] * window, dtype=torch.int64, device=lengths.device)
    return slots, torch.empty_like(lengths), torch.empty_like(lengths)


def _pointers(
    req_to_token: torch.Tensor,
    rows: torch.Tensor,
    lengths: torch.Tensor,
    mapping: torch.Tensor | None,
    starts: torch.Tensor,
    outputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> tuple[torch.Tensor, ...]:
    """Return the kernel's tensors; a mapping that there is not is some tensor."""
    return req_to_token, rows, lengths, req_to_token if mapping is None else mapping, starts, *outputs


def _refuse(
    req_to_token: torch.Tensor,
    rows: torch.Tensor,
    lengths: torch.Tensor,
    window: int,
    mapping: torch.Tensor | None,
    starts: torch.Tensor,
) -> None:
    if req_to_token.dim() != 2 or req_to_token.dtype != torch.int32 or req_to_token.device != lengths.device:
        what = f"{list(req_to_token.shape)} {req_to_token.dtype} on {req_to_token.device}"
        raise ValueError(f"req_to_token is {what}, expected [rows, tokens] int32 on {lengths.device}")
    if req_to_token.stride(1) != 1 and req_to_token.shape[1] > 1:
        raise ValueError(f"req_to_token has stride {req_to_token.stride(1)} inside a row, expected 1")
    if window < 1:
        raise ValueError(f"window is {window}, expected 1 or more")
    requests = lengths.shape[0] if lengths.dim() == 1 else 0
    _refuse_list("lengths", lengths, lengths, _INDEX, requests)
    _refuse_list("rows", rows, lengths, _INDEX, requests)
    _refuse_list("starts", starts, lengths, (torch.int32,), requests + 1)
    if rows.shape[0] != requests:
        raise ValueError(f"rows is {list(rows.shape)}, expected [{requests}], one of each request")
    if mapping is not None:
        _refuse_list("mapping", mapping, lengths, (torch.int64,), 0)


def _refuse_list(name: str, given: torch.Tensor, like: torch.Tensor, dtypes: tuple[torch.dtype, ...], n: int) -> None:
    if given.dim() != 1 or given.dtype not in dtypes or given.device != like.device or given.shape[0] < n:
        what = f"{list(given.shape)} {given.dtype} on {given.device}"
        kinds = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise ValueError(f"{name} is {what}, expected [{n} or more] {kinds} on {like.device}")
    if given.shape[0] > 1 and given.stride(0) != 1:
        raise ValueError(f"{name} has stride {given.stride(0)}, expected contiguous")


@functools.cache
def _launcher() -> Launcher:
    # Here: the torch path, which a CPU takes, needs no Triton.
    from gemma4_kernels.window_lists.kernel import window_lists_kernel

    return Launcher(window_lists_kernel)
