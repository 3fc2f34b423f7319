"""Memory of the host that is pinned or locked: what fails where it is, and what comes of a failure nobody looked at."""

import pytest

from gemma4_triage.logs.read import read_log
from gemma4_triage.logs.suspects import suspects
from made_logs import ILLEGAL, TRACEBACK, death, decode, died, found_in, only, prefill, stamp, started, told

HICACHE = started(model_path="m", tp_size=4, enable_hierarchical_cache=True, hicache_ratio=2)
PLAIN = started(model_path="m", tp_size=4)
POOL = f"{stamp(1)} Allocating 63.50 GB host memory for hierarchical KV cache.\n"
INVALID = "torch.AcceleratorError: CUDA error: invalid argument"
HIDDEN = "TypeError: cudaGetErrorString(): incompatible function arguments. The following argument types are supported:"
REGISTERS = ("mem_cache/pool_host/common.py", "_cuda_host_register", "raise RuntimeError(f(rc))")


class TestWherePinningFails:
    def test_its_words(self):
        finding = only(
            [HICACHE, POOL, died("RuntimeError: cudaHostRegister failed (rc=1) at offset=0 size=34760392704")]
        )
        assert (finding.rule, finding.confidence) == ("host-limits", "likely")
        assert "SGLANG_HICACHE_HOST_REGISTER_CHUNK_GB" in told(finding)
        assert "smaller --hicache-size" in finding.advice[0]

    def test_what_is_pinned_already(self):
        finding = only([HICACHE, died("RuntimeError: cudaHostRegister failed (rc=712) at offset=0 size=4096")])
        assert "pinned for the GPU already" in finding.cause

    def test_an_exception_of_the_report_hides_it(self):
        finding = only([HICACHE, died(HIDDEN, REGISTERS)])
        assert finding.rule == "host-limits"
        assert "could not be pinned" in finding.cause
        assert "pip list" not in told(finding)

    def test_elsewhere_only_the_call_is_known_to_have_failed(self):
        finding = only([PLAIN, died(HIDDEN, ("model_executor/a.py", "open_handle", "check(rc)"))])
        assert (finding.rule, finding.confidence) == ("host-limits", "possible")
        assert "pinned" not in finding.cause

    def test_another_call_with_arguments_that_do_not_fit_is_none_of_it(self):
        other = "TypeError: f(): incompatible function arguments. The following argument types are supported:"
        assert only([HICACHE, died(other, ("layers/a.py", "forward", "f(x)"))]).rule == "other-crash"


class TestAtALaterCall:
    def test_with_pages_on_the_host_it_may_be_memory_that_was_not_pinned(self):
        finding = only([HICACHE, POOL, decode(1), death(2, INVALID)])
        assert (finding.rule, finding.confidence) == ("kernel-failed", "possible")
        assert "63.5 GB for this rank now" in finding.advice[0]

    def test_with_the_drivers_word_it_is_likely(self):
        said = "[12.345678] NVRM: Cannot map memory with base addr 0x7f13 and size of 0xf179a0 pages\n"
        finding = only([HICACHE, decode(1), said, death(2, INVALID)])
        assert finding.confidence == "likely"
        assert "could not map memory of the host" in finding.cause

    def test_without_pages_on_the_host_it_is_not_named(self):
        finding = only([PLAIN, decode(1), death(2, INVALID)])
        assert "hicache" not in told(finding)
        assert "a pointer" in finding.cause

    def test_a_launch_with_other_sizes_is_none_of_it(self):
        finding = only([HICACHE, decode(1), death(2, "torch.AcceleratorError: CUDA error: invalid device ordinal")])
        assert "hicache" not in told(finding)


class TestCopies:
    FRAME = "  python/sglang/kernels/jit/csrc/kvcacheio/staged_write_back.cuh:170: cudaMemcpyBatchAsync\n"

    def lines(self, frame):
        start = started(model_path="m", enable_hierarchical_cache=True, hicache_io_backend="kernel")
        head = f"{stamp(3, 'TP0')} Scheduler hit an exception: {TRACEBACK}"
        return [start, decode(1), f"{head}{frame}{ILLEGAL}\n"]

    def test_a_copy_is_named_with_its_file(self):
        finding = only(self.lines(self.FRAME))
        assert "noticed at cudaMemcpyBatchAsync (staged_write_back.cuh)" in finding.cause
        assert finding.advice[0].startswith("once without --hicache-io-backend kernel")
        assert "(direct, layer_first)" in finding.advice[0]

    def test_what_is_no_copy_is_told_as_before(self):
        finding = only(self.lines("  python/sglang/kernels/jit/csrc/kvcacheio/staged.cuh:170: launch\n"))
        assert "The log does not say which" in finding.cause


class TestNetworks:
    FAILED = (
        "E0526 05:35:51.191018     407 libfabric_rail.cpp:563] fi_enable failed for rail 4: Cannot allocate memory\n"
    )

    def test_the_hierarchical_cache_that_took_it_comes_first(self):
        finding = only([HICACHE, POOL, self.FAILED])
        assert finding.advice[0].startswith("a smaller --hicache-size")
        assert "63.5 GB for this rank just before (line 2)" in finding.advice[0]

    def test_without_it_the_limits_do(self):
        finding = only([PLAIN, self.FAILED])
        assert finding.advice[0].startswith("ulimit -l unlimited")
        assert "hicache" not in told(finding)

    def test_memory_of_the_device_is_none_of_it(self):
        assert "locks pages" not in told(only([HICACHE, "E0526 05:35:51 407 x.cpp:5] Cannot allocate memory\n"]))


class TestRanksOverAStorage:
    @pytest.mark.parametrize(("ranks", "named"), [(4, True), (1, False)])
    def test_silence_of_several(self, ranks, named):
        start = started(model_path="m", tp_size=ranks, enable_hierarchical_cache=True, hicache_storage_backend="nixl")
        facts = read_log("log", ["".join((start, prefill(1), decode(2))).encode()])
        ids = [one.id for one in suspects(facts) if one.of == "silence"]
        assert ("storage-of-several-ranks" in ids) is named


def test_healthy_lines_of_a_host_pool_are_nothing():
    assert found_in([HICACHE, POOL, prefill(2), decode(3)]) == ()
