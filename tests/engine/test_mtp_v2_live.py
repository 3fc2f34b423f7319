"""MTP under spec v2 on the live engine: the same tokens, overlapped or not, and nothing leaked by a server's life.

On this CPU streams do nothing, so what overlaps is the order of things: a step is launched before the last one's result
is processed.
"""

import json
import os

import pytest

from gemma4_repro.log_exceptions import exceptions_in
from gemma4_repro.toys.language import held_out_prompts
from lifecycle_load import mixed_requests

pytestmark = pytest.mark.engine

LIMIT_S = 240
PROMPTS = [prompt[:n] for prompt, n in zip(held_out_prompts(40, 60, seed=7), [60, 17, 33, 5, 48] * 8, strict=True)]
NEW_TOKENS = 24
V2 = {"GEMMA4_TRIAGE_PATCHES": "default", "SGLANG_FROZEN_KV_MTP_V2": "1"}
OVERLAP = {"disable_overlap_schedule": False}
REQUESTS = int(os.environ.get("LIFECYCLE_REQUESTS", "100"))


@pytest.fixture(scope="module")
def sides(engine_arguments, mtp_arguments, run_engine):
    """sides["overlap"] -> [{tokens, meta} per prompt] of an engine; also "none", "v1" and "sync"."""
    default = {"GEMMA4_TRIAGE_PATCHES": "default"}
    asked = {
        "none": (default, engine_arguments),
        "v1": (default, mtp_arguments),
        "sync": (V2, mtp_arguments),
        "overlap": (V2, mtp_arguments | OVERLAP),
    }
    found = {}
    for name, (environment, arguments) in asked.items():
        run = run_engine(environment, engines=[arguments], prompts=PROMPTS, new_tokens=NEW_TOKENS)
        assert run.returncode == 0, run.log[-4000:]
        assert run.outputs is not None
        assert ("MTP under spec v2, overlap" in run.log) == (name in ("sync", "overlap"))
        found[name] = run.outputs[0]
    return found


@pytest.mark.parametrize("name", ["v1", "sync", "overlap"])
def test_greedy_tokens_are_those_without_mtp(sides, name):
    assert [one["tokens"] for one in sides[name]] == [one["tokens"] for one in sides["none"]]


@pytest.mark.parametrize("name", ["sync", "overlap"])
def test_as_many_drafts_are_accepted_as_without_spec_v2(sides, name):
    """Tokens of a request over its verifications; one that a window overshot counts as accepted under spec v2."""
    steps = {side: sum(one["meta"]["spec_verify_ct"] for one in sides[side]) for side in ("v1", name)}
    assert steps[name] == steps["v1"]
    assert len(PROMPTS) * NEW_TOKENS / steps[name] > 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("mtp-v2")


@pytest.fixture(scope="module")
def load():
    return mixed_requests(REQUESTS, seed=6)


@pytest.fixture(scope="module")
def life(mtp_arguments, engine_forks, folder, load):
    """Every probe and the leak audit would end the server, as would SGLang's own check after each step."""
    environment = V2 | {
        "SGLANG_TRTLLM_MHA_DEBUG": "trap",
        "GEMMA4_TRIAGE_LEAK": "raise",
        "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
    }
    engine = mtp_arguments | OVERLAP | {"max_running_requests": 3, "chunked_prefill_size": 16, "log_level": "warning"}
    spec = {
        "engine": engine,
        "before": "lifecycle_child:retract_often",
        "rounds": [{"requests": load, "concurrency": 4}, {"requests": load[-15:], "concurrency": 1}],
    }
    done = engine_forks.run_child("lifecycle_child", folder, environment, LIMIT_S + REQUESTS, spec)
    assert done.returncode == 0, done.log[-4000:]
    return done


def test_nothing_is_raised_found_or_left(life, folder):
    assert exceptions_in(life.log.splitlines()) == ()
    assert life.log.count("Testing retraction") > 5
    assert sorted(path.name for path in (folder / "dumps").iterdir()) == ["audits", "guards"], "and no dump"
    assert life.outputs["idle"] == {
        "leak_checker_ran": True,
        "flush_succeeded": True,
        "used_tokens_after_flush": 0,
        "used_share_after_flush": 0.0,
    }
    tallies = [json.loads(path.read_text()) for path in (folder / "dumps" / "audits").iterdir()]
    tally = max(tallies, key=lambda one: one["events"])
    assert tally["audits"]["idle"] >= 1
    assert tally["balanced"] is True


def test_requests_end_in_every_way(load, life):
    answers = life.outputs["rounds"][0]
    ends = {(one["finish"], type(one["matched"]).__name__) for one in answers}
    assert ends == {("length", "NoneType"), ("stop", "int"), ("stop", "str"), ("abort", "NoneType")}
    for request, one in zip(load, answers, strict=True):
        assert len(one["tokens"]) <= request["sampling"]["max_new_tokens"]


def test_a_request_says_alone_what_it_said_among_others(load, life):
    """Penalties lag behind the tokens by as much as the scheduler is behind, and samples differ."""
    changing = {"frequency_penalty", "presence_penalty", "repetition_penalty", "min_new_tokens"}
    plain = [
        i
        for i, one in enumerate(load[-15:])
        if one["sampling"]["temperature"] == 0
        and "abort" not in one
        and not any(one["sampling"].get(name) for name in changing)
    ]
    among, alone = life.outputs["rounds"][0][-15:], life.outputs["rounds"][1]
    assert plain
    assert [alone[i] for i in plain] == [among[i] for i in plain]
