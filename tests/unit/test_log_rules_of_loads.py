"""What a log says of how a server served, and of starts that were ended: where each rule is silent."""

import pytest

from made_logs import MADE, death, decode, found_in, only, prefill, stamp, starved, steady

READY = f"{stamp(300)} The server is fired up and ready to roll!\n"


class TestBatchesBeyondTheGraphs:
    def test_it_names_the_largest_graph(self):
        finding = only(MADE["eager-decode"])
        assert "Batches of over 8 requests" in finding.cause
        assert "38 tokens/s per request" in finding.cause

    @pytest.mark.parametrize(
        "eager",
        [
            pytest.param({"running": 24, "rate": 2400.0}, id="as fast for each request"),
            pytest.param({"running": 6, "rate": 100.0}, id="not only in larger batches"),
        ],
    )
    def test_what_is_not_told(self, eager):
        lines = [*steady(6, running=8), *steady(6, start=6, graph=False, **eager)]
        assert "eager-decode" not in {finding.rule for finding in found_in(lines)}

    def test_a_peak_of_load_is_not_told(self):
        assert found_in([*steady(30, running=8), *steady(3, start=30, running=24, graph=False)]) == ()

    def test_a_server_without_graphs_is_not_told(self):
        assert found_in(steady(30, graph=False)) == ()


class TestPrefillsFirst:
    def test_it_says_who_waits(self):
        assert "32 requests shared 20 tokens/s" in only(MADE["prefill-starves-decode"]).cause

    @pytest.mark.parametrize(
        "load", [{"rate": 900.0}, {"running": 2, "rate": 2.0}], ids=["they get their tokens", "hardly anybody runs"]
    )
    def test_what_is_not_told(self, load):
        assert found_in(line for at in range(0, 40, 8) for line in starved(at, **load)) == ()

    def test_a_burst_of_prompts_is_not_told(self):
        assert found_in([*steady(10), *starved(10), *steady(10, start=20)]) == ()

    def test_full_chunks_are_no_conversation(self):
        assert found_in(prefill(at, new=8192, cached=300 + at, queued=1) for at in range(20)) == ()


class TestStartsThatWereEnded:
    BEGUN = MADE["start-stopped"][0]
    STOPPED = MADE["start-stopped"][1]

    def test_a_compilation_is_named(self):
        compiles = f"{stamp(9)} Entering DeepGEMM JIT Pre-Compile session. It may take a long time\n"
        finding = only([self.BEGUN, compiles, self.STOPPED])
        assert "while DeepGEMM compiled" in finding.cause
        assert "sglang.compile_deep_gemm" in finding.advice[0]

    def test_a_loop_of_starts_is_named(self):
        again = f"{stamp(20)} Load weight begin. avail mem=20.00 GB\n"
        assert "it was started again" in only([self.BEGUN, f"{stamp(19)} SIGTERM received. signum=15\n", again]).cause

    @pytest.mark.parametrize(
        "between",
        [
            pytest.param([READY], id="it was ready"),
            pytest.param([decode(400)], id="it served"),
        ],
    )
    def test_a_server_that_was_ready_is_not_told(self, between):
        assert found_in([self.BEGUN, *between, self.STOPPED]) == ()

    def test_a_start_that_failed_is_told_alone(self):
        assert "start-stopped" not in {
            one.rule for one in found_in([self.BEGUN, death(9, "KeyError: 1"), self.STOPPED])
        }

    def test_a_start_that_was_ended_at_once_is_not_told(self):
        assert found_in([self.BEGUN, f"{stamp(5)} SIGTERM received. signum=15\n"]) == ()
