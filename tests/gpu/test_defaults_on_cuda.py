"""The patched runtime as it comes, in SGLang's engine on a GPU: SGLang's answers, and everything took part."""

import pytest
import torch

import engine_process
from gemma4_repro.toys.locate import toy_path
from vision_toy import make_toy, picture
from yoco_rounds import CHUNK, ROUNDS, TOKENS, spec

pytestmark = pytest.mark.gpu

ENGINE = {
    "attention_backend": "triton",
    "page_size": 16,
    "max_total_tokens": 4096,
    "swa_full_tokens_ratio": 0.5,
    "max_running_requests": 8,
    "mem_fraction_static": 0.3,
    "cuda_graph_bs": [1, 8],
    "dtype": "bfloat16",
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
}
TEXT = {"model_path": str(toy_path("toy-e4b")), "chunked_prefill_size": CHUNK, "enable_return_hidden_states": True}
MTP = {
    "speculative_algorithm": "NEXTN",
    "speculative_draft_model_path": str(toy_path("toy-e4b-assistant")),
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
}
# Of log probabilities in bf16: several times the error that SGLang's own logits have to fp32 (test_layer_ops.py).
ERROR, TIE = 0.25, 0.5
PICTURES = [(300, 200), (320, 320), (100, 400), (64, 64)]


def run(child, folder, patches, what):
    environment = {"HF_HUB_OFFLINE": "1", "GEMMA4_TRIAGE_PATCHES": patches, "GEMMA4_TRIAGE_YOCO_ROWS": "1"}
    done = engine_process.run_child(child, folder, environment, 300, what)
    assert done.returncode == 0, done.log[-6000:]
    return done.outputs


@pytest.fixture(scope="module", params=[{}, MTP], ids=["plain", "mtp"])
def served(request, tmp_path_factory):
    """What SGLang served, and the patched runtime."""
    what = spec(ENGINE | TEXT | request.param)
    return [run("yoco_child.py", tmp_path_factory.mktemp("text"), patches, what) for patches in ("none", "default")]


@pytest.mark.parametrize("name", ROUNDS)
def test_answers_are_sglangs(served, name):
    plain, ours = (one["rounds"][list(ROUNDS).index(name)] for one in served)
    for one, other in zip(plain, ours, strict=True):
        wanted, found = torch.tensor(one["logprobs"]), torch.tensor(other["logprobs"])
        assert wanted.shape == found.shape == (TOKENS, 512)
        # The second step has read the first one's token.
        steps = TOKENS if one["tokens"][0] == other["tokens"][0] else 1
        error = (found - wanted)[:steps].pow(2).mean(-1).sqrt()
        assert error.max() <= ERROR
        top = wanted.topk(2).values
        unlike = torch.tensor([a != b for a, b in zip(one["tokens"], other["tokens"], strict=True)])[:steps]
        assert ((top[:, 0] - top[:, 1])[:steps][unlike] < TIE).all()


def test_everything_took_part(served):
    _, ours = served
    assert ours["paths"]["yoco"]["fused"] >= 5
    assert ours["paths"]["yoco"]["skipped: a chunk that is not the last"] >= 4
    assert set(ours["paths"]["qk-norm-rope"]) == {"fused"}
    assert "owner-only-kv" in ours["pools"]


def test_pictures(tmp_path):
    toy = make_toy(tmp_path / "toy")
    paths = [str(tmp_path / f"{number}.png") for number in range(len(PICTURES))]
    for seed, (path, size) in enumerate(zip(paths, PICTURES, strict=True)):
        picture(*size, seed).save(path)
    what = {
        "engine": ENGINE | {"model_path": str(toy), "mm_attention_backend": "triton_attn"},
        "batches": [
            [{"text": "<|image|> bal bel <|image|> bil", "images": paths[:2]}],
            [
                {"text": "bal <|image|>", "images": paths[2:3]},
                {"text": "bal bel <|image|> <|image|>", "images": paths[2:4]},
            ],
        ],
        "new_tokens": 1,
    }
    found = {}
    for patches in ("none", "default", "default,vision-hf-exact"):
        folder = tmp_path / patches.replace(",", "-")
        folder.mkdir()
        found[patches] = run("vision_child.py", folder, patches, what)
    for name in ("default", "default,vision-hf-exact"):
        for plain, ours in zip(found["none"]["batches"], found[name]["batches"], strict=True):
            for one, other in zip(plain["answers"], ours["answers"], strict=True):
                assert "tokens" in one, one
                assert "tokens" in other, other
                if name == "default":
                    assert other["logprobs"] == pytest.approx(one["logprobs"], abs=ERROR)
        assert set(found[name]["paths"]["vision-batching"]) == {"batched"}
