"""A server's life on the live engine with MTP: penalties, ends of every kind, aborts, four requests at a time.

150 requests here; `LIFECYCLE_REQUESTS=2000` for the long run.
"""

import os

import pytest

from gemma4_repro.toys.language import EOS, token_id
from lifecycle import assert_nothing_is_left, load_of, mixed_requests

# Its loads are of mtp-v2; on 0.5.23 test_leak_audit_live.py and test_probes_live.py serve with its own worker.
pytestmark = [pytest.mark.engine, pytest.mark.releases("0.5.13.post1")]

REQUESTS = int(os.environ.get("LIFECYCLE_REQUESTS", "150"))
# Served again, each alone: among greedy requests nothing of a neighbour may show.
ALONE = 25
LIMIT_S = 120 + REQUESTS / 2


@pytest.fixture(scope="module")
def load():
    return mixed_requests(REQUESTS, seed=6)


@pytest.fixture(scope="module")
def greedy(load):
    """Numbers of the requests that are served again."""
    whole = [i for i, one in enumerate(load) if one["sampling"]["temperature"] == 0 and "abort" not in one]
    return whole[-ALONE:]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("lifecycle")


@pytest.fixture(scope="module")
def run(mtp_arguments, engine_forks, folder, load, greedy):
    """Run a load: every probe and the leak audit would end the server, as would SGLang's check after each step."""
    environment = {
        "GEMMA4_TRIAGE_PATCHES": "default",
        "SGLANG_TRTLLM_MHA_DEBUG": "trap",
        "GEMMA4_TRIAGE_LEAK": "raise",
        "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
    }
    arm = {
        # A fourth request has to wait.
        "engine": mtp_arguments | {"max_running_requests": 3, "log_level": "warning"},
        "loads": [load_of(load, concurrency=4), load_of([load[i] for i in greedy], concurrency=1)],
        "idle": True,
    }
    done = engine_forks.run(folder, environment, LIMIT_S, {"arms": [arm]})
    assert done.returncode == 0, done.log[-4000:]
    print(f"{REQUESTS} requests in {done.outputs[0]['loads_s'][0]:.0f} s")
    return done


@pytest.fixture(scope="module")
def answers(run):
    return run.outputs[0]["loads"][0]


def test_nothing_is_raised_found_or_left(run, folder):
    assert_nothing_is_left(run, folder)


def test_the_guards_had_nothing_to_do(run):
    assert "spec-info-guards:" not in run.log


def test_requests_end_in_every_way(load, answers):
    assert len(answers) == REQUESTS
    ends = [(one["finish"], type(one["matched"]).__name__, bool(one["tokens"])) for one in answers]
    served = [("length", "NoneType", True), ("stop", "int", True), ("stop", "str", True)]
    for end in (*served, ("abort", "NoneType", True)):
        assert ends.count(end) >= REQUESTS // 50, end
    assert ends.count(("abort", "NoneType", False)) >= REQUESTS // 50, "aborted while waiting"
    assert {token_id(EOS)} < {one["matched"] for one in answers if isinstance(one["matched"], int)}
    for request, one in zip(load, answers, strict=True):
        assert one["finish"] != "abort" or "abort" in request
        assert len(one["tokens"]) <= request["sampling"]["max_new_tokens"]


def test_a_request_says_alone_what_it_said_among_others(run, answers, greedy):
    alone = run.outputs[0]["loads"][1]
    assert len(alone) == ALONE
    assert alone == [answers[i] for i in greedy]
