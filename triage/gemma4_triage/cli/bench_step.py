"""`gemma4-triage bench step`: a decode step of the whole model with our kernels and without, on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemma4_triage.cli import completions
from gemma4_triage.cli.bench_options import (
    Force,
    Out,
    Timeout,
    deliver,
    exit_code,
    need_cuda,
    read_counts,
    read_words,
)
from gemma4_triage.cli.shared_options import AsJson
from gemma4_triage.errors import UsageMistake
from gemma4_triage.output_file import refuse_existing
from gemma4_triage.terminal import say

if TYPE_CHECKING:
    from gemma4_repro.step_bench.plan import StepPlan

KIND = "bench-step"


def step(
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="IDS",
            help="Which models: 26b, e4b, e2b, 31b. Default: 26b,e4b.",
            autocompletion=completions.words(completions.listed("gemma4_repro.step_bench.model_sizes", "SIZES")),
        ),
    ] = None,
    batch: Annotated[
        str | None, typer.Option("--batch", metavar="SIZES", help="Requests in the step. Default: 1,16,64.")
    ] = None,
    layers: Annotated[
        int | None,
        typer.Option("--layers", min=1, help="How many layers of each model, in whole groups. Default: all."),
    ] = None,
    arms: Annotated[
        str | None,
        typer.Option(
            "--arm",
            metavar="IDS",
            help="Comma-separated; none is always measured.",
            autocompletion=completions.words(completions.listed("gemma4_repro.step_bench.plan", "ARMS")),
        ),
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=5, help="Samples per arm and batch.")] = 20,
    context: Annotated[
        int, typer.Option("--context", min=1, max=32768, help="Tokens of each request before the step.")
    ] = 768,
    timeout_s: Timeout = 540.0,
    out: Out = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Time a decode step of SGLang's own model runner at the models' real sizes, all arms on the same weights.

    For example: gemma4-triage bench step --model e4b --batch 1,16 -o step.json

    Arms: none, shipped, all, all-cublas (all but small-m-linear), all-unstreamed (all but streamed-products),
    all-separate (all but layer-tail), all-sglang-experts (all but routed-experts), all-dense-alone (all but
    dense-beside-experts), all-sglang-attention (all but decode-attention), all-apart (all but attention-front),
    all-front-apart (all but token-embeddings and capped-logits), and each op alone: routing, triple-rmsnorm,
    post-attention-norms, rmsnorm-add, gelu-tanh-mul, rmsnorm-residual-scalar, cross-layer-norm, ple-front-end,
    qk-norm-rope, q-only-projection, small-m-linear, streamed-products, layer-tail, routed-experts,
    dense-beside-experts, decode-attention, attention-front, token-embeddings, capped-logits.
    Weights are random; each arm's logits are compared with those of none before it is timed. Needs a CUDA device and no
    network. Exits 1 if an answer is wrong, or a target is missed or could not be measured, 3 without CUDA.
    """
    from gemma4_triage.report.step_bench_view import print_step_bench

    plan = _plan(model, batch, layers, arms, rounds, timeout_s, context)
    refuse_existing(out, force)
    _need_cuda()
    document, interrupted = _measure(plan)
    deliver(KIND, document, print_step_bench, out, as_json)
    raise typer.Exit(exit_code(document, interrupted))


def _plan(
    model: str | None,
    batch: str | None,
    layers: int | None,
    arms: str | None,
    rounds: int,
    timeout_s: float,
    context: int,
) -> StepPlan:
    from gemma4_repro.kernel_bench.plan import choose
    from gemma4_repro.step_bench.model_sizes import SIZES
    from gemma4_repro.step_bench.plan import ARMS, BATCHES, MAX_BATCH, MODELS, NONE, StepPlan

    chosen = choose("arm", read_words("--arm", arms), tuple(ARMS))
    plan = StepPlan(
        choose("model", read_words("--model", model), tuple(SIZES)) if model is not None else MODELS,
        BATCHES if batch is None else read_counts("--batch", batch, MAX_BATCH, "1,16,64"),
        layers,
        chosen if NONE in chosen else (NONE, *chosen),
        rounds,
        timeout_s,
        context,
    )
    for one in plan.models:
        plan.layers_of(one)
        if arms is not None and plan.arms_of(one) == (NONE,) and chosen != (NONE,):
            raise UsageMistake(f"{one} has none of {', '.join(chosen)}", "26b has experts, e2b and e4b have PLE")
    return plan


def _need_cuda() -> None:
    need_cuda("bench step", "run it on a GPU host with SGLang installed")


def _measure(plan: StepPlan) -> tuple[dict[str, Any], bool]:
    from gemma4_repro.step_bench.run_process import run_plan
    from gemma4_triage.report.bench_origin import project_origin
    from gemma4_triage.report.step_bench_document import step_bench_document

    # Now, and not when it has ended: by then the checkout may be at another commit.
    project = project_origin()
    measured = run_plan(plan, say)
    if measured.interrupted and not measured.samples:
        raise KeyboardInterrupt
    return step_bench_document(plan, measured, project), measured.interrupted
