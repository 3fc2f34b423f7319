"""Prompts over several lines, as --log-requests writes them, make no finding, whatever stands around their lines."""

import json

import pytest

from log_wrappers import WRAPPERS
from made_logs import decode, found_in, prefill, stamp

WORDS = "line one\nKilled\nSegmentation fault (core dumped)\n\ntorch.OutOfMemoryError: CUDA out of memory. Tried\n"
GENERATE = f"{stamp(30)} Receive: obj=GenerateReqInput(rid='a', text='{WORDS}', sampling_params={{'n': 1}})\n"
CHAT = f"{stamp(30)} Receive: obj=ChatCompletionRequest(messages=[{{'role': 'user', 'content': '{WORDS}'}}])\n"
ANSWER = f'{stamp(33)} INFO:     10.0.0.3:51234 - "POST /generate HTTP/1.1" 200 OK\n'
SERVES = [prefill(1), decode(2), ANSWER]
GOES_ON = [prefill(31), decode(32), ANSWER]
# Its lines are put together from parts, of which numbers are left out.
APART = {"cri-parts"}


@pytest.mark.parametrize("name", sorted({*WRAPPERS} - APART))
@pytest.mark.parametrize("request_line", [GENERATE, CHAT], ids=["generate", "chat"])
def test_what_a_user_wrote_is_no_finding(name, request_line):
    assert found_in([WRAPPERS[name]("".join([*SERVES, request_line, *GOES_ON]))]) == ()


@pytest.mark.parametrize("name", ["docker-json", "cloud-json", "logfmt", "stamp-before-all", "fences"])
def test_nor_where_the_log_ends_with_it(name):
    assert found_in([WRAPPERS[name]("".join([*SERVES, GENERATE]))]) == ()


@pytest.mark.parametrize("name", ["docker-json", "cloud-json", "logfmt", "cri"])
def test_what_follows_the_record_is_the_servers(name):
    rules = [one.rule for one in found_in([WRAPPERS[name]("".join([*SERVES, GENERATE, "Killed\n"]))])]
    assert rules == ["killed-from-outside"]


@pytest.mark.parametrize("name", ["docker-json", "msg", "logfmt"])
def test_a_record_in_one_line_leaves_what_stands_below_it(name):
    whole = f"{stamp(30)} Receive: obj=GenerateReqInput(rid='a', text='hi')\n"
    below = "Killed\n# it printed ValueError('x')\n"
    assert [one.rule for one in found_in([WRAPPERS[name]("".join([*SERVES, whole, below]))])] == ["killed-from-outside"]


def test_a_record_that_was_cut_off_hides_nothing():
    cut = f"{stamp(30)} Receive: obj=GenerateReqInput(rid='a', text='line one\n"
    lines = "".join(json.dumps({"log": line + "\n"}) + "\n" for line in [*(cut + "Killed").splitlines()])
    assert [one.rule for one in found_in([*SERVES, lines])] == ["killed-from-outside"]
