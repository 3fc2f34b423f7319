"""Run inside a process of its own: start SGLang's engine once per arm, serve its loads, write what came out as JSON.

Usage: python engine_child.py SPEC.json RESULT.json

The spec has "before", names "module:function" of this folder that are called first, because the engines' workers are
forked and inherit what they change, and "arms", which run one after the other, each an object of

    engine         the engine's keyword arguments
    loads          what it serves, one after the other
    environment    variables that are set for this arm alone
    records        true if what a load left in the file of `engine_records` is wanted
    state          names of what the scheduler says of itself, asked for at the end
    idle           true if the engine is looked at once it is idle

and a load is what `generate` takes, or has "serve", the name of a function of the engine and the load, and may have
"idle_s", how long nothing is asked for after it. The result is a list, which is written after each load: per arm
{loads: what each load gave, loads_s, records: per load, state, idle}.

A spec with "task" in place of arms starts no engine: the named function of the spec returns the result.
"""

import asyncio
import json
import os
import pkgutil
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import engine_records


def main(spec_path: str, result_path: str) -> None:
    """Do what the spec says."""
    spec = json.loads(Path(spec_path).read_text())
    result = Path(result_path)
    if "task" in spec:
        result.write_text(json.dumps(pkgutil.resolve_name(spec["task"])(spec)))
        return
    import sglang.srt.entrypoints.engine  # noqa: F401

    for name in spec.get("before", ()):
        pkgutil.resolve_name(name)()
    found: list[dict[str, Any]] = []
    for arm in spec["arms"]:
        with patch.dict(os.environ, arm.get("environment", {})):
            run_arm(arm, found, result)


def run_arm(arm: dict[str, Any], found: list[dict[str, Any]], result: Path) -> None:
    """Start an arm's engine, have it serve, and add what came out to `found`."""
    from sglang.srt.entrypoints.engine import Engine

    engine = Engine(**arm["engine"])
    ours: dict[str, Any] = {"loads": [], "loads_s": [], "records": []}
    found.append(ours)
    for load in arm["loads"]:
        if arm.get("records"):
            engine_records.forget()
        serve_load = pkgutil.resolve_name(load["serve"]) if "serve" in load else serve
        began = time.monotonic()
        ours["loads"].append(serve_load(engine, load))
        ours["loads_s"].append(time.monotonic() - began)
        if arm.get("records"):
            ours["records"].append(engine_records.read(engine_records.record_file()))
        result.write_text(json.dumps(found))
        time.sleep(load.get("idle_s", 0))
    if "state" in arm:
        (state,) = engine.get_server_info()["internal_states"]
        ours["state"] = {name: state[name] for name in arm["state"] if name in state}
    if arm.get("idle"):
        from gemma4_repro.engine.arm_process import check_idle

        ours["idle"] = check_idle(engine).model_dump()
    result.write_text(json.dumps(found))
    engine.shutdown()


def serve(engine: Any, load: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the tokens of each answer and what SGLang says of it."""
    return [{"tokens": answer["output_ids"], "meta": answer["meta_info"]} for answer in generate(engine, **load)]


def generate(
    engine: Any, prompts: list[list[int]], new_tokens: int, each_alone: bool = False, **more: Any
) -> list[dict[str, Any]]:
    """Have all prompts answered greedily, at once.

    Args:
        engine: SGLang's.
        prompts: their tokens.
        new_tokens: how many each answer has.
        each_alone: whether each is a request of its own. One that fails then has no tokens, and the error in its
            meta_info; else all fail if one does.
        more: what else SGLang's `generate` takes.
    """
    sampling = {"temperature": 0, "ignore_eos": True, "max_new_tokens": new_tokens}
    if not each_alone:
        ids = [str(number) for number in range(len(prompts))]
        return engine.generate(input_ids=prompts, sampling_params=sampling, rid=ids, **more)

    async def gather() -> list[Any]:
        requests = [engine.async_generate(input_ids=prompt, sampling_params=sampling, **more) for prompt in prompts]
        return await asyncio.gather(*requests, return_exceptions=True)

    answers = engine.loop.run_until_complete(gather())
    return [{"output_ids": [], "meta_info": {"error": str(a)}} if isinstance(a, Exception) else a for a in answers]


def serve_profiled(engine: Any, load: dict[str, Any]) -> list[dict[str, Any]]:
    """Serve a load while torch's profiler watches the scheduler and writes into the folder `traces`."""
    asked = {name: value for name, value in load.items() if name not in ("serve", "traces")}
    engine.start_profile(output_dir=load["traces"], activities=["CPU", "GPU"])
    answers = serve(engine, asked)
    engine.stop_profile()
    return answers


if __name__ == "__main__":
    main(*sys.argv[1:])
