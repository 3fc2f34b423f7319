"""Run inside a fresh process: one engine serves rounds of requests of many kinds, then is looked at when idle.

The spec: engine (keyword arguments), rounds (each: requests; concurrency, how many of them are sent at once;
flush_every, after how many answers the cache is asked to be flushed, which SGLang refuses while it serves), before
("module:function", called first; the host engine's workers are forked and inherit it), states (whether the schedulers'
internal states are asked for at the end). A request: prompt, sampling,
abort: after how many output tokens it is aborted, 0 for as soon as it is sent, and logprobs: the position from which
on they are asked for. The result: {rounds: per round and request {tokens, finish: "stop", "length" or "abort", matched:
what stopped it, mark: that of `clamp`, logprobs: [token, logprob] of the answer, prompt_logprobs: how many}, rounds_s,
idle, states}.

The other functions that are not called here are for `before`.
"""

import asyncio
import json
import pkgutil
import sys
import time
from pathlib import Path
from typing import Any

LOST = "lost"


def main(spec_path: str, result_path: str) -> None:
    spec = json.loads(Path(spec_path).read_text())
    if "before" in spec:
        pkgutil.resolve_name(spec["before"])()
    from sglang.srt.entrypoints.engine import Engine

    from gemma4_repro.engine.arm_process import check_idle

    engine = Engine(**spec["engine"])
    result: dict[str, Any] = {"rounds": [], "rounds_s": []}
    for one in spec["rounds"]:
        began = time.monotonic()
        result["rounds"].append(engine.loop.run_until_complete(serve(engine, **one)))
        result["rounds_s"].append(time.monotonic() - began)
    if spec.get("states"):
        told = engine.get_server_info()["internal_states"]
        result["states"] = [{key: value for key, value in one.items() if key.startswith("gemma4_")} for one in told]
    result["idle"] = check_idle(engine).model_dump()
    Path(result_path).write_text(json.dumps(result))
    engine.shutdown()


async def serve(
    engine: Any, requests: list[dict[str, Any]], concurrency: int, flush_every: int = 0
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


def retract_often() -> None:
    """Retract a request every few steps. SGLang reads its own variables for that when it is imported."""
    from sglang.srt.managers import scheduler

    scheduler.TEST_RETRACT = True
    scheduler.TEST_RETRACT_INTERVAL = 7


def lose_what_requests_ask() -> None:
    """Run a step of requests with the custom parameter `lost` without what that names, and then give it back.

    `orchestrator`: on the copy that SGLang isolates forwards with, whose penalties are summed up, this round's bonus
    tokens counted. `sampling_info`: without any.
    """
    from sglang.srt.speculative.frozen_kv_mtp_worker import FrozenKVMTPWorker

    original = FrozenKVMTPWorker.forward_batch_generation

    def generate(worker: Any, batch: Any) -> Any:
        whole = batch.sampling_info
        lost = {(request.sampling_params.custom_params or {}).get(LOST) for request in batch.reqs}
        if not batch.forward_mode.is_decode() or lost == {None}:
            return original(worker, batch)
        (lost,) = lost
        if lost == "orchestrator":
            whole.penalizer_orchestrator.cumulate_output_tokens(batch.spec_info.bonus_tokens)
        batch.sampling_info = whole.copy_for_forward() if lost == "orchestrator" else None
        try:
            return original(worker, batch)
        finally:
            batch.sampling_info = whole

    FrozenKVMTPWorker.forward_batch_generation = generate  # pyright: ignore[reportAttributeAccessIssue]


if __name__ == "__main__":
    main(*sys.argv[1:])
