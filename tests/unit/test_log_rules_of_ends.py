"""What findings on the end of a server say beyond their rule: numbers, switches by name, and who waits for whom."""

from collections.abc import Iterable

import pytest

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.catalog import findings
from gemma4_triage.logs.read import read_log
from made_logs import CANARY, COLLECTIVE, MADE, death, decode, found_in, only, prefill, stamp, started


class TestWhatIsComputed:
    LOADED = (
        f"{stamp(0)} Load weight begin. avail mem=80.00 GB\n"
        f"{stamp(9)} Load weight end. type=Gemma4, avail mem=30.00 GB, mem usage=50.00 GB.\n"
    )
    TOO_SMALL = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."

    def test_the_share_of_memory_that_leaves_a_pool(self):
        (advice,) = only([self.LOADED, death(10, self.TOO_SMALL)]).advice
        assert "above 0.62" in advice
        assert "0.68 leaves a pool of 4.0 GB, 0.90 one of 22.0 GB" in advice

    def test_weights_that_no_share_helps(self):
        (advice,) = only([self.LOADED.replace("30.00", "2.00"), death(10, self.TOO_SMALL)]).advice
        assert "no share leaves a pool" in advice

    def test_the_share_that_an_allocation_would_have_needed(self):
        said = "Tried to allocate 4.00 GiB. GPU 0 has a total capacity of 100.00 GiB of which 1.00 GiB is free."
        last = f"torch.OutOfMemoryError: CUDA out of memory. {said}"
        finding = only([started(mem_fraction_static=0.9), decode(1), death(2, last)])
        assert "--mem-fraction-static 0.86" in finding.advice[0]

    @pytest.mark.parametrize(
        ("free", "words"), [(4096, "8192 tokens asked, 4096 full tokens free"), (9000, "although the pools had room")]
    )
    def test_what_was_asked_for_and_what_was_free(self, free, words):
        prefill_failed = death(2, "RuntimeError: Prefill out of memory. Try to lower your batch size.").rstrip()
        numbers = f"\nTry to allocate 8192 tokens.\nAvailable full tokens: {free} (a=1 + b=2)\n"
        assert words in only([decode(1), prefill_failed, numbers]).cause

    def test_what_the_cache_counts_as_evictable_and_did_not_give_up(self):
        failed = death(2, "RuntimeError: Prefill out of memory. Try to lower your batch size.").rstrip()
        pools = "Available full tokens: 864 (full_available_size=400 + full_evictable_size_=464)"
        windows = "Available swa: 400 (available_size=64 + component_evictable_size_=336)"
        finding = only([decode(1), failed, f"\nTry to allocate 73 tokens.\n{pools}\n{windows}\n"])
        assert "did not give up any of the 336" in finding.cause
        assert "The other pool lacked nothing" in finding.cause
        assert finding.confidence is Confidence.LIKELY
        both = f"\nTry to allocate 73 tokens.\n{pools}\n{windows.replace('64', '90').replace('400', '426')}\n"
        assert "although the pools had room" in only([decode(1), failed, both]).cause

    def test_a_pool_that_a_prompt_can_never_fit(self):
        pools = f"{stamp(0)} max_total_num_tokens=9000, chunked_prefill_size=2048, context_len=131072\n"
        finding = only([pools, *MADE["never-admitted"]])
        assert "9000 tokens, and the server takes prompts of 131072" in finding.cause
        assert finding.confidence is Confidence.LIKELY

    def test_ranks_that_did_not_report_a_timeout(self):
        finding = only([started(tp_size=4), *MADE["collective-timeout"]])
        assert "ranks 0, 2 did not report" in finding.cause

    def test_a_rank_that_is_behind(self):
        behind = COLLECTIVE.format(2).replace("1201", "1200")
        assert "rank 2 is behind" in only([*MADE["collective-timeout"], behind]).cause

    def test_ranks_that_are_all_in_one_are_not_behind(self):
        both = [COLLECTIVE.format(0), COLLECTIVE.format(1)]
        finding = only([started(tp_size=2), *both])
        assert "none is behind" in finding.cause
        assert finding.advice[0].startswith("NCCL_DEBUG=INFO")

    def test_the_number_may_stand_in_the_line_of_its_group(self):
        status = (
            "[rank2]:[E1 1] [PG ID 2 PG GUID 3 Rank 2] Exception (either an error or timeout) detected by watchdog at "
            "work: 1199, last enqueued NCCL work: 1199, last completed NCCL work: 1198. ProcessGroupNCCL timeout\n"
        )
        assert "rank 2 is behind" in only([*MADE["collective-timeout"], status]).cause

    def test_a_start_that_takes_long_is_a_reason(self):
        assert any("it had not served yet" in one for one in only([started(tp_size=4), COLLECTIVE.format(1)]).advice)

    def test_a_session_that_held_slots_as_they_were_counted(self):
        leak = (
            "ValueError: pool memory leak detected! [full] total=4000, available=3000, evictable=16, protected=512, "
            "session_held=160, uncached=0"
        )
        advice = only([decode(1), death(2, leak)]).advice
        assert any("--enable-streaming-session" in one for one in advice)

    def test_an_abort_just_before_is_told(self):
        gone = f"{stamp(2)} Request is disconnected from the client side (type 3). Abort request obj.rid='a'\n"
        odd = death(3, "AttributeError: 'NoneType' object has no attribute 'x'")
        assert any("line 2 tells of a request that was aborted" in one for one in only([decode(1), gone, odd]).advice)


EAGER_FRAMES = ("frozen_kv_mtp_worker.py", "draft_forward"), ("model_runner.py", "_eager_fb_view")


def eager_death(last: str, frames: Iterable[tuple[str, str]] = EAGER_FRAMES) -> str:
    """Return the end of a server that died as a batch was copied for an eager forward."""
    stack = "".join(f'  File "/srv/sglang/{file}", line 3, in {name}\n    call()\n' for file, name in frames)
    copied = '  File "/srv/sglang/cuda_graph_buffer_registry.py", line 450, in fill_from\n    dst.copy_(src)\n'
    return f"{stamp(2)} Scheduler hit an exception: Traceback (most recent call last):\n{stack}{copied}{last}\n\n"


class TestOneRequestWithoutGraphs:
    SHAPES = "RuntimeError: output with shape [1] doesn't match the broadcast shape [263]"

    def test_under_a_draft_worker(self):
        finding = only([decode(1), death(2, self.SHAPES, frame="eagle_worker.py")])
        assert (finding.rule, finding.confidence) == ("stale-write-rows", Confidence.LIKELY)
        assert finding.fix == "eager-out-cache-loc"

    @pytest.mark.parametrize(
        ("copied", "most", "confidence"),
        [(120, 8, Confidence.CERTAIN), (8, 8, Confidence.LIKELY), (120, None, Confidence.LIKELY)],
    )
    def test_it_is_certain_where_more_was_copied_than_there_are_requests(self, copied, most, confidence):
        sizes = f"RuntimeError: The size of tensor a (2) must match the size of tensor b ({copied}) at dimension 0"
        (finding,) = findings(
            read_log("a.log", ["".join([started(max_running_requests=most), eager_death(sizes)]).encode()])
        )
        assert (finding.rule, finding.confidence) == ("stale-write-rows", confidence)
        assert bool(finding.ruled_out_if) == (confidence is not Confidence.CERTAIN)

    def test_with_the_later_runner_a_draft_lost_count(self):
        """0.5.15 copies no write locations there: what has too few is the draft's own, as when batches merge."""
        runner = [("eager_runner.py", name) for name in ("execute", "_execute_decode", "load_batch")]
        forward = [("model_runner.py", name) for name in ("forward", "_forward_raw")]
        frames = [("frozen_kv_mtp_worker_v2.py", "draft_forward"), *forward, *runner]
        (finding,) = findings(read_log("a.log", [eager_death(self.SHAPES, frames).encode()]))
        assert finding.rule == "draft-bookkeeping"

    def test_elsewhere_it_is_another_crash(self):
        assert only([decode(1), death(2, self.SHAPES, frame="sampler.py")]).rule == "other-crash"


class TestOwnChecks:
    @pytest.mark.parametrize(
        "lines",
        [
            [f"{stamp(2)} {CANARY}\n", decode(3)],
            [death(2, "RuntimeError: KV cache canary violation detected (kernel_kind=SWEEP_K_SWA, slot_idx=812)")],
            [f"{stamp(2)} invariant-check [in_range[0,2560)@rank0]: +3 hit(s), 3 total. out_cache_loc\n", decode(3)],
            [death(2, "RuntimeError: invariant-check FAILED [in_range[0,2560)]: out_cache_loc")],
            [f"{stamp(2)} KV double free: sub-pool 0 has 2 duplicate pages.\n", decode(3)],
            [
                f"{stamp(2)} KV page use-after-free: 3 owner page refs are in the free pool, sample pages=[4].\n",
                decode(3),
            ],
            [death(2, "ValueError: KV double free: sub-pool 0 has 2 duplicate pages.")],
        ],
    )
    def test_what_ends_a_server_and_what_it_survives_are_told(self, lines):
        (finding,) = findings(read_log("a.log", ["".join([decode(1), *lines]).encode()]))
        assert (finding.rule, finding.confidence) == ("own-checks", Confidence.LIKELY)


KILLED, OTHERWISE = "killed-from-outside", "unexplained-line"
SAID_OF_AN_END = {
    f"{stamp(2)} Scheduler or DataParallelController 123 terminated with -11": OTHERWISE,
    f"{stamp(2)} Scheduler or DataParallelController 123 terminated with -9": KILLED,
    f"{stamp(2)} Scheduler or DataParallelController 123 terminated with 0": None,
    "systemd[1]: sglang.service: Main process exited, code=dumped, status=11/SEGV": OTHERWISE,
    "systemd[1]: sglang.service: Main process exited, code=exited, status=1/FAILURE": OTHERWISE,
    "systemd[1]: sglang.service: Main process exited, code=killed, status=9/KILL": KILLED,
    "systemd[1]: sglang.service: Main process exited, code=exited, status=0/SUCCESS": None,
    "srun: error: node1: task 0: Exited with exit code 1": OTHERWISE,
    "srun: error: node1: task 0: Killed": KILLED,
    "Exited (139) 3 seconds ago": OTHERWISE,
    "Exited (137) 3 seconds ago": KILLED,
    "Exited (0) 3 seconds ago": None,
    "free(): invalid pointer": OTHERWISE,
    "free(): double free detected in tcache 2": OTHERWISE,
    "munmap_chunk(): invalid pointer": OTHERWISE,
    "*** stack smashing detected ***: terminated": OTHERWISE,
    "[12345.6] python[77]: segfault at 0 ip 00007f sp 00007f error 4": OTHERWISE,
}
"""What others than the server say of its end, to the rule that tells it; None for an end that is no failure."""


@pytest.mark.parametrize(("line", "rule"), SAID_OF_AN_END.items())
def test_what_others_say_of_an_end(line, rule):
    found = findings(read_log("a.log", ["".join([decode(1), f"{line}\n"]).encode()]))
    assert [finding.rule for finding in found] == ([] if rule is None else [rule])


class TestLeaksOfOtherReleases:
    OLDER = "self.max_total_num_tokens=270331, available_size=644, evictable_size=269628, protected_size=0"

    def test_the_sides_before_0_5_13(self):
        finding = only(
            [decode(1), death(2, f"ValueError: token_to_kv_pool_allocator memory leak detected! {self.OLDER}")]
        )
        assert finding.rule == "pool-leak"
        assert "59 of 270331 tokens" in finding.cause

    def test_a_side_below_zero_was_released_twice(self):
        sides = "[full] total=205888, available=205888, evictable=0, protected=-12, session_held=0"
        finding = only([decode(1), death(2, f"ValueError: pool memory leak detected! {sides}")])
        assert "below 0" in finding.cause
        assert "released twice" in finding.advice[2]

    @pytest.mark.parametrize(("pool", "step"), [("swa", "--disable-hybrid-swa-memory"), ("full", "--disable-radix")])
    def test_a_pool_for_windows_is_a_suspect_where_it_leaks(self, pool, step):
        sides = f"[{pool}] total=2058, available=2000, evictable=0, protected=12, session_held=0"
        assert step in only([decode(1), death(2, f"ValueError: pool memory leak detected! {sides}")]).advice[1]

    def test_words_without_an_equation_are_still_a_death(self):
        finding = only([decode(1), death(2, "ValueError: pool memory leak detected! see above")])
        assert (finding.rule, finding.confidence) == ("pool-leak", Confidence.LIKELY)


class TestStartsThatDoNotFit:
    def test_a_part_of_a_tensor_that_is_taken_for_the_whole(self):
        last = "RuntimeError: shape '[256, 35, 256]' is invalid for input of size 1146880"
        died = death(2, last, frame="gemma3n_causal.py")
        assert only([started(tp_size=2), died]).rule == "uneven-split"
        assert only([started(tp_size=4), died]).rule == "other-crash"

    def test_the_target_as_its_own_draft(self):
        said = started(model_path="a/b", speculative_draft_model_path="a/b", speculative_algorithm="EAGLE3")
        assert "the target itself was loaded as its draft" in only([said, *MADE["draft-model"]]).cause
        other = started(model_path="a/b", speculative_draft_model_path="a/c", speculative_algorithm="EAGLE3")
        assert "lacks set_embed" in only([other, *MADE["draft-model"]]).cause

    @pytest.mark.parametrize(("path", "blamed"), [("google/gemma-4-26B-A4B-it", True), ("nvidia/gemma-4-NVFP4", False)])
    def test_a_method_that_the_checkpoint_is_not_of(self, path, blamed):
        died = death(2, "IndexError: tuple index out of range", frame="flashinfer_trtllm.py")
        finding = only([started(model_path=path, quantization="modelopt_fp4"), died])
        assert ("leave --quantization modelopt_fp4 out" in finding.advice[0]) is blamed

    @pytest.mark.parametrize(
        ("last", "said"),
        [
            ("NameError: name 'routing' is not defined", "imported: a defect of this build."),
            ("AttributeError: 'KVArgs' object has no attribute 'kv_head_num'", "KVArgs has no kv_head_num"),
            ("TypeError: f() got an unexpected keyword argument 'x'", "f() is called with other arguments"),
            ("AttributeError: 'NoneType' object has no attribute 'x'", "was never set, or is gone already (None)"),
        ],
    )
    def test_what_an_exception_says_of_the_code(self, last, said):
        assert said in only([decode(1), death(2, last)]).cause


class TestStartsOfSeveralRanks:
    @pytest.mark.parametrize(
        ("last", "said"),
        [
            ("AssertionError: res=<Response [502]>, res.text=''", "another program answers at its address"),
            ("AssertionError: res=<Response [403]>, res.text='<b>denied by the proxy</b>'", "as its answer says"),
            (
                "ValueError: TP rank 3 could finish, but there are other ranks that didn't finish loading.",
                "Another rank",
            ),
            ("RuntimeError: Gloo connectFullMesh failed with [pair.cc:144] no error", "network interface"),
            ("httpx.HTTPStatusError: Client error '429 Too Many Requests' for url 'x'", "too many requests"),
            ("FileNotFoundError: [Errno 2] No such file or directory: 'ninja'", "compiler is missing"),
        ],
    )
    def test_what_ended_it(self, last, said):
        assert said in only([started(), death(2, last)]).cause

    def test_a_library_of_the_system(self):
        (found, *_) = found_in(["- ImportError: libnuma.so.1: cannot open shared object file: No such file\n"])
        assert "library libnuma.so.1 is missing" in found.cause

    def test_what_the_host_cache_takes_of_the_host(self):
        killed = "[1] Memory cgroup out of memory: Killed process 8 (sglang) total-vm:1kB\n"
        typed = 'root@gpu:~# docker inspect -f "{{.State.OOMKilled}}" sgl\n'
        finding = only([started(hicache_size=15, tp_size=8), typed, killed])
        assert "120 GB" in finding.advice[0]
        assert finding.evidence[0].value == killed.strip()

    def test_handles_that_the_all_reduce_could_not_exchange(self):
        died = death(1, "RuntimeError: invalid argument", frame="custom_all_reduce.py")
        finding = only([started(), died, death(1, "Exception: Capture cuda graph failed: invalid argument")])
        assert finding.advice[0].startswith("--disable-custom-all-reduce")


class TestTransfers:
    FAILED = (
        f"{stamp(9)} Decode transfer failed for request rank=0 with exception KVTransferError(bootstrap_room=7): "
        "Failed to get kvcache from prefill instance, it might be dead\n"
    )

    @pytest.mark.parametrize(
        ("line", "said"),
        [
            ("", "does not say which side"),
            ("E0917 16:23:12.8 977 worker_pool.cpp:281] Worker: Process failed: local protection error\n", "RDMA card"),
            ("E0619 02:47:42.4 15 tcp_transport.cpp:136] connect: Connection refused\n", "refused the connection"),
        ],
    )
    def test_what_the_transport_said(self, line, said):
        finding = only([decode(1), line, self.FAILED, decode(10)])
        assert finding.rule == "kv-transfer"
        assert said in finding.cause


class TestHangs:
    def test_a_pipeline_whose_stages_wait_for_each_other(self):
        stack = (
            "Process 8: sglang::scheduler_PP1_TP0\nPython v3.12.3 (/usr/bin/python3.12)\n"
            'Thread 8 (idle): "MainThread"\n    recv_object (distributed/parallel_state.py:1130)\n'
            "    event_loop_pp (managers/scheduler_pp_mixin.py:84)\n"
        )
        finding = only([decode(1), stack, *MADE["hang"][1:]])
        assert "PP1 TP0 waits to receive what another stage never sent." in finding.cause

    def test_what_a_server_has_that_may_hold_up_a_step(self):
        finding = only([started(enable_hierarchical_cache=True), *MADE["hang"]])
        assert "once without --enable-hierarchical-cache" in finding.advice[1]

    def test_a_request_whose_client_had_gone(self):
        orphan = f"{stamp(2)} Received output for rid='a' but the state was deleted in TokenizerManager.\n"
        failed = f"{stamp(30)} Health check failed. Server couldn't get a response from detokenizer.\n"
        assert "client had gone" in only([decode(1), orphan, failed]).cause

    FIRED = "{} Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)\n"

    def hung(self, **stacks: tuple[str, ...]) -> Finding:
        lines = [decode(1)]
        for rank, frames in stacks.items():
            lines.append(f'{stamp(400, rank)} Pyspy dump for PID 1 (py-spy dump --pid 1):\nThread 1: "MainThread"\n')
            lines += [f"    {frame}\n" for frame in frames]
            lines.append(self.FIRED.format(stamp(400, rank)))
        return only(lines)

    REDUCES = ("all_reduce (distributed/parallel_state.py:500)", "forward (layers/linear.py:1300)")

    def test_the_rank_that_the_others_wait_for(self):
        finding = self.hung(TP0=self.REDUCES, TP1=("synchronize (torch/cuda/streams.py:10)",))
        assert "wait in communication for TP1, which stands in a wait for the GPU" in finding.cause

    def test_ranks_that_left_the_same_path(self):
        finding = self.hung(TP0=self.REDUCES, TP1=("recv_pyobj (zmq/socket.py:9)",))
        assert "TP0 wait in a collective that TP1 never entered" in finding.cause

    def test_all_wait_for_one_that_is_not_there(self):
        assert "not in the log" in self.hung(TP0=self.REDUCES, TP1=self.REDUCES).cause

    def test_ranks_in_different_collectives(self):
        finding = self.hung(TP0=self.REDUCES, TP1=("all_gather (torch/distributed/c10d.py:9)", "check (hiradix.py:7)"))
        assert "never meet: TP0 in layers/linear.py forward; TP1 in hiradix.py check." in finding.cause
        assert finding.confidence is Confidence.LIKELY

    def test_a_kernel_that_was_compiled_at_run_time_is_no_compilation(self):
        finding = self.hung(TP0=self.REDUCES, TP1=("sparse_fwd (tilelang/jit/kernel.py:200)",))
        assert "which stands in tilelang/jit/kernel.py:200 sparse_fwd" in finding.cause

    def test_stacks_one_below_the_other_tell_of_a_server_that_does_not_answer(self):
        failed = f"{stamp(30)} Health check failed. Server couldn't get a response from detokenizer.\n"
        stack = 'Process {0}: sglang::scheduler_TP{0}\nThread {0} (active): "MainThread"\n'
        stack += "    dispatch (deep_ep/buffer.py:5)\n    run_batch (managers/scheduler.py:2)\n\n"
        finding = only([decode(1), failed, stack.format(0), stack.format(1)])
        assert "waits in communication, in deep_ep/buffer.py:5 dispatch" in finding.cause
        assert any("--moe-a2a-backend none" in step for step in finding.advice)

    def test_ranks_that_never_came_together(self):
        begun = f"{stamp(1)} Init torch distributed begin.\n"
        warned = "node:8:9 [0] proxy.cc:17 NCCL WARN [Proxy Service 0] Failed to execute operation Connect\n"
        finding = only([begun, warned, self.FIRED.format(stamp(400))])
        assert "never came together" in finding.cause
        assert "NCCL WARN" in str(finding.evidence[-1].value)
        ended = f"{stamp(2)} Init torch distributed ends. mem usage=0.67 GB\n"
        assert "does not say where" in only([begun, ended, self.FIRED.format(stamp(400))]).cause

    def test_ranks_that_stand_alike_in_what_none_of_them_leaves(self):
        meets = ("rendezvous (torch/distributed/_symmetric_memory/__init__.py:19)", "initialize (comm_fusion.py:4)")
        finding = self.hung(TP0=meets, TP1=meets)
        assert "stand in the meeting of symmetric memory" in finding.cause
        assert "--enforce-disable-flashinfer-allreduce-fusion" in finding.advice[0]

    @pytest.mark.parametrize(("other", "parallel", "apart"), [(25, 1, True), (24, 1, False), (25, 8, False)])
    def test_ranks_that_decided_differently(self, other, parallel, apart):
        sizes = f"scheduler.cur_batch.batch_size()=24\nscheduler.cur_batch.batch_size()={other}\n"
        lines = [started(dp_size=parallel), decode(1), self.FIRED.format(stamp(400, "TP0")), sizes]
        assert ("decided differently" in only(lines).cause) is apart

    @pytest.mark.parametrize(("new", "second", "apart"), [(900, 2, True), (1000, 2, False), (900, 5, False)])
    def test_ranks_whose_last_prefills_differ_decided_differently(self, new, second, apart):
        lines = [started(tp_size=2), prefill(2, rank="TP0"), prefill(second, new=new, rank="TP1")]
        finding = only([*lines, self.FIRED.format(stamp(400, "TP0"))])
        assert (f"prefilled {new} and 1000 tokens" in finding.cause) is apart
        assert finding.advice[0].startswith("unset SGLANG_REQ_WAITING_TIMEOUT") is apart
        assert (finding.confidence is Confidence.LIKELY) is apart
        if apart:
            ahead = only([*lines[:1], prefill(1, rank="TP0"), *lines[1:], self.FIRED.format(stamp(400, "TP0"))])
            assert ahead.confidence is Confidence.POSSIBLE
            staged = only([started(tp_size=2, pp_size=2), *lines[1:], self.FIRED.format(stamp(400, "TP0"))])
            assert "decided differently" not in staged.cause

    def test_ranks_that_give_requests_up_by_their_own_clocks(self):
        env = "# env: SGLANG_REQ_WAITING_TIMEOUT=10\n"
        lines = [started(tp_size=2), env, decode(1), self.FIRED.format(stamp(400, "TP0"))]
        finding = only(lines)
        assert "each goes by its own clock" in finding.cause
        assert finding.confidence is Confidence.POSSIBLE
        assert "own clock" not in only([started(tp_size=1), *lines[1:]]).cause

    def test_a_kernel_of_flashinfer_is_compiled_anew(self):
        finding = self.hung(TP0=("cutlass_fused_moe (flashinfer/fused_moe/core.py)",))
        assert any("rm -rf ~/.cache/flashinfer" in step for step in finding.advice)

    def test_drafts_that_each_rank_takes_for_itself(self):
        lines = [started(speculative_algorithm="EAGLE", tp_size=4), decode(1), self.FIRED.format(stamp(400, "TP0"))]
        assert any("SGLang 34238" in step for step in only(lines).advice)

    def test_without_stacks_nothing_is_claimed(self):
        finding = only(MADE["hang"])
        assert "does not say where" in finding.cause
        assert finding.next_commands == ("gemma4-triage collect URL",)
