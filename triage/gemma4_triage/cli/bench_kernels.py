"""`gemma4-triage bench kernels`: our kernels against what they stand for, on a GPU."""

from __future__ import annotations

import os
from pathlib import Path
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
    from gemma4_repro.kernel_bench.plan import KernelPlan

KIND = "bench-kernels"


def kernels(
    ops: Annotated[
        str | None,
        typer.Option(
            "--ops",
            metavar="IDS",
            help="Comma-separated. Default: all.",
            autocompletion=completions.words(completions.listed("gemma4_repro.kernel_bench.plan", "OPS")),
        ),
    ] = None,
    models: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="IDS",
            help="Which models: 26b, e2b, e4b, 31b. Default: all.",
            autocompletion=completions.words(completions.listed("gemma4_repro.kernel_bench.plan", "MODELS")),
        ),
    ] = None,
    tokens: Annotated[
        str | None, typer.Option("--tokens", metavar="COUNTS", help="Default: 1,8,64,512,4096,32768.")
    ] = None,
    arms: Annotated[
        str | None,
        typer.Option(
            "--arm",
            metavar="IDS",
            help="Comma-separated; ours is always measured.",
            autocompletion=completions.words(completions.listed("gemma4_repro.kernel_bench.plan", "ARMS")),
        ),
    ] = None,
    vllm_router: Annotated[
        Path | None,
        typer.Option(
            "--vllm-router", metavar="FILE", help="vLLM's models/gemma4.py: its router kernel as one more arm."
        ),
    ] = None,
    compile_cache: Annotated[
        Path | None,
        typer.Option("--compile-cache", metavar="DIR", help="Keep compiled code there, for the next run to load."),
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=5, help="Samples per arm and cell, as far as time goes.")] = 50,
    timeout_s: Timeout = 540.0,
    out: Out = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Time our fused kernels at the models' real sizes, each as a CUDA graph of all layers, all arms interleaved.

    For example: gemma4-triage bench kernels --model 26b -o kernels_26b.json

    Arms: ours, ours-eager, sglang, compile, eager, flashinfer, sgl-kernel, vllm, copy, empty. Ops: routing,
    rmsnorm_add, gelu_tanh_mul, rmsnorm_residual_scalar, post_attention_norms, ple_front_end, triple_rmsnorm,
    cross_layer_norm, qk_norm_rope. Needs a CUDA device and no network. Exits 1 if an answer is wrong, or a target is
    missed or could not be measured, 3 without CUDA.
    """
    from gemma4_triage.report.kernel_bench_view import print_kernel_bench

    plan = _plan(ops, models, tokens, arms, rounds, timeout_s, vllm_router)
    refuse_existing(out, force)
    _refuse_no_folder(compile_cache)
    _need_cuda()
    document, interrupted = _measure(plan, compile_cache)
    deliver(KIND, document, print_kernel_bench, out, as_json)
    raise typer.Exit(exit_code(document, interrupted))


def _plan(
    ops: str | None,
    models: str | None,
    tokens: str | None,
    arms: str | None,
    rounds: int,
    timeout_s: float,
    vllm_router: Path | None,
) -> KernelPlan:
    from gemma4_repro.kernel_bench.plan import MAX_TOKENS, MODELS, OPS, TOKENS, KernelPlan, choose

    chosen = _arms(arms, vllm_router)
    plan = KernelPlan(
        choose("op", read_words("--ops", ops), OPS),
        choose("model", read_words("--model", models), tuple(model.id for model in MODELS)),
        TOKENS if tokens is None else read_counts("--tokens", tokens, MAX_TOKENS, "1,64,4096"),
        ("ours", *(arm for arm in chosen if arm != "ours")),
        rounds,
        timeout_s,
        str(vllm_router.absolute()) if vllm_router is not None and "vllm" in chosen else "",
    )
    if not plan.cells():
        raise UsageMistake(
            f"none of {', '.join(plan.models)} has {', '.join(plan.ops)}",
            "26b has experts, e2b and e4b have per-layer embeddings",
        )
    return plan


def _arms(arms: str | None, vllm_router: Path | None) -> tuple[str, ...]:
    from gemma4_repro.kernel_bench.plan import ARMS, choose

    words = read_words("--arm", arms)
    chosen = choose("arm", words, tuple(ARMS))
    if vllm_router is None:
        if "vllm" in words:
            raise UsageMistake("the arm vllm needs a file of vLLM's", "name its models/gemma4.py with --vllm-router")
        return tuple(arm for arm in chosen if arm != "vllm")
    if not os.path.isfile(vllm_router):
        raise UsageMistake(f"{vllm_router} is no file", "--vllm-router names vLLM's models/gemma4.py")
    return chosen


def _refuse_no_folder(folder: Path | None) -> None:
    if folder is not None and os.path.exists(folder) and not os.path.isdir(folder):
        raise UsageMistake(f"{folder} is no folder", "--compile-cache names one, which may be new")


def _need_cuda() -> None:
    need_cuda("bench kernels", "run it on a GPU host with SGLang installed")


def _measure(plan: KernelPlan, compile_cache: Path | None) -> tuple[dict[str, Any], bool]:
    from gemma4_repro.kernel_bench.run_process import run_plan
    from gemma4_triage.report.bench_origin import project_origin
    from gemma4_triage.report.kernel_bench_document import file_identity, kernel_bench_document

    # Now, and not when it has ended: by then the checkout may be at another commit.
    project, router = project_origin(), file_identity(Path(plan.vllm_router)) if plan.vllm_router else None
    measured = run_plan(plan, say, compile_cache=compile_cache)
    if measured.interrupted and not measured.samples:
        raise KeyboardInterrupt
    return kernel_bench_document(plan, measured, project, router), measured.interrupted
