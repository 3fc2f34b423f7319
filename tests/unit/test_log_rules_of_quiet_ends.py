"""Servers that died or hung while their logs say so in words that few look for: each is told, its neighbour is not."""

import pytest

from made_logs import decode, found_in, only, prefill, stamp, told

STOPPED = f"{stamp(50)} SIGTERM received. signum=15 frame=None. Draining requests and shutting down...\n"
READY = "The server is fired up and ready to roll!"


def answered(second: int, status: str, path: str = "/generate") -> str:
    """Return uvicorn's line about an answer."""
    return f'{stamp(second)} INFO:     10.0.0.3:51234 - "POST {path} HTTP/1.1" {status}\n'


def begun(second: int, port: int = 30000, seed: int = 1, ready: bool = False) -> str:
    """Return a start that loads its weights, and is ready if asked."""
    lines = [
        f"server_args=ServerArgs(model_path='m', tp_size=1, port={port}, random_seed={seed}, watchdog_timeout=300)",
        "Load weight begin. avail mem=138.5 GB",
        *([READY] if ready else []),
    ]
    return "".join(f"{stamp(second + at)} {line}\n" for at, line in enumerate(lines))


def work(*behind: str) -> list[str]:
    """Return the lines of a server that serves, and what stands behind them."""
    return [prefill(1), decode(2), answered(3, "200 OK"), *behind]


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("已杀死", "killed-from-outside"),
        ("run.sh: 行 12:   331 已杀死               python3 -m sglang.launch_server", "killed-from-outside"),
        ("強制終了", "killed-from-outside"),
        ("Getötet", "killed-from-outside"),
        ("Убито", "killed-from-outside"),
        ("Processus arrêté", "killed-from-outside"),
        ("总线错误 (核心已转储)", "bus-error"),
        ("段错误 (核心已转储)", "unexplained-line"),
        ("Speicherzugriffsfehler (Speicherabzug geschrieben)", "unexplained-line"),
        ("Erreur de segmentation", "unexplained-line"),
        ("已中止 (核心已转储)", "unexplained-line"),
        ("systemd-coredump[9]: Process 331 (python3) of user 0 dumped core.", "unexplained-line"),
        (
            "May 10 10:11:12 gpu systemd-coredump[9]: Process 331 (sglang::schedul) of user 0 dumped core.",
            "unexplained-line",
        ),
        ("root  331  0.0  0.0  0  0 ?  Z  10:00  0:00 [sglang::schedul] <defunct>", "unexplained-line"),
        ("gpu7:1:4 [3] NCCL WARN NET/IB : Got async event : local catastrophic error", "unexplained-line"),
        (
            "n:1:4 [0] transport/net_ib.cc:13 NCCL WARN NET/IB: Got completion from peer p with status=12 opcode=0",
            "unexplained-line",
        ),
        (
            "n:1:4 [3] misc/socket.cc:4 NCCL WARN socketProgress: Connection closed by remote peer g<4>",
            "unexplained-line",
        ),
        ("DeepEP timeout for dispatch receive, rank 3, local expert 4, src rank 5", "expert-transport"),
    ],
)
def test_the_last_line_says_of_what_it_ended(line, rule):
    assert only(work(f"{line}\n")).rule == rule


@pytest.mark.parametrize(
    "line",
    [
        "该请求已杀死一个进程",
        "已中止",
        "Abandon",
        "systemd-coredump[9]: Process 331 (chrome) of user 0 dumped core.",
        "root  331  0.0  0.0  0  0 ?  Z  10:00  0:00 [git] <defunct>",
        "gpu7:1:4 [3] NCCL WARN NET/IB : No device found.",
    ],
)
def test_a_line_of_something_else_is_none(line):
    assert not found_in(work(f"{line}\n"))


def test_answers_with_503_and_no_work_behind_them_are_told():
    finding = only(work(*(answered(9 + at, "503 Service Unavailable", "/v1/chat/completions") for at in range(3))))
    assert "status 503" in finding.cause
    assert not found_in(work(answered(9, "503 Service Unavailable"), decode(10), answered(11, "200 OK")))


def test_503_before_a_server_has_begun_to_work_is_none():
    assert not found_in([begun(1).partition("\n")[0] + "\n", answered(9, "503 Service Unavailable")])


def test_503_before_the_end_of_a_server_that_was_stopped_is_none():
    assert not found_in(work(STOPPED, answered(51, "503 Service Unavailable")))


def test_a_limit_of_time_that_requests_run_into_is_told_wherever_it_stands():
    line = f"{stamp(5)} Request waiting timeout reached. rid=abc\n"
    assert "given up" in only(work(line, decode(10), answered(11, "200 OK"))).cause


def test_a_connection_that_was_closed_as_the_server_goes_on_is_none():
    line = "n:1:4 [3] misc/socket.cc:4 NCCL WARN socketProgress: Connection closed by remote peer g<4>\n"
    assert not found_in(work(line, decode(10), answered(11, "200 OK")))


@pytest.mark.parametrize("field", ["token usage: nan", "token usage: 0.06, accept len: nan"])
def test_nan_in_a_batch_line_is_told(field):
    line = f"{stamp(5)} Decode batch, #running-req: 2, #token: 22, {field}, #queue-req: 0\n"
    finding = only([decode(1), line])
    assert finding.rule == "batch-of-nan"
    assert ("draft" in told(finding)) is ("accept" in field)


def test_a_rate_that_is_nan_is_none():
    line = (
        "Decode batch, #running-req: 2, #token: 22, token usage: 0.06, gen throughput (token/s): nan, #queue-req: 0\n"
    )
    assert not found_in([decode(1), f"{stamp(5)} {line}"])


def test_starts_that_never_were_ready_are_told():
    finding = only([begun(1, seed=5), begun(10, seed=6)])
    assert finding.rule == "starts-again"
    assert "none of those before the last was ready" in finding.cause


def test_starts_again_and_again_after_work_are_told():
    lines = [line for at in (1, 20, 40) for line in (begun(at, ready=True), decode(at + 5))]
    assert only(lines).rule == "starts-again"


@pytest.mark.parametrize(
    "lines",
    [
        [begun(1, ready=True), decode(5), begun(20, ready=True), decode(25)],
        [begun(1), begun(10, port=30001), begun(20, port=30002)],
        [begun(1).splitlines(keepends=True)[0], begun(1).splitlines(keepends=True)[0], begun(1)],
        [x for at in (1, 20, 40) for x in (begun(at, ready=True), decode(at + 5), STOPPED)],
        [x for at in (1, 20, 40) for x in (begun(at), decode(at + 5))],
    ],
    ids=["one restart", "other ports", "ranks at once", "stopped each time", "an Engine of a script"],
)
def test_other_starts_in_one_log_are_none(lines):
    assert not [one for one in found_in(lines) if one.rule == "starts-again"]


DUMP = f"""{stamp(9)} Pyspy dump for PID 331:
Process 331: sglang::scheduler_TP0
Python v3.12.3 (/usr/bin/python3.12)

Thread 331 (active): "MainThread"
    recv_object (torch/distributed/distributed_c10d.py:2890)
    broadcast_pyobj (sglang/srt/utils/common.py:1300)
    event_loop_overlap (sglang/srt/managers/scheduler.py:1100)
"""


def test_a_dump_of_sglangs_own_at_the_end_is_a_hang():
    assert only(work(DUMP)).rule == "hang"
    assert not found_in(work(DUMP, decode(20)))
