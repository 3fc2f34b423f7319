"""The life of a server's requests: loads of every kind, the same every time, how an engine serves them, what is left.

A request is {prompt, sampling; abort: after how many output tokens it is aborted, 0 for as soon as it is sent;
logprobs: the position from which on they are asked for}, and its answer {tokens, finish: "stop", "length" or "abort",
matched: what stopped it, mark: that of `clamp`, logprobs: [token, logprob] of the answer, prompt_logprobs: how many}.
"""

import asyncio
import json
import random
import time
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
    """Return requests, each of which draws its length, its penalties, whether it is sampled, and how it is to end."""
    rng = random.Random(seed)
    words = vocabulary()
    return [_request(rng, prompt, words, longest_prompt) for prompt in held_out_prompts(count, longest_prompt, seed)]


def constrained(requests: list[dict[str, Any]], seed: int) -> list[dict[str, Any]]:
    """Return these requests, but every fourth obeys a grammar of a few words, and every third asks for logprobs.

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


def load_of(
    requests: list[dict[str, Any]], concurrency: int | None = None, flush_every: int = 0, idle_s: float = 0
) -> dict[str, Any]:
    """Return a load for `engine_child` in which these requests are served.

    Args:
        requests: see the head of this file.
        concurrency: how many of them are sent at once, all if None.
        flush_every: after how many answers the cache is asked to be flushed, which SGLang refuses while it serves.
        idle_s: how long nothing is asked for after them.
    """
    return {
        "serve": "lifecycle:serve_load",
        "requests": requests,
        "concurrency": concurrency or len(requests),
        "flush_every": flush_every,
        "idle_s": idle_s,
    }


def serve_load(engine: Any, load: dict[str, Any]) -> list[dict[str, Any]]:
    """Serve what `load_of` made and return an answer for each request."""
    return engine.loop.run_until_complete(serve(engine, load["requests"], load["concurrency"], load["flush_every"]))


async def serve(
    engine: Any, requests: list[dict[str, Any]], concurrency: int, flush_every: int
) -> list[dict[str, Any]]:
    places = asyncio.Semaphore(concurrency)

    async def one(number: int, request: dict[str, Any]) -> dict[str, Any]:
        async with places:
            found = await answer(engine, f"request-{number}-{time.monotonic_ns()}", request)
            if flush_every and number % flush_every == flush_every - 1:
                await engine.tokenizer_manager.flush_cache()
            return found

    return await asyncio.gather(*(one(number, request) for number, request in enumerate(requests)))


async def answer(engine: Any, rid: str, request: dict[str, Any]) -> dict[str, Any]:
    abort = request.get("abort")
    wanted = {"return_logprob": True, "logprob_start_len": request["logprobs"]} if "logprobs" in request else {}
    stream = await engine.async_generate(
        input_ids=request["prompt"], sampling_params=request["sampling"], rid=rid, stream=True, **wanted
    )
    found = asyncio.ensure_future(read(engine, rid, stream, abort))
    if abort == 0:
        # The reader has to have sent it.
        await asyncio.sleep(0)
        engine.tokenizer_manager.abort_request(rid)
    return await found


async def read(engine: Any, rid: str, stream: Any, abort: int | None) -> dict[str, Any]:
    reply: dict[str, Any] = {"output_ids": [], "meta_info": {}}
    async for reply in stream:
        if abort and len(reply["output_ids"]) >= abort:
            engine.tokenizer_manager.abort_request(rid)
    finish = reply["meta_info"]["finish_reason"]
    return {
        "tokens": reply["output_ids"],
        "finish": finish["type"],
        "matched": finish.get("matched"),
        "mark": reply["meta_info"].get("gemma4_degraded"),
        "logprobs": [[token, value] for value, token, _ in reply["meta_info"].get("output_token_logprobs") or ()],
        "prompt_logprobs": len(reply["meta_info"].get("input_token_logprobs") or ()),
    }


def assert_nothing_is_left(run: Run, folder: Path) -> None:
    """Hold a run of one arm under the leak audit to this: nothing raised, no dump in `folder`, every page at home."""
    assert sorted(path.name for path in (folder / "dumps").iterdir()) == ["audits", "guards"], "and no dump"
    assert_pools_are_whole(run, folder)


def assert_pools_are_whole(run: Run, folder: Path) -> None:
    """Do as assert_nothing_is_left, for a run that may write dumps."""
    assert exceptions_in(run.log.splitlines()) == ()
    assert run.outputs is not None
    assert run.outputs[0]["idle"] == {
        "leak_checker_ran": True,
        "flush_succeeded": True,
        "used_tokens_after_flush": 0,
        "used_share_after_flush": 0.0,
    }
    tallies = [json.loads(path.read_text()) for path in (folder / "dumps" / "audits").iterdir()]
    tally = max(tallies, key=lambda one: one["events"])
    assert tally["audits"]["idle"] >= 1
    assert tally["balanced"] is True
