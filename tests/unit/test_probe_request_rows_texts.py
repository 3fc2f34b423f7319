"""Probe request-rows on texts: what the prefix cache takes and gives was computed of the tokens of its key."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode

import pool_world
from gemma4_dumps.structures import Structure
from gemma4_runtime.checks.tree_links import Broken
from gemma4_runtime.release import envs
from gemma4_runtime.release.requests import held, stay_of
from gemma4_runtime.release.tree_links import Beside, broken_of
from gemma4_runtime.rows import texts as checks
from gemma4_runtime.slot_texts import NEVER, UNKNOWN, texts_for, texts_of
from gemma4_triage.finding import Confidence
from request_rows_server import DRAFTS, Server, named, trapped, trapped_by

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")


@pytest.fixture
def server(attach, monkeypatch):
    return Server(monkeypatch, attach("trap", "request-rows", "host-alloc-kernels"))


@pytest.fixture
def readable(attach, monkeypatch):
    """Return a server whose prefix cache has nodes that are objects of Python's."""
    monkeypatch.setenv("SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND", "python")
    return Server(monkeypatch, attach("trap", "request-rows", "host-alloc-kernels"))


def store(server, request, tokens):
    """Let a forward have stored these tokens in the first slots of a request's row."""
    texts = texts_for(server.world.allocator)
    slots = server.world.rows.req_to_token[held(request).req_pool_idx, : len(tokens)].numpy()
    texts.tokens[slots], texts.places[slots] = tokens, np.arange(len(tokens))
    texts.stays[slots] = texts.begin_stay(held(request).req_pool_idx, stay_of(request))


class TestWhatIsNoted:
    def test_a_prefill_a_decode_and_a_verification_store_their_tokens_at_their_places(self, server):
        world = server.world
        for mode in (ForwardMode.EXTEND, ForwardMode.DECODE, ForwardMode.TARGET_VERIFY):
            server.forward(mode=mode)
        texts, request = texts_of(world.allocator), world.requests[0]
        start, end = held(request).cache_protected_len, held(request).kv_committed_len
        slots = world.rows.req_to_token[held(request).req_pool_idx, start : end + DRAFTS].numpy()
        tokens, places, stays = texts.of(slots)
        assert tokens[: end - 1 - start].tolist() == list(range(start, end - 1))
        assert places.tolist() == list(range(start, end + DRAFTS))
        assert len(set(stays.tolist())) == 1

    def test_what_stands_for_pictures_is_not_known(self, server):
        for request in server.world.requests:
            request.multimodal_inputs = object()
        server.forward(mode=ForwardMode.EXTEND)
        texts = texts_of(server.world.allocator)
        assert set(texts.tokens.tolist()) == {NEVER, UNKNOWN}

    def test_nor_what_is_verified_where_accepted_drafts_are_simulated(self, server):
        with envs.SGLANG_SIMULATE_ACC_LEN.override(2.0):
            server.forward(mode=ForwardMode.TARGET_VERIFY)
        texts = texts_of(server.world.allocator)
        assert set(texts.tokens.tolist()) == {NEVER, UNKNOWN}

    def test_nor_what_is_beyond_the_vocabulary(self, server):
        server.scheduler.model_config = SimpleNamespace(vocab_size=20)
        server.forward(mode=ForwardMode.EXTEND)
        assert texts_of(server.world.allocator).tokens.max() < 20

    def test_a_forward_that_is_wrong_otherwise_leaves_what_it_writes_unknown(self, server):
        server.forward(mode=ForwardMode.EXTEND)
        texts = texts_of(server.world.allocator)
        known = int((texts.tokens >= 0).sum())

        def later(made):
            made.extend_prefix_lens_cpu[0] += 2

        trapped(server, later, ForwardMode.EXTEND)
        assert int((texts.tokens >= 0).sum()) < known

    def test_a_forward_whose_places_are_not_told_leaves_what_it_writes_unknown(self, server):
        server.forward(mode=ForwardMode.EXTEND)

        def shorten(made):
            made.input_ids = made.input_ids[:-1]

        texts = texts_of(server.world.allocator)
        known = int((texts.tokens >= 0).sum())
        server.begin_anew()
        server.forward(shorten, ForwardMode.EXTEND)
        assert known > int((texts.tokens >= 0).sum())

    def test_nothing_is_known_of_a_server_that_is_sent_its_keys(self, server):
        class Receives:
            value = "decode"

        server.scheduler.disaggregation_mode = Receives()
        server.forward(mode=ForwardMode.EXTEND)
        assert texts_of(server.world.allocator) is None

    def test_of_slots_that_there_are_not_nothing_is_known(self, server):
        texts = texts_for(server.world.allocator)
        assert texts.of(np.array([-5, texts.tokens.size]))[0].tolist() == [UNKNOWN, UNKNOWN]


class TestPrefixes:
    def other_text(self, server, first, by=1):
        """Let the prefix that the last request has from the cache be of another text from a token on."""
        request = server.world.requests[-1]
        tokens = np.arange(held(request).cache_protected_len)
        tokens[first:] += by
        store(server, request, tokens)
        return request

    def test_silent_where_it_is_the_requests_own(self, server):
        self.other_text(server, 0, by=0)
        server.forward(mode=ForwardMode.EXTEND)

    def test_silent_where_another_place_was_stored_since(self, server):
        """A page that has been handed out again is told by who owns it."""
        request = self.other_text(server, 0)
        slots = server.world.rows.req_to_token[held(request).req_pool_idx, : held(request).cache_protected_len]
        texts_for(server.world.allocator).places[slots.numpy()] += 3
        server.forward(mode=ForwardMode.EXTEND)

    def test_a_row_that_has_another_page_than_its_nodes_is_told_as_the_row(self, server):
        request = server.world.requests[-1]
        page, slot = server.world.page, held(request).req_pool_idx
        assert held(request).cache_protected_len
        other = server.world.requests[1]
        server.world.rows.req_to_token[slot, :page] = server.world.rows.req_to_token[held(other).req_pool_idx, :page]
        store(server, other, np.arange(page) + 50)
        assert trapped(server, mode=ForwardMode.EXTEND).verdict == "row_entry"

    def test_one_of_another_text(self, server):
        request = self.other_text(server, 20)
        said = trapped(server, mode=ForwardMode.EXTEND)
        assert (said.verdict, said.scalars["why"], said.scalars["token"]) == ("text_differs", "prefix", 20)
        # The first has the same prefix.
        assert said.scalars["request_slot"] == held(server.world.requests[0]).req_pool_idx
        assert said.scalars["tokens_wrong"] == held(request).cache_protected_len - 20
        finding = named(server)
        assert (finding.rule, finding.structure) == ("cached-text-differs", Structure.TREE_NODE)

    def test_the_nodes_key_says_that_the_match_went_too_far(self, readable):
        # Keys of the world's count from 1 on, a request's own tokens from 0.
        self.other_text(readable, 20)
        assert trapped(readable, mode=ForwardMode.EXTEND).scalars["by_key"] == "stored"
        finding = named(readable)
        assert "the match went further than the two texts agree" in finding.cause
        # Nobody knows here by which list it was matched.
        assert finding.confidence is Confidence.LIKELY

    def test_the_list_by_which_it_was_matched_says_that_its_own_text_is_as_it_was(self, readable):
        request = self.other_text(readable, 20)
        name = "full_untruncated_fill_ids" if hasattr(request, "full_untruncated_fill_ids") else "fill_ids"
        for one in readable.world.requests:
            setattr(one, name, list(range(200)))
        trapped(readable, mode=ForwardMode.EXTEND)
        assert named(readable).confidence is Confidence.CERTAIN

    def test_a_key_that_has_neither(self, readable):
        self.other_text(readable, 20, by=50)
        assert trapped(readable, mode=ForwardMode.EXTEND).scalars["by_key"] == "neither"
        assert named(readable).confidence is Confidence.LIKELY


def test_a_namespace_that_changes_while_its_request_runs(server):
    request = server.world.requests[1]
    for one in server.world.requests:
        one.extra_key = None
    server.forward()
    server.forward()
    request.extra_key = "x"
    said = trapped(server)
    assert (said.scalars["why"], said.scalars["request_slot"]) == ("namespace", held(request).req_pool_idx)
    assert said.scalars["cached_tokens"] == held(request).cache_protected_len
    finding = named(server)
    assert (finding.structure, finding.confidence) == (Structure.REQUEST_COUNTERS, Confidence.CERTAIN)
    assert "(extra_key)" in finding.cause


# Before, SGLang gives back outside of the insert, which has no hook.
@pytest.mark.releases("0.5.23")
class TestInserts:
    TEXT = tuple(range(200, 264))

    def start(self, server, monkeypatch, stored, change=lambda request: None):
        """Start a request of which a forward has stored `stored`, `change` what is known of it, and return it."""
        prefilled = pool_world.scheduler.prefilled

        def run(request, tree, tokens):
            store(server, request, stored)
            monkeypatch.setattr(checks, "live_requests", lambda _: [request])
            monkeypatch.setattr(checks, "BY", Given((held(request).req_pool_idx, 0)))
            change(request)
            return prefilled(request, tree, tokens)

        monkeypatch.setattr(pool_world.scheduler, "prefilled", run)
        return server.world.start(list(self.TEXT))

    def test_silent_where_it_was_stored(self, server, monkeypatch):
        server.forward()
        self.start(server, monkeypatch, self.TEXT)

    def test_silent_where_what_was_stored_stands_for_something_else(self, server, monkeypatch):
        server.forward()
        self.start(server, monkeypatch, [UNKNOWN] * len(self.TEXT))

    def test_a_key_with_another_token(self, server, monkeypatch):
        server.forward()
        stored = np.array(self.TEXT)
        stored[7] += 1
        said = trapped_by(server, lambda: self.start(server, monkeypatch, stored))
        assert (said.verdict, said.scalars["why"], said.scalars["token"]) == ("text_differs", "key", 7)
        assert (said.scalars["tokens_wrong"], said.scalars["by_own"], said.scalars["shift"]) == (1, "key", None)
        finding = named(server)
        # What the forward read was the request's own then.
        assert (finding.structure, finding.confidence) == (None, Confidence.LIKELY)
        assert "tokens were changed since then" in finding.cause

    def test_what_another_requests_forward_stored_is_in_slots_that_are_not_its_own(self, server, monkeypatch):
        server.forward()
        stored = np.array(self.TEXT)
        stored[7] += 1

        def anothers(request):
            texts = texts_for(server.world.allocator)
            slot = int(server.world.rows.req_to_token[held(request).req_pool_idx, 7])
            texts.stays[slot] = texts.begin_stay(77, ("another", 0))

        trapped_by(server, lambda: self.start(server, monkeypatch, stored, anothers))
        finding = named(server)
        assert (finding.structure, finding.confidence) == (Structure.REQUEST_ROW, Confidence.LIKELY)

    def test_of_two_requests_that_say_they_have_one_slot_it_is_not_known_which_it_is(self, server, monkeypatch):
        server.forward()
        stored = np.array(self.TEXT)
        stored[7] += 1

        def both(request):
            monkeypatch.setattr(checks, "live_requests", lambda _: [request, request])

        assert trapped_by(server, lambda: self.start(server, monkeypatch, stored, both)).scalars["by_own"] is None
        assert named(server).confidence is Confidence.LIKELY

    @pytest.mark.parametrize(("by", "defect"), [(1, "off by one"), (-1, "off by one"), (2, None)])
    def test_a_key_that_is_shifted(self, server, monkeypatch, by, defect):
        server.forward()
        stored = np.array(self.TEXT)
        stored[40:] += by
        said = trapped_by(server, lambda: self.start(server, monkeypatch, stored))
        assert (said.scalars["shift"], said.scalars["defect"]) == (by, defect)
        assert f"{abs(by)} place" in named(server).cause

    @pytest.mark.parametrize(("missing", "defect"), [(1, "off by one"), (9, None)])
    def test_tokens_that_nobody_stored(self, server, monkeypatch, missing, defect):
        server.forward()
        said = trapped_by(server, lambda: self.start(server, monkeypatch, self.TEXT[:-missing]))
        assert (said.scalars["why"], said.scalars["defect"]) == ("longer", defect)
        finding = named(server)
        assert (finding.structure, finding.confidence) == (Structure.TREE_NODE, Confidence.CERTAIN)
        assert f"{len(self.TEXT)} tokens" in finding.cause
        assert f"stored {len(self.TEXT) - missing}" in finding.cause

    def test_what_a_later_request_stored_there_was_given_to_it_too_early(self, server, monkeypatch):
        server.forward()

        def overwritten(request):
            texts = texts_for(server.world.allocator)
            slot = int(server.world.rows.req_to_token[held(request).req_pool_idx, len(self.TEXT) - 1])
            texts.tokens[slot], texts.places[slot] = 5, 3
            texts.stays[slot] = texts.begin_stay(77, ("later", 0))

        trapped_by(server, lambda: self.start(server, monkeypatch, self.TEXT[:-1], overwritten))
        finding = named(server)
        assert (finding.structure, finding.confidence) == (None, Confidence.LIKELY)
        assert "given back too early" in finding.cause

    def test_where_drafts_were_rejected_the_slots_may_be_the_wrong_ones(self, server, monkeypatch):
        server.forward()
        prefilled = pool_world.scheduler.prefilled

        def drafted(request, tree, tokens):
            texts, spare = texts_for(server.world.allocator), server.free_slot()
            texts.places[spare] = len(self.TEXT) - 1
            texts.stays[spare] = texts.begin_stay(held(request).req_pool_idx, stay_of(request))
            return prefilled(request, tree, tokens)

        monkeypatch.setattr(pool_world.scheduler, "prefilled", drafted)
        trapped_by(server, lambda: self.start(server, monkeypatch, self.TEXT[:-1]))
        assert named(server).confidence is Confidence.LIKELY


class Given:
    """What a context variable of one value is."""

    def __init__(self, value):
        self.get = lambda: value


class TestNodes:
    def grown(self, server):
        """Return the cache, and what its nodes are held against, with what its requests' rows have stored."""
        world = server.world
        for request in world.requests:
            store(server, request, list(request.origin_input_ids)[: held(request).cache_protected_len])
        return world.tree, Beside(texts_of(world.allocator).unlike, world.allocator.full_to_swa_index_mapping.numpy())

    def test_silent_as_they_were_made(self, readable):
        tree, beside = self.grown(readable)
        assert broken_of(tree, beside) == {}

    def test_a_key_that_was_changed(self, readable):
        tree, beside = self.grown(readable)
        beside.unlike.__self__.tokens[self.first_slot(tree)] += 1
        assert broken_of(tree, beside) == {Broken.OTHER_TEXT: 1}

    @pytest.mark.releases("0.5.23")  # Before, a node has slots of the full pool alone.
    def test_a_window_that_the_map_does_not_have(self, readable):
        tree, beside = self.grown(readable)
        swa = next(
            value for node in tree.tree_core._node_arena.values() if (value := node.component_data[1].value) is not None
        )
        swa[-1] += 1
        assert broken_of(tree, beside) == {Broken.OTHER_WINDOW: 1}

    def first_slot(self, tree):
        """Return a slot of the full pool that a node has."""
        core = getattr(tree, "tree_core", tree)
        (node, *_) = core.root_node.children.values()
        value = node.component_data[0].value if core is not tree else node.value
        return int(torch.as_tensor(value)[0])
