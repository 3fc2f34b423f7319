"""The engine's greedy tokens and logprobs equal transformers' on the trained toy, with and without MTP."""

import pytest
import torch

from gemma4_repro.toys.language import held_out_prompts

pytestmark = pytest.mark.engine

NEW_TOKENS = 16
# Tokens all over the vocabulary: the greedy token of a well trained toy has logprob ~0 whatever the attention did.
WATCHED = list(range(0, 512, 8))
# fp32 on both sides, different summation order; logits are of the order of 10.
ROUND_OFF = 1e-3


@pytest.fixture(scope="module")
def prompts():
    return held_out_prompts(3, 101, seed=7)


@pytest.fixture(scope="module")
def oracle(prompts, engine_arguments):
    """Per prompt: 16 greedy tokens, and the logprobs of WATCHED at each, from Gemma4ForConditionalGeneration."""
    from transformers import Gemma4ForConditionalGeneration

    model = Gemma4ForConditionalGeneration.from_pretrained(engine_arguments["model_path"], dtype=torch.float32).eval()
    found = []
    for prompt in prompts:
        with torch.inference_mode():
            out = model.generate(
                input_ids=torch.tensor([prompt]),
                max_new_tokens=NEW_TOKENS,
                do_sample=False,
                eos_token_id=None,
                output_logits=True,
                return_dict_in_generate=True,
            )
        tokens = out.sequences[0, len(prompt) :].tolist()
        logprobs = [torch.log_softmax(logits[0].double(), -1)[WATCHED].tolist() for logits in out.logits]
        found.append((tokens, logprobs))
    return found


def logprob_error(outputs, oracle):
    """Largest difference over prompts, positions and WATCHED tokens."""
    return max(
        abs(ours[0] - theirs)
        for out, (_, logprobs) in zip(outputs, oracle, strict=True)
        for step, expected in zip(out["meta"]["output_token_ids_logprobs"], logprobs, strict=True)
        for ours, theirs in zip(step, expected, strict=True)
    )


def test_tokens_and_logprobs_are_equal(run_engine, engine_arguments, mtp_arguments, prompts, oracle):
    run = run_engine(
        {"GEMMA4_TRIAGE_PATCHES": "default,+swa-window-width", "SGLANG_TRTLLM_MHA_DEBUG": "1"},
        engines=[engine_arguments, mtp_arguments],
        prompts=prompts,
        new_tokens=NEW_TOKENS,
        logprobs_of=WATCHED,
    )
    assert run.returncode == 0, run.log[-4000:]
    plain, mtp = run.outputs
    expected = [tokens for tokens, _ in oracle]
    assert [out["tokens"] for out in plain] == expected
    assert [out["tokens"] for out in mtp] == expected
    assert logprob_error(plain, oracle) < ROUND_OFF
    assert sum(out["meta"]["spec_accept_length"] for out in mtp) / len(mtp) > 1.5


def test_without_the_window_fix_logprobs_differ(run_engine, engine_arguments, prompts, oracle):
    """W1: past the window the release attends to one key more than transformers."""
    run = run_engine({}, engines=[engine_arguments], prompts=prompts, new_tokens=NEW_TOKENS, logprobs_of=WATCHED)
    assert run.returncode == 0, run.log[-4000:]
    (plain,) = run.outputs
    same = all(out["tokens"] == tokens for out, (tokens, _) in zip(plain, oracle, strict=True))
    assert not same or logprob_error(plain, oracle) > 5 * ROUND_OFF


def test_short_prompts_need_no_window_fix(run_engine, engine_arguments, oracle, prompts):
    """Inside the window the shipped release and transformers agree, so the difference above is the window's."""
    from transformers import Gemma4ForConditionalGeneration

    short = [prompt[:12] for prompt in prompts]
    run = run_engine({}, engines=[engine_arguments], prompts=short, new_tokens=8)
    assert run.returncode == 0, run.log[-4000:]
    model = Gemma4ForConditionalGeneration.from_pretrained(engine_arguments["model_path"], dtype=torch.float32).eval()
    for prompt, out in zip(short, run.outputs[0], strict=True):
        expected = model.generate(
            input_ids=torch.tensor([prompt]), max_new_tokens=8, do_sample=False, eos_token_id=None
        )
        assert out["tokens"] == expected[0, len(prompt) :].tolist()
