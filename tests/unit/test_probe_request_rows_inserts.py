"""Probe request-rows on what is put into the prefix cache: silent as SGLang does it, right where that is wrong."""

from contextvars import copy_context
from dataclasses import replace

import numpy as np
import pytest
import torch

import pool_world
from gemma4_dumps.structures import Defect, Structure
from gemma4_runtime.checks.request_rows import check_path, torn_pages
from gemma4_runtime.leak.ledger import BY
from gemma4_runtime.release.requests import held
from gemma4_runtime.rows import inserts
from gemma4_triage.finding import Confidence
from request_rows_server import PROMPT, Server, named, trapped_by

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")


@pytest.fixture
def server(attach, monkeypatch):
    return Server(monkeypatch, attach("trap", "request-rows", "host-alloc-kernels"))


def window_component():
    """Return 0.5.23's class of what the prefix cache does with the sliding window."""
    from sglang.srt.mem_cache.unified_cache.components import swa

    return swa.SWAComponent


# Of releases before it SGLang gives back outside of the insert, and does not say where it ended.
@pytest.mark.releases("0.5.23")
class TestInserts:
    def insert_as_if_nothing_was_cached(self, server):
        core = server.world.tree.tree_core
        begin = core.begin_insert
        core.begin_insert = lambda params: begin(replace(params, prev_prefix_len=0))

    def test_silent_where_a_request_has_copies(self, server):
        server.forward()
        server.world.start(PROMPT)
        server.world.start([*PROMPT, *range(300, 320)])
        server.forward()

    def test_the_caches_own_prefix_is_given_back(self, server):
        server.forward()
        self.insert_as_if_nothing_was_cached(server)
        said = trapped_by(server, lambda: server.world.start([*PROMPT, *range(300, 320)]))
        assert (said.verdict, said.scalars["why"]) == ("insert_wrong", "given back")
        assert (said.scalars["was_cached"], said.scalars["pages_missing"]) == (True, 0)
        finding = named(server)
        assert (finding.rule, finding.structure, finding.defect) == (
            *("cache-insert-wrong", Structure.FREE_CALL, Defect.EARLY),
        )
        assert finding.confidence is Confidence.CERTAIN

    def test_a_node_that_has_its_parents_slots_too(self, server):
        server.forward()
        tree, page = server.world.tree, server.world.page
        of_path = tree.path_device_indices
        tree.path_device_indices = lambda node: torch.cat([(path := of_path(node))[:page], path])
        said = trapped_by(server, lambda: server.world.start([*PROMPT, *range(300, 320)]))
        assert (said.scalars["structure"], said.scalars["defect"]) == ("radix tree node", "duplicate")
        finding = named(server)
        assert (finding.rule, finding.structure) == ("cache-insert-wrong", Structure.TREE_NODE)

    def test_a_node_whose_slots_of_the_window_are_not_what_the_map_says(self, server, monkeypatch):
        server.forward()
        # In pools this young a full slot that is not translated is the right one.
        monkeypatch.setattr(window_component(), "_translate_full_to_swa", lambda _, slots: slots * 0 + 17)
        said = trapped_by(server, lambda: server.world.start([*PROMPT, *range(300, 340)]))
        assert (said.scalars["why"], said.scalars["untranslated"]) == ("window", False)
        finding = named(server)
        assert (finding.rule, finding.structure, finding.confidence) == (
            "cache-insert-wrong",
            None,
            Confidence.POSSIBLE,
        )

    def test_the_page_that_a_full_one_was_handed_out_with_tells_which_is_wrong(self, server, monkeypatch):
        server.forward()
        monkeypatch.setattr(window_component(), "_translate_full_to_swa", lambda _, slots: slots * 0 + 17)
        monkeypatch.setattr(inserts, "served_by", lambda scheduler, page: {"handed_out_with": 1})
        trapped_by(server, lambda: server.world.start([*PROMPT, *range(300, 340)]))
        assert (named(server).structure, named(server).confidence) == (Structure.SWA_MAPPING, Confidence.LIKELY)

    def test_a_slot_of_another_page_in_the_midst_of_one_that_is_put_in(self, server, monkeypatch):
        server.forward()
        prefilled = pool_world.scheduler.prefilled

        def overwritten(request, tree, tokens):
            server.world.rows.req_to_token[held(request).req_pool_idx, server.world.page + 1] = 401
            return prefilled(request, tree, tokens)

        monkeypatch.setattr(pool_world.scheduler, "prefilled", overwritten)
        monkeypatch.setattr(inserts, "live_requests", lambda _: server.world.requests)
        said = trapped_by(server, lambda: server.world.start([*range(300, 340)]))
        assert (said.scalars["why"], said.scalars["value"], said.scalars["token"]) == (
            "torn",
            401,
            server.world.page + 1,
        )
        # How many tokens have keys is not known here, so the insert may be too long as well.
        assert (named(server).structure, named(server).confidence) == (Structure.REQUEST_ROW, Confidence.POSSIBLE)

    @pytest.mark.parametrize(("committed", "too_long"), [(32, True), (40, False)])
    def test_what_is_put_in_beyond_the_keys_is_told_before_the_insert(self, server, monkeypatch, committed, too_long):
        """What has no slot yet is 0 in the row, and the insert itself trips over it."""
        server.forward()
        page, request = server.world.page, server.world.requests[0]
        value = torch.cat((torch.arange(20 * page, 22 * page), torch.zeros(page, dtype=torch.int64))).numpy()
        held(request).kv_committed_len = committed
        monkeypatch.setattr(inserts, "live_requests", lambda _: server.world.requests)

        def look():
            BY.set((held(request).req_pool_idx, 1))
            inserts._check_pages(server.scheduler, value, page, only_too_long=True)

        if not too_long:
            copy_context().run(look)
            return
        said = trapped_by(server, lambda: copy_context().run(look))
        assert (said.scalars["why"], said.scalars["token"], said.scalars["committed"]) == ("torn", 2 * page + 1, 32)

    def test_slots_follow_the_first_one_of_their_page(self):
        whole = np.array([8, 9, 10, 11, 20, 21, 22, 23, 32])
        assert torn_pages(whole, 4) == ()
        (wrong,) = torn_pages(np.where(whole == 23, 7, whole), 4)
        assert (wrong.column, wrong.value, wrong.expected) == (7, 7, 23)
        # A page that begins within one is wrong throughout.
        assert len(torn_pages(whole[:8] + 1, 4)) == 8

    def test_of_pages_that_were_put_in_and_not_given_back_either_may_be_wrong(self):
        path, value, back = np.arange(8, 16), np.array([8, 9, 10, 11, 20, 21, 22, 23]), np.array([3])
        (wrong,) = check_path(path, value, back, 4)
        assert (wrong.why, wrong.column, wrong.value) == ("given back", 4, 12)
        assert check_path(path, value, np.array([5]), 4) == ()
        # One that was put in twice is no node's fault.
        assert check_path(np.tile(path, 2), np.tile(path, 2), np.array([]), 4) == ()
