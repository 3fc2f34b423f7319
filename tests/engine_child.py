"""Run inside a fresh process: start SGLang's engine once per configuration, generate, write what came out as JSON.

`before` ("module:function", from this folder) is called first; the host engine's workers are forked and inherit it.

Usage: python engine_child.py SPEC.json RESULT.json
"""

import json
import pkgutil
import sys


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
        outputs = engine.generate(
            input_ids=spec["prompts"],
            sampling_params={"temperature": 0, "ignore_eos": True, "max_new_tokens": spec["new_tokens"]},
            return_logprob="logprobs_of" in spec,
            token_ids_logprob=spec.get("logprobs_of"),
        )
        results.append([{"tokens": out["output_ids"], "meta": out["meta_info"]} for out in outputs])
        engine.shutdown()
        with open(result_path, "w") as file:
            json.dump(results, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
