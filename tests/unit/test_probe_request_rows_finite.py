"""Probe request-rows on numbers: silent where they are finite, and it says which keys make logits NaN."""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from gemma4_runtime.probes import request_rows
from gemma4_runtime.release.requests import held
from gemma4_runtime.rows import finite
from gemma4_triage.finding import Confidence
from request_rows_server import Server, named, trapped_by, with_buffers

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")

NAN, WORDS = float("nan"), 12
LAYER_OF_SWA = 0


@pytest.fixture
def server(attach, monkeypatch):
    return Server(monkeypatch, attach("trap", "request-rows", "host-alloc-kernels"))


@pytest.fixture
def cache(server, monkeypatch):
    return with_buffers(server, monkeypatch, torch.ones)


def decoded(server, logits):
    """Run a decode of all requests that gives these logits, [requests, vocabulary], up to where it is sampled."""
    made = []
    server.forward(made.append)
    output = SimpleNamespace(next_token_logits=logits)
    request_rows.before_sample(SimpleNamespace(is_draft_worker=False), output, *made)


def logits_with(row=None):
    logits = torch.zeros(3, WORDS)
    # What a grammar forbids.
    logits[:, 3:] = -float("inf")
    if row is not None:
        logits[row, 1] = NAN
    return logits


def slot_of(server, row, token):
    return int(server.world.rows.req_to_token[held(server.world.requests[row]).req_pool_idx, token])


def test_what_a_grammar_forbids_and_no_logits_say_nothing(server, cache):
    decoded(server, logits_with())
    decoded(server, None)


@pytest.mark.parametrize("read_before", [True, False])
def test_keys_of_a_token(server, cache, read_before):
    """That somebody wrote there since is said where a forward before read it, and gave numbers."""
    if read_before:
        decoded(server, logits_with())
    slot = slot_of(server, 1, 37)
    peer = int(server.world.allocator.full_to_swa_index_mapping[slot])
    cache.swa_kv_pool.k_buffer[0][peer, 0, 2] = NAN
    said = trapped_by(server, lambda: decoded(server, logits_with(1)))
    assert (said.verdict, said.scalars["request_slot"]) == ("not_finite", held(server.world.requests[1]).req_pool_idx)
    found = {name: said.scalars[f"nan_{name}"] for name in ("place", "layer", "pool", "part", "tokens")}
    assert found == {"place": 37, "layer": LAYER_OF_SWA, "pool": "swa", "part": "keys", "tokens": 1}
    finding = named(server)
    assert (finding.rule, finding.confidence) == ("numbers-not-finite", Confidence.LIKELY)
    assert ("somebody wrote there since" in finding.cause) is read_before


def test_values_of_a_full_layer_by_its_number(server, cache):
    cache.full_kv_pool.v_buffer[1][slot_of(server, 2, 5)] = float("inf")
    said = trapped_by(server, lambda: decoded(server, logits_with(2)))
    assert [said.scalars[f"nan_{name}"] for name in ("layer", "pool", "part")] == [2, "full", "values"]


def test_what_has_left_the_window_is_not_read(server, cache, monkeypatch):
    peer = int(server.world.allocator.full_to_swa_index_mapping[slot_of(server, 1, 2)])
    cache.swa_kv_pool.k_buffer[0][peer] = NAN
    monkeypatch.setattr(finite, "retain_window", lambda _: 8)
    said = trapped_by(server, lambda: decoded(server, logits_with(1)))
    assert said.scalars["nan_place"] == -1


def test_what_is_stored_as_bytes_is_read_as_the_numbers_that_it_is(server, cache):
    pool = cache.full_kv_pool
    pool.dtype, pool.store_dtype = torch.float8_e4m3fn, torch.uint8
    pool.k_buffer[0] = torch.zeros(2000, 1, 4, dtype=torch.uint8)
    pool.k_buffer[0][slot_of(server, 1, 9)] = 0x7F
    said = trapped_by(server, lambda: decoded(server, logits_with(1)))
    assert [said.scalars[f"nan_{name}"] for name in ("place", "layer", "part")] == [9, 1, "keys"]


@pytest.mark.parametrize("form", ["packed", "pages", "none"])
def test_of_buffers_that_cannot_be_read_nothing_is_said(server, cache, form):
    forms = {"packed": [torch.zeros(2000, 8, dtype=torch.uint8)], "pages": [torch.ones(125, 1, 16, 4)], "none": None}
    cache.swa_kv_pool.k_buffer = forms[form]
    said = trapped_by(server, lambda: decoded(server, logits_with(1)))
    assert "nan_place" not in said.scalars
    finding = named(server)
    assert finding.confidence is Confidence.POSSIBLE
    assert "was not looked at" in finding.cause


def test_a_row_that_leads_outside_ends_no_server(server, cache):
    row = server.world.rows.req_to_token[held(server.world.requests[1]).req_pool_idx]
    found = finite._stored(server.scheduler, held(server.world.requests[1]).req_pool_idx, (40, 41))
    assert found["nan_place"] == -1
    row[:8] = torch.tensor([1 << 29, -7, 5000, 2000, 1999, 0, 3, 1 << 30])
    assert finite._stored(server.scheduler, held(server.world.requests[1]).req_pool_idx, (40, 41)) == found


def test_another_request_s_keys_are_none_of_its_own(server, cache):
    cache.full_kv_pool.k_buffer[0][slot_of(server, 0, 5)] = NAN
    said = trapped_by(server, lambda: decoded(server, logits_with(1)))
    assert said.scalars["nan_place"] == -1
    assert "of this forward itself" in named(server).cause


@pytest.mark.parametrize(("wrong", "looked_at"), [(False, True), (True, True), (True, False)])
def test_the_hidden_state_of_a_draft(server, cache, wrong, looked_at):
    if looked_at:
        decoded(server, logits_with())
    hidden = torch.zeros(3, 8)
    if wrong:
        hidden[1, 0] = NAN
    made = SimpleNamespace(spec_info=SimpleNamespace(hidden_states=hidden), forward_mode=ForwardMode.DECODE)
    look = lambda: finite.check_hidden(server.scheduler, server.world.requests, made)  # noqa: E731
    if not wrong:
        look()
        return
    said = trapped_by(server, look)
    assert (said.verdict, said.role, said.scalars["why"]) == ("not_finite", "draft", "hidden")
    assert "begins with a hidden state that is NaN" in named(server).cause
    assert named(server).confidence is (Confidence.LIKELY if looked_at else Confidence.POSSIBLE)
    assert ("was not looked at" in named(server).cause) is not looked_at


def test_logits_that_become_nan_on_their_way_to_the_sampler(server, cache):
    """What the sampler is handed is looked at once for each time that logits were numbers."""
    logits = logits_with()
    output = SimpleNamespace(next_token_logits=logits)
    decoded(server, logits)
    request_rows.before_sampler(None, output)
    logits[1, 0] = NAN
    request_rows.before_sampler(None, output)
    decoded(server, logits_with())
    said = trapped_by(server, lambda: request_rows.before_sampler(None, output))
    assert (said.verdict, said.scalars["why"]) == ("not_finite", "handed")
    assert said.scalars["request_slot"] == held(server.world.requests[1]).req_pool_idx
    finding = named(server)
    assert (finding.rule, finding.confidence) == ("numbers-not-finite", Confidence.LIKELY)
    assert "were numbers as the forward gave them" in finding.cause
