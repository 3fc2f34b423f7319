"""Networks between ranks, nodes and sides of a server: what NCCL, Mooncake, routers and sockets say of them."""

import pytest

from gemma4_triage.logs.catalog import findings
from gemma4_triage.logs.read import read_log
from made_logs import died, stamp

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
