"""Steps without drafts on the live engine: the same tokens, nothing leaked, whichever way a request's steps go.

Acceptance is the toy's own, and the table is made up, so that the number of requests says which steps draft.
"""

import pytest

from gemma4_repro.toys.language import EOS, held_out_prompts, token_id
from lifecycle import assert_nothing_is_left, constrained, load_of, mixed_requests

# draft-policy is not ported: 0.5.23's own worker drafts in all of its steps.
pytestmark = [pytest.mark.engine, pytest.mark.releases("0.5.13.post1")]

LIMIT_S = 240
PROMPTS = [prompt[:n] for prompt, n in zip(held_out_prompts(40, 60, seed=7), [60, 17, 33, 5, 48] * 8, strict=True)]
V2 = {"GEMMA4_TRIAGE_PATCHES": "default", "SGLANG_FROZEN_KV_MTP_V2": "1"}
OVERLAP = {"disable_overlap_schedule": False}
FEW = V2 | {"GEMMA4_TRIAGE_DRAFTS": "1:1,2:1,3:9"}
"""Drafts for one request and for two, none for more: no verification has nine tokens."""
NEVER = V2 | {"GEMMA4_TRIAGE_DRAFTS": "never"}
REQUESTS = 48
DRAFTS = "gemma4_triage_drafts"


ASKED = [
    {
        "prompt": prompt,
        "sampling": {"temperature": 0, "max_new_tokens": 16, "ignore_eos": True},
        "logprobs": len(prompt) - 1,
    }
    for prompt in PROMPTS
]


@pytest.fixture(scope="module")
def plain(engine_arguments, engine_forks, tmp_path_factory):
    """Returns the answers without MTP."""
    arm = {"engine": engine_arguments, "loads": [load_of(ASKED, concurrency=3)], "state": [DRAFTS]}
    default = {"GEMMA4_TRIAGE_PATCHES": "default"}
    done = engine_forks.run(tmp_path_factory.mktemp("plain"), default, LIMIT_S, {"arms": [arm]})
    assert done.returncode == 0, done.log[-4000:]
    assert done.outputs[0]["state"] == {}
    return done.outputs[0]["loads"][0]


@pytest.mark.parametrize("changes", [OVERLAP, {}], ids=["overlapped", "step by step"])
def test_tokens_and_their_logprobs_are_those_without_mtp(plain, mtp_arguments, engine_forks, tmp_path_factory, changes):
    """Two requests draft and a third ends that for all, so that each goes through steps of both kinds."""
    arm = {
        "engine": mtp_arguments | changes | {"max_running_requests": 4},
        "loads": [load_of(ASKED, concurrency=3), load_of(ASKED[:4], concurrency=1)],
        "state": [DRAFTS],
    }
    done = engine_forks.run(tmp_path_factory.mktemp("few"), FEW, LIMIT_S, {"arms": [arm]})
    assert done.returncode == 0, done.log[-4000:]
    (found,) = done.outputs
    for answers in found["loads"]:
        for one, other in zip(answers, plain, strict=False):
            assert one["tokens"] == other["tokens"]
            assert [token for token, _ in one["logprobs"]] == one["tokens"]
            assert [value for _, value in one["logprobs"]] == pytest.approx(
                [value for _, value in other["logprobs"]], abs=1e-3
            )
    drafts = found["state"][DRAFTS]
    assert drafts["asked"] == "1:1,2:1,3:9"
    assert min(drafts["steps_with_drafts"], drafts["steps_without"]) > 20
    assert drafts["drafting"], drafts
    assert 2 < drafts["accepted"] <= 4, "the toy's own"
    assert 2 <= drafts["switches"] < drafts["steps_without"]


@pytest.fixture(scope="module", params=["few", "never"])
def lived(request, mtp_arguments, engine_forks, tmp_path_factory):
    """(load, Run, folder). Every probe and the leak audit would end the server; a request is retracted now and then."""
    folder = tmp_path_factory.mktemp(request.param)
    load = constrained(mixed_requests(REQUESTS, seed=6), seed=6)
    environment = (FEW if request.param == "few" else NEVER) | {
        "SGLANG_TRTLLM_MHA_DEBUG": "trap",
        "GEMMA4_TRIAGE_LEAK": "raise",
        "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
    }
    engine = mtp_arguments | OVERLAP | {"max_running_requests": 3, "chunked_prefill_size": 16}
    arm = {
        "engine": engine | {"grammar_backend": "xgrammar", "log_level": "info"},
        "loads": [load_of(load, concurrency=4, flush_every=10)],
        "state": [DRAFTS],
        "idle": True,
    }
    done = engine_forks.run(folder, environment, LIMIT_S, {"before": ["engine_changes:retract_often"], "arms": [arm]})
    assert done.returncode == 0, done.log[-4000:]
    return load, done, folder


def test_nothing_is_raised_found_or_left(lived):
    _, life, folder = lived
    assert_nothing_is_left(life, folder)
    drafts = life.outputs[0]["state"][DRAFTS]
    assert drafts["steps_without"] > 20
    assert drafts["steps_with_drafts"] > 20 or (drafts["asked"], drafts["steps_with_drafts"]) == ("never", 0)
    assert life.log.count("Testing retraction") > 2


def test_a_grammar_holds_to_its_end(lived):
    load, life, _ = lived
    kept = [
        (request, one["tokens"])
        for request, one in zip(load, life.outputs[0]["loads"][0], strict=True)
        if "words" in request and "abort" not in request
    ]
    assert len(kept) >= len(load) / 8
    for request, tokens in kept:
        assert tokens[-1] == token_id(EOS)
        assert 1 <= len(tokens) - 1 <= request["words"]
        assert set(tokens[:-1]) <= set(request["prompt"][1:])


def test_logprobs_are_those_of_the_answers_tokens(lived):
    """SGLang loses those before a retraction, without MTP too, so the last tokens are looked at that have some."""
    load, life, _ = lived
    asked = [
        one
        for request, one in zip(load, life.outputs[0]["loads"][0], strict=True)
        if "logprobs" in request and one["tokens"]
    ]
    assert len(asked) > 8
    for one in asked:
        # A stream that is aborted in the queue, where a retraction has put it, ends in its last token alone.
        said = one["logprobs"][-len(one["tokens"]) :] if one["finish"] == "abort" else one["logprobs"]
        assert [token for token, _ in said] == one["tokens"][len(one["tokens"]) - len(said) :]
        assert all(value <= 0 for _, value in said)
