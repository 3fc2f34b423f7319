"""Probe request-rows on keys and values that stand: silent while forwards store, and it says what else wrote there."""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from gemma4_runtime.release.requests import held
from gemma4_runtime.rows import kept
from gemma4_runtime.rows.kept import forget_written, note_written
from gemma4_triage.finding import Confidence
from request_rows_server import Server, decoded, named, trapped_by, used, with_buffers

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")


@pytest.fixture
def server(attach, monkeypatch):
    return Server(monkeypatch, attach("trap", "request-rows", "host-alloc-kernels"))


@pytest.fixture
def cache(server, monkeypatch):
    return with_buffers(server, monkeypatch, torch.randn)


def buffer_of(cache, pool, side):
    return next(buffer for of, what, buffer in used(cache) if (of, what) == (pool, side))


def changed(server, cache, pool, side, change, row=1):
    """Decode twice, change the slot that the first of them gave a row in one buffer, and return what the next says."""
    slots = decoded(server, cache)
    decoded(server, cache)
    slot = slots[row]
    slot = server.world.allocator.full_to_swa_index_mapping[slot] if pool == "swa" else slot
    change(buffer_of(cache, pool, side), int(slot))
    return trapped_by(server, lambda: decoded(server, cache))


def clear(buffer, slot):
    buffer[slot] = 0


def test_steps_that_store_what_they_are_to_store(server, cache):
    for _ in range(6):
        decoded(server, cache)


@pytest.mark.parametrize(
    ("pool", "side", "part", "layer"),
    [("full", "k", "keys", 1), ("full", "v", "values", 1), ("swa", "v", "values", 0)],
)
def test_what_is_cleared_behind_its_store(server, cache, pool, side, part, layer):
    said = changed(server, cache, pool, side, clear)
    names = ("request_slot", "tokens_changed", "pool", "part", "layer", "stands_there", "stored_in_step")
    slot = held(server.world.requests[1]).req_pool_idx
    assert said.verdict == "keys_changed"
    assert [said.scalars[name] for name in names] == [slot, 1, pool, part, layer, "zeros", 5]
    finding = named(server)
    assert (finding.rule, finding.confidence) == ("keys-overwritten", Confidence.LIKELY)
    assert f"{part.capitalize()} of token" in finding.cause


def test_one_number_of_one_token(server, cache):
    def nudge(buffer, slot):
        buffer[slot, 0, 3] += 2.0**-10

    said = changed(server, cache, "full", "k", nudge)
    assert (said.scalars["part"], said.scalars["layer"], said.scalars["stands_there"]) == ("keys", 1, None)


def test_a_token_that_is_no_number_is_found_before_it_is_read(server, cache):
    def spoil(buffer, slot):
        buffer[slot, 0, 0] = float("nan")

    assert changed(server, cache, "swa", "k", spoil).scalars["stands_there"] == "NaN"


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bfloat16])
def test_numbers_of_other_widths(server, cache, dtype):
    for pool in (cache.full_kv_pool, cache.swa_kv_pool):
        for side in "kv":
            buffers = getattr(pool, f"{side}_buffer")
            buffers[:] = [buffer.to(dtype) for buffer in buffers]

    def nudge(buffer, slot):
        buffer.view(torch.uint8)[slot, 0, 2] ^= 1

    said = changed(server, cache, "full", "v", nudge)
    assert (said.verdict, said.scalars["part"], said.scalars["tokens_changed"]) == ("keys_changed", "values", 1)


def test_a_token_that_has_what_another_has(server, cache):
    slots = decoded(server, cache)
    decoded(server, cache)
    for buffer in (*cache.full_kv_pool.k_buffer, *cache.full_kv_pool.v_buffer):
        buffer[int(slots[0])] = buffer[int(slots[2])]
    said = trapped_by(server, lambda: decoded(server, cache))
    assert (said.scalars["part"], said.scalars["stands_there"]) == (None, f"what slot {int(slots[2])} has")
    assert "several layers of the full pool" in named(server).cause


def test_what_a_forward_is_to_write_anew_is_its_own(server, cache):
    """A verification does so at the places of drafts that were not taken, whether or not it is looked at to its end."""
    slots = decoded(server, cache)
    forget_written(server.scheduler, SimpleNamespace(out_cache_loc=slots[1:2]))
    for _, _, buffer in used(cache)[:2]:
        clear(buffer, int(slots[1]))
    decoded(server, cache)


def test_a_forward_that_does_not_say_where_it_writes_may_write_anywhere(server, cache):
    slots = decoded(server, cache)
    forget_written(server.scheduler, SimpleNamespace(out_cache_loc=None))
    clear(buffer_of(cache, "full", "k"), int(slots[1]))
    decoded(server, cache)


def test_where_others_fill_the_pool_nothing_is_asked(server, cache):
    server.scheduler.server_args = SimpleNamespace(enable_hierarchical_cache=True)
    slots = decoded(server, cache)
    clear(buffer_of(cache, "full", "k"), int(slots[1]))
    decoded(server, cache)


@pytest.mark.parametrize("branches", [1, 2])
def test_a_verification_of_several_branches_moves_its_keys(server, cache, branches):
    """Then what it stored is not what stands there behind it."""
    server.scheduler.server_args = SimpleNamespace(speculative_eagle_topk=branches)
    slots = decoded(server, cache)
    verification = SimpleNamespace(forward_mode=ForwardMode.TARGET_VERIFY, out_cache_loc=slots)
    forget_written(server.scheduler, verification)
    note_written(server.scheduler, verification, {"full": slots})
    clear(buffer_of(cache, "full", "k"), int(slots[1]))
    if branches > 1:
        decoded(server, cache)
    else:
        assert trapped_by(server, lambda: decoded(server, cache)).verdict == "keys_changed"


def test_of_many_tokens_others_are_looked_at_each_time(server, cache, monkeypatch):
    monkeypatch.setattr(kept, "_AT_ONCE", 8)
    for _ in range(6):
        slots = decoded(server, cache)
    clear(buffer_of(cache, "full", "k"), int(slots[1]))
    said = trapped_by(server, lambda: [decoded(server, cache) for _ in range(12)])
    assert (said.verdict, said.scalars["tokens_looked_at"]) == ("keys_changed", 8)
