"""Probe request-rows on sliding windows: an event where what a request's window has left stays taken."""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from gemma4_dumps.reader import read_dump
from gemma4_dumps.store import DumpStore
from gemma4_runtime.release.requests import held, set_swa_evicted
from gemma4_runtime.rows.windows import check_window
from request_rows_server import Server

# Releases before it give back every so many steps, and not tokens.
pytestmark = pytest.mark.releases("0.5.23")
WINDOW = INTERVAL = 4


@pytest.fixture
def server(attach, monkeypatch):
    monkeypatch.setenv("SGLANG_SWA_EVICTION_INTERVAL", str(INTERVAL))
    server = Server(monkeypatch, attach("trap", "request-rows", "host-alloc-kernels"))
    server.world.start(range(200, 300))
    server.scheduler.tree_cache = SimpleNamespace(
        swa_retain_window=WINDOW,
        supports_swa=lambda: True,
        supports_auxiliary_swa=lambda: False,
        swa_retain_floor=lambda request: None,
    )
    return server


def look(server, counted, mode=ForwardMode.DECODE, decodes=2):
    """Look at a request of which the cache has nothing, and that counts so many tokens of its own as gone."""
    request = server.world.requests[-1]
    held(request).cache_protected_len, request.decode_batch_idx = 0, decodes
    set_swa_evicted(request, counted)
    made = SimpleNamespace(forward_mode=mode, input_ids=torch.zeros(1), seq_lens=torch.tensor([1]))
    for _ in range(2):
        check_window(server.scheduler, [request], made)
    return [read_dump(entry.path).manifest for entry in DumpStore(server.dumps).list()]


def test_what_has_left_long_ago_is_an_event_that_stops_nothing_and_is_told_once(server):
    (said,) = look(server, 0)
    assert (said.verdict, said.action, said.scalars["value"]) == ("window_kept", "logged", 0)
    assert said.scalars["own_left"] == said.scalars["expected"] >= said.scalars["own_kept"] > 0


def test_silent_where_it_is_given_back_in_time(server):
    request, page = server.world.requests[-1], server.world.page
    # As late as SGLang may be: one token before the next time.
    latest = held(request).kv_committed_len - 1 - -(-WINDOW // page) * page - max(INTERVAL, page)
    assert look(server, latest) == []


@pytest.mark.parametrize("more", [{"mode": ForwardMode.EXTEND}, {"decodes": 1}])
def test_a_prefill_and_a_first_decode_give_nothing_back_yet(server, more):
    assert look(server, 0, **more) == []
