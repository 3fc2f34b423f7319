"""SGLang's own SWA pool pair and its allocator on the CPU, calls of a small one, and what a trapped call says of it."""

import pytest
import torch
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

from gemma4_dumps.reader import read_dump
from gemma4_dumps.schema import VERDICTS
from gemma4_runtime.errors import TrappedViolation
from gemma4_runtime.probes.swa_allocator_state import RULES
from gemma4_runtime.releases import BASE, installed_or_base
from gemma4_triage.replay.allocator_replay import replay_allocator

PROBE = ("swa-allocator", "host-alloc-kernels")
FULL_PAGES, SWA_PAGES = 40, 16


def make_swa_allocator(
    full_tokens, swa_tokens, page_size, *, heads=1, head_dim=8, swa_layers=(0,), full_layers=(1,), need_sort=False
):
    """Return the allocator of a float32 pool pair. Sizes in tokens, the dummy page not counted; layers by id."""
    pool = SWAKVPool(
        size=full_tokens,
        size_swa=swa_tokens,
        page_size=page_size,
        dtype=torch.float32,
        head_num=heads,
        head_dim=head_dim,
        swa_attention_layer_ids=list(swa_layers),
        full_attention_layer_ids=list(full_layers),
        device="cpu",
        **({"enable_kvcache_transpose": False} if installed_or_base() == BASE else {}),
    )
    return SWATokenToKVPoolAllocator(
        full_tokens, swa_tokens, page_size, torch.float32, "cpu", pool, need_sort=need_sort
    )


def make_allocator(page, need_sort=False):
    """40 full and 16 SWA pages."""
    return make_swa_allocator(FULL_PAGES * page, SWA_PAGES * page, page, need_sort=need_sort)


def extend(allocator, tokens, held=()):
    """Slots for `tokens` more tokens of a request that holds `held`."""
    if allocator.page_size == 1:
        return allocator.alloc(tokens)
    prefix, seq = len(held), len(held) + tokens
    last = int(held[-1]) if prefix else -1
    return allocator.alloc_extend(*(torch.tensor([x]) for x in (prefix, prefix, seq, seq, last)), tokens)


def decode(allocator, held):
    seq = torch.tensor([len(slots) + 1 for slots in held])
    return allocator.alloc_decode(seq, seq, torch.tensor([int(slots[-1]) for slots in held]))


def caught(call):
    """Return the dump that `call` was trapped with."""
    with pytest.raises(TrappedViolation) as trap:
        call()
    assert trap.value.dump is not None
    return read_dump(trap.value.dump)


def says(dump, verdict, entry, value=None, pool=None, agreement="agrees"):
    manifest = dump.manifest
    assert verdict in VERDICTS
    assert (manifest.rule, manifest.verdict) == (RULES[verdict], verdict)
    assert manifest.site == f"SWATokenToKVPoolAllocator.{entry}"
    assert value is None or manifest.offences[0].value == value
    assert pool is None or manifest.pool_kind == pool
    assert {"free_pages_full", "free_pages_swa"} <= set(manifest.tensors)
    table = dump.tensor(manifest.offences[0].table)
    assert all(table[bad.row, bad.column] == bad.value for bad in manifest.offences)
    replayed = replay_allocator(dump)
    assert replayed.agreement == agreement, (replayed.because, replayed.first_broken)
    assert replayed.start_known
    return True


class OnSmallPools:
    """Fixtures of a test class: the probe attached in mode trap, an allocator of pages of 16 tokens, or also of 1."""

    @pytest.fixture(params=[16, 1], ids=["page16", "page1"])
    def page(self, request):
        return request.param

    @pytest.fixture
    def paged(self):
        return make_allocator(16)

    @pytest.fixture
    def allocator(self, page):
        return make_allocator(page)

    @pytest.fixture
    def dumps(self, attach):
        return attach("trap", *PROBE)
