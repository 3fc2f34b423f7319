"""What a server is asked for to see that a short prefill answers as a whole one does."""

from typing import Any

from gemma4_repro.toys.language import held_out_prompts

CHUNK = 48
LONG = held_out_prompts(4, 101, seed=31)
SHORT = held_out_prompts(4, 20, seed=32)
TOKENS = 2
ROUNDS = {
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


def spec(engine: dict[str, Any]) -> dict[str, Any]:
    """Of yoco_child.py: one engine with these arguments, and every round."""
    return {"engine": engine, "rounds": [{"new_tokens": TOKENS} | one for one in ROUNDS.values()]}
