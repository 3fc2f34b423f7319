"""Run inside a fresh process: an engine under a mixed load with an abort and prefix hits, and a planted leak if asked.

Usage: python leak_child.py SPEC.json RESULT.json, spec: {"engine": {...}, "prompts": [...], "plant": true}. Writes what
was served before and after the engine was idle, so that a server that goes on can be told from one that ends.
"""

import asyncio
import json
import sys
import time

from gemma4_runtime.releases import BASE, installed_or_base

IDLE_S = 1.0


def plant_leak() -> None:
    """Let the second request that ends free nothing of what it holds beyond the prefix cache."""
    if installed_or_base() != BASE:
        plant_leak_in_unified_cache()
        return
    from sglang.srt.mem_cache.swa_radix_cache import SWARadixCache

    original = SWARadixCache.cache_finished_req
    ended = []

    def lose_tail(cache, req, is_insert=True):
        ended.append(req.rid)
        if len(ended) != 2:
            original(cache, req, is_insert=is_insert)
            return
        allocator = cache.token_to_kv_pool_allocator
        allocator.free = lambda slots: None
        try:
            original(cache, req, is_insert=is_insert)
        finally:
            del allocator.free

    SWARadixCache.cache_finished_req = lose_tail


def plant_leak_in_unified_cache() -> None:
    """Do as `plant_leak` where a release hands the rest of a row to the cache's `free_kv_row`."""
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

    original = UnifiedRadixCache.free_kv_row
    ended = []

    def lose_tail(cache, record, ranges, *args, **kwargs):
        ended.append(record.req_pool_idx)
        if len(ended) != 2:
            original(cache, record, ranges, *args, **kwargs)

    UnifiedRadixCache.free_kv_row = lose_tail


def serve(engine, prompts) -> list[list[int]]:
    """Serve all prompts at once with different lengths; one more is aborted while it runs."""

    async def all_of_them():
        samplings = [{"temperature": 0, "ignore_eos": True, "max_new_tokens": 5 + 9 * (i % 4)} for i in range(9)]
        rid = f"aborted-{time.monotonic_ns()}"
        long_one = asyncio.ensure_future(
            engine.async_generate(
                input_ids=prompts[0], sampling_params=samplings[0] | {"max_new_tokens": 300}, rid=[rid]
            )
        )
        others = engine.async_generate(input_ids=prompts, sampling_params=samplings[: len(prompts)])
        answers = await others
        engine.tokenizer_manager.abort_request(rid)
        await asyncio.wait([long_one], timeout=20)
        return [answer["output_ids"] for answer in answers]

    return engine.loop.run_until_complete(all_of_them())


def main(spec_path: str, result_path: str) -> None:
    """Serve twice, with a pause of idleness after each."""
    with open(spec_path) as file:
        spec = json.load(file)
    if spec["plant"]:
        plant_leak()
    from sglang.srt.entrypoints.engine import Engine

    engine = Engine(**spec["engine"])
    served = []
    for _ in range(2):
        served.append(serve(engine, spec["prompts"]))
        with open(result_path, "w") as file:
            json.dump(served, file)
        time.sleep(IDLE_S)
    engine.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
