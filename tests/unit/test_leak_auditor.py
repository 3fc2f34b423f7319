"""When an audit runs, what of it is news, and which failures of SGLang's own checks it lets pass."""

from types import SimpleNamespace

import numpy as np
import pytest

from gemma4_runtime import current
from gemma4_runtime.checks.page_census import Fault, Finding
from gemma4_runtime.leak import auditor as module
from gemma4_runtime.leak.audit import Audit, CannotAudit
from gemma4_runtime.leak.auditor import Auditor
from gemma4_runtime.leak.whereabouts import Reading
from gemma4_runtime.probes import leak_audit
from gemma4_runtime.settings import Leak
from published import published

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")


@pytest.fixture(autouse=True)
def one_rank():
    with published(SimpleNamespace()):
        yield


def lost(*pages, fault=Fault.NOWHERE, pool="full"):
    return Finding(fault, pool, np.array(pages), np.zeros(len(pages), int))


def without_row(slot=None):
    """Return a request that waits; with a slot it has a row."""
    return SimpleNamespace(req_pool_idx=slot)


class World:
    """An auditor whose audits find `findings`. reported: [(site, verdict, pages)] of what reached a dump."""

    def __init__(self, monkeypatch, leak=Leak.DUMP, every=0):
        self.findings, self.reported, self.audits = (), [], 0
        settings = SimpleNamespace(leak=leak, leak_every=every)
        monkeypatch.setattr(current, "in_force", SimpleNamespace(settings=settings, guard=SimpleNamespace(root=None)))
        monkeypatch.setattr(module, "write_tally", lambda root, tally: None)
        monkeypatch.setattr(module, "audit", self._audit)
        monkeypatch.setattr(module, "report", self._report)
        self.ledger = SimpleNamespace(step=0, page_size=16, pools={}, log=SimpleNamespace(count=1, pump=lambda: None))
        self.auditor = Auditor(self.ledger)
        monkeypatch.setattr(leak_audit, "auditor_of", lambda allocator: self.auditor)
        self.scheduler = SimpleNamespace(
            disaggregation_mode=SimpleNamespace(value="null"),
            ps=SimpleNamespace(pp_size=1),
            enable_hisparse=False,
            token_to_kv_pool_allocator=None,
            req_to_token_pool=None,
            tree_cache=None,
            running_batch=None,
            last_batch=None,
            cur_batch=None,
            cur_batch_for_debug=None,
            chunked_req=None,
            waiting_queue=[],
            is_fully_idle=lambda: True,
        )

    def _audit(self, *places):
        self.audits += 1
        if isinstance(self.findings, Exception):
            raise self.findings
        return Audit(tuple(self.findings), (), self.ledger, Reading((), None, np.empty(0, np.int64), {}, {}))

    def _report(self, audit, news, site, leak, guard, before):
        self.reported += [(site, finding.verdict, finding.pages.tolist()) for finding in news]

    def idle(self, *findings):
        """Something happened, and the server is idle again."""
        self.findings = findings
        self.ledger.log.count += 1
        leak_audit.before_idle(self.scheduler)


@pytest.fixture
def world(monkeypatch):
    return World(monkeypatch)


class TestNews:
    def test_what_was_reported_stays_silent(self, world):
        world.idle(lost(3, 4))
        world.idle(lost(3, 4))
        assert world.reported == [("idle", "pool_leak", [3, 4])]

    def test_only_the_new_pages_of_a_finding_are_told(self, world):
        world.idle(lost(3))
        world.idle(lost(3, 7))
        assert [pages for _, _, pages in world.reported] == [[3], [7]]

    def test_another_fault_or_pool_of_the_page_is_news(self, world):
        world.idle(lost(3))
        world.idle(lost(3), lost(3, pool="swa"), lost(3, fault=Fault.FREE_TWICE))
        assert [verdict for _, verdict, _ in world.reported] == ["pool_leak", "pool_leak", "double_free"]

    def test_what_has_gone_may_come_again(self, world):
        world.idle(lost(3))
        world.idle()
        world.idle(lost(3))
        assert len(world.reported) == 2


class TestWhen:
    def test_idle_is_audited_once_until_something_happens(self, world):
        world.idle()
        leak_audit.before_idle(world.scheduler)
        assert world.audits == 1

    def test_an_idle_server_without_events_is_audited_from_time_to_time_and_not_all_the_time(self, world, monkeypatch):
        now = [100.0]
        monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
        world.idle()
        world.findings = (lost(3),)
        leak_audit.before_idle(world.scheduler)
        assert (world.audits, world.reported) == (1, [])
        now[0] += module.IDLE_EVERY_S
        leak_audit.before_idle(world.scheduler)
        leak_audit.before_idle(world.scheduler)
        assert (world.audits, world.reported) == (2, [("idle", "pool_leak", [3])])

    def test_requests_that_wait_while_none_runs_are_a_standstill(self, world, monkeypatch):
        now, scheduler = [100.0], world.scheduler
        monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
        scheduler.is_fully_idle, world.findings = lambda: False, (lost(3, fault=Fault.LOCKED_AT_IDLE),)
        scheduler.waiting_queue = [without_row()]
        leak_audit.before_idle(scheduler)
        now[0] += module.STANDSTILL_S / 2
        leak_audit.before_idle(scheduler)
        assert not world.audits
        # A batch that ran begins it anew.
        leak_audit.before_run_batch(scheduler)
        now[0] += module.STANDSTILL_S / 2
        leak_audit.before_idle(scheduler)
        assert not world.audits
        now[0] += module.STANDSTILL_S
        leak_audit.before_idle(scheduler)
        leak_audit.before_idle(scheduler)
        assert (world.audits, [site for site, _, _ in world.reported]) == (1, ["standstill"])

    def test_a_request_that_waits_with_a_row_of_its_own_is_none(self, world, monkeypatch):
        now, scheduler = [100.0], world.scheduler
        monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
        scheduler.is_fully_idle, scheduler.waiting_queue = lambda: False, [without_row(), without_row(3)]
        for _ in range(3):
            leak_audit.before_idle(scheduler)
            now[0] += module.STANDSTILL_S
        assert not world.audits

    def test_audits_that_take_long_come_less_often(self, world, monkeypatch):
        now = [100.0]
        monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
        run = Auditor._run
        monkeypatch.setattr(Auditor, "_run", lambda *args, **more: (run(*args, **more), now.append(now.pop() + 2.0)))
        world.idle()
        now[0] += 1 / module.IDLE_SHARE
        leak_audit.before_idle(world.scheduler)
        assert world.audits == 1
        now[0] += 1 / module.IDLE_SHARE
        leak_audit.before_idle(world.scheduler)
        assert world.audits == 2

    def test_a_server_that_is_not_idle_is_left_alone(self, world):
        world.scheduler.is_fully_idle = lambda: False
        leak_audit.before_idle(world.scheduler)
        leak_audit.before_flush(world.scheduler)
        assert world.audits == 0

    def test_every_so_many_steps(self, monkeypatch):
        world = World(monkeypatch, every=3)
        for _ in range(7):
            leak_audit.before_run_batch(world.scheduler)
            leak_audit.before_next_batch(world.scheduler)
        assert world.audits == 2
        assert world.auditor.runs == {"scheduler step": 2}

    def test_never_between_idles_unless_asked(self, world):
        for _ in range(50):
            leak_audit.before_run_batch(world.scheduler)
            leak_audit.before_next_batch(world.scheduler)
        assert world.audits == 0

    def test_what_cannot_be_audited_is_tried_once(self, world):
        world.idle()
        world.findings = CannotAudit("HiRadixCache")
        world.ledger.log.count += 1
        leak_audit.before_idle(world.scheduler)
        world.idle()
        assert world.audits == 2
        assert world.auditor.cannot == "HiRadixCache"


class TestSglangsOwnChecks:
    @staticmethod
    def fails(error):
        def check(*args):
            raise error

        return check

    def checker(self, error):
        return leak_audit.around_report_leak(
            self.fails(error), SimpleNamespace(token_to_kv_pool_allocator=None), "", ""
        )

    def test_what_the_audit_has_named_passes(self, world):
        world.idle(lost(3))
        assert self.checker(ValueError("pool memory leak detected!")) is None
        assert world.auditor.passed == {"check": 1}

    def test_what_came_since_the_audit_is_audited_before_sglang_fails_on_it(self, world):
        world.idle()
        world.findings = (lost(3),)
        assert self.checker(ValueError("pool memory leak detected!")) is None
        assert world.reported == [("idle", "pool_leak", [3])]

    def test_of_a_server_that_is_at_work_again_nothing_is_audited_anew(self, world):
        world.idle()
        leak_audit.before_next_batch(world.scheduler)
        world.findings = (lost(3),)
        with pytest.raises(ValueError, match="memory leak"):
            self.checker(ValueError("pool memory leak detected!"))
        assert world.audits == 1

    def test_what_it_has_not_named_does_not(self, world):
        world.idle(lost(3, pool="requests"))
        with pytest.raises(ValueError, match="memory leak"):
            self.checker(ValueError("pool memory leak detected!"))

    def test_another_exception_passes_on(self, world):
        world.idle(lost(3))
        with pytest.raises(UnicodeError):
            self.checker(UnicodeError("a ValueError too"))

    def test_with_raise_sglang_stops(self, monkeypatch):
        world = World(monkeypatch, leak=Leak.RAISE)
        world.idle(lost(3))
        with pytest.raises(ValueError, match="memory leak"):
            self.checker(ValueError("pool memory leak detected!"))
