"""Probe request-rows on where things begin and end: a prefill's new tokens, queries and keys, the eviction's floor."""

from itertools import accumulate

import pytest
import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from gemma4_dumps.structures import Defect, Structure
from gemma4_runtime.leak.ledger import generations_of
from gemma4_runtime.probes import request_rows
from gemma4_runtime.release.requests import held, prefilled_until
from gemma4_runtime.rows import inserts
from gemma4_triage.finding import Confidence
from request_rows_server import DRAFTS, MODES, PROMPT, Server, named, trapped, trapped_by

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")


@pytest.fixture
def server(attach, monkeypatch):
    return Server(monkeypatch, attach("trap", "request-rows", "host-alloc-kernels"))


class TestBegins:
    def test_one_that_does_not_fit_its_lengths(self, server):
        def later(made):
            made.extend_prefix_lens_cpu[0] += 2

        said = trapped(server, later, ForwardMode.EXTEND)
        first = held(server.world.requests[0])
        assert (said.verdict, said.scalars["why"], said.scalars["request_slot"]) == (
            *("length_differs", "begin", first.req_pool_idx),
        )
        assert (said.scalars["value"], said.scalars["expected"]) == (
            *(first.cache_protected_len + 2, first.cache_protected_len),
        )
        finding = named(server)
        assert (finding.rule, finding.structure) == ("request-state-differs", Structure.BATCH_LENGTHS)
        assert "prefix_lens" in finding.cause

    def test_those_of_other_requests(self, server):
        server.world.start(list(range(300, 320)))

        def turn(made):
            made.extend_prefix_lens_cpu[:] = made.extend_prefix_lens_cpu[::-1]

        said = trapped(server, turn, ForwardMode.EXTEND)
        assert (said.scalars["why"], said.scalars["defect"]) == ("begin", "swapped")

    def test_lengths_that_are_exchanged_are_not_taken_for_the_truth(self, server):
        server.world.start(list(range(300, 320)))

        def turn(made):
            made.seq_lens[:] = made.seq_lens.flip(0)

        said = trapped(server, turn, ForwardMode.EXTEND).scalars
        first = server.world.requests[0]
        assert (said["account"], said["defect"], said["expected"]) == ("batch", "swapped", prefilled_until(first))
        finding = named(server)
        assert (finding.rule, finding.structure) == ("request-state-differs", Structure.BATCH_LENGTHS)
        assert "prefix_lens" not in finding.cause


class TestBounds:
    def bounds(self, server, mode, queries=None, keys=None):
        """Give a forward's metadata where its queries and keys end, altered, and run it."""
        made_of = {}

        def note(made):
            made_of["batch"] = made

        def spoil(metadata):
            made = made_of["batch"]
            given = metadata.cache_seqlens_int32.tolist()
            if mode.is_target_verify():
                sizes = [DRAFTS] * len(given)
            else:
                sizes = [1] * len(given) if mode.is_decode() else made.extend_seq_lens_cpu
            metadata.cu_seqlens_q = torch.tensor([0, *accumulate(sizes)])
            metadata.cu_seqlens_k = torch.tensor([0, *accumulate(given)])
            for bounds, change in ((metadata.cu_seqlens_q, queries), (metadata.cu_seqlens_k, keys)):
                if change is not None:
                    change(bounds)

        server.forward(note, mode, spoil=spoil)

    @pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
    def test_silent_as_they_are(self, server, mode):
        self.bounds(server, mode)

    @pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
    @pytest.mark.parametrize("of", ["queries", "keys"])
    def test_one_that_is_wrong(self, server, mode, of):
        def shorten(bounds):
            bounds[2] -= 1

        said = trapped_by(server, lambda: self.bounds(server, mode, **{of: shorten}))
        second = held(server.world.requests[1]).req_pool_idx
        assert (said.scalars["why"], said.scalars["request_slot"]) == (f"cu_seqlens_{of[0]}", second)
        finding = named(server)
        assert (finding.structure, finding.confidence) == (Structure.KERNEL_LENGTHS, Confidence.CERTAIN)
        # Of a decode each has one query: one less is what the one before ends at.
        assert finding.defect is (None if (mode, of) == (ForwardMode.DECODE, "queries") else Defect.OFF_BY_ONE)
        assert of in finding.cause


@pytest.mark.releases("0.5.23")  # Before, no request has such a floor.
class TestFloors:
    def test_silent_while_it_stays_and_where_a_prefill_sets_it(self, server):
        request = server.world.requests[0]
        held(request).swa_evict_floor = 16
        server.next_batch()
        server.world.decode()
        for _ in range(2):
            server.next_batch()

    def test_one_that_moves_while_the_request_answers(self, server):
        request = server.world.requests[0]
        server.world.decode()
        server.next_batch()
        held(request).swa_evict_floor += 32
        said = trapped_by(server, lambda: request_rows.before_next_batch(server.scheduler))
        assert (said.scalars["counter"], said.scalars["value"], said.scalars["expected"]) == ("swa_evict_floor", 32, 0)
        assert named(server).structure is Structure.REQUEST_COUNTERS


class OfTheLatest:
    """Who inserts, as the ledger's hooks around SGLang's cache have it: whoever has the row that was given out last."""

    def __init__(self, server):
        self.rows = server.world.rows
        self.before = set(self.rows.free_slots)

    def get(self):
        (slot,) = self.before - set(self.rows.free_slots)
        return slot, int(generations_of(self.rows)[slot])


# Before, SGLang gives back outside of the insert, which has no hook.
@pytest.mark.releases("0.5.23")
class TestPagesThatAreFree:
    LONGER = (*PROMPT, *range(300, 340))

    @pytest.fixture
    def asked(self, attach, monkeypatch):
        """Return a server whose leak ledger is on."""
        server = Server(monkeypatch, attach("trap", "request-rows", "leak-ledger", "host-alloc-kernels"))
        monkeypatch.setattr(inserts, "BY", OfTheLatest(server))
        return server

    def free_first(self, server, monkeypatch):
        """Let a request's own pages be given back ahead of the insert that takes them over."""
        import pool_world

        prefilled, world = pool_world.scheduler.prefilled, server.world

        def ahead(request, tree, tokens):
            row = world.rows.req_to_token[held(request).req_pool_idx]
            world.allocator.free(row[held(request).cache_protected_len : tokens].to(torch.int64))
            return prefilled(request, tree, tokens)

        monkeypatch.setattr(pool_world.scheduler, "prefilled", ahead)

    def test_they_are_found_before_the_cache_has_them(self, server, monkeypatch):
        server.forward()
        self.free_first(server, monkeypatch)
        said = trapped_by(server, lambda: server.world.start(list(self.LONGER)))
        assert (said.verdict, said.scalars["why"]) == ("insert_wrong", "free")
        # The first two pages are the cache's own.
        assert (said.scalars["token"], said.scalars["pages_free"]) == (2 * server.world.page, 3)
        finding = named(server)
        assert (finding.structure, finding.confidence) == (None, Confidence.POSSIBLE)

    def test_the_ledger_says_that_they_were_its_own(self, asked, monkeypatch):
        asked.forward()
        self.free_first(asked, monkeypatch)
        said = trapped_by(asked, lambda: asked.world.start(list(self.LONGER)))
        assert (said.scalars["page_was_own"], said.scalars["page_event"] in ("freed", "free_asked")) == (True, True)
        finding = named(asked)
        assert (finding.structure, finding.defect) == (Structure.FREE_CALL, Defect.EARLY)
        # It was no release of the request that gave them back.
        assert finding.confidence is Confidence.LIKELY

    def test_where_nobody_gave_it_back_the_list_or_a_group_is_wrong(self, asked, monkeypatch):
        import pool_world

        asked.forward()
        prefilled, world = pool_world.scheduler.prefilled, asked.world

        def listed(request, tree, tokens):
            inner = world.allocator.full_attn_allocator
            page = world.rows.req_to_token[held(request).req_pool_idx, tokens - 1] // world.page
            inner.free_pages = torch.cat([inner.free_pages, page[None].to(inner.free_pages.dtype)])
            return prefilled(request, tree, tokens)

        monkeypatch.setattr(pool_world.scheduler, "prefilled", listed)
        trapped_by(asked, lambda: world.start(list(self.LONGER)))
        finding = named(asked)
        assert (finding.structure, finding.confidence) == (None, Confidence.POSSIBLE)
        assert "by the ledger nobody had given them back" in finding.cause

    def test_silent_where_they_are_not(self, server):
        server.forward()
        server.world.start(list(self.LONGER))


# Before, the tree's nodes are no objects that it keeps by their number.
@pytest.mark.releases("0.5.23")
def test_a_node_that_names_another_parent_gives_its_request_another_path(attach, monkeypatch):
    monkeypatch.setenv("SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND", "python")
    server = Server(monkeypatch, attach("trap", "request-rows", "host-alloc-kernels"))
    request = server.world.start([*PROMPT, *range(300, 320)])
    core = server.world.tree.tree_core
    node = core._node_arena[request.last_node]
    assert node.parent is not core.root_node
    node.parent = core.root_node
    said = trapped(server, mode=ForwardMode.EXTEND)
    assert "another parent:1" in said.scalars["tree_broken"]
    finding = named(server)
    assert (finding.structure, finding.defect) == (Structure.TREE_NODE, Defect.STALE)
    assert "names another node as its parent" in finding.cause
