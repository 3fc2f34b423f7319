"""`gemma4-triage pools`: how SGLang sizes the two KV pools of a Gemma-4, and the ratio that fits a load."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gemma4_dumps.errors import ExitCode
from gemma4_triage.cli import completions
from gemma4_triage.cli.shared_options import AsJson
from gemma4_triage.errors import UsageMistake
from gemma4_triage.output_file import refuse_existing, refuse_other_than_svg, write_text
from gemma4_triage.terminal import emit_json, print_plain, stdout_console

if TYPE_CHECKING:
    from gemma4_triage.pools.memory import Memory
    from gemma4_triage.pools.plan import Plan

KIND = "pools"
_NEEDS_KV = "or give --kv-mem, what is left for pools"


def register(app: typer.Typer) -> None:
    """Add the `pools` verb to the application."""
    app.command("pools")(pools)


def pools(
    config: Annotated[
        Path, typer.Option("--config", metavar="PATH", help="The model's config.json, or the folder that it is in.")
    ],
    gpu_mem: Annotated[
        str | None,
        typer.Option("--gpu-mem", metavar="SIZE", help="Free on one GPU before the start. GiB is 2^30 bytes, GB 10^9."),
    ] = None,
    mem_fraction: Annotated[
        float | None,
        typer.Option(
            "--mem-fraction",
            metavar="F",
            help="--mem-fraction-static: share of --gpu-mem for weights and pools together. Default: 0.85, a guess.",
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option("--weights", metavar="SIZE", help="On one GPU. Default: the safetensors beside the config."),
    ] = None,
    kv_mem: Annotated[
        str | None,
        typer.Option("--kv-mem", metavar="SIZE", help="Instead of the three above: what both pools get on one GPU."),
    ] = None,
    workload: Annotated[
        list[str] | None,
        typer.Option(
            "--workload", metavar="NxP+O", help="N requests at once of P prompt and O output tokens. Repeat for a mix."
        ),
    ] = None,
    ratio: Annotated[
        float | None, typer.Option("--ratio", metavar="R", help="Judge this --swa-full-tokens-ratio, above 0 to 1.")
    ] = None,
    page_size: Annotated[
        int, typer.Option("--page-size", min=1, max=4096, help="As of the server; trtllm_mha takes 16, 32 or 64.")
    ] = 1,
    tp: Annotated[int, typer.Option("--tp", min=1, max=1024, help="GPUs that share the attention heads.")] = 1,
    kv_dtype: Annotated[
        str,
        typer.Option(
            "--kv-dtype",
            help="auto (16 bits), bf16, bfloat16, fp8_e4m3, fp8_e5m2 or float32.",
            autocompletion=completions.words(completions.listed("gemma4_triage.pools.arithmetic", "KV_DTYPE_BYTES")),
        ),
    ] = "auto",
    chunk: Annotated[int, typer.Option("--chunk", min=1, max=1 << 20, help="--chunked-prefill-size.")] = 8192,
    chunks_in_flight: Annotated[
        int,
        typer.Option("--chunks-in-flight", min=1, max=2, help="2 with overlap scheduling; 1 without, as MTP V1 is."),
    ] = 2,
    draft_tokens: Annotated[
        int, typer.Option("--draft-tokens", min=0, max=1024, help="--speculative-num-draft-tokens.")
    ] = 0,
    evict_multiplier: Annotated[
        float,
        typer.Option("--evict-multiplier", min=0, max=1000, help="SGLANG_SWA_EVICTION_INTERVAL_MULTIPLIER."),
    ] = 1.0,
    disable_radix_cache: Annotated[
        bool, typer.Option("--disable-radix-cache", help="As of the server: no prompt keeps its last nodes in a cache.")
    ] = False,
    split_leaf: Annotated[
        bool,
        typer.Option(
            "--split-leaf", help="SGLANG_OPT_SWA_SPLIT_LEAF_ON_INSERT=1: a prompt keeps a window, not its last chunk."
        ),
    ] = False,
    release_leaf_lock: Annotated[
        bool,
        typer.Option(
            "--release-leaf-lock",
            help="SGLANG_OPT_SWA_RELEASE_LEAF_LOCK_AFTER_WINDOW=1: named in a note, and left out of the sums.",
        ),
    ] = False,
    drop_page_margin: Annotated[
        bool,
        typer.Option(
            "--drop-page-margin",
            help="SGLANG_OPT_SWA_EVICT_DROP_PAGE_MARGIN=1: named in a note, and left out of the sums.",
        ),
    ] = False,
    context_length: Annotated[
        int | None,
        typer.Option("--context-length", min=1, metavar="N", help="As of the server: asks what swa-ratio-policy does."),
    ] = None,
    max_running_requests: Annotated[
        int | None, typer.Option("--max-running-requests", min=1, metavar="N", help="As of the server, for the same.")
    ] = None,
    owner_only: Annotated[
        bool,
        typer.Option("--owner-only", help="As with owner-only-kv: layers that share KV have no pool of their own."),
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="X.svg", help="Draw the curve over the ratio.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite --output.")] = False,
    apply: Annotated[bool, typer.Option("--apply", help="Print the server's flag, and nothing else.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the two KV pools that SGLang will make, how much of a load they hold, and the ratio that holds most.

    For example: gemma4-triage pools --config MODEL --kv-mem 40GiB --workload 64x8000+1000

    All sizes are of one GPU. Exits 0 if the whole load fits at once (at --ratio, else at the recommended ratio), 1 if
    it does not, 2 for a config, size or load that cannot be.
    """
    from gemma4_runtime.pools.serving import Serving
    from gemma4_triage.pools.arithmetic import KV_DTYPE_BYTES, token_bytes
    from gemma4_triage.pools.as_written import parse_workload
    from gemma4_triage.pools.at_start import AtStart, owners_only, policy_choice
    from gemma4_triage.pools.model_shape import read_shape
    from gemma4_triage.pools.plan import make_plan
    from gemma4_triage.report.pools_document import pools_document
    from gemma4_triage.report.pools_view import print_plan, server_flag

    _check_together(workload, out, apply, as_json)
    refuse_existing(out, force)
    refuse_other_than_svg(out)
    if kv_dtype not in KV_DTYPE_BYTES:
        raise UsageMistake(f"--kv-dtype {kv_dtype!r} is not known", f"one of {', '.join(KV_DTYPE_BYTES)}")
    if ratio is not None and not 0 < ratio <= 1:
        raise UsageMistake(f"--ratio is {ratio}", "SGLang takes a ratio above 0, at most 1")
    loads = [parse_workload(text) for text in workload or []]
    shape = read_shape(config)
    memory = _memory(config, gpu_mem, mem_fraction, weights, kv_mem, tp)
    serving = Serving(
        *(shape.window, page_size, chunk, chunks_in_flight, draft_tokens, evict_multiplier),
        prefix_cache=not disable_radix_cache,
        split_leaf=split_leaf,
        release_leaf_lock=release_leaf_lock,
        drop_page_margin=drop_page_margin,
    )
    owners = token_bytes(shape, KV_DTYPE_BYTES[kv_dtype], tp, owners_only=True)
    cell = owners if owner_only else token_bytes(shape, KV_DTYPE_BYTES[kv_dtype], tp)
    plan = make_plan(shape, cell, memory.pools_bytes, serving, loads, ratio)
    asked = (memory.pools_bytes, serving, ratio, context_length, max_running_requests)
    start = AtStart(
        policy_choice(shape, cell, *asked),
        owners_only(shape, owners, memory.pools_bytes, plan.sizes.ratio, page_size),
        policy_choice(shape, owners, *asked) if shape.shared_layers else None,
    )
    if out is not None:
        _draw(plan, out)
    if apply:
        print_plain(server_flag(plan))
    elif as_json:
        emit_json(KIND, pools_document(plan, memory, owner_only, start))
    else:
        print_plan(stdout_console(), plan, memory, owner_only, start)
    raise typer.Exit(ExitCode.OK if plan.enough else ExitCode.VIOLATION)


def _check_together(workload: list[str] | None, out: Path | None, apply: bool, as_json: bool) -> None:
    if apply and as_json:
        raise UsageMistake("--apply and --json both want stdout", "the document has server_flag too")
    if not workload and (apply or out):
        what = "--apply" if apply else "--output"
        raise UsageMistake(f"{what} needs a load", "add --workload, for example 80x8000+1000")


def _memory(
    config: Path, gpu_mem: str | None, mem_fraction: float | None, weights: str | None, kv_mem: str | None, tp: int
) -> Memory:
    from gemma4_triage.pools.as_written import gib_text, parse_size
    from gemma4_triage.pools.memory import ASSUMED_FRACTION, Memory, pools_memory, weights_beside

    if kv_mem is not None:
        if gpu_mem is not None or weights is not None or mem_fraction is not None:
            raise UsageMistake("--kv-mem stands for --gpu-mem, --mem-fraction and --weights", "give it, or those")
        size = parse_size(kv_mem, "--kv-mem")
        return Memory(size, gib_text(size))
    if gpu_mem is None:
        raise UsageMistake("how much memory there is, is not said", f"give --gpu-mem and --weights, {_NEEDS_KV}")
    fraction = ASSUMED_FRACTION if mem_fraction is None else mem_fraction
    if not 0 < fraction <= 1:
        raise UsageMistake(
            f"--mem-fraction is {fraction}", "above 0, at most 1; the server's log has it in server_args"
        )
    weights_bytes = weights_beside(config, tp) if weights is None else parse_size(weights, "--weights")
    if weights_bytes is None:
        hint = f"give --weights: mem usage in the server's line 'Load weight end', {_NEEDS_KV}"
        raise UsageMistake("there are no safetensors beside the config", hint)
    return pools_memory(parse_size(gpu_mem, "--gpu-mem"), fraction, weights_bytes)


def _draw(plan: Plan, out: Path) -> None:
    from gemma4_triage.report.pools_plot import draw

    write_text(out, draw(plan))
