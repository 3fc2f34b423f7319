"""Networks between ranks, nodes and sides of a server: what NCCL, Mooncake, routers and sockets say of them."""

import pytest

from gemma4_triage.logs.catalog import findings
from gemma4_triage.logs.read import read_log
from made_logs import died, found_in, stamp, started

FAILED = f"{stamp(5, 'TP3')} Decode transfer failed for request rank=3 with exception KVTransferError(room=3)\n"


def first(*lines: str):
    return findings(read_log("server.log", ["".join(lines).encode()]))[0]


def hit(last: str) -> str:
    return died(last, ("managers/scheduler.py", "run_event_loop", "call()"))


CLOSED = "NCCL error in: ProcessGroupNCCL.cpp:3384, {}, NCCL version 2.27.5"


@pytest.mark.parametrize(("port", "words"), [(65637, "above 65535"), (30233, "Invalid argument")])
def test_a_port_beyond_the_last(port, words):
    assert words in first(hit(f"zmq.error.ZMQError: Invalid argument (addr='tcp://10.0.0.1:{port}')")).cause


@pytest.mark.parametrize(("module", "words"), [("sglang.srt.managers.io_struct", "sent Req"), ("mine", "it says")])
def test_a_message_of_another_release(module, words):
    raised = f"AttributeError: Can't get attribute 'Req' on <module '{module}'>"
    assert words in first(hit(raised)).cause


@pytest.mark.parametrize(
    ("last", "words"),
    [("connect to 10.0.0.2<40123> returned No route to host", "could not connect to 10.0.0.2"), ("", "is gone")],
)
def test_an_address_that_nccl_does_not_reach(last, words):
    gone = CLOSED.format("remote process exited or there was a network error")
    said = f"torch.distributed.DistBackendError: {gone}\nncclRemoteError: A call failed.\nLast error:\n{last}"
    assert words in first(hit(said)).cause


@pytest.mark.parametrize(("words", "says"), [("import fabric handle", "MNNVL"), ("open shm", "could not be formed")])
def test_memory_over_a_fabric_that_is_not_up(words, says):
    warned = f"transport/p2p.cc:123 NCCL WARN Failed to {words}\n"
    said = f"torch.distributed.DistBackendError: {CLOSED.format('unhandled cuda error')}"
    assert says in first(warned, hit(said)).cause


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            "ERROR smg::core: Failed to register worker http://10.0.0.3:30000: worker did not become healthy",
            "take in",
        ),
        ('WARN smg::routers: no healthy workers for model "m"', "no worker left"),
    ],
)
def test_workers_that_a_router_does_not_take(said, words):
    assert words in first(f"2026-05-01 10:00:01 {said}\n").cause


def test_a_prefill_server_that_knows_nothing():
    said = f"{stamp(1, 'TP0')} Failed to get prefill parallel info: 404, Not Found\n"
    assert "could not ask the prefill" in first(said).cause


def test_cards_that_do_not_shake_hands():
    card = "E0801 10:00:00.1 123 endpoint.cpp:345] Failed to modify QP to RTR, check gid: Connection timed out\n"
    assert "not on one fabric" in first(card, FAILED).cause
    assert "not on one fabric" not in first(card.replace("modify QP to RTR", "reach it"), FAILED).cause


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("E0516 rdma_context.cpp:189] Failed to register memory 0x7f: Input/output error [5]", "network cards"),
        ("OSError: [Errno 5] Input/output error: '/models/m/a.safetensors'", "disk or the network volume"),
        ("ib_mlx5_log.c:177 UCX ERROR Transport retry count exceeded on mlx5_0:1/RoCE", "not on one fabric"),
        ("Error: unexpected argument '--prefill' found", "no argument --prefill"),
        ("Exception: Unable to connect to etcd server at http://localhost:2379.", "The service etcd"),
        (
            "torch.distributed.DistStoreError: wait timeout after 600000ms, keys: /default_pg/0//cuda//0",
            "the first of its",
        ),
        ("torch.distributed.DistStoreError: Timed out waiting for clients. 1/2 clients joined.", "Only 1 of 2"),
    ],
)
def test_one_line_says_which_part_is_not_there(said, words):
    assert words in first(f"{said}\n").cause


@pytest.mark.parametrize(("begun", "named"), [("[EPLBManager] rebalance start", True), ("ready", False)])
def test_experts_that_are_moved_as_the_watchdog_fires(begun, named):
    fired = f"{stamp(9, 'TP3')} Watchdog timeout (self.watchdog_timeout=300)\n"
    advice = " ".join(first(f"{stamp(1, 'TP0')} {begun}\n", fired).advice)
    assert ("once without --enable-eplb" in advice) == named


@pytest.mark.parametrize(
    ("note", "words"),
    [("# then nothing: PP0 waits in recv_object", "once with --pp-size 1"), ("# then nothing", "py-spy")],
)
def test_stages_that_somebody_saw_wait(note, words):
    assert first(f"{note}\n").advice[0].startswith(words)


@pytest.mark.parametrize(("function", "leads"), [("create_shared_buffer", True), ("step", False)])
def test_a_buffer_of_the_own_sums_is_not_shared(function, leads):
    frame = (f"distributed/device_communicators/custom_{'all_reduce' if leads else 'x'}.py", function, "call()")
    found = findings(read_log("x", [died("RuntimeError: CUDART error: invalid device context", frame).encode()]))[0]
    assert ("CUDA IPC" in found.cause) == leads


UNHEALTHY = (
    "2025-09-23 09:30:40  WARN sglang_router_rs::core::worker: Health check failed for http://10.42.3.17:8000: error "
    "sending request\n"
)
LISTS = "2025-09-23 09:35:12  INFO http_request: GET /v1/models status=500\n"


def test_a_routers_check_of_a_worker_is_no_servers_health():
    found = first(UNHEALTHY)
    assert (found.rule, found.confidence) == ("router", "possible")
    assert "(http://10.42.3.17:8000)" in found.cause
    assert found.advice[0].startswith("GET /workers")
    assert "py-spy" not in "\n".join(found.advice)


@pytest.mark.parametrize("beside", [LISTS, "# GET /v1/models through the router fails, chats work\n"])
def test_what_a_router_only_hands_on_goes_to_its_first_worker(beside):
    found = first(UNHEALTHY, beside)
    assert found.confidence == "likely"
    assert "POST /remove_worker?url=http://10.42.3.17:8000" in found.advice[0]


def test_a_servers_own_health_check_stays_what_it_was():
    assert first(f"{stamp(5)} Health check failed. Server couldn't get a response\n").rule != "router"


WAITED = (
    "[rank2]:[E711 18:41:22 ProcessGroupNCCL.cpp:688] [Rank 2] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=91220, OpType=ALLREDUCE, NumelIn=33554432) ran for 600012 milliseconds before timing out.\n"
)
OF_TENSORRT = ("moe_runner_backend='flashinfer_trtllm'", "attention_backend='trtllm_mha'")


def waited(note: str, *given: str):
    start = f"{stamp(0)} server_args=ServerArgs(model_path='m', tp_size=4, {', '.join(given)})\n"
    served = f"{stamp(4, 'TP0')} Prefill batch, #new-seq: 8, #new-token: 8192, #cached-token: 0, token usage: 0.07, "
    return first(start, f"{served}#running-req: 0, #queue-req: 51\n", WAITED, note)


@pytest.mark.parametrize("note", ["# GB300, image of today\n", "# pip list: flashinfer-python 0.6.14\n"])
@pytest.mark.parametrize("given", OF_TENSORRT)
def test_kernels_of_tensorrt_may_be_what_a_rank_stands_in(note, given):
    found = waited(note, given)
    assert found.rule == "collective-timeout"
    assert found.advice[0].startswith("another release of flashinfer")


@pytest.mark.parametrize(("note", "given"), [("# GB300\n", "attention_backend='fa4'"), ("# H100\n", OF_TENSORRT[0])])
def test_without_them_or_such_a_gpu_they_are_not_named(note, given):
    assert "another release of flashinfer" not in "\n".join(waited(note, given).advice)


STALE = "ImportError: /home/u/.triton/cache/4ZQ3/launcher.so: cannot stat shared object: Stale file handle"


def test_who_waits_for_a_rank_that_died_of_something_else_does_not_lead():
    build = ("../../triton/runtime/build.py", "_load_module_from_path", "spec.loader.exec_module(mod)")
    found = found_in([started(model_path="m"), died(STALE, build, rank="TP11"), WAITED])
    assert [one.rule for one in found[:2]] == ["host-limits", "collective-timeout"]
    assert "TRITON_CACHE_DIR" in found[0].advice[0]
    assert (found[1].confidence, found[1].advice[0].startswith("ImportError in line")) == ("possible", True)
