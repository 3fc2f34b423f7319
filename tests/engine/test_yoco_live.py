"""YOCO fast prefill in SGLang's own engine: the same answers with it and without, and what each prefill did."""

import pytest
import torch
from transformers import AutoModelForImageTextToText

from gemma4_repro.toys.locate import toy_path
from yoco_rounds import CHUNK, ROUNDS, TOKENS, spec

pytestmark = pytest.mark.engine

# fp32 and another kernel for the last row: log probabilities are of the order of 10.
TOLERANCE = 2e-4
ARMS = {
    # In a mixed batch Triton as shipped sees one key less of a row that decodes: another answer whatever we do.
    "triton-mixed": {"attention_backend": "triton", "enable_mixed_chunk": True},
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
            "GEMMA4_TRIAGE_PATCHES": "default" + WINDOW_FIXES * (arm == "triton-mixed"),
        }
        folder = tmp_path_factory.mktemp("yoco")
        done = engine_forks.run_child("yoco_child", folder, environment, 240, spec(arguments | more))
        assert done.returncode == 0, done.log[-4000:]
        found.append(done.outputs)
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
    if arm != "triton-mixed":
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
    # More where prompts arrive apart: SGLang asks a row that decodes in a mixed batch as it asks a prompt's tokens.
    assert paths["log probabilities of prompt tokens"] >= 1
    assert paths["hidden states of all tokens are asked for"] == 1
