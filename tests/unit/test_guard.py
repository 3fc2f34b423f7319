"""The guard under load and in trouble: within the caps, everything counted, nothing masked."""

import logging
import subprocess
import sys
import textwrap
import time
import traceback
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from gemma4_dumps.caps import RateLimit, StoreCaps
from gemma4_dumps.draft import DumpDraft
from gemma4_dumps.drop_counters import dropped_so_far, flush_dropped
from gemma4_dumps.reader import read_dump
from gemma4_dumps.schema import Graph, Layer, Provenance
from gemma4_dumps.store import DumpStore
from gemma4_runtime.checks.violation import BadIndex, Violation
from gemma4_runtime.errors import TrappedViolation
from gemma4_runtime.evidence import offences
from gemma4_runtime.guard import Guard
from gemma4_runtime.settings import Mode

RULE, SITE = "page-table-bounds", "TRTLLMHAAttnBackend.init_forward_metadata"
FOUND = Violation("out_of_range", (BadIndex(0, 0, 70, 0, 65),), 1)


def draft(**more) -> DumpDraft:
    told = {"summary": "1 page id is at or above 65.", "offences": offences(FOUND.listed, "page_table")}
    return DumpDraft(rule=RULE, verdict=FOUND.verdict, site=SITE, **told | more)


def no_context() -> dict:
    return {}


def used_bytes(root: Path) -> int:
    return sum(file.stat().st_size for path in root.iterdir() if path.is_dir() for file in path.iterdir())


class TestLoad:
    @pytest.fixture(autouse=True)
    def quiet(self, caplog):
        caplog.set_level(logging.CRITICAL, logger="gemma4_runtime.guard")

    @pytest.mark.parametrize("signatures", [1, 500])
    def test_ten_thousand_violations_a_second(self, tmp_path, signatures):
        caps = StoreCaps(count=8, total_bytes=20_000, logged_per_minute=60)
        guard = Guard(Mode.LOG, tmp_path, no_context, caps)
        begin_s, written = time.process_time(), 0
        for number in range(10_000):
            written += guard.report(FOUND, RULE, SITE, draft, key=(number % signatures,)) is not None
            if number % 500 == 0:
                assert len(DumpStore(tmp_path).names()) <= caps.count
                assert used_bytes(tmp_path) <= caps.total_bytes
        took_s = time.process_time() - begin_s
        print(f"10^4 violations of {signatures} kinds: {took_s:.2f} s CPU, {written} dumps")
        assert took_s < 1
        # Every violation is a dump on disk, or counted.
        kept = len(DumpStore(tmp_path).names())
        assert 0 < kept <= caps.count
        assert kept + dropped_so_far(tmp_path) == 10_000
        flush_dropped(tmp_path, lock_timeout_s=1)
        dropped = DumpStore(tmp_path).dropped_dumps()
        assert sum(dropped.values()) == 10_000 - kept
        assert dropped["repeated"] >= 7500
        assert ("rate" in dropped) == (signatures == 500)

    def test_a_later_dump_says_how_many_were_not_kept(self, tmp_path):
        guard = Guard(Mode.LOG, tmp_path, no_context)
        for _ in range(64):
            guard.report(FOUND, RULE, SITE, draft)
        last = read_dump(DumpStore(tmp_path).resolve("latest")).manifest
        assert last.scalars["seen"] == 64
        # 7 dumps were written: the 1st, 2nd, 4th ... 64th.
        assert last.dropped.dumps == 64 - 7

    def test_what_a_refused_violation_costs(self, tmp_path):
        guard = Guard(Mode.LOG, tmp_path, no_context)
        for _ in range(1 << 12):
            guard.report(FOUND, RULE, SITE, draft)
        before, count = DumpStore(tmp_path).names(), (1 << 12) - 1
        begin_s = time.process_time()
        for _ in range(count):
            guard.report(FOUND, RULE, SITE, draft)
        cost_us = (time.process_time() - begin_s) / count * 1e6
        print(f"a refused violation: {cost_us:.1f} us CPU")
        assert cost_us < 50
        assert DumpStore(tmp_path).names() == before

    def test_a_trap_is_written_whatever_the_rate(self, tmp_path):
        guard = Guard(Mode.LOG, tmp_path, no_context, StoreCaps(logged_per_minute=1))
        for key in range(5):
            guard.report(FOUND, RULE, SITE, draft, key=(key,))
        assert len(DumpStore(tmp_path).names()) == 1
        with pytest.raises(TrappedViolation) as caught:
            guard.report(FOUND, RULE, SITE, draft, act=Mode.TRAP)
        assert caught.value.dump is not None

    @pytest.mark.slow
    def test_what_was_only_counted_is_in_the_file_after_the_exit(self, tmp_path):
        code = f"""
            import sys
            sys.path.insert(0, {str(Path(__file__).parent)!r})
            from pathlib import Path
            from test_guard import *
            logging.disable()
            guard = Guard(Mode.LOG, Path(sys.argv[1]), no_context)
            for _ in range(100):
                guard.report(FOUND, RULE, SITE, draft)
        """
        subprocess.run([sys.executable, "-c", textwrap.dedent(code), tmp_path], check=True)
        assert DumpStore(tmp_path).dropped_dumps() == {"repeated": 100 - 7}


def test_the_bucket_fills_evenly():
    now_s = [0.0]
    rate = RateLimit(120, clock=lambda: now_s[0])
    assert [rate.admits() for _ in range(121)] == [True] * 120 + [False]
    now_s[0] += 0.6
    assert [rate.admits() for _ in range(2)] == [True, False]
    now_s[0] += 3600
    assert sum(rate.admits() for _ in range(1000)) == 120


class TestNothingIsMasked:
    def trap(self, root, describe=draft, context=no_context, violation=FOUND):
        Guard(Mode.TRAP, root, context).report(violation, RULE, SITE, describe)

    def trap_while_handling(self, original, root):
        try:
            raise original
        except RuntimeError:
            self.trap(root)

    def test_the_exception_that_is_being_handled_stays_in_the_chain(self, tmp_path):
        original = RuntimeError("illegal memory access")
        with pytest.raises(TrappedViolation) as caught:
            self.trap_while_handling(original, tmp_path)
        assert caught.value.__context__ is original
        assert not caught.value.__suppress_context__
        assert "illegal memory access" in "".join(traceback.format_exception(caught.value))

    def test_a_dump_that_cannot_be_written_is_the_cause_and_the_original_still_shows(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(TrappedViolation, match="no dump was written: FileExistsError") as caught:
            self.trap_while_handling(RuntimeError("illegal memory access"), tmp_path / "file")
        assert isinstance(caught.value.__cause__, FileExistsError)
        shown = "".join(traceback.format_exception(caught.value))
        assert shown.index("illegal memory access") < shown.index("FileExistsError") < shown.index("TrappedViolation")

    def test_evidence_that_cannot_be_collected(self, tmp_path):
        def break_down():
            raise ZeroDivisionError("gone")

        with pytest.raises(TrappedViolation, match="evidence lost: ZeroDivisionError: gone") as caught:
            self.trap(tmp_path, break_down)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        assert "value 70" in read_dump(DumpStore(tmp_path).resolve("latest")).manifest.summary
        # A finding about two parts that do not fit has no index to show.
        with pytest.raises(TrappedViolation, match=r"geometry_mismatch; evidence lost"):
            self.trap(tmp_path, break_down, violation=Violation("geometry_mismatch", (), 0))

    @pytest.mark.parametrize("fact", [{"scalars": None}, {"tensors": 5}, {"pool_kind": "none of the pools"}])
    def test_a_draft_that_no_dump_can_carry(self, tmp_path, fact):
        with pytest.raises(TrappedViolation) as caught:
            self.trap(tmp_path, lambda: draft(**fact))
        assert isinstance(caught.value.__cause__, Exception)

    @pytest.mark.parametrize("mode", [Mode.TRAP, Mode.LOG])
    def test_a_context_that_fails_traps_and_never_stops_a_log(self, tmp_path, mode):
        def break_down():
            raise OSError("no nvidia-smi")

        guard = Guard(mode, tmp_path, break_down)
        if mode is Mode.LOG:
            assert guard.report(FOUND, RULE, SITE, draft) is None
            return
        with pytest.raises(TrappedViolation, match="no dump was written: OSError"):
            guard.report(FOUND, RULE, SITE, draft)

    def test_interrupts_pass(self, tmp_path):
        def interrupt():
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            self.trap(tmp_path, interrupt)


def test_the_guard_fills_in_what_holds_for_every_dump_and_leaves_the_rest_to_the_probe(tmp_path):
    slots = [None, 3]
    found = Violation("negative", (BadIndex(1, 2, -1, 1, 65), BadIndex(7, 0, -1, 1, 65)), 9)
    context = {"versions": {"sglang": "1"}, "gpu": None, "guards": {"verified": True}, "repeat_command": "again"}
    told = {
        "verdict": found.verdict,
        "pool_kind": "swa",
        "layer": Layer(id=3, type="sliding"),
        "provenance": Provenance(table_space="full", buffer_space="swa", explanation="why"),
        "role": "draft",
        "backend": "B",
        "forward_mode": "DECODE",
        "graph": Graph(captured=True, bucket=4),
        "step": 17,
        "page_size": 16,
        "extents": {"pages_in_buffer": 65},
        "scalars": {"window_left": 511},
        "offences": offences(found.listed, "page_table", slots),
        "notes": ("a note",),
    }
    Guard(Mode.LOG, tmp_path, lambda: {**context, "rank": 1}).report(
        found, RULE, SITE, lambda: DumpDraft(rule=RULE, site=SITE, summary="s", **told), action="contained"
    )
    dump = read_dump(DumpStore(tmp_path).resolve("latest")).manifest.model_dump(mode="json")
    at = {"table": "page_table", "value": -1, "lower": 1, "upper": 65}
    assert {name: dump[name] for name in (*told, *context)} == {
        **{name: TypeAdapter(Any).dump_python(value, mode="json") for name, value in told.items()},
        **context,
        "scalars": {"window_left": 511, "seen": 1},
        "offences": [
            {**at, "row": 1, "column": 2, "request_slot": 3},
            {**at, "row": 7, "column": 0, "request_slot": None},
        ],
    }
    assert (dump["mode"], dump["action"], dump["offence_count"], dump["host"]["rank"]) == ("log", "contained", 9, 1)
