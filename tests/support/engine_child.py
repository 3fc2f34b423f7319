"""Run inside a fresh process: start SGLang's engine once per configuration, generate, write what came out as JSON.

`before` ("module:function", from this folder) is called first; the host engine's workers are forked and inherit it.

Usage: python engine_child.py SPEC.json RESULT.json
"""

import asyncio
import json
import pkgutil
import sys


def generate_all(engine, spec):
    """Return one request for all prompts; if one fails, all do."""
    return engine.generate(
        input_ids=spec["prompts"],
        sampling_params=sampling(spec),
        rid=[str(number) for number in range(len(spec["prompts"]))],
        return_logprob="logprobs_of" in spec,
        logprob_start_len=spec.get("logprobs_from", -1),
        token_ids_logprob=spec.get("logprobs_of"),
    )


def generate_each(engine, spec):
    """Send a request for each prompt, all at once. One that fails has no tokens, and the error in its meta_info."""

    async def gather():
        requests = [
            engine.async_generate(input_ids=prompt, sampling_params=sampling(spec)) for prompt in spec["prompts"]
        ]
        return await asyncio.gather(*requests, return_exceptions=True)

    answers = engine.loop.run_until_complete(gather())
    return [{"output_ids": [], "meta_info": {"error": str(a)}} if isinstance(a, Exception) else a for a in answers]


def sampling(spec):
    return {"temperature": 0, "ignore_eos": True, "max_new_tokens": spec["new_tokens"]}


def main(spec_path: str, result_path: str) -> None:
    with open(spec_path) as file:
        spec = json.load(file)
    from sglang.srt.entrypoints.engine import Engine

    if "before" in spec:
        pkgutil.resolve_name(spec["before"])()
    results = []
    for arguments in spec["engines"]:
        engine = Engine(**arguments)
        if not spec["prompts"]:
            # Starting was all that was asked for.
            engine.shutdown()
            continue
        outputs = generate_each(engine, spec) if spec.get("each_alone") else generate_all(engine, spec)
        results.append([{"tokens": out["output_ids"], "meta": out["meta_info"]} for out in outputs])
        engine.shutdown()
        with open(result_path, "w") as file:
            json.dump(results, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
