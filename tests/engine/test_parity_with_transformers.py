"""The engine's greedy tokens and logprobs equal transformers' on the trained toy, with and without MTP."""

import json

import pytest
import torch

from gemma4_dumps.store import DumpStore
from gemma4_repro.corpus.case import corrected
from gemma4_repro.toys.language import held_out_prompts
from gemma4_runtime.catalog import CATALOG
from gemma4_runtime.patch import Kind

pytestmark = [pytest.mark.engine, pytest.mark.releases("0.5.13.post1", "0.5.23")]

NEW_TOKENS = 16
# Tokens all over the vocabulary: the greedy token of a well trained toy has logprob ~0 whatever the attention did.
WATCHED = list(range(0, 512, 8))
LOGPROBS = {"return_logprob": True, "token_ids_logprob": WATCHED}
# fp32 on both sides, different summation order; logits are of the order of 10.
ROUND_OFF = 1e-3
PROBES = {patch.id for patch in CATALOG if patch.kind is Kind.PROBE and patch.asked_by == "mode"}


@pytest.fixture(scope="module")
def prompts():
    return held_out_prompts(3, 101, seed=7)


@pytest.fixture(scope="module")
def transformers_model(engine_arguments):
    from transformers import Gemma4ForConditionalGeneration

    return Gemma4ForConditionalGeneration.from_pretrained(engine_arguments["model_path"], dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def ask(transformers_model):
    """Return a function of prompts to, per prompt, 16 greedy tokens and the logprobs of WATCHED at each."""

    def generate(prompts):
        return [one(prompt) for prompt in prompts]

    def one(prompt):
        with torch.inference_mode():
            out = transformers_model.generate(
                input_ids=torch.tensor([prompt]),
                max_new_tokens=NEW_TOKENS,
                do_sample=False,
                eos_token_id=None,
                output_logits=True,
                return_dict_in_generate=True,
            )
        tokens = out.sequences[0, len(prompt) :].tolist()
        return tokens, [torch.log_softmax(logits[0].double(), -1)[WATCHED].tolist() for logits in out.logits]

    return generate


@pytest.fixture(scope="module")
def oracle(ask, prompts):
    return ask(prompts)


@pytest.fixture(scope="module")
def short(prompts):
    """Return prompts that stay inside the window, of 32, with what is generated."""
    return [prompt[:12] for prompt in prompts]


@pytest.fixture(scope="module")
def bare(run_engine, engine_arguments, prompts, short):
    """Say what the release says with nothing of ours but the stand-ins: of `prompts`, and of `short`."""
    load = {"prompts": [*prompts, *short], "new_tokens": NEW_TOKENS, **LOGPROBS}
    run = run_engine({}, engines=[engine_arguments], **load)
    assert run.returncode == 0, run.log[-4000:]
    (outputs,) = run.outputs
    return outputs[: len(prompts)], outputs[len(prompts) :]


def logprob_error(outputs, oracle):
    """Largest difference over prompts, positions and WATCHED tokens."""
    return max(
        abs(ours[0] - theirs)
        for out, (_, logprobs) in zip(outputs, oracle, strict=True)
        for step, expected in zip(out["meta"]["output_token_ids_logprobs"], logprobs, strict=True)
        for ours, theirs in zip(step, expected, strict=True)
    )


def test_tokens_and_logprobs_are_equal_and_a_clean_run_leaves_no_dump(
    run_engine, engine_arguments, mtp_arguments, prompts, oracle, tmp_path
):
    environment = {
        # Without it the release's window is a finding of `geometry`.
        "GEMMA4_TRIAGE_PATCHES": corrected(),
        "SGLANG_TRTLLM_MHA_DEBUG": "log",
        "SGLANG_TRTLLM_MHA_DEBUG_DIR": str(tmp_path),
    }
    load = {"prompts": prompts, "new_tokens": NEW_TOKENS, **LOGPROBS}
    run = run_engine(environment, engines=[engine_arguments, mtp_arguments], **load)
    assert run.returncode == 0, run.log[-4000:]
    plain, mtp = run.outputs
    expected = [tokens for tokens, _ in oracle]
    assert [out["tokens"] for out in plain] == expected
    assert [out["tokens"] for out in mtp] == expected
    assert logprob_error(plain, oracle) < ROUND_OFF
    assert sum(out["meta"]["spec_accept_length"] for out in mtp) / len(mtp) > 1.5
    assert DumpStore(tmp_path).list() == []
    manifests = [json.loads(path.read_text()) for path in (tmp_path / "guards").glob("*.json")]
    assert {row["id"] for manifest in manifests for row in manifest["patches"] if row["attached"]} >= PROBES


# 0.5.14 and later have the window right.
@pytest.mark.releases("0.5.13.post1")
def test_without_the_window_fix_logprobs_differ(bare, oracle):
    """W1: past the window the release attends to one key more than transformers."""
    plain, _ = bare
    same = all(out["tokens"] == tokens for out, (tokens, _) in zip(plain, oracle, strict=True))
    assert not same or logprob_error(plain, oracle) > 5 * ROUND_OFF


def test_short_prompts_need_no_window_fix(bare, ask, short):
    """Inside the window the shipped release and transformers agree, so the difference above is the window's."""
    _, inside = bare
    expected = ask(short)
    assert [out["tokens"] for out in inside] == [tokens for tokens, _ in expected]
    assert logprob_error(inside, expected) < ROUND_OFF
