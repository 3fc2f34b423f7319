"""Sends an arm's load to its engine: one stage after the other, all requests of a stage together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from gemma4_repro.engine.arm_request import ArmRequest
from gemma4_repro.engine.outcome import Answer

Listener = Callable[[int, dict[str, Any]], None]
# SGLang aborts every request whose id *begins* with the one named, so no id may be the beginning of another: all have
# the same width.
_PREFIX, _DIGITS = "prompt-", 6


def serve(engine: Any, request: ArmRequest, listeners: Sequence[Listener] = ()) -> tuple[Answer, ...]:
    """Return every prompt's answer, greedy, in order; an aborted one holds what came before the abort.

    Args:
        engine: SGLang's.
        request: The arm's.
        listeners: Each is handed the number of each prompt that was served to its end, and SGLang's whole reply.
    """
    stage_of = request.stage_of or [0] * len(request.prompts)
    answers: list[Answer] = []
    for stage in sorted(set(stage_of)):
        if request.pause_s and answers:
            engine.loop.run_until_complete(asyncio.sleep(request.pause_s))
        prompts = [prompt for prompt, number in enumerate(stage_of) if number == stage]
        serving = _serve_together(engine, request, prompts, listeners)
        answers += engine.loop.run_until_complete(serving)
    return tuple(sorted(answers, key=lambda answer: answer.prompt))


async def _serve_together(
    engine: Any, request: ArmRequest, prompts: list[int], listeners: Sequence[Listener]
) -> list[Answer]:
    whole = [prompt for prompt in prompts if prompt not in request.aborted]
    aborted = [prompt for prompt in prompts if prompt in request.aborted]
    parts = await asyncio.gather(
        _to_the_end(engine, request, whole, listeners), *(_until_aborted(engine, request, prompt) for prompt in aborted)
    )
    return [answer for part in parts for answer in part]


async def _to_the_end(
    engine: Any, request: ArmRequest, prompts: list[int], listeners: Sequence[Listener]
) -> list[Answer]:
    """Send all in one call, so that the scheduler finds them together in its queue; with pictures or one by one, alone.

    In one call SGLang loses an answer that is there before the last picture is read.

    Raises:
        ValueError: SGLang's processor makes other than the prompts' numbers of tokens, so positions are not the same.
    """
    if not prompts:
        return []
    calls = [[prompt] for prompt in prompts] if request.pictures or request.one_by_one else [prompts]
    replies = [reply for part in await asyncio.gather(*(_reply(engine, request, c) for c in calls)) for reply in part]
    for prompt, reply in zip(prompts, replies, strict=True):
        if (read := reply["meta_info"]["prompt_tokens"]) != len(request.prompts[prompt]):
            raise ValueError(f"SGLang made {read} tokens of prompt {prompt}, of {len(request.prompts[prompt])}")
        for listener in listeners:
            listener(prompt, reply)
    return [_answer(prompt, reply) for prompt, reply in zip(prompts, replies, strict=True)]


async def _reply(engine: Any, request: ArmRequest, prompts: list[int]) -> list[dict[str, Any]]:
    return await engine.async_generate(
        **_said(request, prompts),
        sampling_params=[_sampling(request, prompt) for prompt in prompts],
        rid=[request_id(prompt) for prompt in prompts],
        **_logprobs(request),
    )


def _said(request: ArmRequest, prompts: list[int]) -> dict[str, Any]:
    if not request.pictures:
        return {"input_ids": [request.prompts[prompt] for prompt in prompts]}
    texts = [request.texts[prompt] for prompt in prompts]
    return {"prompt": texts, "image_data": [request.pictures[prompt] for prompt in prompts]}


async def _until_aborted(engine: Any, request: ArmRequest, prompt: int) -> list[Answer]:
    stream = await engine.async_generate(
        input_ids=request.prompts[prompt],
        sampling_params=_sampling(request, prompt),
        rid=request_id(prompt),
        stream=True,
    )
    reply: dict[str, Any] = {}
    async for reply in stream:
        if len(reply["output_ids"]) >= request.aborted[prompt]:
            engine.tokenizer_manager.abort_request(rid=request_id(prompt))
    return [_answer(prompt, reply)]


def _sampling(request: ArmRequest, prompt: int) -> dict[str, Any]:
    return {"temperature": 0, "max_new_tokens": request.new_tokens[prompt], "ignore_eos": request.ignore_eos}


def _logprobs(request: ArmRequest) -> dict[str, Any]:
    """Ask for logprobs of every token at every position, if a comparison needs them, the prompt's too by default."""
    if request.vocabulary_size is None:
        return {}
    tokens = list(range(request.vocabulary_size))
    wanted = {"return_logprob": True, "token_ids_logprob": tokens}
    return wanted | {"logprob_start_len": 0} if request.prompt_logprobs else wanted


def _answer(prompt: int, reply: dict[str, Any]) -> Answer:
    return Answer(
        prompt=prompt,
        output_ids=tuple(reply["output_ids"]),
        verify_rounds=int(reply["meta_info"].get("spec_verify_ct", 0)),
    )


def request_id(prompt: int) -> str:
    """Return the id under which prompt number `prompt` is sent.

    Raises:
        ValueError: the number is negative or has too many digits.
    """
    if not 0 <= prompt < 10**_DIGITS:
        raise ValueError(f"prompts are numbered from 0 to {10**_DIGITS - 1}, not {prompt}")
    return f"{_PREFIX}{prompt:0{_DIGITS}}"


def prompt_of(rid: str) -> int:
    """Return the number of the prompt that was sent under this id, of any width."""
    return int(rid.removeprefix(_PREFIX))
