"""What a model with our kernels may differ in from the same model without them, in bf16.

Every set of kernels decodes the same tokens, so that one near-tie is one difference. Logits are held against
transformers in fp32, where SGLang and transformers read the same keys: within the window.
"""

from typing import Any

import torch

from gemma4_repro.toys.language import held_out_prompts
from gemma4_repro.toys.locate import toy_path

NEW_TOKENS = 6
# Three past the window, 32 within it.
LONG, SHORT = 3, 32
PROMPTS = held_out_prompts(LONG, 101, seed=7) + held_out_prompts(SHORT, 20, seed=8)
# Of a row's rms error, the median: ours over SGLang's own; ours against SGLang's, of which two independent errors
# make 1.4. A median, because an expert near-tie that falls the other way throws its row far off, SGLang's too.
ERROR, DIFFERENCE = 1.15, 2.0
# Two logits that are closer than so many of that error are a tie to either.
TIE = 4.0
# A row that is further off than so many of that error is thrown: none without experts, with them one in twenty.
FAR, THROWN = 5.0, {"toy-e4b": 0.0, "toy-26b": 0.05}


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
    own = errors(plain[:, LONG:] - exact).median().item()
    assert 0.01 < own < 0.1 * exact.std(), own
    top = plain.topk(2, dim=-1).values
    gaps = top[..., 0] - top[..., 1]
    found = {}
    for chosen, run in runs.items():
        logits = torch.tensor(run["logits"])
        error, off = errors(logits[:, LONG:] - exact) / own, errors(logits - plain) / own
        # Rows past the window are held against SGLang's alone.
        thrown = torch.maximum((error > FAR).double().mean(), (off > FAR).double().mean())
        found["+".join(chosen)] = tuple(round(one.item(), 3) for one in (error.median(), off.median(), thrown))
        same = torch.tensor(run["tokens"]).T == torch.tensor(runs[()]["tokens"]).T
        assert (same | (gaps < TIE * own)).all(), (chosen, gaps[~same])
    print(
        f"{toy}: median rms error of a row of SGLang's bf16 logits {own:.4f}; over it ours, and ours against SGLang's;"
    )
    print(f"share of rows that an expert's near-tie threw: {found}")
    for error, off, thrown in found.values():
        assert error <= ERROR, found
        assert off <= DIFFERENCE, found
        assert thrown <= THROWN[toy], found


def errors(logits: torch.Tensor) -> torch.Tensor:
    """[..., vocabulary] to the rms of each row, fp64, flat."""
    return logits.double().pow(2).mean(-1).sqrt().flatten()
