"""Probe request-rows on what a forward stores: silent where it stores all, and it says what was left out."""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from gemma4_runtime.probes import request_rows
from gemma4_runtime.release.requests import held
from gemma4_runtime.rows.seen import seen_of
from gemma4_triage.finding import Confidence
from request_rows_server import Server, decoded, named, trapped_by, used, with_buffers

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")

UNUSED = 1
"""The buffer of the full pool that no forward stores in, as of a layer that reads another's."""


@pytest.fixture
def server(attach, monkeypatch):
    return Server(monkeypatch, attach("trap", "request-rows", "host-alloc-kernels"))


@pytest.fixture
def cache(server, monkeypatch):
    return with_buffers(server, monkeypatch, torch.randn)


def test_what_is_stored_is_left_alone_and_so_is_what_nobody_stores(server, cache):
    unused = [getattr(cache.full_kv_pool, f"{what}_buffer")[UNUSED].clone() for what in "kv"]
    for _ in range(4):
        slots = decoded(server, cache)
        assert all(not (buffer[slots] == 2.0**-6).any() for pool, _, buffer in used(cache) if pool == "full")
    for what, before in zip("kv", unused, strict=True):
        assert torch.equal(getattr(cache.full_kv_pool, f"{what}_buffer")[UNUSED], before)


def test_a_buffer_in_which_nothing_is_ever_stored_is_copied_from_no_more(server, cache):
    copied = []
    for _ in range(12):
        server.forward()
        copied.append({name for name in seen_of(server.scheduler).before if name[:2] == ("full", UNUSED)})
        decoded(server, cache)
    assert (bool(copied[0]), copied[-1]) == (True, set())


def test_other_slots_are_as_they_were(server, cache):
    decoded(server, cache)
    before = {(pool, what): buffer.clone() for pool, what, buffer in used(cache)}
    slots = decoded(server, cache)
    peers = server.world.allocator.full_to_swa_index_mapping[slots]
    for pool, what, buffer in used(cache):
        changed = (buffer != before[pool, what]).flatten(1).any(dim=1).nonzero().flatten()
        assert sorted(changed.tolist()) == sorted((peers if pool == "swa" else slots).tolist())


def test_a_first_forward_that_stores_nothing_is_not_known_to(server, cache):
    decoded(server, cache, lambda *place: True)


def test_a_forward_that_stores_nothing(server, cache):
    decoded(server, cache)
    said = trapped_by(server, lambda: decoded(server, cache, lambda *place: True))
    numbers = {name: said.scalars[name] for name in ("tokens_wrong", "tokens_new", "parts_wrong", "parts_known")}
    assert (said.verdict, numbers) == (
        "not_stored",
        {"tokens_wrong": 3, "tokens_new": 3, "parts_wrong": 4, "parts_known": 4},
    )
    finding = named(server)
    assert (finding.rule, finding.confidence) == ("keys-not-stored", Confidence.LIKELY)
    assert "keys and values of all 3 tokens" in finding.cause


def test_the_values_of_one_token_in_one_layer(server, cache):
    decoded(server, cache)
    said = trapped_by(
        server, lambda: decoded(server, cache, lambda pool, what, row: (pool, what, row) == ("swa", "v", 1))
    )
    assert said.scalars["request_slot"] == held(server.world.requests[1]).req_pool_idx
    assert [said.scalars[name] for name in ("tokens_wrong", "pool", "part", "layer")] == [1, "swa", "values", 0]
    assert "values of 1 of its 3 tokens" in named(server).cause


@pytest.fixture
def shared(cache):
    """Add a sliding layer that reads another's keys: SGLang gives it buffers, and stores nothing there."""
    for side in "kv":
        getattr(cache.swa_kv_pool, f"{side}_buffer").append(torch.full((2000, 1, 4), float("nan")))
    cache.layers_mapping[3] = (1, True)
    return cache


def test_who_ends_before_a_delayed_sample_says_nothing_of_a_buffer_that_nobody_uses(server, shared):
    """The step before is looked at in between, with overlap and a grammar: who ended gives back its newest slot."""
    mapping = server.world.allocator.full_to_swa_index_mapping

    def delayed(ends):
        made = []
        server.forward(made.append)
        slots = made[0].out_cache_loc.long()
        for pool, _, buffer in used(shared):
            for slot in mapping[slots] if pool == "swa" else slots:
                buffer[slot] = torch.randn(1, 4)
        had = mapping[slots[1]].clone()
        if ends:
            mapping[slots[1]] = 0
        output = SimpleNamespace(next_token_logits=torch.zeros(3, 12))
        request_rows.before_sample(SimpleNamespace(is_draft_worker=False), output, *made)
        mapping[slots[1]] = had

    delayed(True)
    delayed(False)
    delayed(True)


def test_what_another_forward_is_to_write_is_not_asked_of_this_one(server, cache):
    decoded(server, cache)
    server.forward()
    output = SimpleNamespace(next_token_logits=torch.zeros(3, 12))
    another = SimpleNamespace(forward_mode=ForwardMode.DECODE, req_pool_indices=torch.zeros(3))
    request_rows.before_sample(SimpleNamespace(is_draft_worker=False), output, another)
