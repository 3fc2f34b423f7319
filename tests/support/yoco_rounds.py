"""What a server is asked to see that a short prefill answers as a whole one does, and what of its answers is read."""

from typing import Any

from gemma4_repro.toys.language import held_out_prompts

VOCABULARY = 512
CHUNK = 48
LONG = held_out_prompts(4, 101, seed=31)
SHORT = held_out_prompts(4, 20, seed=32)
TOKENS = 2
STATE = {"paths": "gemma4_triage_paths", "pools": "gemma4_triage_pools"}
ROUNDS: dict[str, dict[str, Any]] = {
    "one": {"prompts": [SHORT[0]]},
    "mixed lengths": {"prompts": [SHORT[1], LONG[0][:30], SHORT[2][:1], SHORT[3][:7]]},
    "chunks": {"prompts": [LONG[1]]},
    "a cached prefix": {"prompts": [LONG[1][:80] + SHORT[0]]},
    "a cached prefix and one token": {"prompts": [LONG[1]]},
    "chunks beside others": {"prompts": [LONG[2], SHORT[0] + SHORT[1], LONG[3]]},
    # A page shorter than a chunk: SGLang takes a page off one while the round before still ends.
    "prompt log probabilities": {"prompts": [SHORT[2] + SHORT[3][:10]], "logprob_start_len": 0},
    "hidden states": {"prompts": [SHORT[3] + SHORT[0][:10]], "return_hidden_states": True},
}


def load_of(prompts: list[list[int]], new_tokens: int = TOKENS, **more: Any) -> dict[str, Any]:
    """Return a load for `engine_child` whose answers `read` takes."""
    logprobs = {"return_logprob": True, "token_ids_logprob": list(range(VOCABULARY))}
    return {"prompts": prompts, "new_tokens": new_tokens, "each_alone": True} | logprobs | more


def all_rounds(engine: dict[str, Any]) -> dict[str, Any]:
    """Return the arm of one engine with these arguments that serves every round."""
    return {"engine": engine, "loads": [load_of(**one) for one in ROUNDS.values()], "state": list(STATE.values())}


def read(arm: dict[str, Any]) -> dict[str, Any]:
    """Return what an arm gave.

    {rounds: per round, per prompt {tokens, logprobs: [step][token id], prompt: log probabilities of the prompt's
    tokens, hidden: rows of hidden states per step, cached: tokens}, paths, pools: what was decided of them}
    """
    return {"rounds": [[_read(**answer) for answer in answers] for answers in arm["loads"]]} | {
        name: arm["state"].get(key, {}) for name, key in STATE.items()
    }


def _read(tokens: list[int], meta: dict[str, Any]) -> dict[str, Any]:
    return {
        "tokens": tokens,
        "logprobs": [[value for value, *_ in step] for step in meta.get("output_token_ids_logprobs") or []],
        "prompt": [value for value, *_ in meta.get("input_token_logprobs") or []],
        "hidden": meta.get("hidden_states"),
        "cached": meta["cached_tokens"],
    }
