"""A child of engine_process.py: one engine serves one round of requests after the other; what came out, per round.

The spec: engine (keyword arguments), rounds (each: prompts, which are sent at once, new_tokens, and what else
`async_generate` takes). The result: {rounds: per round, per prompt {tokens, logprobs: [step][token id], prompt: log
probabilities of the prompt's tokens, hidden: rows of hidden states per step, cached: tokens}, paths, pools: what was
decided of them}.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from gemma4_repro.toys.language import held_out_prompts

VOCABULARY = 512
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
"""What a server is asked for to see that a short prefill answers as a whole one does."""


def all_rounds(engine: dict[str, Any]) -> dict[str, Any]:
    """Return the spec of one engine with these arguments, and every round."""
    return {"engine": engine, "rounds": [{"new_tokens": TOKENS} | one for one in ROUNDS.values()]}


def main(spec_path: str, result_path: str) -> None:
    spec = json.loads(Path(spec_path).read_text())
    from sglang.srt.entrypoints.engine import Engine

    engine = Engine(**spec["engine"])
    rounds = [serve(engine, **one) for one in spec["rounds"]]
    (state,) = engine.get_server_info()["internal_states"]
    engine.shutdown()
    found = {name: state.get(f"gemma4_triage_{name}", {}) for name in ("paths", "pools")}
    Path(result_path).write_text(json.dumps({"rounds": rounds} | found))


def serve(engine, prompts, new_tokens, **more):
    sampling = {"temperature": 0, "ignore_eos": True, "max_new_tokens": new_tokens}
    arguments = {"return_logprob": True, "token_ids_logprob": list(range(VOCABULARY))} | more

    async def gather():
        return await asyncio.gather(
            *(engine.async_generate(input_ids=prompt, sampling_params=sampling, **arguments) for prompt in prompts)
        )

    return [read(answer) for answer in engine.loop.run_until_complete(gather())]


def read(answer):
    meta = answer["meta_info"]
    return {
        "tokens": answer["output_ids"],
        "logprobs": [[value for value, *_ in step] for step in meta.get("output_token_ids_logprobs") or []],
        "prompt": [value for value, *_ in meta.get("input_token_logprobs") or []],
        "hidden": meta.get("hidden_states"),
        "cached": meta["cached_tokens"],
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
