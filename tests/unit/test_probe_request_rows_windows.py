"""Probe request-rows on sliding windows: an event where what a request's window has left stays taken."""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from gemma4_dumps.reader import read_dump
from gemma4_dumps.store import DumpStore
from gemma4_runtime.errors import TrappedViolation
from gemma4_runtime.release.requests import held, set_swa_evicted
from gemma4_runtime.rows.windows import check_whole_pages, check_window
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


def counts(server, tokens, **more):
    request = server.world.requests[-1]
    held(request).cache_protected_len = 0
    vars(request).update(more)
    set_swa_evicted(request, tokens)
    check_whole_pages(server.scheduler, [request], SimpleNamespace(forward_mode=ForwardMode.DECODE))


def test_a_part_of_a_page_that_counts_as_gone(server):
    page = server.world.page
    with pytest.raises(TrappedViolation):
        counts(server, page + 5)
    (entry,) = DumpStore(server.dumps).list()
    said = read_dump(entry.path).manifest
    assert (said.verdict, said.scalars["counter"]) == ("counter_wrong", "swa_evicted_seqlen")
    assert (said.scalars["value"], said.scalars["expected"]) == (page + 5, page)


@pytest.mark.parametrize("more", [{}, {"session": "a session cuts where it likes"}])
def test_whole_pages_and_what_a_session_cut_are_silent(server, more):
    counts(server, 2 * server.world.page + 5 * bool(more), **more)
    assert DumpStore(server.dumps).list() == []
