"""The patch aged-pools on SGLang's own allocator: ids that differ, the same ones again, and nothing lost."""

import json

import pytest
import torch

from gemma4_runtime import current
from gemma4_runtime.errors import SettingsError
from gemma4_runtime.selection import select
from gemma4_runtime.settings import read_settings
from swa_pools import extend, make_allocator

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")

PAGE = 16


def pages_of(allocator, slots):
    """Return the pages of these slots in either pool."""
    mapped = allocator.full_to_swa_index_mapping[slots]
    return (slots // PAGE).unique().tolist(), (mapped // PAGE).unique().tolist()


@pytest.fixture
def aged(attach, monkeypatch):
    """Attach the patch with a seed."""

    def with_seed(seed):
        monkeypatch.setenv("GEMMA4_TRIAGE_POOL_SEED", str(seed))
        return attach("trap", "aged-pools", "swa-allocator", "host-alloc-kernels")

    return with_seed


def test_without_it_both_pools_hand_out_equal_ids(attach):
    attach("trap", "swa-allocator", "host-alloc-kernels")
    allocator = make_allocator(PAGE)
    full, swa = pages_of(allocator, extend(allocator, 4 * PAGE))
    assert full == swa


def test_equal_ids_hide_no_translation(aged):
    aged(24)
    allocator = make_allocator(PAGE)
    full, swa = pages_of(allocator, extend(allocator, 8 * PAGE))
    assert len(full) == len(swa) == 8
    assert full != swa
    lists = [torch.cat([inner.free_pages]) for inner in (allocator.full_attn_allocator, allocator.swa_attn_allocator)]
    assert sorted([*lists[0].tolist(), *full]) == list(range(1, 41))
    assert sorted([*lists[1].tolist(), *swa]) == list(range(1, 17))


def test_a_seed_is_an_order_and_a_flush_restores_it(aged):
    aged(5)
    first, again = make_allocator(PAGE), make_allocator(PAGE)
    slots = extend(first, 6 * PAGE)
    assert torch.equal(slots, extend(again, 6 * PAGE))
    first.clear()
    assert torch.equal(slots, extend(first, 6 * PAGE))


def test_another_seed_is_another_order(aged):
    aged(6)
    six = extend(make_allocator(PAGE), 6 * PAGE)
    current.required().stop()
    aged(5)
    assert not torch.equal(six, extend(make_allocator(PAGE), 6 * PAGE))


def test_the_guard_manifest_has_the_seed(aged):
    root = aged(24)
    make_allocator(PAGE)
    (path,) = (root / "guards").glob("*.json")
    manifest = json.loads(path.read_text())
    decisions = {row["id"]: row.get("decision") for row in manifest["patches"]}
    assert decisions["aged-pools"] == "the ids of both pools are shuffled, seed 24"
    assert manifest["settings"]["pool_seed"] == 24


def test_it_is_chosen_by_its_own_setting_alone(monkeypatch):
    monkeypatch.setenv("SGLANG_TRTLLM_MHA_DEBUG", "trap")
    assert "aged-pools" not in [patch.id for patch in select(read_settings())]
    monkeypatch.setenv("GEMMA4_TRIAGE_POOL_SEED", "24")
    chosen = [patch.id for patch in select(read_settings())]
    assert chosen[0] == "aged-pools", "first, so that every probe sees the lists as they are afterwards"
    monkeypatch.setenv("GEMMA4_TRIAGE_POOL_SEED", "-1")
    with pytest.raises(SettingsError, match="GEMMA4_TRIAGE_POOL_SEED='-1' cannot be read: allowed: a seed, 1 or more"):
        read_settings()
