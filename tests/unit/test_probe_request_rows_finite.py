"""Probe request-rows on numbers: silent where they are finite, and it says which keys make logits NaN."""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from gemma4_runtime.probes import request_rows
from gemma4_runtime.release.requests import held
from gemma4_runtime.rows import finite
from gemma4_triage.finding import Confidence
from request_rows_server import Server, named, trapped_by

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")

NAN, WORDS = float("nan"), 12
LAYER_OF_SWA = 0


@pytest.fixture
def server(attach, monkeypatch):
    return Server(monkeypatch, attach("trap", "request-rows", "host-alloc-kernels"))


@pytest.fixture
def cache(server, monkeypatch):
    """Give the server's pools keys and values: two layers of the full pool, one of the sliding-window pool."""
    tokens = {"full": 2000, "swa": 2000}
    make = lambda size: torch.ones(size, 1, 4)  # noqa: E731
    pools = {
        f"{name}_kv_pool": SimpleNamespace(
            k_buffer=[make(size) for _ in range(count)], v_buffer=[make(size) for _ in range(count)]
        )
        for (name, size), count in zip(tokens.items(), (2, 1), strict=True)
    }
    made = SimpleNamespace(**pools, layers_mapping={1: (0, False), 2: (1, False), LAYER_OF_SWA: (0, True)})
    monkeypatch.setattr(server.world.allocator, "get_kvcache", lambda: made)
    return made


def decoded(server, logits):
    """Run a decode of all requests that gives these logits, [requests, vocabulary]."""
    server.forward()
    batch = SimpleNamespace(reqs=server.world.requests, forward_mode=ForwardMode.DECODE)
    result = SimpleNamespace(logits_output=SimpleNamespace(next_token_logits=logits), next_token_ids=None)
    request_rows.after_run_batch(result, server.scheduler, batch)


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


def test_keys_of_a_token_that_was_read_before(server, cache):
    slot = slot_of(server, 1, 37)
    peer = int(server.world.allocator.full_to_swa_index_mapping[slot])
    cache.swa_kv_pool.k_buffer[0][peer, 0, 2] = NAN
    said = trapped_by(server, lambda: decoded(server, logits_with(1)))
    assert (said.verdict, said.scalars["request_slot"]) == ("not_finite", held(server.world.requests[1]).req_pool_idx)
    found = {name: said.scalars[f"nan_{name}"] for name in ("place", "layer", "pool", "part", "tokens")}
    assert found == {"place": 37, "layer": LAYER_OF_SWA, "pool": "swa", "part": "keys", "tokens": 1}
    finding = named(server)
    assert (finding.rule, finding.confidence) == ("numbers-not-finite", Confidence.LIKELY)
    assert "somebody wrote there since" in finding.cause


def test_values_of_a_full_layer_by_its_number(server, cache):
    cache.full_kv_pool.v_buffer[1][slot_of(server, 2, 5)] = float("inf")
    said = trapped_by(server, lambda: decoded(server, logits_with(2)))
    assert [said.scalars[f"nan_{name}"] for name in ("layer", "pool", "part")] == [2, "full", "values"]


def test_another_request_s_keys_are_none_of_its_own(server, cache):
    cache.full_kv_pool.k_buffer[0][slot_of(server, 0, 5)] = NAN
    said = trapped_by(server, lambda: decoded(server, logits_with(1)))
    assert said.scalars["nan_place"] == -1
    assert "of this forward itself" in named(server).cause


@pytest.mark.parametrize("wrong", [False, True])
def test_the_hidden_state_of_a_draft(server, wrong):
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
