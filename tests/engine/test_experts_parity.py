"""`toy-26b` gives in the engine what transformers gives: experts, keys as values, layer scalars and router scales.

So it does with MTP drafts, of `toy-26b-assistant`.

`tests/unit/test_toy_experts.py` shows what each of these is worth in its logits.
"""

import pytest
import torch

from gemma4_repro.corpus.case import corrected
from gemma4_repro.toys.language import held_out_prompts

pytestmark = [pytest.mark.engine, pytest.mark.releases("0.5.13.post1", "0.5.23")]

NEW_TOKENS = 16
# Tokens all over the vocabulary: the greedy token of a well trained toy has logprob ~0 whatever the experts did.
WATCHED = list(range(0, 512, 8))
# fp32 on both sides, different summation order; logits are of the order of 10.
ROUND_OFF = 1e-3
RIGHT = {"GEMMA4_TRIAGE_PATCHES": corrected()}
PLAIN, MTP = 0, 1  # places in `run.outputs`


@pytest.fixture(scope="module")
def prompts():
    """Return prompts of three times the window. Of these at least 2 drafts are accepted; others differ much."""
    return held_out_prompts(6, 101, seed=9)


@pytest.fixture(scope="module")
def oracle(prompts, experts_arguments):
    """Return of each prompt greedy tokens, and the logprobs of WATCHED at every position but the last."""
    from transformers import Gemma4ForConditionalGeneration

    model = Gemma4ForConditionalGeneration.from_pretrained(
        experts_arguments["model_path"], dtype=torch.float32, experts_implementation="eager"
    ).eval()
    found = []
    for prompt in prompts:
        with torch.inference_mode():
            tokens = model.generate(
                input_ids=torch.tensor([prompt]), max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None
            )
            logits = model(input_ids=tokens[:, :-1]).logits[0]
        logprobs = torch.log_softmax(logits.double(), -1)[:, WATCHED]
        found.append((tokens[0, len(prompt) :].tolist(), logprobs))
    return found


@pytest.fixture(scope="module")
def run(run_engine, experts_arguments, experts_mtp_arguments, prompts):
    """Run it without and with MTP. The window is as wide as transformers' only with the fix for it."""
    run = run_engine(
        RIGHT | {"SGLANG_TRTLLM_MHA_DEBUG": "1"},
        engines=[experts_arguments, experts_mtp_arguments],
        prompts=prompts,
        new_tokens=NEW_TOKENS,
        return_logprob=True,
        token_ids_logprob=WATCHED,
        logprob_start_len=0,
    )
    assert run.returncode == 0, run.log[-4000:]
    return run


def watched(out, part):
    """float64 [positions, WATCHED] of the part: input or output."""
    rows = [row for row in out["meta"][f"{part}_token_ids_logprobs"] if row]  # nothing is said of the first token
    return torch.tensor([[logprob for logprob, *_ in row] for row in rows], dtype=torch.float64)


def tokens_of(outputs):
    return [out["tokens"] for out in outputs]


def accept_length(outputs):
    return sum(out["meta"]["spec_accept_length"] for out in outputs) / len(outputs)


@pytest.mark.parametrize("side", [PLAIN, MTP], ids=["plain", "mtp"])
def test_greedy_tokens_are_equal(run, oracle, side):
    assert tokens_of(run.outputs[side]) == [tokens for tokens, _ in oracle]


@pytest.mark.parametrize("side", [PLAIN, MTP], ids=["plain", "mtp"])
def test_logprobs_of_prefill_and_decode_are_equal(run, oracle, prompts, side):
    for out, (_, expected), prompt in zip(run.outputs[side], oracle, prompts, strict=True):
        found = watched(out, "input"), watched(out, "output")
        assert [len(rows) for rows in found] == [len(prompt) - 1, NEW_TOKENS]
        assert (torch.cat(found) - expected).abs().max() < ROUND_OFF


# Later releases have one worker: the V1 worker is gone.
@pytest.mark.releases("0.5.13.post1")
def test_drafts_are_accepted_under_both_workers(run, run_engine, experts_mtp_arguments, prompts, oracle):
    overlapped = run_engine(
        RIGHT | {"SGLANG_FROZEN_KV_MTP_V2": "1"},
        engines=[experts_mtp_arguments | {"disable_overlap_schedule": False}],
        prompts=prompts,
        new_tokens=NEW_TOKENS,
    )
    assert overlapped.returncode == 0, overlapped.log[-4000:]
    assert "MTP under spec v2, overlap" in overlapped.log
    assert tokens_of(overlapped.outputs[0]) == [tokens for tokens, _ in oracle]
    assert accept_length(run.outputs[MTP]) >= 2
    assert accept_length(overlapped.outputs[0]) >= 2


def test_the_stand_ins_for_experts_are_named(run):
    assert "host-moe-gelu, host-router-scale" in run.log
