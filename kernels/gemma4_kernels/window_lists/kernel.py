"""A program per request and piece of its window. Each sums the requests before its own: no launch has to come first."""

# The annotations are Triton's, which reads them as the types of the compiled kernel's parameters.
# pyright: reportInvalidTypeForm=false

import triton
import triton.language as tl

from gemma4_kernels.early_launch import inputs_are_there


@triton.jit(do_not_specialize=("row_stride", "mapped"))
def window_lists_kernel(
    req_to_token,  # [rows, tokens] int32
    rows,  # [requests]
    lengths,  # [requests]
    mapping,  # [mapped] int64; any tensor where not TRANSLATED
    starts,  # out: [1 + requests] int32, of which the first is not written
    slots,  # out: [requests * WINDOW or more] int64
    kept,  # out: [requests], as lengths
    first,  # out: [requests], as lengths
    row_stride,
    mapped,
    WINDOW: tl.constexpr,
    PIECES: tl.constexpr,
    BLOCK: tl.constexpr,
    BATCH: tl.constexpr,
    TRANSLATED: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    request = tl.program_id(0) // PIECES
    piece = tl.program_id(0) % PIECES
    inputs_are_there(EARLY_LAUNCH)
    earlier = tl.zeros([BATCH], dtype=tl.int64)
    for begin in range(0, request, BATCH):
        place = begin + tl.arange(0, BATCH)
        earlier += tl.minimum(tl.load(lengths + place, mask=place < request, other=0).to(tl.int64), WINDOW)
    start = tl.sum(earlier)
    length = tl.load(lengths + request).to(tl.int64)
    count = tl.minimum(length, WINDOW)
    if piece == 0:
        tl.store(starts + request + 1, (start + count).to(tl.int32))
        tl.store(kept + request, count.to(kept.dtype.element_ty))
        tl.store(first + request, (length - count).to(first.dtype.element_ty))
    place = piece * BLOCK + tl.arange(0, BLOCK)
    there = place < count
    row = tl.load(rows + request).to(tl.int64)
    slot = tl.load(req_to_token + row * row_stride + length - count + place, mask=there, other=0).to(tl.int64)
    if TRANSLATED:
        reached = (slot >= 0) & (slot < mapped)
        slot = tl.where(reached, tl.load(mapping + slot, mask=there & reached, other=0), slot)
    tl.store(slots + start + place, slot, mask=there)
