"""Requests of every kind that a server's life has, the same every time: see `mixed_requests`."""

import json
import random
from pathlib import Path
from typing import Any

from engine_process import Run
from gemma4_repro.engine.log_exceptions import exceptions_in
from gemma4_repro.toys.language import EOS, held_out_prompts, token_id, vocabulary

LONGEST_PROMPT = 24
PENALTIES: tuple[dict[str, Any], ...] = (
    {},
    {"frequency_penalty": 1.5},
    {"presence_penalty": 1.5},
    {"repetition_penalty": 1.6},
    {"min_new_tokens": 3},
    {"frequency_penalty": 0.5, "presence_penalty": 0.5, "repetition_penalty": 1.2, "min_new_tokens": 2},
)
ENDS = ("length", "length", "eos", "stop token", "stop string", "abort waiting", "abort running")
SAMPLED = {"temperature": 0.8, "top_p": 0.9, "top_k": 20}


def mixed_requests(count: int, seed: int, longest_prompt: int = LONGEST_PROMPT) -> list[dict[str, Any]]:
    """For lifecycle_child.py. Each draws its length, its penalties, whether it is sampled, and how it is to end."""
    rng = random.Random(seed)
    words = vocabulary()
    return [_request(rng, prompt, words, longest_prompt) for prompt in held_out_prompts(count, longest_prompt, seed)]


def constrained(requests: list[dict[str, Any]], seed: int) -> list[dict[str, Any]]:
    """The same requests: every fourth obeys a grammar that ends after a few words, every third asks for logprobs.

    A grammar ends by its own end token, so what a request drew for its end does not come before.
    """
    rng = random.Random(seed)
    words = vocabulary()
    return [_constrained(rng, number, request, words) for number, request in enumerate(requests)]


def _constrained(rng: random.Random, number: int, request: dict[str, Any], words: list[str]) -> dict[str, Any]:
    request = dict(request)
    if number % 3 == 0:
        request["logprobs"] = rng.randint(0, len(request["prompt"]) - 1)
    if number % 4 == 0:
        allowed = "|".join(sorted({words[token] for token in request["prompt"][1:]}))
        kept = ("temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty", "repetition_penalty")
        sampling = {name: value for name, value in request["sampling"].items() if name in kept}
        longest = rng.randint(1, 9)
        request["sampling"] = sampling | {"max_new_tokens": 40, "regex": f"({allowed}){{1,{longest}}}"}
        request["words"] = longest
    return request


def _request(rng: random.Random, prompt: list[int], words: list[str], longest: int) -> dict[str, Any]:
    prompt = prompt[: rng.randint(3, longest)]
    sampling = {"temperature": 0, "max_new_tokens": rng.randint(1, 12), "ignore_eos": True}
    sampling |= rng.choice(PENALTIES) | (SAMPLED if rng.random() < 0.4 else {})
    request: dict[str, Any] = {"prompt": prompt, "sampling": sampling}
    # What a toy says is in its prompt, so one of the prompt's words comes soon.
    word = rng.choice(prompt[1:])
    match rng.choice(ENDS):
        case "eos":
            sampling |= {"ignore_eos": False, "logit_bias": {str(token_id(EOS)): 60.0}, "max_new_tokens": 40}
        case "stop token":
            sampling |= {"ignore_eos": False, "stop_token_ids": [word], "max_new_tokens": 40}
        case "stop string":
            sampling |= {"stop": [words[word]], "max_new_tokens": 40}
        case "abort waiting":
            request |= {"abort": 0}
        case "abort running":
            sampling |= {"max_new_tokens": 60}
            request |= {"abort": rng.randint(1, 12)}
        case _:
            pass
    # SGLang refuses to keep back what it may not give.
    sampling["min_new_tokens"] = min(sampling.get("min_new_tokens", 0), sampling["max_new_tokens"])
    return request


def assert_nothing_is_left(run: Run, folder: Path) -> None:
    """Of a run of lifecycle_child.py under the leak audit: nothing raised, no dump in `folder`, every page at home."""
    assert sorted(path.name for path in (folder / "dumps").iterdir()) == ["audits", "guards"], "and no dump"
    assert_pools_are_whole(run, folder)


def assert_pools_are_whole(run: Run, folder: Path) -> None:
    """As assert_nothing_is_left, of a run that may write dumps."""
    assert exceptions_in(run.log.splitlines()) == ()
    assert run.outputs is not None
    assert run.outputs["idle"] == {
        "leak_checker_ran": True,
        "flush_succeeded": True,
        "used_tokens_after_flush": 0,
        "used_share_after_flush": 0.0,
    }
    tallies = [json.loads(path.read_text()) for path in (folder / "dumps" / "audits").iterdir()]
    tally = max(tallies, key=lambda one: one["events"])
    assert tally["audits"]["idle"] >= 1
    assert tally["balanced"] is True
