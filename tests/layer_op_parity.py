"""What a model with our kernels may differ in from the same model without them, in bf16.

Every set of kernels decodes the same tokens, so that one near-tie is one difference. Logits are held against
transformers in fp32, where SGLang and transformers read the same keys: within the window.
"""

from typing import Any

import torch

from gemma4_repro.toys.language import held_out_prompts
from gemma4_repro.toys.locate import toy_path

NEW_TOKENS = 6
# Three past the window, four within it.
LONG, SHORT = 3, 4
PROMPTS = held_out_prompts(LONG, 101, seed=7) + held_out_prompts(SHORT, 20, seed=8)
# Of SGLang's own rms error: ours against fp32; ours against SGLang's, of which two independent errors make 1.4.
ERROR, DIFFERENCE = 1.15, 2.0
# Two logits that are closer than so many of that error are a tie to either.
TIE = 4.0


def exact_logits(toy: str, tokens: list[list[int]]) -> torch.Tensor:
    """[step, prompt, vocabulary]: transformers' fp32 logits of the short prompts, on these tokens."""
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(toy_path(toy), dtype=torch.float32).eval()
    rows = []
    for prompt, answer in zip(PROMPTS[LONG:], tokens[LONG:], strict=True):
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([prompt + answer[:-1]])).logits[0]
        rows.append(logits[len(prompt) - 1 :])
    return torch.stack(rows, dim=1)


def assert_parity(toy: str, runs: dict[tuple[str, ...], dict[str, Any]]) -> None:
    """runs: what layer_ops_child.py gave, by the ids in force; () is SGLang as shipped, whose tokens all decode."""
    plain = torch.tensor(runs[()]["logits"])
    exact = exact_logits(toy, runs[()]["tokens"])
    assert exact.std() > 1
    own = rms(plain[:, LONG:] - exact)
    assert 0.01 < own < 0.1 * exact.std(), own
    top = plain.topk(2, dim=-1).values
    gaps = top[..., 0] - top[..., 1]
    found = {}
    for chosen, run in runs.items():
        logits = torch.tensor(run["logits"])
        found["+".join(chosen)] = (rms(logits[:, LONG:] - exact) / own, rms(logits - plain) / own)
        same = torch.tensor(run["tokens"]).T == torch.tensor(runs[()]["tokens"]).T
        assert (same | (gaps < TIE * own)).all(), (chosen, gaps[~same])
    print(f"{toy}: rms error of SGLang's bf16 logits {own:.4f}; ours over it, and the difference over it: {found}")
    assert all(error <= ERROR and off <= DIFFERENCE for error, off in found.values()), found


def rms(tensor: torch.Tensor) -> float:
    return tensor.double().pow(2).mean().sqrt().item()
