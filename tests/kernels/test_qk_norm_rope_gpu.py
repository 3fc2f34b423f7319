"""qk_norm_rope on a CUDA device: graphs, far rows and places, launches that start early, SGLang's own two kernels."""

import pytest
import torch
from row_op_tests import assert_like_eager
from test_qk_norm_rope import eager, in_fp64, make

from gemma4_kernels.qk_norm_rope import spec
from gemma4_kernels.qk_norm_rope.launch import _launcher, qk_norm_rope
from gemma4_kernels.rounding import Rounding

pytestmark = [pytest.mark.gpu, pytest.mark.releases("0.5.13.post1", "0.5.23")]
DECODE = spec.Case("decode", 5, 8, 2, 256)


def same(found, wanted):
    return all(one is other or torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize(
    "case", [DECODE, spec.Case("tiled", 700, 8, 2, 256), spec.Case("shared", 5, 8, 0, 512)], ids=str
)
def test_a_captured_launch_computes_anew_at_each_replay_and_nothing_synchronises(case):
    arguments = make(case, torch.bfloat16)
    qk_norm_rope(*arguments)
    torch.cuda.set_sync_debug_mode("error")
    try:
        qk_norm_rope(*arguments)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = qk_norm_rope(*arguments)
    for seed in (1, 2):
        fresh = make(case, torch.bfloat16, seed=seed)
        for place in (0, 1, 2, 6):
            if arguments[place] is not None:
                arguments[place].copy_(fresh[place])
        graph.replay()
        assert same(captured, qk_norm_rope(*arguments))


def test_rows_and_places_more_than_two_gibi_elements_apart():
    case = spec.Case("far", 3, 2, 1, 256)
    arguments = make(case, torch.bfloat16)
    arguments[5] = arguments[5].bfloat16()
    wanted, apart = qk_norm_rope(*arguments), 2**30 + 16
    memory = torch.full((2 * apart + 1024,), torch.nan, dtype=torch.bfloat16, device="cuda")
    far = memory.as_strided((3, 1024), (apart, 1)).copy_(torch.cat(arguments[:3], dim=1)).split([512, 256, 256], dim=1)
    # Outputs in the inputs' places: stores far apart too.
    assert same(qk_norm_rope(*far, *arguments[3:], out=tuple(far)), wanted)
    del memory, far
    places = 2**31 // 256 + 64
    table = torch.full((places, 256), torch.nan, dtype=torch.bfloat16, device="cuda")
    table[-arguments[5].shape[0] :] = arguments[5]
    moved = arguments[6] + places - arguments[5].shape[0]
    assert same(qk_norm_rope(*arguments[:5], table, moved), wanted)
    assert same(qk_norm_rope(*arguments[:5], table, moved.int()), wanted)


def test_new_token_counts_do_not_compile_again():
    for tokens in (1, 600):
        qk_norm_rope(*make(spec.Case("any", tokens, 8, 2, 256), torch.bfloat16))
    before = len(_launcher()._compiled)
    assert before
    for tokens in (2, 15, 16, 17, 64, 85, 86, 4096):
        qk_norm_rope(*make(spec.Case("any", tokens, 8, 2, 256), torch.bfloat16))
    assert len(_launcher()._compiled) == before


@pytest.mark.parametrize("case", [DECODE, spec.Case("shared", 64, 8, 0, 512)], ids=str)
def test_a_chain_of_launches_that_start_early_reads_what_the_one_before_wrote(case):
    """Each starts before the one ahead of it has ended, and must wait before it reads, and before it writes."""
    links = 200
    tables = make(case, torch.float32)[3:]

    def run(start, waited):
        rows = [tuple(None if one is None else one.clone() for one in start) for _ in range(2)]
        for link in range(links):
            qk_norm_rope(*rows[link % 2], *tables, out=rows[1 - link % 2])
            if waited:
                torch.cuda.synchronize()
        return rows

    start = [None if one is None else one.contiguous() for one in make(case, torch.float32)[:3]]
    wanted = run(start, waited=True)
    held = [None if one is None else one.clone() for one in start]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run(held, waited=False)
    for _ in range(20):
        graph.replay()
        assert all(same(*pair) for pair in zip(found, wanted, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("head_dim", [256, 512])
@pytest.mark.parametrize("kv_heads", [0, 2])
@pytest.mark.parametrize("tokens", [1, 64, 4097])
def test_eager_rounds_as_sglangs_two_kernels(tokens, kv_heads, head_dim, dtype):
    from sglang.jit_kernel.rope import apply_rope_with_cos_sin_cache_inplace
    from sglang.srt.layers.gemma4_fused_ops import gemma_qkv_rmsnorm

    arguments = make(spec.Case("as-released", tokens, 8, kv_heads, head_dim), dtype)
    found = qk_norm_rope(*arguments, rounding=Rounding.EAGER)
    wanted, like = in_fp64(*arguments), eager(*arguments)
    q, k, v, q_weight, k_weight, table, positions = arguments
    gemma_qkv_rmsnorm(q, k, v, q_weight, k_weight, 8, kv_heads, head_dim)
    other = torch.zeros_like(q[:, :head_dim]) if k is None else k
    turned = (rows.unflatten(-1, (-1, head_dim)) for rows in (q, other))
    apply_rope_with_cos_sin_cache_inplace(*turned, table, positions, is_neox=True)
    released = [rows for rows in (q, k, v) if rows is not None]
    for results in (found, like):
        for one, rows, size, roundings in zip(results, released, wanted, spec.EAGER_ROUNDINGS, strict=False):
            assert_like_eager(one, rows, size, roundings)
