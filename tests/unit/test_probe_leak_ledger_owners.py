"""The leak ledger says who owned a page: what the prefix cache was given, and the events of each page."""

import json
from contextvars import copy_context

import pytest
import torch
from sglang.srt.mem_cache.allocator import paged
from sglang.srt.mem_cache.base_prefix_cache import EvictParams

from attached_ledger import attached_ledger, prompt
from gemma4_dumps.audit_findings import lives
from gemma4_dumps.reader import read_dump
from gemma4_dumps.store import DumpStore
from gemma4_dumps.structures import Defect, Structure
from gemma4_runtime.checks.page_ledger import Site
from gemma4_runtime.guard import Guard
from gemma4_runtime.host import alloc_kernels
from gemma4_runtime.leak.ledger import BY, UP_TO, generations_of, ledger_of
from gemma4_runtime.leak.report import report
from gemma4_runtime.probes import leak_owners
from gemma4_runtime.release.requests import held
from gemma4_runtime.settings import Leak, Mode
from gemma4_triage.diagnose.conclude import conclude
from gemma4_triage.diagnose.grouping import group
from gemma4_triage.finding import Confidence
from gemma4_triage.replay.leak_replay import replay_leak
from pool_world import PoolWorld

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")


@pytest.fixture(scope="module", autouse=True)
def attached(tmp_path_factory):
    with attached_ledger(tmp_path_factory.mktemp("attached")):
        yield


@pytest.fixture
def swa(monkeypatch):
    return PoolWorld(monkeypatch, page_size=16)


@pytest.fixture
def guard(tmp_path):
    return Guard(Mode.OFF, tmp_path, dict)


def test_up_to_where_a_request_is_inserted_is_known_meanwhile(swa):
    request = swa.start(prompt(1, 64))
    request.finished = lambda: False
    seen = leak_owners.around_checkpoint(lambda *args, **kwargs: UP_TO.get(), swa.tree, request, up_to=48)
    assert (seen, UP_TO.get()) == (48, None)


class TestWhatThePrefixCacheWasGiven:
    """A page that a node had and lost is the cache's loss, and no call's."""

    @pytest.fixture
    def node(self, swa):
        request = swa.start(prompt(1, 64))
        swa.finish(request)
        assert swa.faults() == {}
        # What is handed out in the step of the audit may be on its way still.
        ledger_of(swa.allocator).step += 5
        return request.last_node

    def cause(self, swa, guard):
        """Return the first cause of what an audit finds, after its dumps have been replayed."""
        found = swa.audit()
        report(found, found.findings, "idle", Leak.DUMP, guard)
        dumps = [read_dump(entry.path) for entry in DumpStore(guard.root).list()]
        for dump in dumps:
            if dump.manifest.verdict == "pool_leak":
                replay_leak(dump)
        (incident,) = group(dumps)
        return conclude(incident)[0]

    def test_an_entry_that_is_no_page_is_certain(self, swa, guard, node):
        swa.value_of(node)[16:32] = 16 * 900
        cause = self.cause(swa, guard)
        assert (cause.rule, cause.structure, cause.defect) == ("holder-entry-wrong", "radix tree node", "past the end")
        assert str(cause.confidence) == "certain"

    # 0.5.23 keeps a node's tokens and its slots in Rust, as many of one as of the other.
    @pytest.mark.releases("0.5.13.post1")
    def test_an_entry_that_is_gone_is_missing_beside_the_nodes_key(self, swa, guard, node):
        node.value = node.value[:48]
        cause = self.cause(swa, guard)
        assert (cause.rule, cause.structure, cause.defect) == ("tree-broken", "radix tree node", "lost")
        assert "has fewer slots than its key has tokens" in cause.cause


def row_of(swa, request):
    """Return the slots that a request's row has."""
    return swa.rows.req_to_token[held(request).req_pool_idx, : held(request).kv_committed_len].long()


class TestProvenance:
    def _dump_of_a_lost_free(self, swa, guard):
        """Return the dump of an audit after the prefix cache gave its pages back and the free list lost the first."""
        swa.tree.evict(EvictParams(num_tokens=64, swa_num_tokens=64))
        pool = swa.allocator.full_attn_allocator
        pool.merge_and_sort_free()
        pool.free_pages = pool.free_pages[1:]
        found = swa.audit()
        report(found, found.findings, "idle", Leak.DUMP, guard)
        (entry,) = DumpStore(guard.root).list()
        return read_dump(entry.path)

    def test_a_page_keeps_who_had_it_before(self, swa):
        first = swa.start(prompt(1, 40))
        slot = held(first).req_pool_idx
        swa.finish(first)
        swa.tree.evict(EvictParams(num_tokens=64, swa_num_tokens=64))
        ledger = ledger_of(swa.allocator)
        ledger.log.drain()
        full = ledger.pools["full"]
        pages = [page for page in range(1, full.pages + 1) if full.alloc_step[page] >= 0]
        swa.allocator.full_attn_allocator.merge_and_sort_free()
        second = swa.start(prompt(2, 90))
        ledger.log.drain()
        again = [page for page in pages if full.ended[page]]
        assert again, "the second request was given other pages"
        for page in again:
            before, now = full.lives_of(page)
            assert (before[0], before[1], now[0]) == (slot, 1, held(second).req_pool_idx)
            assert Site(before[2]) is Site.ALLOC_FOR_EXTEND
            assert Site(before[4]) in (Site.EVICT_TREE, Site.CACHE_FINISHED_REQ, Site.RELEASE_KV_CACHE)
            assert before[5] >= 0

    def test_what_the_prefix_cache_was_given_is_noted(self, swa):
        request = swa.start(prompt(1, 40))
        ledger = ledger_of(swa.allocator)
        ledger.log.drain()
        rows = swa.rows.req_to_token[held(request).req_pool_idx, :40].numpy()
        given = ledger.pools["full"].given_step[rows[::16] // 16]
        assert given.tolist() == [0, 0, -1]

    def test_a_free_of_another_requests_page_is_named_though_it_is_in_use(self, swa):
        first, second = swa.start(prompt(1, 40)), swa.start(prompt(2, 40))
        # A row of the first that has the second's last page: its release gives that back.
        swa.rows.req_to_token[held(first).req_pool_idx, 32:40] = swa.rows.req_to_token[held(second).req_pool_idx, 32:40]
        page = int(swa.rows.req_to_token[held(second).req_pool_idx, 32]) // 16
        swa.finish(first)
        ledger = ledger_of(swa.allocator)
        ledger.log.drain()
        strangers = [one for one in ledger.anomalies if one.fault.name == "FREED_BY_OTHER"]
        assert [(one.pool, one.page) for one in strangers] == [("full", page)]

    def test_the_dump_says_who_took_a_page_from_the_prefix_cache(self, swa, guard):
        first = swa.start(prompt(1, 40))
        owner = held(first).req_pool_idx
        swa.finish(first)
        takers = []
        for step in (5, 6):
            ledger_of(swa.allocator).step = step
            request = swa.start(prompt(1, 40))
            takers.append(held(request).req_pool_idx)
            swa.finish(request)
        (life,) = next(iter(lives(self._dump_of_a_lost_free(swa, guard)).values()))
        generations = generations_of(swa.rows)
        taken = [(share.owner, share.site, share.step) for share in life.shared]
        assert [(slot, site, step) for (slot, _), site, step in taken] == [
            (slot, "alloc_for_extend", step) for slot, step in zip(takers, (5, 6), strict=True)
        ]
        assert taken[-1][0] == (takers[-1], generations[takers[-1]])
        assert life.owner == (owner, 1), "who took it does not own it"
        assert "; taken from there by slot " in life.text()

    @pytest.mark.parametrize("of_page", [True, False], ids=["slots of page 0", "an unset row"])
    def test_a_free_of_page_0_that_no_probe_stopped_names_whose_and_whether_it_meant_a_page(self, swa, guard, of_page):
        slot = held(swa.start(prompt(1, 40))).req_pool_idx
        context = copy_context()
        context.run(BY.set, (slot, 1))
        slots = torch.arange(16) if of_page else torch.zeros(16, dtype=torch.int64)
        # Outside a group a release may name page ids alone.
        swa.allocator.free_group_begin()
        context.run(swa.allocator.free, slots)
        swa.allocator.free_group_end()
        found = swa.audit()
        report(found, found.findings, "step", Leak.DUMP, guard)
        (incident,) = group([read_dump(entry.path) for entry in DumpStore(guard.root).list()])
        finding = conclude(incident)[0]
        assert (finding.rule, finding.defect, finding.confidence) == (
            "unset-slot-freed",
            Defect.ZERO,
            Confidence.LIKELY,
        )
        assert finding.structure is (Structure.FREE_CALL if of_page else None)
        said = {piece.field.rpartition(".")[2]: piece.value for piece in finding.evidence if "events." in piece.field}
        assert (said["by_request_slot"], said.get("slots")) == (slot, 16 if of_page else None)

    def test_the_dump_shows_lives_and_tells_a_free_that_was_lost(self, swa, guard):
        request = swa.start(prompt(1, 40))
        slot = held(request).req_pool_idx
        swa.finish(request)
        dump = self._dump_of_a_lost_free(swa, guard)
        assert "were given back, and no free list has them" in dump.manifest.summary
        ((pool_name, _), (life,)) = next(iter(lives(dump).items()))
        assert (pool_name, life.owner) == ("full", (slot, 1))
        assert "alloc_for_extend, step 0; given to the prefix cache, step 0; given back by" in life.text()

    @pytest.mark.parametrize(
        ("wrong", "verdict", "rule"),
        [
            (lambda swa, request: swa.requests.remove(request), "pool_leak", "finished-requests-not-released"),
            (lambda swa, request: swa.allocator.free(row_of(swa, request)), "freed_in_use", "freed-while-held"),
        ],
        ids=["never released", "freed early"],
    )
    def test_a_pages_owners_are_all_named_not_the_newest_alone(self, swa, guard, cli, tmp_path, wrong, verdict, rule):
        owners = []
        for step in (1, 2, 3):
            ledger_of(swa.allocator).step = step
            request = swa.start(prompt(step, 40))
            slot = held(request).req_pool_idx
            owners.append((slot, generations_of(swa.rows)[slot]))
            if step < 3:
                swa.finish(request)
                swa.tree.evict(EvictParams(num_tokens=64, swa_num_tokens=64))
                swa.allocator.full_attn_allocator.merge_and_sort_free()
        wrong(swa, request)
        found = swa.audit()
        report(found, found.findings, "idle", Leak.DUMP, guard)
        path = next(e.path for e in DumpStore(guard.root).list() if read_dump(e.path).manifest.verdict == verdict)
        html, texts = tmp_path / "report.html", [f"slot {slot}, generation {number}: " for slot, number in owners]
        listed = json.loads(cli("audit", path, "--json")[1])["audits"][0]["lives"][0]["lives"]
        assert [tuple(one["owner"].values()) for one in listed] == owners
        cli("report", path, "-o", html)
        for text in (cli("audit", path)[1], html.read_text()):
            assert all(one in text for one in texts)
        # The newest stands in the finding as what the rule says of it.
        diagnosed = json.loads(cli("diagnose", path, "--json")[1])["incidents"][0]["findings"][0]
        assert diagnosed["rule"] == rule
        before = [piece for piece in diagnosed["evidence"] if " before: slot " in piece["meaning"]]
        assert [piece["value"] for piece in before] == [slot for slot, _ in owners[:2]]
        assert all(text in piece["meaning"] for text, piece in zip(texts, before, strict=False))

    def test_pages_that_a_call_takes_beyond_what_it_gives_are_told_by_the_lists_about_it(self, swa, guard, monkeypatch):
        pool = swa.allocator.swa_attn_allocator
        ledger_of(swa.allocator)
        count, kernel = pool.free_pages.numel(), alloc_kernels.alloc_extend_kernel
        of_release = not getattr(pool, "use_triton_kernels", True)
        right = paged.alloc_extend_naive if of_release else kernel[()]

        def takes_more(prefix_lens, seq_lens, last_loc, free_pages, out_indices, *sizes):
            right(prefix_lens, seq_lens, last_loc, free_pages, out_indices, *sizes)
            if free_pages.numel() == count:
                pool.free_pages = pool.free_pages[:-2]

        place = (paged, "alloc_extend_naive") if of_release else (kernel, "_function")
        monkeypatch.setattr(*place, takes_more)
        swa.start(prompt(1, 40))
        found = swa.audit()
        report(found, found.findings, "step", Leak.DUMP, guard)
        (dump,) = [read_dump(entry.path) for entry in DumpStore(guard.root).list()]
        assert dump.manifest.scalars["swa_dropped"] == "2:5:1"
        (incident,) = group([dump])
        finding = conclude(incident)[0]
        assert (finding.structure, finding.defect) == (Structure.SWA_FREE_LIST, Defect.LOST)

    @pytest.mark.parametrize("lost_in", ["hand-out", "listed twice", "free list"])
    def test_of_a_free_page_in_anothers_place_the_lists_about_the_call_tell_what_is_wrong(
        self, swa, guard, monkeypatch, lost_in
    ):
        pool = swa.allocator.swa_attn_allocator
        # It sees the pools from here on.
        ledger_of(swa.allocator)
        first, other = int(pool.free_pages[0]), int(pool.free_pages[-1])
        count, kernel = pool.free_pages.numel(), alloc_kernels.alloc_extend_kernel
        # On a CPU 0.5.23 has a form of its own of what the kernel does.
        of_release = not getattr(pool, "use_triton_kernels", True)
        right = paged.alloc_extend_naive if of_release else kernel[()]

        def gives_another(prefix_lens, seq_lens, last_loc, free_pages, out_indices, *sizes):
            right(prefix_lens, seq_lens, last_loc, free_pages, out_indices, *sizes)
            if free_pages.numel() == count:
                out_indices[out_indices // 16 == first] += (other - first) * 16

        by_call = lost_in == "hand-out"
        if by_call:
            place = (paged, "alloc_extend_naive") if of_release else (kernel, "_function")
            monkeypatch.setattr(*place, gives_another)
        elif lost_in == "listed twice":
            pool.free_pages = torch.where(pool.free_pages == first, other, pool.free_pages)
        swa.start(prompt(1, 40))
        if lost_in == "free list":
            # What was handed out stands where a page is that is still free.
            pool.free_pages = torch.where(pool.free_pages == other, first, pool.free_pages)
        found = swa.audit()
        report(found, found.findings, "step", Leak.DUMP, guard)
        dumps = [read_dump(entry.path) for entry in DumpStore(guard.root).list()]
        assert {dump.manifest.scalars["swa_lost_in"] for dump in dumps} == {lost_in}
        (incident,) = group(dumps)
        finding = conclude(incident)[0]
        assert (finding.rule, finding.confidence) == ("free-list-entry-wrong", Confidence.CERTAIN)
        assert (finding.structure, finding.defect) == {
            "hand-out": (Structure.ALLOCATION, Defect.STALE),
            "listed twice": (Structure.SWA_FREE_LIST, Defect.DUPLICATE),
            "free list": (Structure.SWA_FREE_LIST, Defect.FOREIGN),
        }[lost_in]
        assert ("the call is wrong, and not the list" in finding.cause) is by_call

    @pytest.mark.parametrize("named_by", ["free list", "hand-out"])
    def test_of_a_page_that_is_given_while_in_use_the_lists_tell_whether_one_of_them_named_it(
        self, swa, guard, monkeypatch, named_by
    ):
        pool = swa.allocator.swa_attn_allocator
        ledger_of(swa.allocator)
        opened = int(pool.free_pages[0])
        swa.start(prompt(1, 40))
        assert swa.faults() == {}
        if named_by == "free list":
            pool.free_pages = torch.cat((torch.tensor([opened], dtype=pool.free_pages.dtype), pool.free_pages))
        else:
            following, kernel = int(pool.free_pages[0]), alloc_kernels.alloc_extend_kernel
            of_release = not getattr(pool, "use_triton_kernels", True)
            right = paged.alloc_extend_naive if of_release else kernel[()]

            def gives_the_first_again(prefix_lens, seq_lens, last_loc, free_pages, out_indices, *sizes):
                right(prefix_lens, seq_lens, last_loc, free_pages, out_indices, *sizes)
                if free_pages.numel() == pool.free_pages.numel():
                    out_indices[out_indices // 16 == following] += (opened - following) * 16

            place = (paged, "alloc_extend_naive") if of_release else (kernel, "_function")
            monkeypatch.setattr(*place, gives_the_first_again)
        swa.start(prompt(2, 24))
        found = swa.audit()
        report(found, found.findings, "step", Leak.DUMP, guard)
        dumps = [read_dump(entry.path) for entry in DumpStore(guard.root).list()]
        told = [dump.manifest.scalars.get("swa_given_in_use") for dump in dumps]
        assert set(told) == {named_by}
        (incident,) = group(dumps)
        findings = {finding.rule: finding for finding in conclude(incident)}
        shared = findings["swa-page-shared"]
        assert (shared.structure, shared.defect) == (
            Structure.SWA_FREE_LIST if named_by == "free list" else Structure.ALLOCATION,
            Defect.DUPLICATE,
        )
        assert shared.confidence is not Confidence.POSSIBLE

    def test_an_swa_slot_for_padding_is_told(self, swa, guard):
        swa.start(prompt(1, 40))
        assert swa.faults() == {}
        swa.allocator.full_to_swa_index_mapping[0] = 20
        found = swa.audit()
        report(found, found.findings, "step", Leak.DUMP, guard)
        (dump,) = [read_dump(entry.path) for entry in DumpStore(guard.root).list()]
        assert dump.manifest.scalars["padding_leads_to"] == 20
        assert "for 1 slot of page 0" in dump.manifest.summary
        (incident,) = group([dump])
        finding = conclude(incident)[0]
        assert (finding.rule, finding.structure) == ("mapping-cleared-wrong", Structure.SWA_MAPPING)
        assert "page 0, which is for padding" in finding.cause

    def test_a_request_that_counts_no_slots_runs_still_and_its_pages_are_lost_by_its_count(self, swa, guard):
        swa.start(prompt(1, 40))
        request = swa.start(prompt(2, 40))
        assert swa.faults() == {}
        ledger_of(swa.allocator).step += 5
        held(request).kv_allocated_len = 0
        found = swa.audit()
        report(found, found.findings, "step", Leak.DUMP, guard)
        dumps = [read_dump(entry.path) for entry in DumpStore(guard.root).list()]
        slot = held(request).req_pool_idx
        assert all(str(slot) in dump.manifest.scalars["running"].split(",") for dump in dumps)
        (incident,) = group(dumps)
        finding = conclude(incident)[0]
        assert (finding.rule, finding.structure, finding.defect) == (
            *("pages-leaked", Structure.REQUEST_COUNTERS, Defect.ZERO),
        )
        assert f"in slot {slot}, still runs, and counts slots for 0 tokens" in finding.cause
