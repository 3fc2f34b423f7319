"""Each rule over serving logs: one it fires on, and all the others on which it is silent."""

from pathlib import Path

import pytest
from serving_log_lines import death, decode, prefill, retraction, stamp, steady

from command_line import parse_command
from gemma4_runtime.errors import TrappedViolation
from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs import rules
from gemma4_triage.logs.catalog import ENDINGS, LOADS, findings
from gemma4_triage.logs.read import read_log, read_source
from gemma4_triage.logs.rules import known_issue, other_crash, unexplained_line
from gemma4_triage.logs.source import Source

SAMPLES = Path(__file__).parents[1] / "data" / "logs"

# Of real runs. What is not named here must be silent.
FOUND = {
    "accept-drop": {"accept-length-drop", "prefix-cache-loss"},
    "full-starved": {"binding-pool"},
    "healthy": set(),
    "hybrid-draft-pool": {"hybrid-draft-pool"},
    "illegal-access": {"illegal-access", "binding-pool", "retraction-thrash", "re-prefill-storm"},
    "out-of-memory": {"no-slot"},
    "pool-leak": {"pool-leak"},
    "prefix-hits": set(),
    "prefix-loss": {"prefix-cache-loss"},
    "probe-logged": {"probe-stopped", "stale-write-rows"},
    "stale-write-rows": {"stale-write-rows"},
    "swa-starved": {"binding-pool", "retraction-thrash", "re-prefill-storm"},
    "trapped": {"probe-stopped"},
}

ILLEGAL = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
ASSERTION = "torch.AcceleratorError: CUDA error: device-side assert triggered"
VERIFY_INPUT = "AttributeError: 'FrozenKVMTPVerifyInput' object has no attribute 'merge_batch'"
LMCACHE = "AssertionError: Committed KV cache already freed (self.kv_committed_len=14)"
NO_SLOT = "RuntimeError: Decode out of memory. Try to lower your batch size."

CANARY = (
    "kv_canary violation: launch_tag=PER_FORWARD_K_SWA fail_reason=TOKEN slot_idx=812 position=44 stored_token=7 "
    "expected_token=9 stored_chain_hash=0x01 expected_aux=0x02"
)
HEADS = "RuntimeError: FlashAttention forward only supports head dimension at most 256"
PLACEHOLDERS = (
    "RuntimeError: Insufficient multimodal embedding length: num_mm_tokens_in_input_ids=268 vs "
    "num_mm_tokens_in_embedding=256."
)
COLLECTIVE = (
    "[rank{0}]:[E1124 ProcessGroupNCCL.cpp:632] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=1201, OpType=ALLREDUCE, NumelIn=5376)\n"
)

TRACEBACK = "Traceback (most recent call last):\n"
MISFIT = "RuntimeError: Sizes of tensors must match except in dimension 1. Expected size 896 but got size 3584"
BOOTSTRAP = (
    f"{stamp(300)} Prefill bootstrap failed for request rank=0 with exception KVTransferError(bootstrap_room=7): "
    "Request 7 timed out after 300.0s in KVPoll.Bootstrapping\n"
)

# Of what this CPU cannot produce.
MADE = {
    "illegal-access": [prefill(1), decode(2, swa=0.4), death(3, ILLEGAL)],
    "unmergeable-batch": [prefill(1), death(3, VERIFY_INPUT)],
    "own-checks": [decode(1), f"{stamp(2)} {CANARY}\n", decode(3)],
    "hang": [decode(1), f"{stamp(400)} Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)\n"],
    "throughput-collapse": [*steady(40, rate=900), *steady(20, start=40, rate=200)],
    "known-issue": [death(1, LMCACHE, frame="lmc_radix_cache.py")],
    "draft-model": [death(1, "AttributeError: 'Qwen2ForCausalLM' object has no attribute 'set_embed'")],
    "draft-bookkeeping": [decode(1), death(2, MISFIT, frame="eagle_utils.py")],
    "quantised-kernel": [death(1, "RuntimeError: mat_a must be a multiple of 16 bytes", frame="fp8_utils.py")],
    "grammar-request": [decode(1), death(2, "AssertionError", frame="xgrammar_backend.py")],
    "bus-error": [f"{stamp(1)} Load weight begin. avail mem=20.00 GB\n", "Fatal Python error: Bus error\n"],
    "media-unreadable": [
        decode(1),
        f"{stamp(2)} Error in request: Error while loading data\n{TRACEBACK}"
        '  File "/opt/base_processor.py", line 502, in _load_single_item\nRuntimeError: outside of the buffer\n',
        decode(3),
    ],
    "kv-transfer": [decode(1), BOOTSTRAP],
    "storage-tier": [decode(1), f"{stamp(2)} Draft L3 write failed (best-effort), skipping.\n", decode(3)],
    "other-crash": [decode(1), death(2, "KeyError: 'layer_9'")],
    "unexplained-line": [decode(1), "Fatal Python error: Segmentation fault\n"],
    "answer-parser": [f"{stamp(1)} Tool call parsing error: Expecting ',' delimiter\n", decode(2)],
    "attention-kernel": [death(1, HEADS, frame="flashattention_backend.py")],
    "collective-timeout": [decode(1), COLLECTIVE.format(3), COLLECTIVE.format(1)],
    "device-fault": [decode(1), "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n"],
    "graph-capture": [
        death(1, "Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 2.00 GiB.")
    ],
    "drafts-never-accepted": steady(20, accept=1.0),
    "kernel-failed": [decode(1), death(2, "torch.AcceleratorError: CUDA error: misaligned address")],
    "token-outside-vocabulary": [death(2, "OverflowError: out of range integral type conversion attempted")],
    "uneven-split": [death(1, "AssertionError: 10 is not divisible by 4", frame="parallel_state.py")],
    "weight-names": [death(1, "ValueError: Unknown quantization method: fp5")],
    "image-tokens": [decode(1), death(2, PLACEHOLDERS, frame="mm_utils.py"), decode(3)],
    "killed-from-outside": [decode(1), "Killed\n"],
    "lora-refused": [death(1, "RuntimeError: LoRA adapter a with rank 64 is incompatible with the memory pool")],
    "never-admitted": [
        decode(1, running=1, queued=3),
        f"{stamp(90)} Health check failed. Server couldn't get a response\n",
    ],
    "non-finite-logits": [decode(1), f"{stamp(2)} Detected errors during sampling! NaN in the logits.\n", decode(3)],
    "prefix-not-reused": [prefill(turn, new=8000 + 100 * turn, cached=64) for turn in range(1, 9)],
    "shared-memory": [
        "RuntimeError: unable to write: No space left on device: /dev/shm/torch_1, shared memory (shm)\n"
    ],
    "no-fp8": [death(1, "ValueError: type fp8e4nv not supported in this architecture.")],
    "queue-stands": [prefill(1, queued=2), f'{stamp(90)} INFO:  10.0.0.7:1 - "GET /health HTTP/1.1" 200 OK\n'],
    "router": ["2026-01-01 00:00:01 ERROR smg::routers: No available workers\n"],
    "start-refused": ["launch_server.py: error: unrecognized arguments: --gemma\n"],
    "swa-not-evicted": steady(20, running=1, full=0.2, swa=0.97, queued=3),
    "weights-missing": [death(1, "RuntimeError: Cannot find any model weights with `google/gemma-4-26b-it`")],
    "wheels-do-not-fit": [death(1, "ImportError: libnvrtc.so.12: cannot open shared object file: No such file")],
    "no-slot": [decode(1, swa=0.99), death(2, NO_SLOT)],
    "out-of-memory": [decode(1), death(2, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")],
    "index-outside-tensor": [decode(1), death(2, ASSERTION)],
}


def found_in(lines) -> tuple[Finding, ...]:
    return findings(read_log("made.log", ["".join(lines).encode()]))


def of_sample(name: str) -> dict[str, Finding]:
    return {finding.rule: finding for finding in findings(read_source(Source(str(SAMPLES / f"{name}.log"))))}


def test_every_sample_is_judged():
    assert {path.stem for path in SAMPLES.glob("*.log")} == set(FOUND)


@pytest.mark.parametrize("name", FOUND)
def test_a_real_log(name):
    assert set(of_sample(name)) == FOUND[name]


@pytest.mark.parametrize("rule", MADE)
def test_a_made_log(rule):
    assert {finding.rule for finding in found_in(MADE[rule])} == {rule}


def test_every_rule_fires_somewhere_and_has_a_file_that_is_listed():
    ids = {rule.id for rule in (*ENDINGS, *LOADS)} | {known_issue.ID, other_crash.ID, unexplained_line.ID}
    assert ids == {rule for found in FOUND.values() for rule in found} | set(MADE)
    files = {path.stem for path in Path(rules.__path__[0]).glob("*.py")} - {"__init__"}
    assert {id.replace("-", "_") for id in ids} == files


def only(lines) -> Finding:
    (finding,) = found_in(lines)
    return finding


def started(**settings: object) -> str:
    said = ", ".join(f"{name}={value!r}" for name, value in settings.items())
    return f"{stamp(0)} server_args=ServerArgs({said}, watchdog_timeout=300)\n"


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


class TestOneRequestWithoutGraphs:
    SHAPES = "RuntimeError: output with shape [1] doesn't match the broadcast shape [263]"

    def test_under_a_draft_worker(self):
        finding = only([decode(1), death(2, self.SHAPES, frame="eagle_worker.py")])
        assert (finding.rule, finding.confidence) == ("stale-write-rows", Confidence.LIKELY)
        assert finding.fix == "eager-out-cache-loc"

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
        ],
    )
    def test_what_ends_a_server_and_what_it_survives_are_told(self, lines):
        (finding,) = findings(read_log("a.log", ["".join([decode(1), *lines]).encode()]))
        assert (finding.rule, finding.confidence) == ("own-checks", Confidence.LIKELY)


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

    def test_words_without_an_equation_are_still_a_death(self):
        finding = only([decode(1), death(2, "ValueError: pool memory leak detected! see above")])
        assert finding.rule == "other-crash"


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
            ("AttributeError: 'NoneType' object has no attribute 'x'", "no rule here knows"),
        ],
    )
    def test_what_an_exception_says_of_the_code(self, last, said):
        assert said in only([decode(1), death(2, last)]).cause


class TestStartsOfSeveralRanks:
    @pytest.mark.parametrize(
        ("last", "said"),
        [
            ("AssertionError: res=<Response [502]>, res.text=''", "something else than the server"),
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
        assert "library of the system" in found.cause

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

    def test_without_stacks_nothing_is_claimed(self):
        finding = only(MADE["hang"])
        assert "does not say where" in finding.cause
        assert finding.next_commands == ()


class TestWhatIsNoCause:
    def test_sglang_kills_its_own_processes_after_a_hang(self):
        assert only([*MADE["hang"], "Killed\n"]).rule == "hang"

    def test_a_cause_of_memory_is_told_whatever_stands_before(self):
        rules = {
            finding.rule for finding in found_in([*MADE["hang"], "Memory cgroup out of memory: Killed process 8\n"])
        }
        assert "killed-from-outside" in rules

    def test_an_assertion_of_sampling_is_no_index(self):
        said = (
            "TensorCompare.cu:112: Assertion `probability tensor contains either `inf`, `nan` or element < 0` failed.\n"
        )
        assert only([decode(1), said, death(2, ASSERTION)]).rule == "non-finite-logits"

    def test_prompts_of_many_users_are_no_lost_prefix(self):
        lengths = (9000, 2500, 14000, 3000, 7000, 21000, 5000)
        assert found_in(prefill(at, new=new, cached=64) for at, new in enumerate(lengths)) == ()

    def test_a_benchmark_is_no_lost_prefix(self):
        assert found_in(prefill(at, new=8000, cached=1) for at in range(20)) == ()

    def test_a_suspect_is_named_and_no_cause(self):
        finding = only([decode(1), death(2, "AssertionError", frame="hiradix_cache.py")])
        assert finding.rule == "other-crash"
        assert any("--enable-hierarchical-cache" in step for step in finding.advice)


class TestWhatTheFindingsSay:
    def test_the_encoder_that_memory_ran_out_in(self):
        last = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 5.31 GiB."
        assert "encoder" in only([decode(1), death(2, last, frame="gemma4_vision.py")]).cause

    def test_rows_are_no_memory(self):
        last = "RuntimeError: alloc_req_slots runs out of memory. self.req_to_token_pool.available_size()=1, num_reqs=2"
        assert "larger --max-running-requests" in only([decode(1), death(2, last)]).advice[0]

    def test_a_parser_that_raises_in_a_stream(self):
        raised = (
            f"{stamp(2)} ERROR:    Exception in ASGI application\n{TRACEBACK}"
            '  File "/opt/base_format_detector.py", line 160, in parse_streaming_increment\nAssertionError\n'
        )
        assert only([decode(1), raised, decode(3)]).rule == "answer-parser"

    def test_no_drafts_are_blamed_where_none_ran(self):
        rows = [decode(1, swa=0.95), death(2, ILLEGAL)]
        assert only([started(speculative_algorithm=None, page_size=1), *rows]).fix is None
        assert only([started(speculative_algorithm="NEXTN", page_size=1), *rows]).fix == "swa-state-swap"

    def test_a_slot_beyond_the_pool_that_a_draft_wrote(self):
        died = death(2, ASSERTION, frame="memory_pool.py").replace("in step", "in set_kv_buffer")
        assert "beyond the end of its pool" in only([started(speculative_algorithm="EAGLE3"), decode(1), died]).cause

    def test_an_answer_that_harmony_cannot_parse_ends_no_server(self):
        answered = f'{stamp(2)} INFO:     10.0.0.1:3 - "POST /v1/responses HTTP/1.1" 500 Internal Server Error\n'
        raised = (
            f"{stamp(2)} ERROR:    Exception in ASGI application\nTraceback (most recent call last):\n"
            '  File "/opt/openai_harmony/__init__.py", line 637, in process\n'
            "openai_harmony.HarmonyError: Unexpected token 12606 while expecting start token 200006\n"
        )
        finding = only([decode(1), answered, raised, decode(3)])
        assert finding.rule == "answer-parser"
        assert "the server goes on" in finding.cause

    def test_the_dump_of_a_trap_is_named(self):
        finding = of_sample("trapped")["probe-stopped"]
        assert finding.confidence is Confidence.CERTAIN
        assert finding.next_commands[0].startswith("gemma4-triage dumps show /srv/runs/e4b/fault-probes/dumps/2026")
        assert "full page ids on the swa buffer" in str(finding.evidence[0].value)

    def test_the_exception_of_this_release_is_understood(self):
        error = TrappedViolation("geometry: draft pool differs", "/dumps/with space")
        (finding,) = found_in([decode(1), death(2, f"gemma4_runtime.errors.TrappedViolation: {error}")])
        assert finding.next_commands == ("gemma4-triage dumps show '/dumps/with space'",)
        error = TrappedViolation("geometry: draft pool differs", None, "disk full")
        (finding,) = found_in([decode(1), death(2, f"gemma4_runtime.errors.TrappedViolation: {error}")])
        assert finding.next_commands == ("gemma4-triage dumps list",)

    def test_what_contain_mode_logs(self):
        said = "page-table-bounds: page_table[5, 7] = 65 [contained; seen 4 times; dump: /dumps/a_leak]"
        (finding,) = found_in([decode(1), f"{stamp(2, 'TP0')} {said}\n"])
        assert finding.cause == "The probe page-table-bounds contained a violation: page_table[5, 7] = 65"
        assert finding.next_commands == ("gemma4-triage dumps show /dumps/a_leak",)

    def test_a_leak_dump_is_shown_by_audit(self):
        said = "leak-audit: 7 full pages [logged; seen 1 times; dump: /dumps/x]"
        (finding,) = found_in([f"{stamp(2)} {said}\n"])
        assert finding.next_commands == ("gemma4-triage audit /dumps/x",)

    def test_an_illegal_access_at_swa_pressure_is_the_known_one(self):
        finding = of_sample("illegal-access")["illegal-access"]
        assert (finding.confidence, finding.fix) == (Confidence.LIKELY, "swa-state-swap")
        assert [evidence.value for evidence in finding.evidence][1:] == [
            "full 0.36, swa 0.89",
            "FROZEN_KV_MTP, trtllm_mha",
        ]
        assert finding.evidence[1].field == "line 18"

    def test_an_illegal_access_without_pressure_is_not(self):
        (finding,) = found_in(MADE["illegal-access"])
        assert (finding.confidence, finding.fix) == (Confidence.POSSIBLE, None)

    def test_the_line_of_evidence_holds_the_value(self):
        lines = (SAMPLES / "swa-starved.log").read_text().splitlines()
        finding = of_sample("swa-starved")["binding-pool"]
        number = int(finding.evidence[0].field.removeprefix("line "))
        assert "full token usage: 0.41, swa token usage: 0.98" in lines[number - 1].replace("#swa token: ", "")
        assert "raise --swa-full-tokens-ratio" in finding.cause

    def test_a_full_pool_that_binds_says_the_other_direction(self):
        assert "lower --swa-full-tokens-ratio" in of_sample("full-starved")["binding-pool"].cause

    def test_both_equations_of_a_leak_are_read(self):
        finding = of_sample("pool-leak")["pool-leak"]
        assert "112 of 2560 tokens of the full pool" in finding.cause
        assert "112 of 1024 tokens of the swa pool" in finding.cause

    def test_too_many_tokens_are_not_called_missing(self):
        line = f"{stamp(1)} pool memory leak detected! [swa] total=1024, available=752, evictable=288, protected=0\n"
        (finding,) = found_in([line])
        assert "16 tokens of the swa pool are counted twice" in finding.cause

    def test_the_published_leaks(self):
        said = (
            "[full] total=2138243, available=2137945, evictable=0, protected=274",
            "[full] total=106600, available=106570, evictable=0, protected=6",
        )
        causes = [found_in([f"{stamp(1)} pool memory leak detected! {text}\n"])[0].cause for text in said]
        assert [int(cause.split(": ")[1].split()[0]) for cause in causes] == [24, 24]

    def test_no_slot_with_room_in_the_pools_is_another_cause(self):
        roomy, full = of_sample("out-of-memory")["no-slot"], found_in(MADE["no-slot"])[0]
        assert "although the pools had room" in roomy.cause
        assert "although" not in full.cause

    def test_an_index_on_the_host_is_one_too(self):
        (finding,) = found_in(
            [decode(1), death(2, "IndexError: index 1040 is out of bounds for dimension 0 with size 9")]
        )
        assert finding.rule == "index-outside-tensor"
        assert "in scheduler.py:12 step" in finding.evidence[0].meaning

    def test_endings_come_before_loads(self):
        order = [finding.rule for finding in findings(read_source(Source(str(SAMPLES / "illegal-access.log"))))]
        assert order[0] == "illegal-access"

    def test_where_drafts_are_left_out_a_short_accept_length_says_little(self):
        said = f"{stamp(0)} gemma4-triage: draft-policy: drafts where they pay: given\n"
        drop = [*steady(60, accept=2.6), *steady(60, 60, accept=1.0)]
        assert [finding.rule for finding in found_in(drop)] == ["accept-length-drop"]
        assert found_in([said, *drop]) == ()
        none = list(steady(20, accept=1.0))
        likely, possible = only(none), only([said, *none])
        assert (likely.confidence, possible.confidence) == (Confidence.LIKELY, Confidence.POSSIBLE)
        assert "leaves drafts out" in possible.cause

    def test_an_accept_length_that_comes_back_says_where(self):
        evidence = of_sample("accept-drop")["accept-length-drop"].evidence
        before, after = (float(str(shown.value)) for shown in evidence[:2])
        assert before > after / 0.75
        assert evidence[-1].meaning.startswith("back at 90%")


class TestThresholds:
    def test_a_few_retractions_in_an_hour_are_no_thrash(self):
        assert found_in([prefill(0), *(retraction(600 * i) for i in range(6))]) == ()

    def test_retractions_of_all_ranks_of_a_group_are_one(self):
        """Every tensor-parallel rank prints them; only the first reports batches."""
        rows = [prefill(0, rank="TP0")]
        rows += [retraction(10 * i, rank=f"TP{rank}") for i in range(3) for rank in range(8)]
        assert found_in(rows) == ()

    def test_without_usage_no_pool_is_blamed(self):
        (finding,) = found_in(retraction(i) for i in range(5))
        assert finding.cause.startswith("A pool is too small")
        assert finding.confidence is Confidence.LIKELY

    def test_retraction_for_testing_is_none(self):
        line = "{} Testing retraction. #retracted_reqs: 1, #new_tokens_gained: 16\n"
        assert found_in([prefill(0), *(line.format(stamp(i)) for i in range(10))]) == ()

    def test_a_full_pool_alone_is_no_finding_while_nobody_waits(self):
        assert found_in(steady(50, full=0.4, swa=0.97)) == ()

    def test_two_full_pools_bind_together(self):
        assert found_in(steady(50, full=0.95, swa=0.97, queued=9)) == ()

    def test_slow_lines_after_a_prefill_are_no_collapse(self):
        rows = [*steady(40, rate=900)]
        for second in range(40, 80):
            rows += [prefill(second, queued=0), decode(second, rate=100)]
        assert found_in(rows) == ()

    def test_fewer_requests_are_no_collapse(self):
        assert found_in([*steady(40, rate=900, running=64), *steady(40, start=40, rate=100, running=2)]) == ()

    def test_a_caught_traceback_is_no_crash(self):
        text = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nOSError: no libavutil\n'
        assert found_in([prefill(1), text, prefill(2)]) == ()

    def test_a_traceback_that_nothing_follows_is_one(self):
        text = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nOSError: no libavutil\n'
        (finding,) = found_in([prefill(1), text])
        assert finding.rule == "other-crash"
        assert finding.evidence[0].value == "OSError: no libavutil"


def test_commands_to_run_next_exist():
    every = [finding for name in FOUND for finding in of_sample(name).values()]
    every += [finding for lines in MADE.values() for finding in found_in(lines)]
    for line in {command for finding in every for command in finding.next_commands}:
        parse_command(line)
