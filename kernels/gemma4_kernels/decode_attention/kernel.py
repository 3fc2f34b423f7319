"""A part of one request's slots per program, for all query heads of one key head.

FRONT: what a layer does ahead of it is done by the programs themselves, each for its own query heads, and so as many
times as there are parts. Whoever has the last part has the new key and value too. Whether that takes less time than
the launches that it saves is not measured.
"""

# The annotations are Triton's, which reads them as the types of the compiled kernel's parameters.
# pyright: reportInvalidTypeForm=false

import triton
import triton.language as tl

from gemma4_kernels.early_launch import inputs_are_there
from gemma4_kernels.number_formats import narrowed, widened
from gemma4_kernels.row_math import load_weight


@triton.jit
def normed_and_turned(x, partner, weight, partner_weight, cos, sin, eps, WIDTH: tl.constexpr):
    """Return rope(rms(x) * weight) of heads in fp32, the last axis theirs; `partner` is x by half a head further.

    sin has the sign of its half: minus in the first.
    """
    inverse = tl.rsqrt(tl.sum(x * x, axis=len(x.shape) - 1, keep_dims=True) * (1.0 / WIDTH) + eps)
    return x * inverse * weight * cos + partner * inverse * partner_weight * sin


@triton.jit(do_not_specialize=("scaling", "eps", "kv_heads", "splits"))
def decode_attention_kernel(
    q,  # [requests, kv_heads * GROUP, HEAD_DIM]
    keys,  # [slots, kv_heads, HEAD_DIM]
    values,  # [slots, kv_heads, HEAD_DIM]
    out,  # [requests, kv_heads * GROUP, HEAD_DIM]
    starts,  # int32 or int64 [requests + 1]
    slots,  # int32 or int64 [starts[requests]]
    partial,  # fp32 [requests, kv_heads, splits, GROUP, HEAD_DIM]
    extremes,  # fp32 [requests, kv_heads, splits, 2, GROUP]: the highest score times log2(e), and the sum of powers
    counters,  # int32 [requests * kv_heads], 0 before and after
    # What follows is any pointer where FRONT does not read it, see there.
    q_weight,  # [HEAD_DIM]
    k_weight,  # [HEAD_DIM]
    positions,  # int32 or int64 [requests]
    cos_sin_cache,  # [P, HEAD_DIM]: half of it cosines, then the sines
    new_keys,  # [requests, kv_heads, HEAD_DIM], heads beside each other
    new_values,  # as new_keys
    places,  # int32 or int64 [requests]
    q_stride: tl.int64,
    q_head_stride: tl.int64,
    key_stride: tl.int64,
    key_head_stride: tl.int64,
    value_stride: tl.int64,
    value_head_stride: tl.int64,
    out_stride: tl.int64,
    out_head_stride: tl.int64,
    new_key_stride: tl.int64,
    new_value_stride: tl.int64,
    scaling,
    eps,
    kv_heads,
    splits,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
    LEAST: tl.constexpr,
    MAX_PARTS: tl.constexpr,
    FRONT: tl.constexpr,  # 0: q is ready; 1: it is neither normed nor turned; 2: nor is the new key, nor is it stored
    EARLY_LAUNCH: tl.constexpr,
):
    DTYPE: tl.constexpr = q.dtype.element_ty
    part = tl.program_id(0) % splits
    pair = tl.program_id(0) // splits
    request = (pair // kv_heads).to(tl.int64)
    kv_head = pair % kv_heads
    # Lists are made before a step's first kernel. Programs without a part end here; each request has one that waits.
    start = tl.load(starts + request).to(tl.int64)
    length = (tl.load(starts + request + 1) - start).to(tl.int32)
    # A part costs the last program a step of its sum, as much as some slots cost another: hence the root.
    share = tl.maximum(tl.sqrt(length.to(tl.float32) * 8.0).to(tl.int32), tl.cdiv(length, splits))
    share = tl.cdiv(tl.maximum(share, LEAST), BLOCK) * BLOCK
    parts = tl.maximum(tl.cdiv(length, share), 1)
    if part >= parts:
        return
    first = part * share
    last = tl.minimum(first + share, length)
    row = tl.arange(0, ROWS)
    d = tl.arange(0, HEAD_DIM)
    n = tl.arange(0, BLOCK)
    there = row < GROUP
    head = kv_head * GROUP + row
    if FRONT > 0:
        partner = (d + HEAD_DIM // 2) % HEAD_DIM
        q_norm = load_weight(q_weight, d, d >= 0)
        partner_norm = load_weight(q_weight, partner, d >= 0)
    inputs_are_there(EARLY_LAUNCH)
    q_rows = q + request * q_stride + head[:, None] * q_head_stride
    rows = tl.load(q_rows + d[None, :], there[:, None], other=0.0)
    if FRONT > 0:
        angles = cos_sin_cache + tl.load(positions + request).to(tl.int64) * HEAD_DIM + d % (HEAD_DIM // 2)
        cos = widened(tl.load(angles))
        sin = widened(tl.load(angles + HEAD_DIM // 2)) * tl.where(d < HEAD_DIM // 2, -1.0, 1.0)
        partners = widened(tl.load(q_rows + partner[None, :], there[:, None], other=0.0))
        turned = normed_and_turned(
            widened(rows),
            partners,
            q_norm[None, :],
            partner_norm[None, :],
            cos[None, :],
            sin[None, :],
            eps,
            HEAD_DIM,
        )
        rows = narrowed(turned, DTYPE)
    highest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    whole = tl.zeros([ROWS, HEAD_DIM], tl.float32)
    if FRONT == 2 and part == parts - 1:
        # The last slot's key and value never come from the pool: a store and a load of other threads would race.
        k_row = new_keys + request * new_key_stride + kv_head * HEAD_DIM
        v_row = new_values + request * new_value_stride + kv_head * HEAD_DIM
        new_key = normed_and_turned(
            widened(tl.load(k_row + d)),
            widened(tl.load(k_row + partner)),
            load_weight(k_weight, d, d >= 0),
            load_weight(k_weight, partner, d >= 0),
            cos,
            sin,
            eps,
            HEAD_DIM,
        )
        new_value = widened(tl.load(v_row + d))
        new_value *= tl.rsqrt(tl.sum(new_value * new_value, axis=0) * (1.0 / HEAD_DIM) + eps)
        new_key, new_value = narrowed(new_key, DTYPE), narrowed(new_value, DTYPE)
        place = tl.load(places + request).to(tl.int64)
        tl.store(keys + place * key_stride + kv_head * key_head_stride + d, new_key)
        tl.store(values + place * value_stride + kv_head * value_head_stride + d, new_value)
        score = tl.sum(widened(rows) * widened(new_key)[None, :], axis=1) * (scaling * 1.4426950408889634)
        highest = tl.where(length > 0, score, float("-inf"))
        total += tl.where(length > 0, 1.0, 0.0)
        whole += tl.where(length > 0, widened(new_value), 0.0)[None, :]
        last -= 1
    key_rows = keys + kv_head * key_head_stride + d[None, :]
    value_rows = values + kv_head * value_head_stride + d[None, :]
    for at in tl.range(first, last, BLOCK, num_stages=STAGES):
        listed = at + n < last
        slot = tl.load(slots + start + at + n, mask=listed, other=0).to(tl.int64)
        k = tl.load(key_rows + slot[:, None] * key_stride, mask=listed[:, None], other=0.0)
        v = tl.load(value_rows + slot[:, None] * value_stride, mask=listed[:, None], other=0.0)
        scores = tl.dot(rows, tl.trans(k), input_precision="ieee") * (scaling * 1.4426950408889634)
        scores = tl.where(listed[None, :], scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, axis=1))
        shrink = tl.exp2(highest - higher)
        powers = tl.exp2(scores - higher[:, None])
        total = total * shrink + tl.sum(powers, axis=1)
        whole = tl.dot(powers.to(v.dtype), v, whole * shrink[:, None], input_precision="ieee")
        highest = higher
    if parts == 1:
        # Without slots nothing was added.
        result = whole / tl.where(total > 0, total, 1.0)[:, None]
        outputs = out + request * out_stride + head[:, None] * out_head_stride + d[None, :]
        tl.store(outputs, result.to(out.dtype.element_ty), mask=there[:, None])
    else:
        SIZE: tl.constexpr = GROUP * HEAD_DIM
        begin = pair.to(tl.int64) * splits
        mine = partial + (begin + part) * SIZE
        tl.store(mine + row[:, None] * HEAD_DIM + d[None, :], whole, mask=there[:, None])
        ends = extremes + (begin + part) * (2 * GROUP)
        tl.store(ends + row, highest, mask=there)
        tl.store(ends + GROUP + row, total, mask=there)
        # All threads' stores come before the one thread's ticket.
        tl.debug_barrier()
        ticket = tl.atomic_add(counters + pair, 1, sem="acq_rel", scope="gpu")
        if ticket == parts - 1:
            # Whoever is last adds the parts up in their order, so that the sum has the same bits each time.
            member = tl.arange(0, GROUP)
            number = tl.arange(0, MAX_PARTS)
            all_ends = extremes + begin * (2 * GROUP) + number[:, None] * (2 * GROUP) + member[None, :]
            known = (number < parts)[:, None]
            tops = tl.load(all_ends, mask=known, other=float("-inf"), cache_modifier=".cg")
            sums = tl.load(all_ends + GROUP, mask=known, other=0.0, cache_modifier=".cg")
            top = tl.max(tops, axis=0)
            denominator = tl.sum(sums * tl.exp2(tops - top[None, :]), axis=0)
            joined = tl.zeros([GROUP, HEAD_DIM], tl.float32)
            cells = partial + begin * SIZE + member[:, None] * HEAD_DIM + d[None, :]
            weights = extremes + begin * (2 * GROUP) + member
            for one in tl.range(0, parts, loop_unroll_factor=4):
                weight = tl.exp2(tl.load(weights + one * (2 * GROUP), cache_modifier=".cg") - top)
                joined += weight[:, None] * tl.load(cells + one * SIZE, cache_modifier=".cg")
            joined = joined / denominator[:, None]
            heads = (kv_head * GROUP + member)[:, None] * out_head_stride
            tl.store(out + request * out_stride + heads + d[None, :], joined.to(out.dtype.element_ty))
            tl.store(counters + pair, 0)
