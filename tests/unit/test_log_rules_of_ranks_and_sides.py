"""Servers of several ranks, nodes or sides: what taken ports, shortened tracebacks, notes and both starts say."""

import pytest

from gemma4_triage.logs.catalog import findings
from gemma4_triage.logs.read import read_log
from gemma4_triage.logs.suspects import suspects
from made_logs import decode, prefill, stamp, started, told

HIT = "Scheduler hit an exception: Traceback (most recent call last):\n"
START = "$ python3 -m sglang.launch_server --model-path m {}\n"
FRAME = '  File "/s/python/sglang/srt/{}", line 12, in {}\n    call()\n'
LOOP = FRAME.format("managers/scheduler.py", "run_event_loop")


def facts_of(*lines: str):
    return read_log("server.log", ["".join(lines).encode()])


def all_of(*lines: str):
    return findings(facts_of(*lines))


def first(*lines: str):
    return all_of(*lines)[0]


def hit(last: str, *frames: str, rank: str = "TP0") -> str:
    return f"{stamp(3, rank)} {HIT}{''.join(frames)}{last}\n\n"


class TestPorts:
    TAKEN = "zmq.error.ZMQError: Address already in use (addr='tcp://10.0.0.1:37651')"

    @pytest.mark.parametrize(
        ("file", "function", "words"),
        [("disaggregation/mooncake/conn.py", "start_prefill_thread", "picks a free one"), ("u.py", "f", "--dist-init")],
    )
    def test_a_port_of_ranks_is_not_the_one_of_another_server(self, file, function, words):
        found = first(START.format("--port 30000"), hit(self.TAKEN, FRAME.format(file, function), rank="TP3"))
        assert (found.rule, found.confidence) == ("start-refused", "likely")
        assert words in found.cause
        assert found.advice[0].startswith("start again")

    def test_the_port_that_is_served_at_is_another_servers(self):
        said = "ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 30000): "
        said += "address already in use\n"
        found = first(START.format("--port 30000"), said)
        assert found.confidence == "certain"
        assert "another server" in found.cause

    @pytest.mark.parametrize(
        ("host", "leads"), [("prefill-0.prefill.default", "is a host name"), ("10.0.0.1", "No such device")]
    )
    def test_a_socket_listens_at_no_host_name(self, host, leads):
        assert leads in first(hit(f"zmq.error.ZMQError: No such device (addr='tcp://{host}:20104')", LOOP)).cause

    @pytest.mark.parametrize(("rank", "words"), [(1, "not the first one"), (0, "none of this host's")])
    def test_a_later_node_that_listens_at_the_firsts_address(self, rank, words):
        refused = "zmq.error.ZMQError: Cannot assign requested address (addr='tcp://10.0.3.11:29505')"
        asked = f"--nnodes 2 --node-rank {rank} --dist-init-addr 10.0.3.11:29500"
        assert words in first(START.format(asked), hit(refused, LOOP)).cause

    @pytest.mark.parametrize(("unknown", "words"), [(True, "does not know the name"), (False, "could not reach")])
    def test_a_name_that_did_not_resolve(self, unknown, words):
        gai = "[W socket.cpp] [c10d] The addresses of (s-0.s, 20000) cannot be retrieved (gai error: -2 - Name)\n"
        late = "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to "
        assert words in first(gai * unknown, f"{late}connect to (s-0.s, 20000).\n").cause


class TestVersions:
    @pytest.mark.parametrize(
        ("module", "words"),
        [("sglang.srt.conversation", "two releases"), ("sglang.bench_old", "two releases"), ("sglang.srt", "a folder")],
    )
    def test_a_part_that_moved_is_no_folder_of_the_same_name(self, module, words):
        site = '  File "/v/lib/python3.12/site-packages/dynamo/sglang/worker.py", line 8, in <module>\n    import it\n'
        lacks = f"ModuleNotFoundError: No module named '{module}'\n"
        assert words in first("Traceback (most recent call last):\n", site, lacks).cause

    @pytest.mark.parametrize(
        ("said", "words"),
        [
            ("NVSHMEM device library version does not match with NVSHMEM host library version\n", "Two releases"),
            ("", "RoCE settings"),
        ],
    )
    def test_releases_of_nvshmem_that_differ_are_no_network(self, said, words):
        failed = (
            "/w/nvshmem/src/device/init/init_device.cu:145: non-zero status: 1 nvshmem_internal_init_thread failed\n"
        )
        assert words in first(said, failed).cause

    @pytest.mark.parametrize(("program", "words"), [("python3.12", "LD_PRELOAD"), ("ImportError", "another CUDA")])
    def test_the_loader_lacks_a_library_before_python_begins(self, program, words):
        lacks = "libcudart.so.13: cannot open shared object file: No such file or directory\n"
        said = f"{program}: error while loading shared libraries: {lacks}" if "py" in program else f"{program}: {lacks}"
        assert words in first(START.format("--enable-memory-saver"), said).cause


class TestNone:
    CALL = "TypeError: Mismatched type on argument #7 when calling `_e::ids`. Expected `DLTensor*` but got `{}`"

    @pytest.mark.parametrize(("got", "words"), [("None", "was never run"), ("int", "release and SGLang's")])
    def test_none_for_a_tensor_is_no_other_release(self, got, words):
        assert words in first(START.format("--disaggregation-mode prefill"), hit(self.CALL.format(got), LOOP)).cause

    def test_what_is_on_is_left_out_before_versions_are_looked_at(self):
        none = hit("TypeError: 'NoneType' object is not subscriptable", FRAME.format("managers/x.py", "prepare"))
        advice = first(START.format("--enable-hisparse"), none).advice
        assert "--enable-hisparse" in advice[0]

    @pytest.mark.parametrize(
        ("line", "raised", "words"),
        [
            ('rank = int(os["DP_RANK"])', "TypeError: 'module' object is not subscriptable", "unset DP_RANK"),
            ('rank = os.environ["DP_RANK"]', "KeyError: 'DP_RANK'", "set DP_RANK"),
        ],
    )
    def test_a_variable_of_the_environment_that_a_line_reads(self, line, raised, words):
        frame = FRAME.format("managers/scheduler.py", "run_scheduler_process").replace("call()", line)
        assert first(hit(raised, frame)).advice[0].startswith(words)

    def test_a_line_that_reads_none_names_none(self):
        assert not any("unset" in one for one in first(hit("KeyError: 'DP_RANK'", LOOP)).advice)


class TestLaunches:
    REFUSED = "RuntimeError: Triton Error [HIP]:  Code: 1, Messsage: invalid argument"

    def test_a_launch_that_is_refused_did_compile(self):
        start = START.format("--tp 8 --dp 8 --enable-dp-attention")
        idle = first(start, prefill(1, rank="DP0 TP0"), hit(self.REFUSED, "  in fused\n", rank="DP5 TP5"))
        assert (idle.rule, idle.confidence) == ("idle-rank", "likely")
        busy = first(start, decode(1, rank="DP5 TP5"), hit(self.REFUSED, "  in fused\n", rank="DP5 TP5"))
        assert (busy.rule, busy.confidence) == ("idle-rank", "possible")
        assert "over no rows" in first(hit(self.REFUSED, FRAME.format("models/m.py", "fused"))).cause

    def test_the_gpu_is_well_that_refused_a_launch(self):
        said = "torch.AcceleratorError: HIP error: {}\n"
        assert first(said.format("invalid configuration argument")).rule != "device-fault"
        assert first(said.format("unspecified launch failure")).rule == "device-fault"

    def test_a_kernel_that_does_not_compile_is_told_as_that(self):
        fails = "RuntimeError: Triton Error [CUDA]: device kernel image is invalid"
        assert first(hit(fails, FRAME.format("layers/x.py", "run"))).rule in ("triton-compile", "no-kernel-image")

    @pytest.mark.parametrize(
        ("ranks", "first_word"), [(4, "once with --disable-custom"), (1, "--enable-nan-detection")]
    )
    def test_what_made_values_nan_on_amd_may_be_a_sum_over_gpus(self, ranks, first_word):
        died = ":0:rocdevice.cpp HSA_STATUS_ERROR_EXCEPTION: An HSAIL operation resulted in a hardware exception.\n"
        kernel = "Kernel Name: _ZN2at6native25_assert_async_cuda_kernelIbEEvPKT_NS0_3MsgE\n"
        found = first(START.format(f"--tp {ranks}"), decode(1), died, kernel)
        assert found.advice[0].startswith(first_word)


class TestShortened:
    def test_a_function_without_its_file_is_a_frame(self):
        start = START.format("--enable-two-batch-overlap --enable-dp-attention")
        found = first(start, hit("ValueError: x", LOOP, "  in model_forward_maybe_tbo\n"))
        assert "in model_forward_maybe_tbo" in found.cause
        assert found.advice[0].startswith("once without --enable-two-batch-overlap")

    def test_a_loop_is_not_what_raised_it(self):
        left_out = first(hit("RuntimeError: a thing that nobody knows of here", LOOP))
        assert "bookkeeping" not in left_out.cause
        own = FRAME.format("managers/scheduler.py", "event_loop_normal").replace("call()", "raise RuntimeError(text)")
        assert "bookkeeping" in first(hit("RuntimeError: a thing that nobody knows of here", own)).cause

    @pytest.mark.parametrize(
        ("file", "words"),
        [("disaggregation/mooncake/conn.py", "into one socket"), ("lora/x.py", "are shorter or other")],
    )
    def test_an_exception_whose_name_begins_small(self, file, words):
        died = f"Exception in thread Thread-7:\nTraceback (most recent call last):\n{FRAME.format(file, 'read')}"
        assert words in first(died, "struct.error: unpack requires a buffer of 4 bytes\n").cause

    def test_a_word_before_a_colon_is_none(self):
        assert all_of(decode(1), "error: none of it\n", decode(2)) == ()


class TestRows:
    @pytest.mark.parametrize(("rows", "times"), [(7080, "8 times"), (7081, "")])
    def test_one_of_two_counts_is_a_multiple_of_the_other(self, rows, times):
        found = first(hit(f"RuntimeError: Check failed: residual.size(0) == batch_size (885 vs. {rows})", LOOP))
        assert found.rule == "sizes-differ"
        assert f"885 against {rows}" in found.cause
        assert times in found.cause
        assert ("context parallelism" in found.advice[0]) == bool(times)

    def test_ranks_of_a_start_that_is_not_there_say_what_is_on(self):
        split = "RuntimeError: split_with_sizes expects split_sizes to sum exactly to 512 (input tensor's size at "
        split += "dimension 0), but got split_sizes=[487]"
        step = FRAME.format("model_executor/model_runner.py", "forward_extend")
        assert first(hit(split, step, rank="DP9 TP9 EP2")).advice[0].startswith("once without --enable-dp-attention")
        assert not first(hit(split, step, rank="TP1")).advice[0].startswith("once without --enable-dp-attention")

    @pytest.mark.parametrize(("slots", "leads"), [("num_shared_slots", True), ("num_redundant", False)])
    def test_experts_that_are_counted_with_a_shared_one(self, slots, leads):
        line = f"assert (num_experts - {slots}) % self.moe_ep_size == 0"
        frame = FRAME.format("layers/moe/fused_moe_triton/layer.py", "__init__").replace("call()", line)
        advice = first(START.format("--moe-a2a-backend mori"), hit("AssertionError", frame)).advice
        assert advice[0].startswith("once with --disable-shared-experts-fusion") == leads

    @pytest.mark.parametrize(("a2a", "leads"), [("flashinfer", True), ("none", False)])
    def test_experts_that_are_given_no_token(self, a2a, leads):
        frame = FRAME.format("layers/moe/topk.py", "fused_topk")
        words = "RuntimeError: softmax_workspace must be provided for num_experts that are not a power of 2"
        start = START.format(f"--tp 4 --dp 4 --enable-dp-attention --moe-a2a-backend {a2a}")
        assert ("hands the experts no token" in first(start, hit(words, frame, rank="DP1 TP1")).advice[0]) == leads

    @pytest.mark.parametrize(
        ("drafts", "words"), [("--speculative-algorithm NEXTN", "as its draft starts"), ("", "another")]
    )
    def test_memory_that_differs_as_a_draft_starts(self, drafts, words):
        frame = FRAME.format("model_executor/model_runner.py", "init_torch_distributed")
        uneven = "ValueError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes."
        captured = f"{stamp(1, 'TP0')} Capture cuda graph end. Time elapsed: 13.38 s\n"
        assert words in first(START.format(f"--tp 16 {drafts}"), captured, hit(uneven, frame)).cause


class TestNotes:
    NCCL = "NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"

    def test_a_server_that_somebody_saw_stand_is_not_healthy(self):
        start = START.format("--tp 4 --enable-symm-mem")
        seen = "# nothing is answered any more\n# py-spy: recvmsg ... ncclCommWindowRegister, on all four\n"
        found = first(start, decode(1), seen)
        assert (found.rule, found.confidence) == ("noted-silence", "possible")
        assert found.advice[0].startswith("once without --enable-symm-mem")

    @pytest.mark.parametrize(
        "lines",
        [
            ("# with --disable-cuda-graph it hangs too\n", ""),
            ("# it does not hang\n", ""),
        ],
    )
    def test_notes_of_other_tries_are_no_hang(self, lines):
        assert all_of(START.format(""), decode(1), *lines) == ()

    def test_what_went_on_is_no_hang_and_yet_a_trouble(self):
        found = all_of(START.format(""), decode(1), "# hangs for a minute here\n", decode(2))
        assert [one.rule for one in found] == ["noted-trouble"]

    def test_a_note_of_wrong_answers_is_none_of_a_hang(self):
        (finding,) = all_of(START.format(""), decode(1), "# answers of two characters, then nothing or rubbish\n")
        assert finding.rule == "noted-trouble"

    @pytest.mark.parametrize(
        ("lines", "words"),
        [
            ("{}# hangs at the first all-reduce\n# lspci: ACSCtl: ReqRedir+ CmpltRedir+\n", "ACS off"),
            ("{}# hangs at the first all-reduce\n", "once with NCCL_P2P_DISABLE=1"),
            ("Auto-selected flashinfer allreduce backend: trtllm\n# no line after this\n", "once without FlashInfer's"),
        ],
    )
    def test_lines_of_neighbours_alone_with_a_note(self, lines, words):
        assert first(lines.format(self.NCCL)).advice[0].startswith(words)

    def test_lines_of_neighbours_without_one_are_nothing(self):
        assert all_of(self.NCCL) == ()

    def test_stacks_in_a_note_say_which_part(self):
        fired = f"{stamp(9, 'DP2 TP2')} Watchdog timeout (self.watchdog_timeout=300)\n"
        note = "# py-spy: TP2 in move_ready_grammar_requests, all others in all_gather\n"
        assert first(START.format("--tp 8"), decode(1), note, fired).advice[0].startswith("no response_format")
        assert not first(START.format("--tp 8"), decode(1), fired).advice[0].startswith("no response_format")

    @pytest.mark.parametrize(("below", "rule"), [("# done\n", "queue-stands"), (decode(300), None)])
    def test_a_note_below_a_log_hides_no_queue_that_stands(self, below, rule):
        asked = f'{stamp(200)} INFO:     10.0.0.1:1 - "GET /health HTTP/1.1" 200 OK\n'
        found = all_of(started(), prefill(1, queued=3), asked, below)
        assert [one.rule for one in found] == ([rule] if rule else [])

    @pytest.mark.parametrize(
        ("given", "leads"), [("--speculative_config '{}' --data-parallel-size 2", True), ("", False)]
    )
    def test_drafts_that_one_rank_leaves_out(self, given, leads):
        waits = (
            "INFO 06-08 15:42:31 [shm_broadcast.py] No available shared memory broadcast block found in 60 seconds.\n"
        )
        found = first(f"vllm serve m {given}\n", waits, waits)
        assert found.advice[0].startswith("once without --speculative-config") == leads


class TestSides:
    PREFILL = "# prefill: sglang serve --model-path m --disaggregation-mode prefill --page-size 64\n"
    DECODE = (
        "# decode: sglang serve --model-path m --disaggregation-mode decode --page-size {} --speculative-algo EAGLE\n"
    )
    FAILED = f"{stamp(5, 'TP3')} Decode transfer failed for request rank=3 with exception KVTransferError(room=3)\n"

    def test_what_both_starts_show_is_made_alike_first(self):
        advice = first(self.PREFILL, self.DECODE.format(1), self.FAILED).advice[0]
        assert "--page-size (64 at prefill, 1 at decode)" in advice
        assert "--speculative-algorithm (none at prefill, EAGLE at decode)" in advice

    def test_wrong_answers_are_first_of_what_differs(self):
        text = next(iter(suspects(facts_of(self.PREFILL, self.DECODE.format(64), decode(1))))).text
        assert "--speculative-algorithm (none" in text
        assert "--page-size (" not in text

    def test_one_start_alone_differs_from_nothing(self):
        assert "at decode)" not in first(self.PREFILL, self.FAILED).advice[0]
        assert [one.id for one in suspects(facts_of(self.PREFILL, decode(1)))][:1] != ["sides-of-a-split"]

    REGISTERS = (
        "Prefill instance failed to register to bootstrap server: HTTPConnectionPool(host='10.0.1.11', port=41873): "
        "Max retries exceeded with url: /route (Caused by NewConnectionError('[Errno 111] Connection refused'))\n"
    )

    @pytest.mark.parametrize(
        ("given", "words"),
        [
            ("--nnodes 2 --node-rank 1", "one --disaggregation-bootstrap-port"),
            ("--host ::", "--host with the address itself (10.0.1.11"),
            ("--nnodes 2 --disaggregation-bootstrap-port 8998", "ss -ltnp | grep 41873"),
        ],
    )
    def test_a_rank_that_could_not_register(self, given, words):
        found = first(START.format(f"--disaggregation-mode prefill {given}"), self.REGISTERS)
        assert (found.rule, found.confidence) == ("kv-transfer", "likely")
        assert found.advice[0].startswith(words)

    def test_what_dies_of_it_does_not_hide_it(self):
        died = hit("KeyError: 8", FRAME.format("disaggregation/x.py", "f"))
        assert first(self.REGISTERS, died).rule == "kv-transfer"
        assert first(self.FAILED, died).rule != "kv-transfer"

    def test_mooncake_alone_without_a_device(self):
        lines = "W20250516 09:00:52.2 45697 topology.cpp:55] No RDMA devices found, check your device installation\n"
        assert "over TCP" in first(lines).cause
        assert all_of(lines, prefill(1)) == ()

    @pytest.mark.parametrize(
        ("given", "words"), [("--pd-disaggregation --service-discovery", "another release"), ("", "mend the argument")]
    )
    def test_a_router_that_refuses_its_configuration(self, given, words):
        said = "Error starting router: Configuration error: Validation failed: Regular mode needs a selector\n"
        found = first(f"python -m smg.launch_router {given}\n", said)
        assert "refuses its own configuration" in found.cause
        assert found.advice[0].startswith(words)


@pytest.mark.parametrize(
    ("raised", "words"),
    [
        ("RuntimeError: Tried to instantiate dummy base class Event", "has no CUDA"),
        ("pynvml.NVMLError_LibraryNotFound: NVML Shared Library Not Found", "NVIDIA's own library"),
    ],
)
def test_what_is_asked_of_nvidia_on_another_device(raised, words):
    assert words in first(hit(raised, FRAME.format("distributed/x.py", "wrapper"))).cause


def test_memory_is_shared_within_one_node():
    found = first(hit("RuntimeError: CUDART error: invalid resource handle", "  in create_ipc_workspace_for_fusion\n"))
    assert "between two nodes" in found.cause
    assert "--enforce-disable-flashinfer-allreduce-fusion" in told(found)
    other = first(hit("RuntimeError: CUDART error: invalid resource handle", FRAME.format("layers/x.py", "run")))
    assert "between two nodes" not in other.cause


@pytest.mark.parametrize(("graphs", "shown"), [("", True), ("--disable-cuda-graph", False)])
def test_graphs_keep_the_addresses_of_memory_that_was_resumed(graphs, shown):
    facts = facts_of(START.format(f"--enable-memory-saver {graphs}"), decode(1))
    assert ("graphs-after-a-resume" in [one.id for one in suspects(facts)]) == shown
