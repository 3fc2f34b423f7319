"""Run inside a fresh process: SGLang serves one request while torch's profiler watches the scheduler.

Usage: python sync_count_child.py SPEC.json RESULT.json
The spec: engine, prompt, new_tokens, traces (a folder). The result: {verify_rounds, tokens}.
"""

import json
import sys


def main(spec_path: str, result_path: str) -> None:
    with open(spec_path) as file:
        spec = json.load(file)
    from sglang.srt.entrypoints.engine import Engine

    engine = Engine(**spec["engine"])
    sampling = {"temperature": 0, "ignore_eos": True, "max_new_tokens": spec["new_tokens"]}
    engine.generate(input_ids=spec["prompt"], sampling_params=sampling)
    engine.start_profile(output_dir=spec["traces"], activities=["CPU", "GPU"])
    answer = engine.generate(input_ids=spec["prompt"], sampling_params=sampling)
    engine.stop_profile()
    with open(result_path, "w") as file:
        json.dump({"verify_rounds": answer["meta_info"]["spec_verify_ct"], "tokens": answer["output_ids"]}, file)
    engine.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
