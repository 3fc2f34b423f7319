"""Run inside a fresh process: engines with so many bytes for their pools, one after the other, each under its loads.

Usage: python pools_child.py SPEC.json RESULT.json, spec: {"arms": [{"engine": {...}, "pool_bytes": n or null, "loads":
[{"prompts": [...], "new_tokens": n, "logprobs_of": [...]}]}]}. pool_bytes: what SGLang is told that it has. The result:
per arm {"loads": per load, per prompt {"tokens", "meta"}, "state": the scheduler's internal state}.
"""

import json
import sys

from engine_child import generate_each

POOL_BYTES = None


def fix_pool_bytes() -> None:
    from sglang.srt.model_executor.model_runner_kv_cache_mixin import ModelRunnerKVCacheMixin

    profiled = ModelRunnerKVCacheMixin._profile_available_bytes

    def _profile_available_bytes(runner, pre_model_load_memory):
        free = profiled(runner, pre_model_load_memory)
        return free if POOL_BYTES is None else POOL_BYTES

    ModelRunnerKVCacheMixin._profile_available_bytes = _profile_available_bytes


def serve(engine, load):
    if "logprobs_of" not in load:
        return [{"tokens": out["output_ids"], "meta": out["meta_info"]} for out in generate_each(engine, load)]
    outputs = engine.generate(
        input_ids=load["prompts"],
        sampling_params={"temperature": 0, "ignore_eos": True, "max_new_tokens": load["new_tokens"]},
        return_logprob=True,
        token_ids_logprob=load["logprobs_of"],
    )
    return [{"tokens": out["output_ids"], "meta": out["meta_info"]} for out in outputs]


def main(spec_path: str, result_path: str) -> None:
    global POOL_BYTES
    with open(spec_path) as file:
        spec = json.load(file)
    from sglang.srt.entrypoints.engine import Engine

    fix_pool_bytes()
    results = []
    for arm in spec["arms"]:
        # Workers are forked and inherit it.
        POOL_BYTES = arm["pool_bytes"]
        engine = Engine(**arm["engine"])
        loads = [serve(engine, load) for load in arm["loads"]]
        (state,) = engine.get_server_info()["internal_states"]
        results.append({"loads": loads, "state": {name: state.get(name) for name in spec.get("state", ())}})
        engine.shutdown()
        with open(result_path, "w") as file:
            json.dump(results, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
