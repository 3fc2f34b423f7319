"""One model with several sets of our kernels, over SGLang's own ModelRunner, and what they may differ in, in bf16.

Every set of kernels decodes the same tokens, so that one near-tie is one difference. Logits are held against
transformers in fp32, where SGLang and transformers read the same keys: within the window.
"""

from array import array
from typing import Any

import torch

from gemma4_repro.toys.language import held_out_prompts
from gemma4_repro.toys.locate import toy_path

NEW_TOKENS = 6
# Three past the window, 32 within it.
LONG, SHORT = 3, 32
PROMPTS = held_out_prompts(LONG, 101, seed=7) + held_out_prompts(SHORT, 20, seed=8)
# Of a row's rms error, the median: ours over SGLang's own; ours against SGLang's, of which two independent errors
# make 1.4. A median, because an expert near-tie that falls the other way throws its row far off, SGLang's too.
ERROR, DIFFERENCE = 1.15, 2.0
# Two logits that are closer than so many of that error are a tie to either.
TIE = 4.0
# A row that is further off than so many of that error is thrown: none without experts, with them one in twenty.
FAR, THROWN = 5.0, {"toy-e4b": 0.0, "toy-26b": 0.05}


def run_sets(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a model once per set of patches; a task for `engine_child`.

    The spec: engine (arguments of ServerArgs), prompts, new_tokens, sets (lists of patch ids, all of which the
    environment asks for), refused (numbers of sets that run as if on a CPU that is no host engine), as_started (leave
    in force what is attached), forced (every set decodes the first one's tokens) or tokens (decode these). Returns per
    set {tokens: per prompt the greedy ones, logits: [step][prompt][vocabulary], paths: op to counts}.
    With CUDA graphs on, the decode graphs are captured anew for each set.
    """
    from sglang.bench_one_batch import load_model
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import PortArgs, ServerArgs, set_global_server_args_for_scheduler

    load_plugins()
    arguments = ServerArgs(**spec["engine"])
    set_global_server_args_for_scheduler(arguments)
    bench, _ = load_model(arguments, PortArgs.init_new(arguments), 0, 0)
    results: list[dict[str, Any]] = []
    for number, ids in enumerate(spec["sets"]):
        if not spec.get("as_started"):
            _have_in_force(bench.torch_runner, ids, refused=number in spec.get("refused", ()))
        forced = results[0]["tokens"] if spec.get("forced") and results else spec.get("tokens")
        results.append(_run(bench, spec["prompts"], spec["new_tokens"], forced))
    return results


def _run(bench, prompts, new_tokens, forced):
    """Decode on from `forced`, [prompt][step], if that is given: the greedy tokens are still what is returned."""
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


def _have_in_force(runner, ids, refused):
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


def exact_logits(toy: str, tokens: list[list[int]]) -> torch.Tensor:
    """[step, prompt, vocabulary]: transformers' fp32 logits of the short prompts, on these tokens."""
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(toy_path(toy), dtype=torch.float32).eval()
    rows = []
    for prompt, answer in zip(PROMPTS[LONG:], tokens[LONG:], strict=True):
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([prompt + answer[:-1]])).logits[0]
        rows.append(logits[len(prompt) - 1 :])
    return torch.stack(rows, dim=1)


def assert_parity(toy: str, runs: dict[tuple[str, ...], dict[str, Any]]) -> None:
    """runs: what `run_sets` gave, by the ids in force; () is SGLang as shipped, whose tokens all decode."""
    plain = torch.tensor(runs[()]["logits"])
    exact = exact_logits(toy, runs[()]["tokens"])
    assert exact.std() > 1
    own = errors(plain[:, LONG:] - exact).median().item()
    assert 0.01 < own < 0.1 * exact.std(), own
    top = plain.topk(2, dim=-1).values
    gaps = top[..., 0] - top[..., 1]
    found = {}
    for chosen, run in runs.items():
        logits = torch.tensor(run["logits"])
        error, off = errors(logits[:, LONG:] - exact) / own, errors(logits - plain) / own
        # Rows past the window are held against SGLang's alone.
        thrown = torch.maximum((error > FAR).double().mean(), (off > FAR).double().mean())
        found["+".join(chosen)] = tuple(round(one.item(), 3) for one in (error.median(), off.median(), thrown))
        same = torch.tensor(run["tokens"]).T == torch.tensor(runs[()]["tokens"]).T
        assert (same | (gaps < TIE * own)).all(), (chosen, gaps[~same])
    print(
        f"{toy}: median rms error of a row of SGLang's bf16 logits {own:.4f}; over it ours, and ours against SGLang's;"
    )
    print(f"share of rows that an expert's near-tie threw: {found}")
    for error, off, thrown in found.values():
        assert error <= ERROR, found
        assert off <= DIFFERENCE, found
        assert thrown <= THROWN[toy], found


def errors(logits: torch.Tensor) -> torch.Tensor:
    """[..., vocabulary] to the rms of each row, fp64, flat."""
    return logits.double().pow(2).mean(-1).sqrt().flatten()
