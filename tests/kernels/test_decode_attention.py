"""decode_attention against fp64: sizes, layouts, hard numbers, and the same bits each time."""

import pytest
import torch
from kernel_paths import DEVICE, PATHS, cases_here, needs_kernel

from gemma4_kernels.cuda_source import compiled
from gemma4_kernels.decode_attention import clustered, spec
from gemma4_kernels.decode_attention.launch import (
    Front,
    NewKeys,
    Plan,
    cluster_parts,
    cluster_shares,
    decode_attention,
    front_reason,
)
from gemma4_kernels.decode_attention.spec import CLUSTER_REQUESTS

# Triton's interpreter cuts bf16 off instead of rounding it.
DTYPES = (torch.float32, torch.float16) + ((torch.bfloat16,) if DEVICE == "cuda" else ())
PLANS = (Plan(1), Plan(3, 16, 2, 16), Plan(16, 16, 1, 16), Plan(64, 32, 2, 32), None)
by_plan = pytest.mark.parametrize("plan", PLANS, ids=str)
by_path = pytest.mark.parametrize("path", PATHS)
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))


def draw(*shape, dtype=torch.float32, seed=0, scale=1.0):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale).to(DEVICE, dtype)


def lists(lengths, spare=7):
    """(starts, slots, how many slots there are): the slots of each request lie scattered among those of the others."""
    count = sum(lengths) + spare
    order = torch.randperm(count, generator=torch.Generator().manual_seed(1))[: sum(lengths)]
    starts = torch.tensor([0, *torch.tensor(lengths, dtype=torch.long).cumsum(0).tolist()], dtype=torch.int32)
    return starts.to(DEVICE), order.to(DEVICE), count


def expected_of(q, keys, values, starts, slots, scale):
    """Return ([R, H, D] fp64, the largest magnitude of a value that each head reads [R, H, 1]), by another way.

    One head of one request after another, powers of e without a maximum taken out.
    """
    out = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    largest = torch.zeros(*q.shape[:2], 1, dtype=torch.float64, device=q.device)
    group = q.shape[1] // keys.shape[1]
    for request in range(q.shape[0]):
        mine = slots[starts[request] : starts[request + 1]].long()
        for head in range(q.shape[1]):
            k, v = keys[mine, head // group].double(), values[mine, head // group].double()
            if len(mine):
                scores = (k * q[request, head].double()).sum(1) * scale
                powers = (scores - scores.mean()).exp()
                out[request, head] = (powers[:, None] * v).sum(0) / powers.sum()
                largest[request, head] = v.abs().max()
    return out, largest


def assert_attention(found, *inputs):
    expected, largest = expected_of(*inputs)
    limit = spec.TOLERANCES[str(found.dtype).removeprefix("torch.")].relative
    assert found.isfinite().all()
    assert ((found.double() - expected).abs() <= limit * largest + torch.finfo(found.dtype).tiny).all()


@pytest.mark.sampled(6)
@pytest.mark.parametrize("case", cases_here(spec.CASES))
@by_dtype
@by_path
def test_sizes(path, dtype, case):
    starts, slots, count = lists(case.lengths)
    heads = case.kv_heads * case.group
    q = draw(len(case.lengths), heads, case.head_dim, dtype=dtype)
    keys, values = (draw(count, case.kv_heads, case.head_dim, dtype=dtype, seed=seed) for seed in (1, 2))
    out = torch.full_like(q, torch.nan)
    scale = case.head_dim**-0.5
    assert decode_attention(q, keys, values, starts, slots, scale, out=out, path=path) is out
    assert_attention(out, q, keys, values, starts, slots, scale)


@pytest.mark.sampled(4)
@needs_kernel
@by_plan
@by_dtype
def test_every_way_to_share(plan, dtype):
    starts, slots, count = lists((100, 0, 1, 33, 32))
    q, keys, values = draw(5, 8, 32, dtype=dtype), *(draw(count, 2, 32, dtype=dtype, seed=seed) for seed in (1, 2))
    found = decode_attention(q, keys, values, starts, slots, 0.3, plan=plan, path="kernel")
    assert_attention(found, q, keys, values, starts, slots, 0.3)
    assert not found[1].any()


@pytest.mark.sampled(4)
@needs_kernel
@by_plan
def test_scores_far_apart_in_every_order(plan):
    """One slot has all of the weight, wherever it is listed: later ones must not undo it, nor parts without it."""
    starts, slots, count = lists((90,))
    q, keys, values = torch.ones(1, 2, 16, device=DEVICE), draw(count, 1, 16), draw(count, 1, 16, seed=2)
    for place in (0, 15, 16, 47, 89):
        hard = keys.clone()
        hard[slots[place]] = 40.0
        found = decode_attention(q, hard, values, starts, slots, 1.0, plan=plan, path="kernel")
        torch.testing.assert_close(found[0], values[slots[place]].expand(2, 16), rtol=1e-6, atol=1e-6)


@needs_kernel
@by_plan
def test_scores_beyond_what_a_power_holds(plan):
    """A power of e by 300 is no fp32, nor is one by -300 alone."""
    starts, slots, count = lists((70,))
    q, values = torch.ones(1, 2, 16, device=DEVICE), draw(count, 1, 16, seed=2)
    for height in (300.0, -300.0):
        keys = draw(count, 1, 16, scale=0.1) + height / 16
        found = decode_attention(q, keys, values, starts, slots, 1.0, plan=plan, path="kernel")
        assert_attention(found, q, keys, values, starts, slots, 1.0)


@needs_kernel
@by_plan
def test_what_is_not_listed_is_not_read(plan):
    """Slots of nobody, heads beside them, and the list behind the last request."""
    starts, slots, count = lists((37, 50))
    q, keys, values = draw(2, 4, 32), draw(count, 1, 32, seed=1), draw(count, 1, 32, seed=2)
    plain = decode_attention(q, keys, values, starts, slots, 0.2, plan=plan, path="kernel")
    around = torch.full((2, count, 3, 2, 32), torch.nan, device=DEVICE)
    around[0, :, 1, 0], around[1, :, 1, 0] = keys[:, 0], values[:, 0]
    unlisted = torch.ones(count, dtype=torch.bool, device=DEVICE)
    unlisted[slots] = False
    around[:, unlisted] = torch.nan
    padded = torch.cat([slots, torch.full((20,), 1 << 40, device=DEVICE)])
    wide_q = torch.full((2, 2, 4, 48), torch.nan, device=DEVICE)
    wide_q[:, 0, :, :32] = q
    wide_out = torch.full((2, 4, 48), 7.0, device=DEVICE)
    found = decode_attention(
        wide_q[:, 0, :, :32],
        around[0, :, 1, :1],
        around[1, :, 1, :1],
        starts,
        padded,
        0.2,
        out=wide_out[..., :32],
        plan=plan,
        path="kernel",
    )
    assert torch.equal(found, plain)
    assert (wide_out[..., 32:] == 7).all()


@pytest.mark.sampled(4)
@needs_kernel
@by_plan
def test_the_same_bits_each_time_and_whatever_is_beside(plan):
    starts, slots, count = lists((130, 60))
    q, keys, values = draw(2, 4, 16), draw(count, 2, 16, seed=1), draw(count, 2, 16, seed=2)
    first = decode_attention(q, keys, values, starts, slots, 0.3, plan=plan, path="kernel")
    for number in range(2 if DEVICE == "cpu" else 200):
        again = decode_attention(q, keys, values, starts.long(), slots.int(), 0.3, plan=plan, path="kernel")
        assert torch.equal(again, first), number
    if plan is not None:
        alone = decode_attention(q[1:], keys, values, starts[1:], slots, 0.3, plan=plan, path="kernel")
        assert torch.equal(alone[0], first[1])


class Step:
    """A step's tokens as the projection has them, in one tensor, and the last slots of each request still empty."""

    def __init__(self, lengths, kv_heads, group, head_dim, dtype, own=True, seed=0):
        heads = kv_heads * group
        self.starts, self.slots, count = lists(lengths)
        self.keys, self.values = (draw(count, kv_heads, head_dim, dtype=dtype, seed=seed + n) for n in (1, 2))
        qkv = draw(len(lengths), (heads + 2 * kv_heads) * head_dim, dtype=dtype, seed=seed + 3, scale=3.0)
        parts = qkv.split([heads * head_dim, kv_heads * head_dim, kv_heads * head_dim], 1)
        self.q, new_keys, new_values = (part.unflatten(1, (-1, head_dim)) for part in parts)
        angles = draw(64, head_dim // 2, seed=seed + 4)
        weights = draw(2, head_dim, dtype=dtype, seed=seed + 5)
        ends = self.starts[1:].long() - 1
        # Requests without slots write all the same, as padded ones of a graph do: into a slot that nobody reads.
        unread = [slot for slot in range(count) if slot not in set(self.slots.tolist())]
        places = torch.tensor(
            [int(self.slots[end]) if length else unread[0] for end, length in zip(ends.tolist(), lengths, strict=True)],
            device=DEVICE,
        )
        positions = torch.tensor([(7 * n + 1) % 64 for n in range(len(lengths))], device=DEVICE)
        self.scale = 0.3
        self.front = Front(
            weights[0],
            torch.cat((angles.cos(), angles.sin()), 1),
            positions,
            1e-6,
            NewKeys(new_keys, new_values, weights[1], places) if own else None,
        )
        if own:
            self.keys[places], self.values[places] = torch.nan, torch.nan

    def run(self, **how):
        keys, values = self.keys.clone(), self.values.clone()
        out = decode_attention(self.q, keys, values, self.starts, self.slots, self.scale, front=self.front, **how)
        return out, keys, values

    def expected(self):
        """(queries, keys, values) ready for attention, in fp64 by complex numbers, then as the pools hold them."""
        front, new = self.front, self.front.new
        half = self.q.shape[2] // 2

        def normed(rows, weight):
            rows = rows.double()
            return rows / (rows.square().mean(-1, keepdim=True) + front.eps).sqrt() * weight.double()

        def turned(rows, weight):
            pairs = torch.complex(*normed(rows, weight).split(half, -1))
            table = front.cos_sin_cache[front.positions].double()
            pairs = pairs * torch.complex(*table.split(half, -1))[:, None]
            return torch.cat((pairs.real, pairs.imag), -1).to(self.q.dtype)

        keys, values = self.keys.clone(), self.values.clone()
        if new is not None:
            keys[new.places] = turned(new.keys, new.weight)
            values[new.places] = normed(new.values, torch.ones(1, device=DEVICE)).to(self.q.dtype)
        return turned(self.q, front.q_weight), keys, values


FRONTS = pytest.mark.parametrize("own", [True, False], ids=["own-keys", "others-keys"])


def assert_step(step, found):
    out, keys, values = found
    q, expected_keys, expected_values = step.expected()
    # What is stored is rounded once; scores move with the rounding of queries and keys, so the result is held against
    # an attention of the values as stored.
    step_of = torch.finfo(out.dtype).eps
    for stored, expected in ((keys, expected_keys), (values, expected_values)):
        same = stored.isnan() & expected.isnan()
        near = (stored.double() - expected.double()).abs() <= 2 * step_of * expected.double().abs() + 1e-5 * step_of
        assert (same | near | ((stored - expected).abs() <= 4 * step_of)).all()
    assert_attention_near(out, q, keys, values, step)


def assert_attention_near(out, q, keys, values, step):
    readable_keys, readable_values = keys.nan_to_num(), values.nan_to_num()
    expected, largest = expected_of(q, readable_keys, readable_values, step.starts, step.slots, step.scale)
    limit = spec.TOLERANCES[str(out.dtype).removeprefix("torch.")].relative
    # A query element off by one rounding moves a score by up to its share of the sum: |q| |k| eps.
    reach = (q.double().norm(dim=2).max() * readable_keys.double().norm(dim=2).max() * step.scale).item()
    limit += 2 * torch.finfo(out.dtype).eps * reach / q.shape[2] ** 0.5
    assert out.isfinite().all()
    assert ((out.double() - expected).abs() <= limit * largest + torch.finfo(out.dtype).tiny).all()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("lengths", [(1,), (37,), (129, 64, 0, 200, 1), (33, 65)], ids=str)
@FRONTS
@by_dtype
@by_path
def test_a_front_norms_turns_and_stores_first(path, dtype, own, lengths):
    step = Step(lengths, 2, 4, 32, dtype, own)
    assert_step(step, step.run(path=path))


@pytest.mark.sampled(5)
@needs_kernel
@by_plan
@FRONTS
def test_a_front_in_every_way_to_share(own, plan):
    """Also where a part begins with the newest slot, and has no other."""
    step = Step((100, 0, 1, 33, 32), 2, 4, 32, torch.float32, own)
    first = step.run(path="kernel", plan=plan)
    assert_step(step, first)
    assert not first[0][1].any()
    again = step.run(path="kernel", plan=plan)
    assert all(torch.equal(one.nan_to_num(), other.nan_to_num()) for one, other in zip(again, first, strict=True))


@pytest.mark.parametrize("sizes", [(1, 8, 16), (2, 1, 64), (1, 16, 16)], ids=str)
@FRONTS
@by_path
def test_a_front_of_other_heads(path, own, sizes):
    step = Step((70, 3), *sizes, torch.float32, own)
    assert_step(step, step.run(path=path))


def assert_nothing_else_is_written(step, **how):
    _, keys, values = step.run(**how)
    places = step.front.new.places
    untouched = torch.ones(len(keys), dtype=torch.bool, device=DEVICE)
    untouched[places] = False
    assert torch.equal(keys[untouched], step.keys[untouched])
    assert torch.equal(values[untouched], step.values[untouched])
    assert keys[places].isfinite().all()
    assert values[places].isfinite().all()


@by_path
def test_a_front_writes_its_places_and_nothing_else(path):
    assert_nothing_else_is_written(Step((37, 0, 50), 2, 2, 16, torch.float32), path=path)


def made_hard(step):
    """Rows of zeros, of one large element, and of numbers whose squares are no fp32 denormal's."""
    step.q[0] = 0
    step.q[1] = 1e-18
    step.q[2, :, 3] = 1e15
    step.front.new.keys[0] = 0
    step.front.new.values[1] = 0
    return step


@by_path
def test_a_front_with_hard_numbers(path):
    step = made_hard(Step((40, 41, 42), 1, 4, 16, torch.float32))
    assert_step(step, step.run(path=path))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("width", "parts", "teams", "heads", "group", "own", "architecture"),
    [
        *[(256, 8, 1, 4, 4, 1, "sm_90a"), (256, 4, 1, 8, 8, 0, "sm_100a"), (256, 2, 1, 1, 1, 1, "sm_100a")],
        *[(512, 8, 6, 4, 4, 1, "sm_90a"), (512, 2, 4, 8, 16, 0, "sm_100a")],
    ],
)
def test_the_kernel_of_a_front_compiles_for_hopper_and_blackwell(width, parts, teams, heads, group, own, architecture):
    pytest.importorskip("cuda.bindings.nvrtc")
    lists = {f"LONG_{name}": own for name in ("STARTS", "SLOTS", "POSITIONS", "PLACES")}
    sizes = {"PARTS": parts, "HEADS": heads, "GROUP": group, "OWN_KEYS": own, "TABLE_FP32": own, "EARLY": own}
    sizes |= {"WIDTH": width, "TEAMS": teams, "SLOTS": clustered.slots_of(parts, width)}
    assert clustered.KERNEL.encode() in compiled(clustered.SOURCE, sizes | lists, architecture)


@pytest.mark.parametrize(
    ("requests", "heads", "kv_heads", "parts"),
    [
        *[(1, 8, 2, 8), (2, 8, 2, 4), (3, 8, 2, 8), (6, 8, 2, 8), (7, 8, 2, 4), (12, 8, 2, 4), (13, 8, 2, None)],
        *[(1, 8, 1, 8), (2, 8, 1, 8), (4, 8, 1, 4), (5, 8, 1, 8), (12, 8, 1, 8), (13, 8, 1, None), (3, 16, 8, 4)],
    ],
)
def test_a_request_has_as_many_blocks_as_are_spared_or_run_at_a_time(requests, heads, kv_heads, parts):
    assert cluster_parts(requests, heads, kv_heads, multiprocessors=132) == parts


@pytest.mark.parametrize(
    ("requests", "heads", "kv_heads", "shares"),
    [
        *[(1, 8, 2, (8, 6)), (2, 8, 2, (8, 3)), (4, 8, 2, (4, 3)), (6, 8, 2, (8, 1)), (8, 8, 2, (2, 4))],
        *[(12, 8, 2, (4, 1)), (13, 8, 2, None), (1, 8, 1, (8, 12)), (8, 8, 1, (4, 3)), (4, 16, 2, (4, 3))],
    ],
)
def test_wide_heads_have_nearly_all_multiprocessors_where_their_slots_are_many(requests, heads, kv_heads, shares):
    assert cluster_shares(requests, heads, kv_heads, 512, multiprocessors=132) == shares


def test_narrow_heads_have_one_cluster():
    assert cluster_shares(1, 8, 2, 256, multiprocessors=132) == (8, 1)


def front_with(step, **changed):
    new = step.front.new._replace(**{name: changed.pop(name) for name in list(changed) if name in NewKeys._fields})
    return step.front._replace(new=new, **changed)


@pytest.mark.parametrize("head_dim", [256, 512])
def test_more_requests_than_were_faster_keep_launches_of_their_own(head_dim):
    """Layers of both kinds have 2 key heads here, as those of E4B do."""
    few, many = (Step((1,) * n, 2, 4, head_dim, torch.float32) for n in (CLUSTER_REQUESTS, CLUSTER_REQUESTS + 1))
    assert front_reason(few.q, few.keys, few.values, few.front) is None
    assert "13 requests" in (front_reason(many.q, many.keys, many.values, many.front) or "")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"q_weight": torch.ones(8)}, r"q_weight is \[8\] torch.float32, expected floating \[16\]"),
        ({"q_weight": torch.ones(32)[::2]}, "q_weight is on .*, expected contiguous"),
        ({"cos_sin_cache": torch.ones(4, 8)}, r"cos_sin_cache is \[4, 8\]"),
        ({"positions": torch.zeros(3, dtype=torch.long)}, r"positions is \[3\] torch.int64, expected .* \[2\]"),
        ({"positions": torch.zeros(2)}, r"positions is \[2\] torch.float32"),
        ({"places": torch.zeros(1, dtype=torch.long)}, r"places is \[1\] torch.int64, expected .* \[2\]"),
        ({"weight": torch.ones(16).half()}, "the weight of new keys is torch.float16, expected q_weight's"),
        ({"keys": torch.ones(2, 1, 16)}, r"new keys are \[2, 1, 16\].*, expected \[2, 2, 16\]"),
        ({"values": torch.ones(2, 2, 16).half()}, r"new values are \[2, 2, 16\] torch.float16"),
        ({"values": torch.ones(2, 2, 32)[..., :16]}, r"new values have strides \(64, 32, 1\)"),
    ],
)
def test_a_front_that_does_not_fit_is_refused(changed, words):
    step = Step((5, 6), 2, 4, 16, torch.float32)
    changed = {name: one.to(DEVICE) for name, one in changed.items()}
    step.front = front_with(step, **changed)
    with pytest.raises(ValueError, match=words):
        step.run()


GOOD = {
    "q": draw(2, 8, 16),
    "keys": draw(5, 2, 16),
    "values": draw(5, 2, 16),
    "starts": torch.tensor([0, 2, 5], device=DEVICE),
    "slots": torch.arange(5, device=DEVICE),
    "scale": 1.0,
}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"q": draw(2, 128)}, r"q is \[2, 128\], expected \[requests, heads, one of"),
        ({"q": draw(2, 8, 24)}, r"q is \[2, 8, 24\]"),
        ({"q": GOOD["q"].int()}, "q is torch.int32"),
        ({"q": draw(2, 9, 16)}, "9 heads read 2 key heads"),
        ({"q": draw(2, 6, 16)}, "6 heads read 2 key heads"),
        ({"q": draw(2, 64, 16)}, "64 heads read 2 key heads"),
        ({"q": draw(2, 16, 8).mT}, "q has stride 8 inside a head"),
        ({"keys": draw(5, 2, 32)}, r"keys is \[5, 2, 32\], expected \[slots, key heads, 16\]"),
        ({"values": draw(5, 1, 16)}, r"values is \[5, 1, 16\]"),
        ({"keys": GOOD["keys"].half()}, "keys is torch.float16"),
        ({"starts": torch.tensor([0, 5])}, r"starts is \[2\] torch.int64, expected int32 or int64 \[3 or more\]"),
        ({"slots": torch.zeros(5)}, r"slots is \[5\] torch.float32"),
        ({"slots": torch.arange(10, device=DEVICE)[::2]}, "expected contiguous"),
    ],
)
def test_what_does_not_fit_is_refused(changed, words):
    with pytest.raises(ValueError, match=words):
        decode_attention(**GOOD | changed)


def test_an_output_that_does_not_fit_is_refused():
    for out in (torch.empty(2, 8, 8), torch.empty(2, 8, 16).half(), torch.empty(2, 16, 8).mT):
        with pytest.raises(ValueError, match=r"out is .*, expected \[2, 8, 16\] torch.float32"):
            decode_attention(**GOOD, out=out.to(DEVICE))


@needs_kernel
@pytest.mark.parametrize("splits", [0, 65])
def test_a_plan_that_does_not_fit_is_refused(splits):
    with pytest.raises(ValueError, match=f"the plan has {splits} parts"):
        decode_attention(**GOOD, plan=Plan(splits), path="kernel")
