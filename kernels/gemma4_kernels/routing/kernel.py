"""A tile of tokens per program; k rounds of the largest key instead of a sort.

Keys are integers in the order of the values, because integers have a total order and reduce in fewer instructions. bf16
and fp16 leave room for the id below the value: a round is one maximum. fp32 does not: a second reduction finds the
lowest id that has the largest key.
"""

# The annotations are Triton's, which reads them as the types of the compiled kernel's parameters; constants are numbers
# where it compiles.
# pyright: reportInvalidTypeForm=false, reportGeneralTypeIssues=false
# pyright: reportAssignmentType=false, reportOperatorIssue=false

import triton
import triton.language as tl

from gemma4_kernels.early_launch import inputs_are_there
from gemma4_kernels.number_formats import rounded, widened

# Below every key: it would be the key of a NaN, and all NaN have the same other one.
_NONE: tl.constexpr = tl.constexpr(-(2**31))
_NAN_KEY: tl.constexpr = tl.constexpr(2**31 - 1)
_ID_BITS: tl.constexpr = tl.constexpr(8)
_LAST_ID: tl.constexpr = tl.constexpr(255)


@triton.jit
def keys_of(value):
    """int32 in the order of fp32 `value`: -0 equals +0, and NaN is above all."""
    # Adding 0 makes -0 into +0 and leaves every other value.
    bits = (value + 0.0).to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return tl.where(value == value, ordered, _NAN_KEY)


@triton.jit
def values_of(keys):
    """fp32, the inverse of `keys_of`; a NaN for every NaN."""
    return (keys ^ ((keys >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def chosen_of_wide(keys, expert, TOP_K: tl.constexpr, BLOCK: tl.constexpr):
    """Return keys and ids of the TOP_K largest, and the largest key in all columns; keys have 32 bits.

    The TOP_K are in columns 0..TOP_K-1 of [TILE, BLOCK].
    """
    # Place j is column j, and not a narrower tile's, so that nothing moves between threads.
    chosen_key, chosen_id, largest = keys, keys, keys
    for place in tl.static_range(TOP_K):
        key = tl.max(keys, axis=1)[:, None]
        first = tl.min(tl.where(keys == key, expert, BLOCK), axis=1)[:, None]
        # Every thread of a row has a round's key: the largest costs no reduction of its own.
        if place == 0:
            largest = tl.broadcast_to(key, keys.shape)
        chosen_key = tl.where(expert == place, key, chosen_key)
        chosen_id = tl.where(expert == place, first, chosen_id)
        keys = tl.where(expert == first, _NONE, keys)
    return chosen_key, chosen_id, largest


@triton.jit
def chosen_of_narrow(keys, expert, TOP_K: tl.constexpr, DTYPE: tl.constexpr):
    """Do the same for keys of bf16 and fp16, whose low bits only repeat the sign: they are 0 in fp32."""
    UNUSED: tl.constexpr = 16 if tl.bfloat16 == DTYPE else 13
    # The id from above, so that of two equal values the lower id has the larger key: `^ _LAST_ID` is _LAST_ID less the
    # id, with the tensor first, because Triton 3.8's interpreter makes a constant of what begins with one.
    packed = tl.where(keys == _NONE, _NONE, ((keys >> UNUSED) << _ID_BITS) | (expert ^ _LAST_ID))
    chosen, largest = packed, packed
    for place in tl.static_range(TOP_K):
        key = tl.max(packed, axis=1)[:, None]
        if place == 0:
            largest = tl.broadcast_to(key, packed.shape)
        chosen = tl.where(expert == place, key, chosen)
        packed = tl.where(packed == key, _NONE, packed)
    return unpacked_key(chosen, UNUSED), (chosen & _LAST_ID) ^ _LAST_ID, unpacked_key(largest, UNUSED)


@triton.jit
def unpacked_key(packed, UNUSED: tl.constexpr):
    """Say what `keys_of` gave for it."""
    short = packed >> _ID_BITS
    return (short << UNUSED) | ((short >> 31) & ((1 << UNUSED) - 1))


@triton.jit
def softmax_over_all(value, there, DTYPE: tl.constexpr):
    """Eager's probabilities: in fp32, rounded to DTYPE."""
    # Of the keys, because a maximum of integers is one instruction; a NaN is the largest, and then all are NaN.
    largest = values_of(tl.max(tl.where(there, keys_of(value), _NONE), axis=1))
    exponential = tl.where(there, tl.exp(value - largest[:, None]), 0.0)
    return rounded(tl.div_rn(exponential, tl.sum(exponential, axis=1)[:, None]), DTYPE, True)


@triton.jit(do_not_specialize=("tokens",))
def routing_kernel(
    logits,  # [tokens, EXPERTS] bf16, fp16 or fp32
    scale,  # [EXPERTS]
    weights,  # [tokens, TOP_K] fp32, contiguous
    ids,  # [tokens, TOP_K] int32, contiguous
    logits_stride: tl.int64,
    tokens,
    EXPERTS: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    EAGER: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    DTYPE: tl.constexpr = logits.dtype.element_ty
    token = (tl.program_id(0) * TILE + tl.arange(0, TILE)).to(tl.int64)[:, None]
    expert = tl.arange(0, BLOCK)[None, :]
    there = (token < tokens) & (expert < EXPERTS)
    # All scales, which arrive while the rounds run, and then go from thread to thread: to load those of the chosen
    # would be a wait for memory behind the last round.
    all_scales = tl.load(scale + tl.broadcast_to(expert, [TILE, BLOCK]), mask=expert < EXPERTS, other=0.0)
    inputs_are_there(EARLY_LAUNCH)
    value = widened(tl.load(logits + token * logits_stride + expert, mask=there, other=0.0))
    if EAGER:
        value = softmax_over_all(value, expert < EXPERTS, DTYPE)
    keys = tl.where(expert < EXPERTS, keys_of(value), _NONE)
    if tl.float32 == DTYPE:
        key, id, largest = chosen_of_wide(keys, expert, TOP_K, BLOCK)
    else:
        key, id, largest = chosen_of_narrow(keys, expert, TOP_K, DTYPE)

    place = expert
    taken = (place < TOP_K) & (token < tokens)
    chosen = tl.where(place < TOP_K, values_of(key), 0.0)
    scales = tl.gather(widened(all_scales), tl.where(place < TOP_K, id, 0), axis=1)
    if EAGER:
        total = rounded(tl.sum(chosen, axis=1)[:, None], DTYPE, EAGER)
        weight = rounded(rounded(tl.div_rn(chosen, total), DTYPE, EAGER) * scales, DTYPE, EAGER)
    else:
        exponential = tl.where(place < TOP_K, tl.exp(chosen - values_of(largest)), 0.0)
        weight = exponential / tl.sum(exponential, axis=1)[:, None] * scales
    tl.store(weights + token * TOP_K + place, weight, mask=taken)
    tl.store(ids + token * TOP_K + place, id, mask=taken)
