"""YOCO fast prefill in SGLang's own engine: the same answers with it and without, and what each prefill did."""

import pytest
import torch
from transformers import AutoModelForImageTextToText

from engine_records import FILE, read_row_logits
from gemma4_repro.toys.locate import toy_path
from yoco_rounds import CHUNK, LONG, ROUNDS, SHORT, TOKENS, all_rounds, read

# yoco is not ported: it needs new bodies over the prefill graph runner and layers/layer_boundary.
pytestmark = [pytest.mark.engine, pytest.mark.releases("0.5.13.post1")]

# fp32 and another kernel for the last row: log probabilities are of the order of 10.
TOLERANCE = 2e-4
ARMS = {
    "triton": {"attention_backend": "triton"},
    "trtllm": {"attention_backend": "trtllm_mha"},
    "trtllm-mtp": {"attention_backend": "trtllm_mha"},
    "hybrid": {"prefill_attention_backend": "triton", "decode_attention_backend": "trtllm_mha"},
}
WINDOW_FIXES = ",swa-window-width,triton-decode-window"


@pytest.fixture(scope="module", params=ARMS)
def served(request, tmp_path_factory, engine_forks, engine_arguments, mtp_arguments):
    """(arm, what the engine served without, what it served with)."""
    arm = request.param
    base = mtp_arguments if arm == "trtllm-mtp" else engine_arguments
    more = ARMS[arm] | {"chunked_prefill_size": CHUNK, "enable_return_hidden_states": True}
    arguments = {name: value for name, value in base.items() if arm != "hybrid" or name != "attention_backend"}
    found = []
    for asked in ("0", "1"):
        environment = {
            "SGLANG_GEMMA4_YOCO": asked,
            "GEMMA4_TRIAGE_YOCO_ROWS": "1",
            "GEMMA4_TRIAGE_PATCHES": "default" + WINDOW_FIXES * (arm == "triton"),
        }
        folder = tmp_path_factory.mktemp("yoco")
        done = engine_forks.run(folder, environment, 240, {"arms": [all_rounds(arguments | more)]})
        assert done.returncode == 0, done.log[-4000:]
        found.append(read(done.outputs[0]))
    return arm, *found


@pytest.mark.parametrize("name", ROUNDS)
def test_answers_are_those_without_it(served, name):
    _, plain, fast = (one if isinstance(one, str) else one["rounds"][list(ROUNDS).index(name)] for one in served)
    for one, other in zip(plain, fast, strict=True):
        assert one["tokens"] == other["tokens"]
        assert one["cached"] == other["cached"]
        assert len(one["logprobs"]) == TOKENS
        assert torch.tensor(one["logprobs"]).std() > 1
        close(one["logprobs"], other["logprobs"])
        close(one["prompt"][1:], other["prompt"][1:])
        assert (one["hidden"] is None) == (other["hidden"] is None) == (name != "hidden states")
        for step, again in zip(one["hidden"] or [], other["hidden"] or [], strict=True):
            close(step, again)


def close(one, other):
    torch.testing.assert_close(torch.tensor(other), torch.tensor(one), rtol=0, atol=TOLERANCE)


def test_past_the_window_they_are_those_of_transformers(served):
    arm, _, fast = served
    if arm != "triton":
        pytest.skip("this server has SGLang's windows")
    answers = fast["rounds"][list(ROUNDS).index("chunks beside others")]
    model = AutoModelForImageTextToText.from_pretrained(toy_path("toy-e4b"), dtype=torch.float32).eval()
    for prompt, answer in zip(ROUNDS["chunks beside others"]["prompts"], answers, strict=True):
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([prompt])).logits[0, -1]
        close(torch.log_softmax(logits, -1).tolist(), answer["logprobs"][0])


def test_what_each_prefill_did(served):
    _, plain, fast = served
    assert "yoco" not in plain["paths"]
    paths = fast["paths"]["yoco"]
    assert paths["fused"] >= 5
    assert paths["skipped: a chunk that is not the last"] >= 4
    assert paths["log probabilities of prompt tokens"] >= 1
    assert paths["hidden states of all tokens are asked for"] == 1


def test_a_mixed_batch_has_the_logits_that_it_has_without(engine_arguments, run_engine, tmp_path):
    """Requests that decode in it, and its prompt's last chunk. SGLang mixes none where log probabilities are asked for.

    Without the windows' fix a row that decodes there sees a key more than in a decode.
    """
    prompts = [SHORT[0], LONG[0] + SHORT[1], LONG[1][:90]]
    engine = engine_arguments | {"chunked_prefill_size": CHUNK, "enable_mixed_chunk": True}
    found = []
    for asked in ("0", "1"):
        path = tmp_path / f"{asked}.jsonl"
        environment = {
            "SGLANG_GEMMA4_YOCO": asked,
            "GEMMA4_TRIAGE_YOCO_ROWS": "1",
            "GEMMA4_TRIAGE_PATCHES": "default" + WINDOW_FIXES,
            FILE: str(path),
        }
        run = run_engine(
            environment, engines=[engine], prompts=prompts, new_tokens=8, before="engine_records:record_row_logits"
        )
        assert run.returncode == 0, run.log[-4000:]
        rows = read_row_logits(path).items()
        # A chunk that is not its prompt's last is sampled from nowhere.
        found.append({key: row for key, row in rows if key[1] >= len(prompts[int(key[0])])})
    plain, fast = found
    mixed = [key for key, (mode, _) in fast.items() if mode == "MIXED"]
    assert plain.keys() == fast.keys()
    assert len({rid for rid, _ in mixed}) == len(prompts)
    assert any(length == len(prompts[int(rid)]) for rid, length in mixed)
    assert any(length > len(prompts[int(rid)]) for rid, length in mixed)
    for key, (_, logits) in fast.items():
        close(plain[key][1], logits)
