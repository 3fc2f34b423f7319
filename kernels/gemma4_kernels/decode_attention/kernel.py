"""A part of one request's slots per program, for all query heads of one key head.

With a front each program norms and turns its heads, and the one whose part ends with the newest slot its key and value
too. That one begins its sum with them, and nobody reads them back.
"""

# The annotations are Triton's, which reads them as the types of the compiled kernel's parameters.
# pyright: reportInvalidTypeForm=false

import triton
import triton.language as tl

from gemma4_kernels.early_launch import inputs_are_there
from gemma4_kernels.number_formats import narrowed, widened


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
    q_weight,  # [HEAD_DIM]; this and what follows are any pointers without FRONT, the last four without OWN_KEYS
    angles,  # [P, HEAD_DIM]: cosines, then sines
    positions,  # int32 or int64 [requests]
    k_weight,  # [HEAD_DIM]
    new_keys,  # [requests, kv_heads, HEAD_DIM], heads beside each other
    new_values,  # as new_keys
    places,  # int32 or int64 [requests]: the slot of each request's newest key, the last that it reads
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
    FRONT: tl.constexpr,
    OWN_KEYS: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    part = tl.program_id(0) % splits
    place = tl.program_id(0) // splits
    request = (place // kv_heads).to(tl.int64)
    kv_head = place % kv_heads
    # Lists and positions are made before a step's first kernel. Programs without a part end here; each request has one
    # that waits.
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
    key_rows = keys + kv_head * key_head_stride + d[None, :]
    value_rows = values + kv_head * value_head_stride + d[None, :]
    # The newest key and value are made here, by the part that ends with them, and not read.
    makes = OWN_KEYS and part == parts - 1
    end = tl.minimum(last, length - 1) if OWN_KEYS else last
    if FRONT:
        DTYPE: tl.constexpr = q.dtype.element_ty
        HALF: tl.constexpr = HEAD_DIM // 2
        partner = d ^ HALF
        at_angle = tl.load(positions + request).to(tl.int64) * HEAD_DIM + d % HALF
        cos = widened(tl.load(angles + at_angle))
        sin = widened(tl.load(angles + at_angle + HALF)) * tl.where(d < HALF, -1.0, 1.0)
        q_w, other_q_w = widened(tl.load(q_weight + d)), widened(tl.load(q_weight + partner))
        if OWN_KEYS:
            k_w, other_k_w = widened(tl.load(k_weight + d)), widened(tl.load(k_weight + partner))
    inputs_are_there(EARLY_LAUNCH)
    q_rows = q + request * q_stride + head[:, None] * q_head_stride
    rows = tl.load(q_rows + d[None, :], there[:, None], other=0.0)
    highest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    whole = tl.zeros([ROWS, HEAD_DIM], tl.float32)
    if FRONT:
        x = widened(rows)
        other_x = widened(tl.load(q_rows + partner[None, :], there[:, None], other=0.0))
        if OWN_KEYS:
            new_k = new_keys + request * new_key_stride + kv_head * HEAD_DIM
            y, other_y = widened(tl.load(new_k + d)), widened(tl.load(new_k + partner))
            z = widened(tl.load(new_values + request * new_value_stride + kv_head * HEAD_DIM + d))
            place_of = tl.load(places + request).to(tl.int64)
        inverse = tl.rsqrt(tl.sum(x * x, axis=1) * (1.0 / HEAD_DIM) + eps)[:, None]
        x = x * inverse * q_w[None, :] * cos[None, :]
        rows = narrowed(x + other_x * inverse * other_q_w[None, :] * sin[None, :], DTYPE)
        if OWN_KEYS:
            inverse_y = tl.rsqrt(tl.sum(y * y, axis=0) * (1.0 / HEAD_DIM) + eps)
            y = narrowed(y * inverse_y * k_w * cos + other_y * inverse_y * other_k_w * sin, DTYPE)
            z = narrowed(z * tl.rsqrt(tl.sum(z * z, axis=0) * (1.0 / HEAD_DIM) + eps), DTYPE)
            tl.store(keys + kv_head * key_head_stride + place_of * key_stride + d, y, mask=makes)
            tl.store(values + kv_head * value_head_stride + place_of * value_stride + d, z, mask=makes)
            # The first that is added, where it is this program's.
            adds = makes & (length > 0)
            score = tl.sum(widened(rows) * widened(y)[None, :], axis=1) * (scaling * 1.4426950408889634)
            highest = tl.where(adds, score, highest)
            total = tl.where(adds, total + 1.0, total)
            whole = tl.where(adds, whole + widened(z)[None, :], whole)
    for at in tl.range(first, end, BLOCK, num_stages=STAGES):  # pyright: ignore[reportGeneralTypeIssues]
        listed = at + n < end
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
        begin = place.to(tl.int64) * splits
        mine = partial + (begin + part) * SIZE
        tl.store(mine + row[:, None] * HEAD_DIM + d[None, :], whole, mask=there[:, None])
        ends = extremes + (begin + part) * (2 * GROUP)
        tl.store(ends + row, highest, mask=there)
        tl.store(ends + GROUP + row, total, mask=there)
        # All threads' stores come before the one thread's ticket.
        tl.debug_barrier()
        ticket = tl.atomic_add(counters + place, 1, sem="acq_rel", scope="gpu")
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
            for one in tl.range(0, parts, loop_unroll_factor=4):  # pyright: ignore[reportGeneralTypeIssues]
                weight = tl.exp2(tl.load(weights + one * (2 * GROUP), cache_modifier=".cg") - top)
                joined += weight[:, None] * tl.load(cells + one * SIZE, cache_modifier=".cg")
            joined = joined / denominator[:, None]
            heads = (kv_head * GROUP + member)[:, None] * out_head_stride
            tl.store(out + request * out_stride + heads + d[None, :], joined.to(out.dtype.element_ty))
            tl.store(counters + place, 0)
