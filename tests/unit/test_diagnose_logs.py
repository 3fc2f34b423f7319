"""Logs beside dumps: one cause is one finding, with values of both; what only a log says is a finding too."""

import json
import re
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnose_examples import CORPUS, OTHERS, ROOT, altered, corpus_dump, crash_log, guards_only, of
from gemma4_dumps.store import DumpStore
from gemma4_runtime.errors import TrappedViolation
from gemma4_triage.diagnose.assign_logs import assign_logs
from gemma4_triage.diagnose.catalog import RULES
from gemma4_triage.diagnose.conclude import conclude
from gemma4_triage.diagnose.evidence import is_guard
from gemma4_triage.diagnose.grouping import group
from gemma4_triage.diagnose.incident import Incident, LogLink
from gemma4_triage.diagnose.material import read_store
from gemma4_triage.finding import Confidence, Evidence, Finding, Kind
from gemma4_triage.logs.catalog import findings
from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.logs.read import read_log
from made_logs import death, decode, prefill, stamp, started, steady

ILLEGAL = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
LEAK = "ValueError: pool memory leak detected! [swa] total=1024, available=752, evictable=256, protected=0"
NO_SLOT = "RuntimeError: Decode out of memory. Try to lower your batch size."
SIZES = "RuntimeError: The size of tensor a (2) must match the size of tensor b (120) at non-singleton dimension 0"
VERIFY_INPUT = "AttributeError: 'FrozenKVMTPVerifyInput' object has no attribute 'merge_batch'"
SEED = corpus_dump("swa-state-stale", "wrong_space")
ON_CPU = decode(1).replace("cuda graph", "cpu graph")
POOLS = "Use sliding window memory pool. full_layer_tokens=2560, swa_layer_tokens=1024\n"
EAGER = (
    f"{stamp(2)} Scheduler hit an exception: Traceback (most recent call last):\n"
    f'  File "/srv/sglang/runner.py", line 3, in _eager_fb_view\n    copy()\n{SIZES}\n\n'
)


def log_of(*lines: str, name: str = "server.log") -> LogFacts:
    return read_log(name, ["".join(lines).encode()])


def concluded(incident: Incident) -> tuple[Finding, ...]:
    return conclude(incident, [one for facts in incident.logs for one in findings(facts)])


def both(case: str, verdict: str, *logs: LogFacts) -> tuple[Finding, ...]:
    return concluded(of(altered(corpus_dump(case, verdict)), logs=logs))


def sources(finding: Finding) -> list[str]:
    return list(dict.fromkeys(piece.source for piece in finding.evidence))


class TestOneCause:
    @pytest.mark.parametrize(
        ("case", "verdict", "log", "cause"),
        [
            ("eager-out-cache-loc", "stale_write_rows", log_of(decode(1), EAGER), "write-locations-left-over"),
            (
                "hybrid-pool-unswapped",
                "wrong_space",
                crash_log("IndexError: list index out of range", "memory_pool.py"),
                "pool-swap-missed-leaf",
            ),
            ("unmergeable-spec-info", "unusable_spec_info", crash_log(VERIFY_INPUT), "verify-input-left-on-batch"),
            ("swa-state-stale", "wrong_space", crash_log(ILLEGAL), "draft-swa-state-stale"),
            ("page-past-the-end", "out_of_range", crash_log(ILLEGAL), "page-past-pool-end"),
            ("negative-page", "negative", crash_log(ILLEGAL), "unassigned-page"),
            ("double-bookkeeping", "pool_leak", crash_log(LEAK), "finished-requests-not-released"),
            ("page-over-count", "null_page_live", crash_log(LEAK), "evicted-page-counted"),
            ("alloc-on-one-pool", "pool_leak", crash_log(NO_SLOT), "failed-allocation-keeps-pages"),
            (
                "swa-alloc-oob",
                "alloc_out_of_range",
                crash_log("IndexError: index 1040 is out of bounds for dimension 0 with size 1040"),
                "allocator-past-pool-end",
            ),
        ],
    )
    def test_it_is_one_finding_with_values_of_both(self, case, verdict, log, cause):
        (without,) = both(case, verdict)
        (finding,) = both(case, verdict, log)
        assert (finding.rule, finding.confidence) == (cause, without.confidence)
        assert finding.evidence[: len(without.evidence)] == without.evidence
        assert finding.evidence[len(without.evidence)].field == "line 2"
        assert sources(finding)[-1] == "server.log"

    def test_a_draft_that_reads_wrong_pages_explains_why_its_accept_length_fell(self):
        fell = log_of(*steady(150, accept=3.5), *steady(150, start=150, accept=2.0))
        assert [finding.rule for finding in findings(fell)] == ["accept-length-drop"]
        (finding,) = both("full-draft-through-swa-map", "wrong_space", fell)
        assert finding.rule == "draft-reads-translated-ids"
        assert {3.5, 2.0} <= {piece.value for piece in finding.evidence}

    def test_the_very_cause_in_a_log_makes_it_certain(self):
        incident = OTHERS["unknown-verdict"]
        (spec_info,) = incident.dumps
        scalars = {"spec_info": "None", "requests": 1, "finished": 0}
        spec_info = altered(spec_info, rule="batch-shapes", verdict="unusable_spec_info", scalars=scalars)
        assert concluded(of(spec_info))[0].confidence is Confidence.LIKELY
        (finding,) = concluded(of(spec_info, logs=(crash_log(VERIFY_INPUT),)))
        assert (finding.rule, finding.confidence) == ("verify-input-left-on-batch", Confidence.CERTAIN)

    def test_several_logs_of_one_server_each_give_their_lines(self):
        logs = (crash_log(ILLEGAL), log_of(decode(1, rank="TP1"), death(2, ILLEGAL, "TP1"), name="rank1.log"))
        (finding,) = both("swa-state-stale", "wrong_space", *logs)
        assert sources(finding)[-2:] == ["server.log", "rank1.log"]
        (alone, aside) = concluded(Incident(logs=(crash_log(ILLEGAL), crash_log(ILLEGAL))))
        assert [alone.rule, aside.rule] == ["illegal-access", "crash-without-dump"]
        assert len(alone.evidence) == 4


class TestTheDumpThatALogNames:
    def line(self, dump: str, rule: str = "page-table-bounds") -> LogFacts:
        return log_of(decode(1), f"{stamp(2)} {rule}: page 1 [contained; seen 1 times; dump: /elsewhere/{dump}]\n")

    def test_its_finding_gets_the_line(self):
        past, leak = corpus_dump("page-past-the-end", "out_of_range"), corpus_dump("double-bookkeeping", "pool_leak")
        incident = of(altered(past), altered(leak), logs=(self.line(leak.manifest.dump_id),))
        named = [finding.rule for finding in concluded(incident) if "server.log" in sources(finding)]
        assert named == ["finished-requests-not-released"]

    def test_a_dump_that_is_not_here_stays_a_finding(self):
        found = both("page-past-the-end", "out_of_range", self.line("20200101T000000.000000Z_other"))
        assert [finding.rule for finding in found] == ["probe-stopped", "page-past-pool-end"]
        assert found[0].next_commands == ("gemma4-triage dumps show /elsewhere/20200101T000000.000000Z_other",)

    def test_a_repetition_goes_where_the_first_one_is(self):
        dumps = [altered(corpus_dump("swa-state-stale", verdict)) for verdict in ("wrong_space", "out_of_range")]
        again = altered(dumps[0], dump_id="again")
        (finding,) = concluded(of(*dumps, again, logs=(self.line("again"),)))
        assert "again" in {piece.value for piece in finding.evidence}

    def test_a_crash_whose_dump_is_elsewhere_is_not_one_without(self):
        trapped = TrappedViolation("geometry: draft pool differs", "/dumps/one")
        incident = Incident(logs=(crash_log(f"gemma4_runtime.errors.TrappedViolation: {trapped}"),))
        assert [finding.rule for finding in concluded(incident)] == ["probe-stopped"]


class TestRanking:
    def test_what_a_dump_shows_comes_before_what_only_a_log_says(self):
        found = both("one-untranslated-row", "out_of_range", crash_log(VERIFY_INPUT))
        assert [(one.rule, one.confidence) for one in found] == [
            ("row-not-translated", Confidence.CERTAIN),
            ("unmergeable-batch", Confidence.CERTAIN),
        ]

    def test_a_certain_line_comes_before_a_dump_that_nobody_understands(self):
        found = concluded(of(*OTHERS["unknown-verdict"].dumps, logs=(log_of(decode(1), EAGER),)))
        assert [finding.rule for finding in found] == ["stale-write-rows", "unknown-verdict"]

    def test_how_it_served_comes_last_however_certain(self):
        thrash = [f"{stamp(i)} KV cache pool is full. Retract requests. #retracted_reqs: 1\n" for i in range(9)]
        found = both("page-past-the-end", "out_of_range", log_of(prefill(0, full=0.97), *thrash))
        (first, *served) = [(one.rule, one.confidence) for one in found]
        assert first == ("page-past-pool-end", Confidence.LIKELY)
        assert ("retraction-thrash", Confidence.CERTAIN) in served

    def test_a_finding_from_elsewhere_is_kept(self):
        piece = Evidence(source="server.log", field="line 7", value="text", meaning="")
        theirs = Finding(rule="invented", cause="c", confidence=Confidence.CERTAIN, evidence=(piece,))
        assert [one.rule for one in conclude(OTHERS["unknown-verdict"], [theirs])] == ["invented", "unknown-verdict"]


class TestWithoutDumps:
    def test_a_crash_is_its_own_finding_and_advice_comes_after(self):
        found = concluded(Incident(logs=(crash_log(),)))
        assert [finding.rule for finding in found] == ["other-crash", "crash-without-dump"]
        assert found[1].evidence[0].value == "KeyError: 'layer_9'"

    def test_a_fault_that_the_log_names_is_said(self):
        fault = "gemma4-triage: FAULT INJECTED: swa-state-stale: on purpose\n"
        (crash, _) = concluded(Incident(logs=(log_of(fault, decode(1), death(2, ILLEGAL)),)))
        assert crash.cause.endswith("(injected on request: swa-state-stale).")
        (other, _, aside) = concluded(Incident(logs=(log_of(fault, decode(1), death(2, "KeyError: 1")),)))
        assert (other.rule, aside.rule) == ("other-crash", "injected-fault")

    def test_a_fix_that_was_attached_makes_the_log_less_certain(self):
        attached = guards_only(id="eager-out-cache-loc", kind="fix").guards
        log = log_of(started(max_running_requests=8), decode(1), EAGER)
        (alone, _) = concluded(Incident(logs=(log,)))
        (held, _) = concluded(Incident(guards=attached, logs=(log,)))
        assert (alone.confidence, held.confidence) == (Confidence.CERTAIN, Confidence.LIKELY)
        assert held.evidence[-1].source == "1.json"

    def test_a_healthy_log_is_clean(self):
        assert concluded(Incident(logs=(log_of(*steady(50)),))) == ()


def test_a_note_is_last_and_neither_is_evidence_of_the_other():
    window = altered(corpus_dump("window-one-too-wide", "window_width"))
    (alone,) = concluded(of(window, logs=(log_of(decode(1)),)))
    *crashes, note = concluded(of(altered(SEED), window, logs=(crash_log(ILLEGAL),)))
    assert (alone.kind, note.kind) == (Kind.NOTE, Kind.NOTE)
    assert note.evidence == alone.evidence
    assert [one.rule for one in crashes] == ["draft-swa-state-stale"]
    assert window.manifest.dump_id not in {piece.source for piece in crashes[0].evidence if not is_guard(piece)}


def test_a_line_about_the_releases_window_is_a_note_too():
    line = "geometry: target window_left, layers 0: found 32, expected 31 [logged; seen 1 times; dump: /d/gone]\n"
    (known,) = findings(log_of(decode(1), f"{stamp(2)} {line}"))
    (other,) = findings(log_of(decode(1), f"{stamp(2)} {line.replace('found 32', 'found 40')}"))
    assert (known.kind, other.kind) == (Kind.NOTE, Kind.CAUSE)


class TestWhichIncident:
    @pytest.fixture
    def two(self) -> list[Incident]:
        """Return two incidents of one evening, the newer first."""
        dumps = (corpus_dump("negative-page", "negative"), corpus_dump("swa-state-stale", "wrong_space"))
        incidents = group(dumps)
        assert len(incidents) == 2
        return incidents

    def at(self, time: str) -> LogFacts:
        """Return a batch line of a CPU, as the corpus' dumps are."""
        return log_of(ON_CPU.replace(ON_CPU[1:20], time))

    def placed(self, incidents: list[Incident], facts: LogFacts) -> tuple[list[int], LogLink]:
        """Return the number of logs of each incident and each run of only a log, and how this log stands."""
        found = assign_logs(incidents, [facts])
        (link,) = [link for incident in found for link in incident.log_links]
        return [len(incident.logs) for incident in found], link

    def test_the_one_whose_dump_it_names(self, two):
        named = two[1].dumps[0].manifest.dump_id
        guard = f"{stamp(2)} page-table-bounds: x [logged; seen 1 times; dump: /d/{named}]\n"
        counts, link = self.placed(two, log_of(ON_CPU, guard))
        assert (counts, link.relation, link.incident) == ([0, 1], "names", named)

    def test_a_name_that_was_pasted_into_another_servers_log_is_no_proof(self, two):
        named = two[0].dumps[0].manifest.dump_id
        guard = f"{stamp(2)} page-table-bounds: x [logged; seen 1 times; dump: /d/{named}]\n"
        start = "server_args=ServerArgs(page_size={}, model_path='a')\n"
        for lines, said in (
            ([decode(1), guard], "the log has device cuda, the dump cpu"),
            ([start.format(64), guard], "the log has page size 64, the dump 16"),
        ):
            counts, link = self.placed(two, log_of(*lines))
            assert (counts, link.relation, link.incident) == ([0, 0, 1], "apart", two[0].name)
            assert f"the log names {named}" in link.text
            assert said in link.text

    def test_nearness_in_time_is_a_guess(self, two):
        counts, link = self.placed(two, self.at("2026-11-21 16:51:40"))
        assert (counts, link.relation, link.incident) == ([0, 0, 1], "guess", two[0].name)
        assert "near in time" in link.text

    def test_a_clock_in_another_zone_is_a_guess_and_hours_that_are_no_zone_part_them(self, two):
        assert self.placed(two, self.at("2026-11-21 22:21:40"))[1].relation == "guess"
        counts, link = self.placed(two, self.at("2026-11-21 19:10:00"))
        assert (counts, link.relation) == ([0, 0, 1], "apart")
        assert "in no time zone" in link.text

    def test_without_times_it_is_a_guess(self, two):
        counts, link = self.placed(two, log_of(ON_CPU[22:]))
        assert (counts, link.relation) == ([0, 0, 1], "guess")

    def test_a_log_that_goes_on_past_a_dump_names_it_or_is_anothers(self, two):
        first, later = two[0].dumps[0].manifest.created_utc.replace(microsecond=0), "2026-11-21 16:51:59"
        lines = (ON_CPU.replace(ON_CPU[1:20], text) for text in (first.strftime("%Y-%m-%d %H:%M:%S"), later))
        _, link = self.placed(two[:1], log_of(*lines))
        assert link.relation == "apart"
        assert "does not name it" in link.text

    def test_a_log_that_begins_and_ends_with_the_server_and_agrees_is_its_own(self):
        incident = of(SEED)
        started = incident.guards[0].started_utc
        assert started is not None
        start = started.strftime("%Y-%m-%d %H:%M:%S")
        fault = "gemma4-triage: FAULT INJECTED: swa-state-stale: on purpose\n"
        begins = f"[{start}] server_args=ServerArgs(page_size=16, attention_backend='trtllm_mha')\n{POOLS}"
        counts, link = self.placed([incident], log_of(fault, begins))
        assert (counts, link.relation) == ([1], "agrees")
        for other in (begins.replace("page_size=16", "page_size=64"), begins.replace(start, start[:-2] + "00")):
            assert self.placed([incident], log_of(fault, other))[1].relation != "agrees"
        assert self.placed([incident], log_of(begins))[1].relation == "apart"
        before = begins.replace(start, (started - timedelta(seconds=5)).strftime("%Y-%m-%d %H:%M:%S"))
        assert self.placed([incident], log_of(fault, before))[1].relation == "guess"

    def test_what_most_servers_have_in_common_joins_no_log(self):
        """A replica may begin and end with a server; its page size, device and lack of faults are everyone's."""
        incident = of(altered(SEED))
        started = incident.guards[0].started_utc
        assert started is not None
        at = f"{started:%Y-%m-%d %H:%M:%S}"
        for more, relation in (("", "guess"), (POOLS, "agrees")):
            lines = (f"[{at}] server_args=ServerArgs(page_size=16)\n", more, ON_CPU.replace(ON_CPU[1:20], at))
            link = self.placed([incident], log_of(*lines))[1]
            assert (link.relation, "both have device cpu; both have injected faults: none" in link.text) == (
                relation,
                True,
            )

    def test_a_log_that_begins_after_a_dump_is_that_of_a_restart_and_no_evidence(self):
        run = ROOT / "tests" / "data" / "finished_runs" / "diff-patches"
        material = read_store(DumpStore(run / "base-trtllm_mha-mtp-on" / "dumps"), None)
        incidents = group(material.dumps, material.guards, material.ledgers)
        for arm, relation in (("base-trtllm_mha-mtp-on", "agrees"), ("with-trtllm_mha-mtp-on", "guess")):
            log = run / arm / "log.txt"
            assert self.placed(incidents, read_log("log.txt", [log.read_bytes()]))[1].relation == relation

    def test_what_the_server_was_started_with_parts_them(self, two):
        incident = of(altered(two[0].dumps[0], launch_args=["launch_server.py", "--tp-size", "1", "--tp-size", "2"]))
        for asked, told in ((1, "the log has --tp-size 1, the dump 2"), (2, "both have --tp-size 2")):
            assert told in self.placed([incident], log_of(f"server_args=ServerArgs(tp_size={asked})\n"))[1].text
        for words in (("--tp", "2"), ("--tensor-parallel-size=2",)):
            other = of(altered(two[0].dumps[0], launch_args=["launch_server.py", *words]))
            link = self.placed([other], log_of("server_args=ServerArgs(tp_size=1)\n"))[1]
            assert "the log has --tp-size 1, the dump 2" in link.text

    def test_sizes_of_a_pool_part_them_with_and_without_its_dummy_page(self):
        dump = altered(SEED, page_size=16, extents={"pages_full_pool": 65})
        sizes = "Use sliding window memory pool. full_layer_tokens={}, swa_layer_tokens=512\n"
        start = "server_args=ServerArgs(page_size=16)\n"
        told = {tokens: self.placed([of(dump)], log_of(start, sizes.format(tokens)))[1] for tokens in (1024, 1040, 4)}
        assert "the log has full pool tokens 4, the dump 1024 or 1040" in told[4].text
        assert all(f"both have full pool tokens {tokens}" in told[tokens].text for tokens in (1024, 1040))

    def test_processes_part_them_where_one_side_is_whole(self):
        """What a log says of processes, and whether it may still be that of a crash's three processes."""
        folder = ROOT / "tests" / "data" / "evidence" / "crash-0.5.23"
        material = read_store(DumpStore(folder), None)
        (incident,) = group(material.dumps, material.guards, material.ledgers)
        text = (folder / "server.log").read_text()
        assert sorted(guards.pid for guards in incident.guards if guards.pid) == [19394, 19870, 19871]

        def relation(text: str) -> str:
            return self.placed([incident], read_log("server.log", [text.encode()]))[1].relation

        def before(prefix: str) -> str:
            return "".join(f"{prefix}{line}" for line in text.splitlines(keepends=True))

        assert relation(text) == "names"
        unnamed = re.sub("gemma4-triage: .*verified.*\n", "gemma4-triage: on\n", text)
        assert relation(unnamed) == "names", "by the processes that its lines name"
        other = re.sub("19394|19870|19871", "777", unnamed)
        assert relation(other) == "apart"
        assert "the log names process 777, the guarded run 19394 or 19870 or 19871" in (
            self.placed([incident], read_log("server.log", [other.encode()]))[1].text
        )
        nothing = re.sub(r"\(pid=\d+\)|parent_pid=\d+", "", unnamed)
        assert relation(nothing) == "agrees"
        journal = "Nov 26 01:51:44 vm {}[{}]: "
        for name, pid, expected in (
            ("sglang", 19394, "names"),
            ("python3.11", 4711, "apart"),
            ("sglang", 4711, "apart"),
            # Of docker's process nothing is known.
            ("docker", 4711, "names"),
            ("start.sh", 4711, "names"),
        ):
            assert relation(before(journal.format(name, pid))) == expected
        assert relation(before("(SGLang pid=4711) ")) == "apart"
        lines = [json.dumps({"_PID": "4711", "_COMM": "sglang", "MESSAGE": line}) for line in text.splitlines()]
        assert relation("\n".join(lines)) == "apart"
        # A container numbers its processes itself, so that a collector outside of it has other numbers.
        for guards in incident.guards:
            guards.fields["process"]["pid_namespace"] = "pid:[4026532999]"
        assert relation(before(journal.format("sglang", 4711))) == "names"
        assert relation(other) == "apart"

    def test_of_a_dump_alone_only_its_scheduler_can_be_named(self):
        pid = SEED.manifest.host.pid
        start = "server_args=ServerArgs(page_size=16, tp_size={})\n"
        crashed = "[2026-11-21 16:51:40] Subprocess scheduler_0 (pid={}) crashed with exit code -9. Triggering\n"
        up = "INFO:     Started server process [{}]\n"
        pinned = "Process {} gpu_id 0 is running on CPUs: [0]\n"
        nccl = "vm:{}:77 [0] NCCL INFO Bootstrap: Using eth0\n"
        for line in (crashed, pinned, nccl):
            for named, size, parted in ((pid, 1, False), (777, 1, True), (777, 2, False)):
                text = self.placed([of(SEED)], log_of(ON_CPU, start.format(size), line.format(named)))[1].text
                assert (f"the log names process 777, the dump {pid}" in text) == parted
        # Of a scheduler whose rank the log says, the dump of that rank has to be.
        two = self.placed([of(SEED)], log_of(ON_CPU, start.format(2), crashed.format(777)))[1].text
        assert f"the log has process 777 as scheduler 0, the dump of that rank {pid}" in two
        # The launcher has another number than the scheduler, and so has the detokenizer.
        others = (up.format(777), crashed.replace("scheduler_0", "detokenizer_0").format(777))
        assert "process" not in self.placed([of(SEED)], log_of(ON_CPU, start.format(1), *others))[1].text
        # Of several starts nobody knows which one's it is.
        twice = log_of(ON_CPU, start.format(1), start.format(1), crashed.format(777))
        assert "process 777" not in self.placed([of(SEED)], twice)[1].text

    RANKS = (
        # tp_size, which schedulers die by the log as rank and process, and what parts it from dumps of two ranks
        (2, {0: 4100, 1: 4101}, ""),
        (2, {1: 4101}, ""),
        (2, {0: 4101}, "the log has process 4101 as scheduler 0, the dumps of that rank 4100"),
        (2, {1: 9999}, "the log has process 9999 as scheduler 1, the dumps of that rank 4101"),
        (2, {0: 9998, 1: 9999}, "the log names process 9998 or 9999, the dumps 4100 or 4101"),
        (1, {0: 4100}, "the log is of 1 rank, the dumps of rank 1"),
        (4, {0: 4100, 1: 4101, 2: 4102, 3: 4103}, ""),
    )

    @pytest.mark.parametrize(("size", "named", "parted"), RANKS)
    def test_dumps_of_several_ranks_are_held_against_a_log_rank_by_rank(self, size, named, parted):
        incident = self.of_two_ranks()
        crashed = (
            "[2026-11-21 16:50:50 TP{0}] Subprocess scheduler_{0} (pid={1}) crashed with exit code -9. Triggering\n"
        )
        lines = [crashed.format(rank, pid) for rank, pid in named.items()]
        facts = log_of(f"server_args=ServerArgs(page_size=16, tp_size={size})\n", *lines)
        assert {dump.manifest.host.rank for dump in incident.dumps} == {0, 1}
        counts, link = self.placed([incident], facts)
        if parted:
            assert (counts, link.relation) == ([0, 1], "apart")
            assert parted in link.text
        else:
            assert (counts, link.relation) == ([1], "names")
            assert "both have process 410" in link.text

    def test_a_container_numbers_its_processes_as_its_replica_does(self):
        incident = self.of_two_ranks(namespace="pid:[4026532999]")
        line = "[2026-11-21 16:50:50] Subprocess scheduler_1 (pid=4101) crashed with exit code -9. Triggering\n"
        facts = log_of("[2026-11-21 16:49:50] server_args=ServerArgs(page_size=16, tp_size=2)\n", line)
        assert self.placed([incident], facts)[1].relation == "guess"

    def of_two_ranks(self, namespace: str = "pid:[4026531836]") -> Incident:
        both = [
            altered(
                SEED,
                dump_id=f"rank-{rank}",
                host=SEED.manifest.host.model_copy(update={"rank": rank, "pid": 4100 + rank}),
                guards=altered(SEED).manifest.guards | {"process": {"pid_namespace": namespace}, "pid": 4100 + rank},
            )
            for rank in (0, 1)
        ]
        (incident,) = group(both)
        return incident

    def test_what_torch_and_glog_put_before_a_line_names_its_process_or_thread(self):
        lines = (
            b"W1126 10:00:00.123000 4101 torch/_dynamo/convert_frame.py:1016] [0/8] torch._dynamo hit config.x\n",
            b"[rank1]:W1126 10:00:00.123000 4102 torch/_logging/_internal.py:1345] Profiler function\n",
            b"I1126 10:00:00.123456 4103 transfer_engine.cpp:44] Transfer Engine starting\n",
            b"E1126 10:00:00.123000 4104 torch/distributed/elastic/multiprocessing/api.py:900] failed (exitcode: -9) "
            b"local_rank: 1 (pid: 4105) of binary: /usr/bin/python3\n",
            b"W1126 10:00:00.123000 4104 torch/distributed/elastic/multiprocessing/api.py:898] Sending process 4106 "
            b"closing signal SIGTERM\n",
            b"W1126 10:00:00.123000 140012345678901 torch/distributed/run.py:766] an older torch's threads\n",
            b"I1126 10:00:00.123456 is no number.cc:12]\n",
        )
        facts = read_log("server.log", [b"".join(lines)])
        assert facts.pids["other"] == (4101, 4102, 4104, 4105, 4106)
        assert facts.pids["thread"] == (4103,)
        # A thread that is no process proves nothing; one that is a process' first one is that process.
        incident = self.of_two_ranks()
        for tid, relation in ((4101, "names"), (777, "guess")):
            line = f"I1121 16:51:40.123456 {tid} transfer_engine.cpp:44] Transfer Engine starting\n"
            start = "[2026-11-21 16:49:50] server_args=ServerArgs(page_size=16, tp_size=2)\n"
            assert self.placed([incident], log_of(start, line))[1].relation == relation

    def test_the_first_dump_that_a_log_names_is_the_one_that_is_said(self, two):
        said = "page-table-bounds: x [logged; seen 1 times; dump: /d/20260101T00000{}.1Z_vm_r0_p1_x_1]\n"
        guards = [f"{stamp(second)} {said.format(second)}" for second in (1, 2)]
        _, link = self.placed(two, log_of(decode(1), *guards))
        assert "another dump, 20260101T000001" in link.text

    def test_beside_nothing_it_is_a_run(self):
        counts, link = self.placed([], self.at("2026-12-01 03:00:00"))
        assert (counts, link.text) == ([1], "")


FOREIGN = [
    read_log(path.name, [path.read_bytes()]) for path in sorted((ROOT / "tests" / "data" / "logs").glob("*.log"))
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", sorted(path.name for path in CORPUS.iterdir()))
def test_no_foreign_log_changes_what_is_found(case):
    material = read_store(DumpStore(CORPUS / case), None)
    incidents = group(material.dumps, material.guards, material.ledgers)
    before = [concluded(incident) for incident in incidents]
    for facts in FOREIGN:
        after = assign_logs(incidents, [facts])
        assert [concluded(incident) for incident in after[: len(incidents)]] == before, facts.name
        assert after[-1].logs == (facts,)
        assert after[-1].log_links[0].relation in ("guess", "apart", "alone")


def test_what_rules_say_of_logs_exists():
    from gemma4_triage.logs.catalog import ENDINGS, FALLBACKS, LOADS
    from gemma4_triage.logs.rules import other_crash

    of_logs = {rule.id for rule in (*ENDINGS, *FALLBACKS, *LOADS)} | {other_crash.ID}
    assert not of_logs & {rule.id for rule in RULES}
    named = [name for rule in RULES for name in (*rule.in_logs, *rule.leads_to)]
    assert set(named) <= of_logs
    causes = [name for rule in RULES for name in rule.in_logs]
    assert sorted(causes) == sorted(set(causes))


def test_a_leak_of_one_pool_is_no_crash_of_another():
    found = {one.rule for one in both("page-past-the-end", "out_of_range", crash_log(LEAK))}
    assert found == {"page-past-pool-end", "pool-leak"}


PIECES = st.sampled_from(
    [
        prefill(0),
        decode(1, swa=0.95),
        decode(2, accept=1.0, rank="TP1"),
        EAGER,
        death(3, ILLEGAL),
        death(3, LEAK),
        death(4, VERIFY_INPUT, "TP1"),
        death(5, "gemma4_runtime.errors.TrappedViolation: geometry: x [dump: /d/20261121T000000.000000Z_gone]"),
        f"{stamp(6)} page-table-bounds: y [logged; seen 2 times; dump: /d/{SEED.manifest.dump_id}]\n",
        "gemma4-triage: FAULT INJECTED: swa-state-stale: z\n",
        "Traceback (most recent call last):\n",
        "\x1b[31m\x00 ] total=9, available=1\n",
    ]
)


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(st.lists(PIECES, max_size=12), max_size=3), st.booleans())
def test_whatever_stands_in_logs_the_dump_keeps_its_cause(texts, with_dump):
    logs = [log_of(*lines, name=f"{number}.log") for number, lines in enumerate(texts)]
    incidents = [of(altered(SEED))] if with_dump else []
    assigned = assign_logs(incidents, logs)
    assert sorted(facts.name for one in assigned for facts in one.logs) == [facts.name for facts in logs]
    for incident in assigned:
        found = concluded(incident)
        names = {facts.name for facts in incident.logs} | {dump.manifest.dump_id for dump in incident.dumps}
        assert {piece.source for finding in found for piece in finding.evidence} <= names
        assert not incident.dumps or "draft-swa-state-stale" in {finding.rule for finding in found}
        # Nothing that the log says is lost.
        for facts in incident.logs:
            for theirs in findings(facts):
                assert any(set(theirs.evidence) <= set(finding.evidence) for finding in found)
