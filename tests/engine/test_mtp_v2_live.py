"""MTP under spec v2 on the live engine: the same tokens, overlapped or not, and nothing leaked by a server's life.

On this CPU streams do nothing, so what overlaps is the order of things: a step is launched before the last one's result
is processed.
"""

import os

import pytest
import torch

import yoco_rounds
from engine_records import FILE, read, read_draft_inputs
from gemma4_repro.toys.language import EOS, held_out_prompts, token_id
from lifecycle import assert_nothing_is_left, constrained, load_of, mixed_requests

# 0.5.14 and later have spec v2 themselves: mtp-v2 and what it brings are for 0.5.13.post1.
pytestmark = [pytest.mark.engine, pytest.mark.releases("0.5.13.post1")]

LIMIT_S = 240
PROMPTS = [prompt[:n] for prompt, n in zip(held_out_prompts(200, 60, seed=7), [60, 17, 33, 5, 48] * 40, strict=True)]
LONG = held_out_prompts(6, 75, seed=7)
NEW_TOKENS = 16
# fp32 sums in another order; states are of the order of 10.
STATE_TOLERANCE = 1e-3
V2 = {"GEMMA4_TRIAGE_PATCHES": "default", "SGLANG_FROZEN_KV_MTP_V2": "1"}
OVERLAP = {"disable_overlap_schedule": False}
REQUESTS = int(os.environ.get("LIFECYCLE_REQUESTS", "100"))


@pytest.fixture(scope="module")
def sides(engine_arguments, mtp_arguments, run_engine, tmp_path_factory):
    """sides["overlap"] -> [{tokens, meta} per prompt] of an engine; also "none", "v1" and "sync".

    sides["overlap drafts"] -> what its assistant drafted from, as engine_records.py reads it; of "none" nothing.
    """
    default = {"GEMMA4_TRIAGE_PATCHES": "default"}
    asked = {
        "none": (default, engine_arguments),
        "v1": (default, mtp_arguments),
        "sync": (V2, mtp_arguments),
        "overlap": (V2, mtp_arguments | OVERLAP),
    }
    found = {}
    for name, (environment, arguments) in asked.items():
        engine = arguments | {"max_running_requests": 32, "max_total_tokens": 8192}
        path = tmp_path_factory.mktemp("drafts") / "inputs.jsonl"
        path.touch()
        run = run_engine(
            environment | {FILE: str(path)},
            engines=[engine],
            prompts=PROMPTS,
            new_tokens=NEW_TOKENS,
            before="engine_records:record_draft_inputs",
        )
        assert run.returncode == 0, run.log[-4000:]
        assert run.outputs is not None
        found[f"{name} drafts"] = read_draft_inputs(path)
        assert ("MTP under spec v2, overlap" in run.log) == (name in ("sync", "overlap"))
        found[name] = run.outputs[0]
    return found


@pytest.mark.parametrize("name", ["v1", "sync", "overlap"])
def test_greedy_tokens_are_those_without_mtp(sides, name):
    assert [one["tokens"] for one in sides[name]] == [one["tokens"] for one in sides["none"]]


@pytest.mark.parametrize("name", ["sync", "overlap"])
def test_drafts_start_from_what_they_start_from_without_spec_v2(sides, name):
    """Tokens and accept lengths say little of it: the toys' assistant hardly heeds the target's hidden state."""
    wanted, found = sides["v1 drafts"], sides[f"{name} drafts"]
    assert sides["none drafts"] == {}
    assert len(wanted) > 2 * len(PROMPTS)
    # Overlapped, a request that has ended unnoticed drafts once more.
    assert wanted.keys() <= found.keys()
    assert {key: token for key, (token, _) in wanted.items()} == {key: found[key][0] for key in wanted}
    states = torch.tensor([wanted[key][1] for key in wanted])
    torch.testing.assert_close(torch.tensor([found[key][1] for key in wanted]), states, rtol=0, atol=STATE_TOLERANCE)
    nearest = (states[1:] - states[:-1]).abs().amax(-1).min()
    assert nearest > 100 * STATE_TOLERANCE, "so that a neighbour's state would be seen"


@pytest.mark.parametrize(
    ("count", "changes"),
    [
        (20, {"page_size": 64, "speculative_num_steps": 1, "speculative_num_draft_tokens": 2}),
        # Only triton has pages of one token; its interpreter needs a second for a step.
        (2, {"attention_backend": "triton", "page_size": 1}),
        pytest.param(
            *(2, {"attention_backend": "triton", "speculative_num_steps": 2, "speculative_eagle_topk": 2}),
            marks=pytest.mark.twice,
        ),
    ],
    ids=["pages of 64, one draft", "pages of 1", "a tree two wide"],
)
def test_greedy_tokens_are_the_same_in_pages_of_other_sizes(sides, mtp_arguments, run_engine, count, changes):
    kept = PROMPTS[:count]
    new_tokens = NEW_TOKENS if count > 2 else 6
    run = run_engine(V2, engines=[mtp_arguments | OVERLAP | changes], prompts=kept, new_tokens=new_tokens)
    assert run.returncode == 0, run.log[-4000:]
    assert run.outputs is not None
    expected = [one["tokens"][:new_tokens] for one in sides["none"][:count]]
    assert [one["tokens"] for one in run.outputs[0]] == expected


@pytest.mark.parametrize(
    "changes",
    [
        {},
        pytest.param(
            {"prefill_attention_backend": "triton", "decode_attention_backend": "trtllm_mha"}, marks=pytest.mark.twice
        ),
    ],
    ids=["trtllm_mha", "hybrid"],
)
def test_trtllm_is_given_a_bound_where_it_would_read_lengths(sides, mtp_arguments, run_engine, tmp_path, changes):
    """A bound is above the longest, by what was allocated ahead and a page at most."""
    path, count = tmp_path / "bounds.jsonl", 6 if changes else 60
    engine = mtp_arguments | OVERLAP | changes
    ahead = 2 * engine["speculative_num_draft_tokens"] + engine["page_size"]
    run = run_engine(
        V2 | {FILE: str(path)},
        engines=[engine],
        prompts=PROMPTS[:count],
        new_tokens=NEW_TOKENS,
        before="engine_records:record_length_bounds",
    )
    assert run.returncode == 0, run.log[-4000:]
    assert run.outputs is not None
    assert [one["tokens"] for one in run.outputs[0]] == [one["tokens"] for one in sides["none"][:count]]
    found = read(path)
    assert len(found) > 5
    assert all(one["longest"] < one["bound"] <= one["longest"] + ahead for one in found)


def test_the_knob_alone_serves_a_hybrid(sides, mtp_arguments, run_engine):
    """It brings what a draft on trtllm_mha needs there; the other engines here have the defaults, which have it too."""
    hybrid = {"prefill_attention_backend": "triton", "decode_attention_backend": "trtllm_mha"}
    knob = {"SGLANG_FROZEN_KV_MTP_V2": "1"}
    run = run_engine(knob, engines=[mtp_arguments | OVERLAP | hybrid], prompts=PROMPTS[:3], new_tokens=6)
    assert run.returncode == 0, run.log[-4000:]
    assert run.outputs is not None
    assert [one["tokens"] for one in run.outputs[0]] == [one["tokens"][:6] for one in sides["none"][:3]]


def test_hidden_states_are_those_without_mtp(mtp_arguments, engine_arguments, engine_forks, tmp_path_factory):
    """The prompt's rows and one per token of the answer but the last, of each request among others."""
    asked = {"prompts": [prompt[: 40 - 9 * i] for i, prompt in enumerate(LONG[:4])], "return_hidden_states": True}
    sides = []
    for arguments in (engine_arguments, mtp_arguments, mtp_arguments | OVERLAP):
        engine = arguments | {"enable_return_hidden_states": True}
        arm = {"engine": engine, "loads": [yoco_rounds.load_of(new_tokens=NEW_TOKENS, **asked)], "state": []}
        done = engine_forks.run(tmp_path_factory.mktemp("states"), V2, LIMIT_S, {"arms": [arm]})
        assert done.returncode == 0, done.log[-4000:]
        sides.append(yoco_rounds.read(done.outputs[0])["rounds"][0])
    plain, *drafted = sides
    for found in drafted:
        for prompt, one, other in zip(asked["prompts"], plain, found, strict=True):
            assert one["tokens"] == other["tokens"]
            assert len(one["hidden"]) == len(other["hidden"]) == NEW_TOKENS
            assert len(one["hidden"][0]) == len(prompt)
            for rows, again in zip(one["hidden"], other["hidden"], strict=True):
                torch.testing.assert_close(torch.tensor(again), torch.tensor(rows), rtol=0, atol=STATE_TOLERANCE)


def test_answers_that_fill_the_context_stay_in_their_own_rows(mtp_arguments, engine_arguments, run_engine):
    """Twice a step's tokens are allocated ahead of a request's end, which the next request's row begins behind.

    Spilled slots are the first of the neighbour, whose answer then changes; no audit sees that.
    """
    context = {"context_length": 96}
    deep = {"speculative_num_steps": 15, "speculative_num_draft_tokens": 16}
    asked = {"prompts": [prompt[: 75 - 55 * (i % 2)] for i, prompt in enumerate(LONG)], "new_tokens": None}
    plain = run_engine(V2, engines=[engine_arguments | context], **asked)
    drafted = [mtp_arguments | context | deep | changes for changes in (OVERLAP, {})]
    run = run_engine(V2 | {"GEMMA4_TRIAGE_LEAK": "raise"}, engines=drafted, **asked)
    assert (plain.returncode, run.returncode) == (0, 0), run.log[-4000:]
    assert run.outputs is not None
    wanted = [one["tokens"] for one in plain.outputs[0]]
    assert {len(prompt) + len(tokens) for prompt, tokens in zip(asked["prompts"], wanted, strict=True)} == {94}
    for found in run.outputs:
        assert [one["tokens"] for one in found] == wanted


@pytest.mark.parametrize("name", ["sync", "overlap"])
def test_as_many_drafts_are_accepted_as_without_spec_v2(sides, name):
    """Tokens of a request over its verifications; one that a window overshot counts as accepted under spec v2."""
    steps = {side: sum(one["meta"]["spec_verify_ct"] for one in sides[side]) for side in ("v1", name)}
    assert steps[name] == steps["v1"]
    assert len(PROMPTS) * NEW_TOKENS / steps[name] > 2


LIVES = {
    # Prompts in chunks, and a request retracted every seven steps; a fourth one has to wait.
    "retracted": {"max_running_requests": 3, "chunked_prefill_size": 16},
    # Let in without a thought for their answers, they soon need more sliding KV than there is. Drafts of one token.
    "starved": {
        "max_running_requests": 6,
        "schedule_conservativeness": 0.01,
        "max_total_tokens": 1024,
        "swa_full_tokens_ratio": 0.09,
        "speculative_num_steps": 1,
        "speculative_num_draft_tokens": 2,
    },
}

GROWING = [
    {"prompt": prompt[:16], "sampling": {"temperature": 0, "max_new_tokens": 60, "ignore_eos": True}}
    for prompt in PROMPTS[:6]
]
"""Too many for the starved pool as soon as they have all begun."""


@pytest.fixture(scope="module")
def load():
    return constrained(mixed_requests(REQUESTS, seed=6), seed=6)


def is_plain(request):
    """Penalties lag behind the tokens by as much as the scheduler is behind, and samples differ."""
    changing = {"frequency_penalty", "presence_penalty", "repetition_penalty", "min_new_tokens"}
    sampling = request["sampling"]
    return sampling["temperature"] == 0 and not any(sampling.get(name) for name in changing)


@pytest.fixture(scope="module")
def alone(load):
    """Numbers of the requests that are served again, each alone: plain ones, and such with log probabilities."""
    whole = [i for i, one in enumerate(load) if "abort" not in one]
    plain, asked = ([i for i in whole if of(load[i])][-5:] for of in (is_plain, lambda one: "logprobs" in one))
    assert len(plain) == len(asked) == 5
    return sorted({*plain, *asked})


@pytest.fixture(scope="module", params=LIVES)
def lived(request, mtp_arguments, engine_forks, tmp_path_factory, load, alone):
    """(name, Run, folder). Every probe and the leak audit would end the server, as would SGLang's check of steps."""
    folder = tmp_path_factory.mktemp(request.param)
    environment = V2 | {
        "SGLANG_TRTLLM_MHA_DEBUG": "trap",
        "GEMMA4_TRIAGE_LEAK": "raise",
        "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
    }
    engine = mtp_arguments | OVERLAP | LIVES[request.param]
    arm = {
        "engine": engine | {"grammar_backend": "xgrammar", "log_level": "info"},
        "loads": [
            load_of(load, concurrency=engine["max_running_requests"] + 1, flush_every=10),
            load_of([load[i] for i in alone], concurrency=1),
            load_of(GROWING),
        ],
        "idle": True,
    }
    before = ["engine_changes:retract_often"] if request.param == "retracted" else []
    done = engine_forks.run(folder, environment, LIMIT_S + REQUESTS, {"before": before, "arms": [arm]})
    assert done.returncode == 0, done.log[-4000:]
    print(f"{request.param}: {REQUESTS} requests in {done.outputs[0]['loads_s'][0]:.0f} s")
    return request.param, done, folder


def test_nothing_is_raised_found_or_left(lived):
    name, life, folder = lived
    assert_nothing_is_left(life, folder)
    assert life.log.count("Testing retraction" if name == "retracted" else "Retract requests") > 2
    assert [len(one["tokens"]) for one in life.outputs[0]["loads"][2]] == [60] * len(GROWING)


def test_requests_end_in_every_way(load, lived):
    answers = lived[1].outputs[0]["loads"][0]
    ends = {(one["finish"], type(one["matched"]).__name__) for one in answers}
    assert ends == {("length", "NoneType"), ("stop", "int"), ("stop", "str"), ("abort", "NoneType")}
    for request, one in zip(load, answers, strict=True):
        assert len(one["tokens"]) <= request["sampling"]["max_new_tokens"]


def test_a_grammar_holds_to_its_end(load, lived):
    """The end token comes when the grammar allows nothing else, so it may be the last token of a step or not."""
    eos = token_id(EOS)
    kept = [
        (request, one["tokens"])
        for request, one in zip(load, lived[1].outputs[0]["loads"][0], strict=True)
        if "words" in request and "abort" not in request
    ]
    assert len(kept) > len(load) / 8
    for request, tokens in kept:
        assert tokens[-1] == eos
        assert 1 <= len(tokens) - 1 <= request["words"]
        assert set(tokens[:-1]) <= set(request["prompt"][1:])


def test_logprobs_are_those_of_the_answers_tokens(load, alone, lived):
    """They are those of a run alone: overlapped, SGLang loses those of a request that it retracts, without MTP too."""
    name, life, _ = lived
    served = zip((load[i] for i in alone), life.outputs[0]["loads"][1], strict=True)
    asked = [(request, one) for request, one in served if "logprobs" in request]
    assert len(asked) >= 5
    for request, one in asked:
        assert len(one["logprobs"]) == len(one["tokens"]) or name == "retracted"
        assert [token for token, _ in one["logprobs"]] == one["tokens"][len(one["tokens"]) - len(one["logprobs"]) :]
        assert all(value <= 0 for _, value in one["logprobs"])
        assert one["prompt_logprobs"] == len(request["prompt"]) - request["logprobs"] or name == "retracted"


def test_a_request_says_alone_what_it_said_among_others(load, alone, lived):
    among, again = lived[1].outputs[0]["loads"][:2]
    compared = 0
    for number, one in zip(alone, again, strict=True):
        if is_plain(load[number]):
            compared += 1
            assert (one["tokens"], one["finish"]) == (among[number]["tokens"], among[number]["finish"])
    assert compared >= 5
