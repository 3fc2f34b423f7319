"""Sends an arm's load to its engine: one stage after the other, all requests of a stage together."""

from __future__ import annotations

import asyncio
from typing import Any

from gemma4_repro.arm_request import ArmRequest
from gemma4_repro.draft_recorder import request_id
from gemma4_repro.outcome import Answer


def serve(engine: Any, request: ArmRequest) -> tuple[Answer, ...]:
    """Every prompt's answer, greedy, in order; an aborted one holds what came before the abort."""
    stage_of = request.stage_of or [0] * len(request.prompts)
    answers: list[Answer] = []
    for stage in sorted(set(stage_of)):
        prompts = [prompt for prompt, number in enumerate(stage_of) if number == stage]
        serving = _serve_together(engine, request, prompts)
        answers += engine.loop.run_until_complete(serving)
    return tuple(sorted(answers, key=lambda answer: answer.prompt))


async def _serve_together(engine: Any, request: ArmRequest, prompts: list[int]) -> list[Answer]:
    whole = [prompt for prompt in prompts if prompt not in request.aborted]
    aborted = [prompt for prompt in prompts if prompt in request.aborted]
    parts = await asyncio.gather(
        _to_the_end(engine, request, whole), *(_until_aborted(engine, request, prompt) for prompt in aborted)
    )
    return [answer for part in parts for answer in part]


async def _to_the_end(engine: Any, request: ArmRequest, prompts: list[int]) -> list[Answer]:
    """One call for all, so that the scheduler finds them in its queue together."""
    if not prompts:
        return []
    replies = await engine.async_generate(
        input_ids=[request.prompts[prompt] for prompt in prompts],
        sampling_params=[_sampling(request, prompt) for prompt in prompts],
        rid=[request_id(prompt) for prompt in prompts],
    )
    return [_answer(prompt, reply) for prompt, reply in zip(prompts, replies, strict=True)]


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
    return {"temperature": 0, "max_new_tokens": request.new_tokens[prompt], "ignore_eos": True}


def _answer(prompt: int, reply: dict[str, Any]) -> Answer:
    return Answer(
        prompt=prompt,
        output_ids=tuple(reply["output_ids"]),
        verify_rounds=int(reply["meta_info"].get("spec_verify_ct", 0)),
    )
