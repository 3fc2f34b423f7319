"""A child of engine_process.py: one model, run with several sets of our kernels on, over SGLang's own ModelRunner.

The spec: engine (arguments of ServerArgs), prompts, new_tokens, sets (lists of patch ids, all of which the environment
asks for), refused (numbers of sets that run as if on a CPU that is no host engine), as_started (leave in force what is
attached), forced (every set decodes the first one's tokens) or tokens (decode these). The result: per set {tokens: per
prompt the greedy ones, logits: [step][prompt][vocabulary], paths: op to counts}.
With CUDA graphs on, the decode graphs are captured anew for each set.
"""

import json
import sys
from array import array
from pathlib import Path


def main(spec_path: str, result_path: str) -> None:
    from sglang.bench_one_batch import load_model
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import PortArgs, ServerArgs, set_global_server_args_for_scheduler

    load_plugins()
    spec = json.loads(Path(spec_path).read_text())
    arguments = ServerArgs(**spec["engine"])
    set_global_server_args_for_scheduler(arguments)
    bench, _ = load_model(arguments, PortArgs.init_new(arguments), 0, 0)
    results: list = []
    for number, ids in enumerate(spec["sets"]):
        if not spec.get("as_started"):
            only(bench.torch_runner, ids, refused=number in spec.get("refused", ()))
        forced = results[0]["tokens"] if spec.get("forced") and results else spec.get("tokens")
        results.append(run(bench, spec["prompts"], spec["new_tokens"], forced))
    Path(result_path).write_text(json.dumps(results))


def run(bench, prompts, new_tokens, forced=None):
    """forced: [prompt][step], what is decoded on instead of the greedy tokens, which are still what is returned."""
    import torch
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.sampling.sampling_params import SamplingParams

    from gemma4_runtime.fusion.paths import PATHS

    bench.clear()
    requests = []
    for number, prompt in enumerate(prompts):
        request = Req(
            rid=str(number),
            origin_input_text="",
            origin_input_ids=array("q", prompt),
            sampling_params=SamplingParams(temperature=0, max_new_tokens=new_tokens),
        )
        request.full_untruncated_fill_ids = request.origin_input_ids
        request.fill_len = len(request.full_untruncated_fill_ids)
        request.logprob_start_len = -1
        request.set_extend_input_len(request.fill_len - len(request.prefix_indices))
        requests.append(request)
    tokens, logits, batch = bench.extend(requests)
    all_tokens, all_logits = [tokens.tolist()], [logits.float().tolist()]
    for step in range(new_tokens - 1):
        if forced is not None:
            tokens = torch.tensor([row[step] for row in forced], device=tokens.device, dtype=tokens.dtype)
        tokens, logits = bench.decode(tokens, batch)
        all_tokens.append(tokens.tolist())
        all_logits.append(logits.float().tolist())
    return {"tokens": list(zip(*all_tokens, strict=True)), "logits": all_logits, "paths": PATHS.document()}


def only(runner, ids, refused):
    """Have these patches in force, of those that are attached."""
    from sglang.srt.models.gemma4_causal import Gemma4DecoderLayer

    from gemma4_runtime import current
    from gemma4_runtime.fusion.layer_plan import forget_plan
    from gemma4_runtime.fusion.paths import PATHS
    from gemma4_runtime.settings import HostEngine, read_settings

    PATHS.__init__()
    in_force = current.required()
    in_force.ids = frozenset(ids)
    engine = HostEngine.OFF if refused else read_settings().host_engine
    in_force.settings = in_force.settings.model_copy(update={"host_engine": engine})
    for module in runner.model.modules():
        if isinstance(module, Gemma4DecoderLayer):
            forget_plan(module)
    if runner.graph_runner is not None:
        runner.init_device_graphs()


if __name__ == "__main__":
    main(*sys.argv[1:])
