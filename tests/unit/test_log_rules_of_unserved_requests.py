"""Requests that come in while no batch and no answer follows are told; idle and quiet servers are not."""

import pytest

from gemma4_triage.finding import Confidence
from gemma4_triage.logs.read import read_log
from log_wrappers import WRAPPERS
from made_logs import decode, found_in, only, prefill, stamp, told


def comes(second: int, rid: str = "a") -> str:
    """Return the line by which --log-requests tells of a request that comes in."""
    return f"{stamp(second)} Receive: obj=GenerateReqInput(rid='{rid}', text='hi')\n"


def ends(second: int) -> str:
    """Return its line about one that was answered."""
    return f"{stamp(second)} Finish: obj=GenerateReqInput(rid='a'), out={{'text': 'hi'}}\n"


def http(second: int, request: str, status: str = " 200 OK") -> str:
    """Return a line of access."""
    return f'{stamp(second)} INFO:     10.0.0.3:51234 - "{request} HTTP/1.1"{status}\n'


SERVES = [prefill(1), decode(2), http(3, "POST /generate")]
MINUTES = [comes(second) for second in range(60, 360, 40)]


def test_requests_that_nothing_follows_for_minutes_are_told():
    finding = only([*SERVES, *MINUTES])
    assert (finding.rule, finding.confidence) == ("requests-unserved", Confidence.LIKELY)
    assert "8 requests came in over 280 s" in finding.cause


@pytest.mark.parametrize("path", ["GET /metrics", "GET /health"])
def test_answers_that_ask_no_scheduler_are_no_work(path):
    lines = [line for second in range(60, 360, 40) for line in (comes(second), http(second + 1, path))]
    assert only([*SERVES, *lines]).rule == "requests-unserved"


def test_many_in_half_a_minute_are_possible():
    finding = only([*SERVES, *(comes(second) for second in range(20, 60))])
    assert finding.confidence is Confidence.POSSIBLE


def test_a_proxys_lines_without_a_status_count_too():
    assert (
        only([*SERVES, *(http(second, "POST /generate", "") for second in (60, 120, 180))]).rule == "requests-unserved"
    )


def test_a_pause_is_the_cause_where_one_stands():
    paused = http(50, "POST /pause_generation")
    assert "POST /continue_generation" in told(only([*SERVES, paused, *MINUTES]))


@pytest.mark.parametrize("name", ["docker-json", "cloud-json", "cri", "fences", "stamp-before-all"])
def test_what_stands_around_the_lines_changes_nothing(name):
    lines = WRAPPERS[name]("".join([*SERVES, *MINUTES]))
    came = read_log("made.log", [lines.encode()]).unserved
    assert came is not None
    assert (came.count, came.first.time[-8:], came.last.time[-8:]) == (8, "00:01:00", "00:05:40")


HEALTHY = {
    "idle": [*SERVES, http(900, "GET /health")],
    "one that has just come": [*SERVES, comes(60), comes(61)],
    "a few within a step": [*SERVES, *(comes(second) for second in range(60, 70))],
    "each is answered": [
        *SERVES,
        *(line for second in range(60, 360, 40) for line in (comes(second), ends(second + 9))),
    ],
    "refused": [*SERVES, *MINUTES, *(http(350, "POST /generate", " 400 Bad Request") for _ in MINUTES)],
    "a batch follows": [*SERVES, *MINUTES, prefill(341)],
    "batch lines are hidden": [comes(1), ends(4), *MINUTES],
    "probes of an idle server": [*SERVES, *(comes(second, "HEALTH_CHECK_1") for second in range(60, 360, 40))],
    "the scheduler answers a probe": [*SERVES, *MINUTES, http(345, "GET /health_generate")],
    "it was stopped": [*SERVES, *MINUTES, f"{stamp(345)} SIGTERM received. signum=15 frame=None. Draining requests\n"],
}


@pytest.mark.parametrize("lines", HEALTHY.values(), ids=HEALTHY)
def test_healthy_servers_are_silent(lines):
    assert [one.rule for one in found_in(lines) if one.rule == "requests-unserved"] == []
